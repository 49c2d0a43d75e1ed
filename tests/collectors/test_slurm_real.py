"""Against a real Slurm: jobs, placements, drains, failures, and slurmctld that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import node_files
import pytest
import slurm_rig
from lake_files import LakeFiles
from slurm_rig import Slurm

from graynode.collectors.base import Round, Row, utc_now
from graynode.collectors.context import GpuKey, JobContext
from graynode.collectors.slurm.cluster import Settings, SlurmCluster
from graynode.collectors.slurm.collector import Slurm as OnNode
from graynode.pipeline.queries import Queries


class Watch:
    """The collector over the real cluster; ``until`` collects until a row of a table is as wanted."""

    def __init__(self, slurm: Slurm, folder: Path, deadline_s: float = 10.0) -> None:
        self.settings = Settings(every_s=0.2, deadline_s=deadline_s, conf=slurm.conf)
        self.machine = node_files.node(folder)
        self.rows: dict[str, list[Row]] = {}
        self.slowest_s = 0.0
        self.open()

    def open(self) -> None:
        self.collector = SlurmCluster(self.machine, self.settings)

    def until(self, table: str, wanted: Callable[[Row], Any], timeout_s: float = 30.0) -> Row:
        end = time.monotonic() + timeout_s
        while True:
            for row in self.rows.get(table, []):
                if wanted(row):
                    return row
            assert time.monotonic() < end, (table, self.rows)
            began = time.monotonic()
            found = node_files.checked(self.collector.collect(Round(utc_now(), frozenset({1}))), SlurmCluster.tables)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            for name, some in found.items():
                self.rows.setdefault(name, []).extend(some)
            time.sleep(0.03)

    def job(self, job_id: str, state: str | None) -> Row:
        return self.until("job", lambda row: (row["job_id"], row["state"]) == (job_id, state))

    def node(self, name: str, word: str) -> Row:
        return self.until("node_state", lambda row: row["node"] == name and word in (row["scheduler_state"] or ""))


@pytest.fixture
def watch(slurm: Slurm, tmp_path: Path) -> Iterator[Watch]:
    made = Watch(slurm, tmp_path)
    made.until("node_state", lambda row: True)
    yield made
    made.collector.close()


def test_a_jobs_processes_lead_to_the_job(slurm: Slurm, tmp_path: Path) -> None:
    """What the job started itself says in its environment which job, rank and user it is; this machine's own /proc."""
    out = tmp_path / "pid"
    job_id = slurm.sbatch(f"srun -n1 sh -c 'echo $$ > {out}.new; mv {out}.new {out}; exec sleep 60'", "--gres=gpu:1")
    slurm_rig.wait_for(out.exists, "the job's process")
    context = JobContext()
    collector = OnNode(node_files.node(tmp_path, proc=Path("/proc")), context, etc=slurm.root / "etc/..")
    gpu = GpuKey("GPU-a")
    context.set_pids({gpu: [int(out.read_text())]})
    rows = node_files.checked(collector.collect(node_files.round_at(0)), OnNode.tables)
    placed = context.of(gpu)
    assert placed is not None
    assert (placed.job_id, placed.rank) == (job_id, 0)
    (row,) = rows["job"]
    assert (row["job_id"], row["user"], row["partition"], row["nodes"]) == (job_id, "root", "main", 1)
    slurm.run("scancel", job_id)
    collector.close()


def test_lives_of_jobs(slurm: Slurm, watch: Watch, tmp_path: Path) -> None:
    """Placed on two nodes and completed; failed by exit code and by signal; cancelled; timed out is Slurm's minute and
    so not waited for. A restart in between tells nothing twice."""
    done = slurm.sbatch("sleep 1", "-N2", "--gres=gpu:2")
    failed, killed = slurm.sbatch("sleep .5; exit 3"), slurm.sbatch("sleep .5; kill -9 $$")
    waiting = slurm.sbatch("sleep 1", "--begin=now+1hour")
    assert watch.job(waiting, "queued")["node_id"] == "slurm:tested"
    row = watch.job(done, "running")
    assert (row["nodes"], row["gpus"], row["partition"], row["user"]) == (2, 4, "main", "root")
    watch.job(failed, "failed")
    watch.collector.close()
    watch.open()
    watch.job(done, "completed")
    assert (watch.job(failed, "failed")["exit_code"], watch.job(killed, "failed")["exit_signal"]) == (3, 9)
    slurm.run("scancel", waiting)
    assert watch.job(waiting, "cancelled")["node_id"] == "slurm:tested"
    told = [(r["job_id"], r["state"], r["node_id"]) for r in watch.rows["job"]]
    assert len(told) == len(set(told))
    assert len([t for t in told if t[:2] == (done, "completed")]) == 2
    answer = _ask(tmp_path, watch.rows["job"])
    assert [answer[job_id] for job_id in (done, failed, killed, waiting)] == [
        ("completed", None, 2), ("failed", None, 1), ("failed", 9, 1), ("cancelled", None, 0),
    ]  # fmt: skip


