"""Scheduler's rows bound to machines by the name they bore at that time, and one row a job of all sources."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lake_files import LakeFiles

from graynode.pipeline.queries import Queries

T = datetime(2026, 11, 2, 12, tzinfo=UTC)


def at(hours: float) -> datetime:
    return T + timedelta(hours=hours)


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.lake = LakeFiles(folder)
        self.queries = Queries(self.lake)

    def name(self, hours: float, node_id: str, name: str, system: str = "slurm") -> None:
        told = {"kind": "node_name", "entity": system, "attributes": json.dumps({"name": name})}
        self.put("inventory", hours, node_id, "x", **told)

    def put(self, table: str, hours: float, node_id: str, node: str | None, **more: Any) -> None:
        self.lake.put(table, [{"ts": at(hours), "cluster": "c", "node_id": node_id, "node": node, **more}])

    def job(self, hours: float, node_id: str, state: str | None, **more: Any) -> None:
        node = node_id.partition("/")[2] or (None if node_id.startswith("slurm:") else "x")
        self.put("job", hours, node_id, node, job_id="7", state=state, **more)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.queries.rows(sql)]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_a_node_of_the_schedulers_is_the_machine_that_bore_its_name(fleet: Fleet) -> None:
    """A NodeName that moved to another machine; one that nobody claims; another system's same name; our own rows."""
    fleet.name(0, "m1", "n1")
    fleet.name(5, "m2", "n1")
    fleet.name(0, "m3", "n1", "kubernetes")
    for hours, node_id in ((1, "slurm:c1/n1"), (6, "slurm:c1/n1"), (6, "slurm:c1/n9"), (6, "kubernetes:n1")):
        node = node_id.replace(":", "/").split("/")[-1]
        fleet.put("node_state", hours, node_id, node, scheduler_state="IDLE")
    fleet.put("node_state", 7, "m1", "n1", state="healthy")
    assert fleet.rows("SELECT node_id, bound FROM scheduler_states ORDER BY ts, node_id") == [
        ("m1", True), ("m2", True), ("m3", True), ("slurm:c1/n9", False), ("m1", True),
    ]  # fmt: skip


def test_one_row_a_job(fleet: Fleet) -> None:
    """The cluster's row of the queue, a row a machine, and the agents' own rows of the same job come to one; the end
    is the scheduler's, for an agent only sees the job go."""
    fleet.name(0, "m1", "n1")
    fleet.job(1, "slurm:c1", "queued", queued_ts=at(1), user="ada", requeues=0)
    for n in (1, 2):
        fleet.job(2, f"slurm:c1/n{n}", "running", queued_ts=at(1), allocated_ts=at(2), gpus=16, nodes=2, requeues=0)
    fleet.job(2.1, "m1", "running", first_step_ts=at(2.5), gpu_uuids="[]")
    for n in (1, 2):
        fleet.job(4, f"slurm:c1/n{n}", "failed", end_ts=at(4), exit_code=0, exit_signal=9, nodes=2, requeues=0)
    fleet.job(4.1, "m1", None, end_ts=at(4.1))
    (row,) = fleet.queries.rows("FROM jobs")
    assert (row["state"], row["exit_signal"], row["user"], row["gpus"], row["nodes"]) == ("failed", 9, "ada", 16, 2)
    assert (row["queued_ts"], row["allocated_ts"], row["first_step_ts"]) == (at(1), at(2), at(2.5))
    assert row["end_ts"] is not None
    assert row["machines"] == ["m1"]
    assert sorted(row["node_names"]) == ["n1", "n2", "x"]


def test_a_requeued_job_is_queued_again_and_may_run_again(fleet: Fleet) -> None:
    """The placement ended, the job did not."""
    fleet.job(2, "slurm:c1/n1", "running", allocated_ts=at(2), requeues=0)
    fleet.job(3, "slurm:c1/n1", "requeued", end_ts=at(3), requeues=1)
    fleet.job(3.1, "slurm:c1", "queued", requeues=1)
    assert fleet.rows("SELECT state, end_ts, requeues FROM jobs") == [("queued", None, 1)]
    fleet.job(4, "slurm:c1/n2", "running", allocated_ts=at(4), requeues=1)
    assert fleet.rows("SELECT state, end_ts FROM jobs") == [("running", None)]
    fleet.job(5, "slurm:c1/n2", "completed", end_ts=at(5), exit_code=0, requeues=1)
    assert fleet.rows("SELECT state, exit_code FROM jobs") == [("completed", 0)]


def test_what_is_told_twice_is_there_once(fleet: Fleet) -> None:
    """An agent that was killed tells the last changes again, under Slurm's own times."""
    for _ in range(2):
        fleet.job(2, "slurm:c1/n1", "running", requeues=0)
        fleet.put("node_state", 2, "slurm:c1/n1", "n1", scheduler_state="IDLE")
    assert fleet.rows("SELECT count(*) FROM job") == [(1,)]
    assert fleet.rows("SELECT count(*) FROM node_state") == [(1,)]
