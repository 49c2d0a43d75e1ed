"""Which changes of jobs and nodes are told, to whom they belong, and that none is told twice."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import node_files

from graynode.collectors.slurm.changes import FORGET_AFTER, Jobs, Nodes
from graynode.collectors.slurm.jobs import Job
from graynode.collectors.slurm.nodes import Node, Partition, Reservation

NOW = datetime(2026, 11, 30, 14, 0, tzinfo=UTC)
QUEUED, STARTED, ENDED = (NOW - timedelta(minutes=m) for m in (30, 20, 10))
JOB = Job("7", "queued", user="ada", partition="gpu", nodes=2, requeues=0, queued=QUEUED)
RUNNING = replace(JOB, state="running", hosts="n[1-2]", started=STARTED)
DONE = replace(RUNNING, state="failed", ended=ENDED, exit_code=3)
NODE = Node("n1", "n1", "IDLE", None, None, None)


def told(jobs: Jobs, *queue: Job) -> list[tuple[Any, ...]]:
    rows = list(jobs.seen(queue, NOW))
    node_files.checked({"job": rows}, ("job",))
    return [(row["node_id"], row["state"], row["requeues"]) for row in rows]


def test_a_jobs_life() -> None:
    """Queued for the cluster, then one row a machine, each change once; times are Slurm's own."""
    jobs = Jobs("c1", {"gpu": "training"})
    assert told(jobs, JOB) == [("slurm:c1", "queued", 0)]
    assert told(jobs, replace(JOB, reason="Priority")) == []
    assert told(jobs, RUNNING) == [("slurm:c1/n1", "running", 0), ("slurm:c1/n2", "running", 0)]
    assert told(jobs, RUNNING) == []
    (row, _) = jobs.learn(DONE, NOW)
    assert (row["ts"], row["end_ts"]) == (ENDED + timedelta(microseconds=3), ENDED)
    assert (row["node"], row["work"], row["exit_code"]) == ("n1", "training", 3)
    assert told(jobs, DONE) == []


def test_states_inside_one_second_keep_their_order() -> None:
    """A job that started and failed in the same second ends as failed in whatever is ordered by time."""
    jobs = Jobs("c1", {})
    quick = replace(RUNNING, hosts="n1", started=QUEUED)
    rows = [*jobs.learn(quick, NOW), *jobs.learn(replace(quick, state="failed", ended=QUEUED), NOW)]
    assert [row["state"] for row in sorted(rows, key=lambda row: row["ts"])] == ["running", "failed"]


def test_a_requeue_ends_the_placement() -> None:
    """The machines it ran on are told so; then it is queued again, and may run elsewhere."""
    jobs = Jobs("c1", {})
    told(jobs, RUNNING)
    again = replace(JOB, requeues=1)
    assert told(jobs, again) == [
        ("slurm:c1/n1", "requeued", 1), ("slurm:c1/n2", "requeued", 1), ("slurm:c1", "queued", 1),
    ]  # fmt: skip
    assert told(jobs, replace(RUNNING, hosts="n3", requeues=1)) == [("slurm:c1/n3", "running", 1)]
    moved = replace(RUNNING, hosts="n4", requeues=2)
    assert told(jobs, moved) == [("slurm:c1/n3", "requeued", 2), ("slurm:c1/n4", "running", 2)]


def test_a_job_cancelled_in_the_queue_belongs_to_the_cluster() -> None:
    """It never had a machine."""
    jobs = Jobs("c1", {})
    told(jobs, JOB)
    assert told(jobs, replace(JOB, state="cancelled", ended=ENDED)) == [("slurm:c1", "cancelled", 0)]


def test_a_job_that_leaves_the_queue_unseen() -> None:
    """Its end is asked for; if nobody knows, it ends with a null state and says so. One cut answer ends nothing."""
    jobs = Jobs("c1", {})
    told(jobs, RUNNING)
    assert told(jobs) == []
    assert jobs.missing() == ["7"]
    assert told(jobs, RUNNING) == []
    assert jobs.missing() == []
    for _ in range(FORGET_AFTER - 1):
        assert told(jobs) == []
    assert told(jobs) == [("slurm:c1/n1", None, None), ("slurm:c1/n2", None, None)]
    assert jobs.known == {}