def _ask(folder: Path, rows: list[Row]) -> dict[str, tuple[Any, ...]]:
    """State, signal and machines of each job, as SQL answers."""
    lake = LakeFiles(folder / "lake")
    lake.put("job", [{"cluster": "c", **row} for row in rows])
    queries = Queries(lake)
    try:
        found = queries.rows("SELECT job_id, state, exit_signal, coalesce(len(node_names), 0) AS n FROM jobs")
    finally:
        queries.close()
    return {row["job_id"]: (row["state"], row["exit_signal"], row["n"]) for row in found}


def test_requeue(slurm: Slurm, watch: Watch) -> None:
    """The placement ends as requeued on its machine, and the job waits again."""
    job_id = slurm.sbatch("sleep 60", "--gres=gpu:1")
    host = watch.job(job_id, "running")["node"]
    slurm.run("scontrol", "requeue", job_id)
    assert watch.job(job_id, "requeued")["node"] == host
    assert watch.until("job", lambda r: r["job_id"] == job_id and r["state"] == "queued" and r["requeues"] == 1)
    slurm.run("scancel", job_id)


def test_drain_and_maintenance(slurm: Slurm, watch: Watch) -> None:
    """The node's state in Slurm's words, with who and why; a reservation is planned maintenance."""
    slurm.run("scontrol", "update", "nodename=n3", "state=drain", "reason=graynode:1 hot gpu")
    row = watch.node("n3", "DRAIN")
    assert (row["node_id"], row["reason"], row["who"]) == ("slurm:tested/n3", "graynode:1 hot gpu", "root")
    slurm.run("scontrol", "update", "nodename=n3", "state=resume")
    watch.until("node_state", lambda r: r["node"] == "n3" and r["reason"] is None and r["ts"] > row["ts"])
    slurm.run(
        "scontrol", "create", "reservation", "reservationname=m1", "start=now+1hour", "duration=60", "nodes=n2",
        "flags=maint,ignore_jobs", "user=root",
    )  # fmt: skip
    assert watch.until("event", lambda r: r["kind"] == "reservation")["message"].startswith("maintenance m1: n2 from")
    slurm.run("scontrol", "delete", "reservationname=m1")
    watch.until("event", lambda r: r["kind"] == "reservation_end")
    slurm.run("scontrol", "update", "partitionname=main", "state=drain")
    assert "is DRAIN" in watch.until("event", lambda r: "DRAIN" in r["message"])["message"]
    slurm.run("scontrol", "update", "partitionname=main", "state=up")


def test_a_machine_that_dies_under_a_job(slurm: Slurm, watch: Watch) -> None:
    """slurmd is gone: the node is down, the job that may not be requeued ends as node_fail, the other is requeued."""
    last = slurm.sbatch("sleep 60", "--nodelist=n2", "--no-requeue")
    again = slurm.sbatch("sleep 60", "--nodelist=n2", "--requeue")
    watch.job(last, "running")
    watch.job(again, "running")
    slurm.kill("slurmd.n2")
    slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=power lost")
    watch.node("n2", "DOWN")
    assert watch.job(last, "node_fail")["node"] == "n2"
    assert watch.job(again, "requeued")["node"] == "n2"
    slurm.run("scancel", again)
    slurm.start_node(2)
    slurm.run("scontrol", "update", "nodename=n2", "state=resume")


def test_slurmctld_hangs_and_comes_back(slurm: Slurm, tmp_path: Path) -> None:
    """Its programs are ended at their deadline, no round waits, quality says so, and what happened meanwhile is told
    when it answers again."""
    watch = Watch(slurm, tmp_path, deadline_s=0.5)
    watch.until("node_state", lambda row: True)
    job_id = slurm.sbatch("sleep 1")
    watch.job(job_id, "running")
    slurm.freeze("slurmctld")
    try:
        said = watch.until("quality", lambda row: row["table_name"] == "job" and row["state"] == "error")
        assert "gave no answer within 0.5 s" in said["reason"]
        time.sleep(0.3)
    finally:
        slurm.thaw("slurmctld")
    watch.until("quality", lambda row: row["table_name"] == "job" and row["state"] == "measured")
    watch.job(job_id, "completed")
    assert watch.slowest_s < 1
    watch.collector.close()