def test_the_accounting_knows_how_it_ended() -> None:
    """Told once, and not while the queue still shows the job."""
    jobs = Jobs("c1", {})
    told(jobs, RUNNING)
    told(jobs)
    assert [row["state"] for row in jobs.ended([DONE], NOW)] == ["failed", "failed"]
    assert list(jobs.ended([DONE], NOW)) == []
    assert jobs.missing() == []
    for _ in range(FORGET_AFTER):
        assert told(jobs) == []


def test_a_job_that_nobody_saw_is_told_from_the_completion_log() -> None:
    """The agent was away: the log's line is all there is."""
    jobs = Jobs("c1", {})
    assert [row["state"] for row in jobs.ended([DONE], NOW)] == ["failed", "failed"]
    assert told(jobs, DONE) == []


def test_an_end_that_came_before_the_queue_forgot_the_job() -> None:
    """The completion log is a cycle ahead of the queue, and slurmctld forgets jobs at once: its line is not lost."""
    jobs = Jobs("c1", {})
    told(jobs, RUNNING)
    assert list(jobs.ended([DONE], NOW)) == []
    assert told(jobs) == []
    assert [row["state"] for row in jobs.ended([], NOW)] == ["failed", "failed"]
    assert list(jobs.ended([], NOW)) == []


def test_memory_over_a_restart() -> None:
    """What was told is not told again; a file of another shape counts as none."""
    jobs = Jobs("c1", {})
    told(jobs, RUNNING, replace(JOB, job_id="8"))
    other = Jobs("c1", {})
    other.restore(json.loads(json.dumps(jobs.kept())))
    assert told(other, RUNNING, replace(JOB, job_id="8")) == []
    for broken in (None, 3, {"7": 1}, {"7": ["x"]}, {"7": [None, "x", 3]}, []):
        other = Jobs("c1", {})
        other.restore(broken)
        assert len(told(other, RUNNING)) == 2


def test_nodes() -> None:
    """A row at each change of state, reason or who; what the backfill scheduler plans is no change."""
    nodes = Nodes("site", "c1")

    def say(*some: Node) -> list[Any]:
        rows = list(nodes.nodes(some, NOW))
        node_files.checked({"node_state": rows}, ("node_state",))
        return [(r["node"], r.get("scheduler_state"), r.get("reason"), r.get("who")) for r in rows]

    assert say(NODE) == [("n1", "IDLE", None, None)]
    assert say(replace(NODE, state="IDLE+PLANNED")) == []
    drained = replace(NODE, state="IDLE+DRAIN", reason="bad fan", who="ada", since=ENDED)
    (row,) = nodes.nodes([drained], NOW)
    assert (row["ts"], row["node_id"]) == (ENDED, "slurm:c1/n1")
    assert say(drained) == []
    assert say() == [("n1", None, "no longer in Slurm's configuration", None)]


def test_partitions_and_reservations() -> None:
    """Events of the cluster; a reservation keeps its id, so that reading again tells nothing twice."""
    nodes = Nodes("site", "c1")
    assert [e["message"] for e in nodes.partitions([Partition("gpu", "UP", "n1")], NOW)] == ["partition gpu is UP"]
    (event,) = nodes.partitions([Partition("gpu", "DRAIN", "n1")], NOW)
    assert event["message"] == "partition gpu is DRAIN (was UP)"
    maint = Reservation("m", NOW, NOW + timedelta(hours=2), "n[1-4]", "MAINT,IGNORE_JOBS", "INACTIVE")
    (event,) = nodes.reservations([maint], NOW)
    node_files.checked({"event": [event]}, ("event",))
    assert event["message"].startswith("maintenance m: n[1-4] from 2026-11-30T14:00")
    (same,) = Nodes("site", "c1").reservations([maint], NOW + timedelta(minutes=1))
    assert same["event_id"] == event["event_id"]
    assert list(nodes.reservations([replace(maint, state="ACTIVE")], NOW)) == []
    (event,) = nodes.reservations([], NOW)
    assert event["kind"] == "reservation_end"
