"""Slurm on a GPU node: processes to jobs, ranks, shared GPUs, jobs that end, restarts, and what may not be read."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import node_files
import pytest
from agent_fakes import Hands, Sink, Source, machine, until
from proc_files import Processes, v1, v2

from graynode.collectors.agent import Agent, Settings
from graynode.collectors.base import NoSource, Round, Rows
from graynode.collectors.context import GpuKey, JobContext, Placement
from graynode.collectors.slurm.collector import Settings as SlurmSettings
from graynode.collectors.slurm.collector import Slurm

A, B = GpuKey("GPU-a"), GpuKey("GPU-b")


class Node:
    """A node with its processes, its clock and the driver's answer."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.hands, self.context = folder, Hands(), JobContext()
        self.machine = node_files.node(folder)
        (folder / "etc/slurm").mkdir(parents=True, exist_ok=True)
        self.processes = Processes(self.machine.proc)
        self.settings = SlurmSettings(**settings)
        self.second = 0.0
        self.slurm = self.restart()

    def restart(self) -> Slurm:
        """Another life of the agent on the same node."""
        self.slurm = Slurm(
            self.machine, self.context, self.settings, etc=self.folder / "etc", monotonic=self.hands.monotonic
        )
        return self.slurm

    def look(self, pids: dict[GpuKey, Sequence[int]] | None = None, after_s: float = 10.0) -> Rows:
        """The next look, with what the driver says now."""
        if pids is not None:
            self.context.set_pids(pids)
        self.second += after_s
        self.hands.at += after_s
        return node_files.checked(self.slurm.collect(node_files.round_at(self.second)), Slurm.tables)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.look({})
    return made


@pytest.mark.parametrize("cgroup", [v1(7), v2(7), "0::/kubepods.slice/pod1" + v2(7)[3:]])
def test_a_process_in_a_jobs_cgroup_is_the_jobs(node: Node, cgroup: str) -> None:
    """Both versions of cgroups, and slurmd in a container; the environment adds rank, user and partition."""
    node.processes.start(
        100, cgroup, SLURM_JOB_ID="7", SLURM_PROCID="3", SLURM_JOB_USER="ada", SLURM_JOB_PARTITION="gpu",
        SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="2", SLURM_JOB_NUM_NODES="4",
    )  # fmt: skip
    (row,) = node.look({A: [100]})["job"]
    assert node.context.of(A) == Placement("7", rank=3)
    assert {
        "job_id": "7",
        "state": "running",
        "user": "ada",
        "partition": "gpu",
        "job_alias": "5_2",
    }.items() <= row.items()
    assert json.loads(row["gpu_uuids"]) == ["GPU-a"]
    assert row["nodes"] == 4
    assert node.context.job_named("5_2") == "7"


def test_without_cgroups_the_environment_tells(node: Node) -> None:
    """Sites that track processes otherwise still have SLURM_JOB_ID; a launcher's rank goes before the task's."""
    node.processes.start(100, SLURM_JOB_ID="9", SLURM_PROCID="0", RANK="5", WORLD_SIZE="16")
    (row,) = node.look({A: [100]})["job"]
    assert node.context.of(A) == Placement("9", rank=5)
    assert row["ranks"] == 16


def test_root_is_believed_before_the_owner(node: Node) -> None:
    """A process in job 7's cgroup that calls itself job 8's is job 7's, and the rest of its story is not believed."""
    node.processes.start(100, v2(7), SLURM_JOB_ID="8", SLURM_PROCID="3", SLURM_JOB_USER="eve")
    (row,) = node.look({A: [100]})["job"]
    assert node.context.of(A) == Placement("7")
    assert "user" not in row


def test_processes_that_are_nobodys(node: Node) -> None:
    """A service, a person's shell, a nonsense id, a pid that has ended: no job, no row, no error."""
    node.processes.start(100)
    node.processes.start(101, SLURM_JOB_ID="0")
    node.processes.start(102, SLURM_JOB_ID="12; rm", RANK="x")
    node.processes.start(103, SLURM_JOB_ID="²")
    assert "job" not in node.look({A: [100, 101, 102, 103, 99999]})
    assert node.context.of(A) is None


def test_processes_that_end_while_they_are_read(node: Node) -> None:
    """Whichever file is gone first: nobody's, no error, and the next look starts anew."""
    for gone in ("cgroup", "environ", "stat"):
        node.processes.start(100, v2(7), SLURM_JOB_ID="7", SLURM_PROCID="1")
        (node.machine.proc / "100" / gone).unlink()
        node.look({A: [100]})
    node.processes.start(100, v2(8), SLURM_JOB_ID="8")
    assert {row["job_id"] for row in node.look({A: [100]})["job"]} <= {"7", "8"}
    assert node.context.of(A) == Placement("8")


def test_hostile_processes(node: Node) -> None:
    """A megabyte of environment, binary junk, a cgroup file of a thousand lines, a name with brackets and spaces, a
    stat that is none: each is what it is by root's word, in bounded memory."""
    node.processes.start(100, "0::/x\n" * 1000 + v2(7), SLURM_JOB_ID="7", SLURM_PROCID="1", X="y" * (1 << 20))
    node.processes.start(101, v2(7), name=") S 1 (", SLURM_JOB_ID="7")
    (node.machine.proc / "101/environ").write_bytes(bytes(range(256)) * 100)
    node.processes.start(102, v2(7))
    (node.machine.proc / "102/stat").write_text("nonsense")
    (row,) = node.look({A: [100, 101, 102]})["job"]
    assert row["job_id"] == "7"
    placed = node.context.of(A)
    assert placed is not None
    assert placed.job_id == "7"


def test_ranks_that_one_task_started_are_not_the_tasks(node: Node) -> None:
    """Eight processes below one Slurm task share SLURM_PROCID: none of the GPUs is rank 0 by that. One process that
    uses two GPUs is its rank on both."""
    for pid in (100, 101):
        node.processes.start(pid, v2(7), SLURM_JOB_ID="7", SLURM_PROCID="0")
    node.look({A: [100], B: [101]})
    assert [node.context.of(key) for key in (A, B)] == [Placement("7"), Placement("7")]
    node.look({A: [100], B: [100]})
    assert [node.context.of(key) for key in (A, B)] == [Placement("7", rank=0)] * 2


def test_several_jobs_on_one_gpu(node: Node) -> None:
    """MPS or shards: nobody can tell whose the load is, so the GPU has no job, and quality names them, once; each job
    has its own row. A MIG instance is a GPU of its own."""
    node.processes.start(100, v2(70), SLURM_JOB_ID="70", SLURM_PROCID="1")
    node.processes.start(101, v2(8), SLURM_JOB_ID="8", SLURM_PROCID="1")
    one, two = GpuKey("GPU-b", "1"), GpuKey("GPU-b", "2")
    rows = node.look({A: [100, 101], one: [100], two: [101]})
    assert node.context.of(A) is None
    assert node.context.of(one) == Placement("70", rank=1)
    assert node.context.of(two) == Placement("8", rank=1)
    assert sorted(row["job_id"] for row in rows["job"]) == ["70", "8"]
    (said,) = rows["quality"]
    assert (said["entity"], said["field"], said["state"]) == ("GPU-a", "job_id", "unsupported")
    assert said["reason"] == "slurm: shared by 2 jobs: 8, 70"
    assert "quality" not in node.look()
    rows = node.look({A: [100], one: [100], two: [101]})
    assert [row["state"] for row in rows["quality"]] == ["measured"]
    assert node.context.of(A) == Placement("70", rank=1)


def test_a_number_that_another_process_got(node: Node) -> None:
    """A pid that ended and came again is looked at anew."""
    node.processes.start(100, v2(7), SLURM_JOB_ID="7")
    node.look({A: [100]})
    node.processes.start(100, v2(8), SLURM_JOB_ID="8")
    rows = node.look({A: [100]})["job"]
    assert node.context.of(A) == Placement("8")
    assert {"8"} == {row["job_id"] for row in rows}


def test_a_job_between_two_steps_holds_its_gpus_until_it_is_gone(node: Node) -> None:
    """While the job's cgroup is there the GPU is its, process or not; the end has no state, for only slurmctld knows
    how."""
    scope = node.machine.sys / "fs/cgroup/system.slice/slurmstepd.scope"
    (scope / "job_7").mkdir(parents=True)
    node.processes.start(100, v2(7), SLURM_JOB_ID="7", SLURM_PROCID="0")
    node.look({A: [100]})
    node.processes.end(100)
    for _ in range(30):
        assert not node.look({A: []})
        assert node.context.of(A) == Placement("7", rank=0)
    (scope / "job_7").rmdir()
    (row,) = node.look({A: []})["job"]
    assert row["state"] is None
    assert row["end_ts"] == row["ts"]
    assert node.context.of(A) is None


def test_without_cgroups_a_job_is_gone_after_a_minute(node: Node) -> None:
    """Shorter pauses are pauses."""
    node.processes.start(100, SLURM_JOB_ID="7")
    node.look({A: [100]})
    assert not node.look({A: []}, after_s=50)
    (row,) = node.look({A: []}, after_s=10)["job"]
    assert (row["job_id"], row["state"]) == ("7", None)


def test_nothing_is_looked_at_between_the_drivers_answers(node: Node) -> None:
    """The same answer is read again every 10 s only; a new one at once."""
    node.processes.start(100, v2(7), SLURM_JOB_ID="7")
    node.context.set_pids({A: [100]})
    assert "job" in node.look(after_s=1)
    node.processes.end(100)
    node.look(after_s=1)
    assert len(node.slurm._known) == 1


def test_a_restart_tells_nothing_twice_and_ends_what_ended_meanwhile(node: Node) -> None:
    """Same boot: running jobs are known; another boot: they are new."""
    node.processes.start(100, v2(7), SLURM_JOB_ID="7", SLURM_JOB_START_TIME="1796045365")
    node.processes.start(101, SLURM_JOB_ID="8")
    node.look({A: [100], B: [101]})
    node.slurm.close()
    assert node.context.of(A) is None
    node.restart()
    node.processes.end(101)
    assert not node.look({A: [100], B: []})
    (row,) = node.look({A: [100], B: []}, after_s=60)["job"]
    assert (row["job_id"], row["state"]) == ("8", None)


@pytest.mark.parametrize("kept", ['{"jobs": 3}', '{"jobs": {"7": [1]}}', "[", '{"boot_id": 5, "jobs": {"7": {}}}'])
def test_a_broken_state_file_counts_as_none(tmp_path: Path, kept: str) -> None:
    """Whatever is in it."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state/slurm.json").write_text(kept)
    node = Node(tmp_path)
    node.processes.start(100, v2(7), SLURM_JOB_ID="7")
    assert len(node.look({A: [100]})["job"]) == 1


def test_the_first_step_makes_the_row_anew(node: Node) -> None:
    """``steps`` knows when a job took its first step; the job's row says so, once."""
    node.processes.start(100, v2(7), SLURM_JOB_ID="7")
    node.look({A: [100]})
    node.context.note_first_step("7", node_files.START)
    (row,) = node.look()["job"]
    assert row["first_step_ts"] == node_files.START
    assert not node.look()


def test_the_mapping_folder_of_dcgm_exporter(tmp_path: Path) -> None:
    """Files by index, by index and instance, by uuid; a process on the GPU knows better; other files are not ours."""
    folder = tmp_path / "map"
    folder.mkdir()
    files = {"0": "11\n", "1": "12\n13\n\n", "1.3": "14\n", "GPU-c": "15", "7": "16", "README": "17", "2": ""}
    for name, text in files.items():
        (folder / name).write_text(text)
    node = Node(tmp_path, job_mapping_dir=folder)
    gpus = [{"gpu_index": n, "gpu_uuid": f"GPU-{c}"} for n, c in enumerate("abd")]
    node.context.stamp({"gpu": gpus})
    node.processes.start(100, v2(7), SLURM_JOB_ID="7")
    rows = node.look({A: [100]})["job"]
    told = [node.context.of(key) for key in (A, B, GpuKey("GPU-b", "3"), GpuKey("GPU-c"), GpuKey("GPU-d"))]
    assert told == [Placement("7"), None, Placement("14"), Placement("15"), None]
    assert sorted(row["job_id"] for row in rows) == ["12", "13", "14", "15", "7"]


def test_environments_that_may_not_be_read_are_said_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is known by cgroup, its rank is not; said once, and once more when it is permitted."""
    from graynode.collectors.slurm import process as slurm_process

    node.processes.start(100, v2(7), SLURM_JOB_ID="7", SLURM_PROCID="0")
    open_ = slurm_process.os.open

    def refuse(path: Any, flags: int) -> int:
        if str(path).endswith("environ"):
            raise PermissionError(13, "Permission denied")
        return open_(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(slurm_process.os, "open", refuse)
        (row,) = node.look({A: [100]})["quality"]
        assert (row["field"], row["state"]) == ("job_rank", "not_permitted")
        assert "CAP_SYS_PTRACE" in row["reason"]
        assert "quality" not in node.look({A: [100]})
    assert node.context.of(A) == Placement("7")
    node.processes.start(100, v2(7), SLURM_JOB_ID="7", SLURM_PROCID="0")
    (row,) = node.look({A: [100]})["quality"]
    assert (row["field"], row["state"]) == ("job_rank", "measured")


def test_thousands_of_processes(node: Node) -> None:
    """New ones are looked at over several rounds, a bounded number in each; then all are known."""
    for pid in range(1000, 3200):
        node.processes.start(pid, v2(7), SLURM_JOB_ID="7", SLURM_PROCID=str(pid))
    node.context.set_pids({A: range(1000, 3200)})
    rounds = 0
    while node.slurm._behind or not rounds:
        began = time.monotonic()
        node.look(after_s=1)
        assert time.monotonic() - began < 5
        rounds += 1
    assert rounds == 5
    assert node.context.of(A) == Placement("7")


def test_no_slurm_is_no_source(tmp_path: Path) -> None:
    """Said with the way out; slurmd, a cgroup of Slurm's or its configuration are each enough."""
    with pytest.raises(NoSource, match=r"no slurmd and no .*; set slurm.job_mapping_dir"):
        Slurm(node_files.node(tmp_path), etc=tmp_path / "etc")
    Processes(tmp_path / "proc").start(50, name="slurmd")
    Slurm(node_files.node(tmp_path), etc=tmp_path / "etc")


def test_what_slurm_calls_this_machine(tmp_path: Path) -> None:
    """Configured, else slurmd's own -N, else the short host name; told once, and never by what a job says."""
    node = Node(tmp_path)
    node.processes.start(100, SLURM_JOB_ID="7", SLURMD_NODENAME="victim")
    (row,) = node.look({A: [100]})["inventory"]
    assert (row["kind"], row["entity"], json.loads(row["attributes"])["name"]) == ("node_name", "slurm", "host-1")
    assert "inventory" not in node.look()
    node.processes.start(50, name="slurmd")
    (node.machine.proc / "50/cmdline").write_bytes(b"/usr/sbin/slurmd\0-D\0-N\0gpu-007\0")
    node.restart()
    (row,) = node.look({A: [100]})["inventory"]
    assert json.loads(row["attributes"]) == {"name": "gpu-007", "by": "slurmd"}
    node.settings = SlurmSettings(node_name="n7")
    node.restart()
    (row,) = node.look()["inventory"]
    assert json.loads(row["attributes"])["name"] == "n7"


def test_a_running_agent_stamps_jobs_on_gpu_rows(tmp_path: Path) -> None:
    """The driver's processes, Slurm's answer, and rows of table gpu that carry the job, from one agent's threads."""
    context = JobContext()
    here = machine(tmp_path / "state", proc=tmp_path / "proc", sys=tmp_path / "sys")
    (tmp_path / "etc/slurm").mkdir(parents=True)
    Processes(here.proc).start(100, v2(7), SLURM_JOB_ID="7", SLURM_PROCID="3", SLURM_JOB_USER="ada")

    def read(round_: Round) -> Rows:
        context.set_pids({A: [100], B: []})
        return {"gpu": [{"gpu_uuid": "GPU-a", "power_w": 400.0}, {"gpu_uuid": "GPU-b", "power_w": 80.0}]}

    sink = Sink()
    collectors = [Source(read, "nvml"), Slurm(here, context, etc=tmp_path / "etc")]
    agent = Agent(here, collectors, sink, 1, settings=Settings(0.1, 10.0, 0.02), context=context)
    import threading

    stop = threading.Event()
    running = threading.Thread(target=agent.run, args=(stop,))
    running.start()
    try:
        assert until(lambda: any(row.get("job_id") for row in sink.rows("gpu")))
    finally:
        stop.set()
        running.join(20)
    told = [row for row in sink.rows("gpu") if row.get("job_id")]
    assert {(row["gpu_uuid"], row["job_id"], row["job_rank"]) for row in told} == {("GPU-a", "7", 3)}
    (job,) = [row for row in sink.rows("job") if row.get("state")]
    assert (job["job_id"], job["user"], job["node_id"]) == ("7", "ada", "machine-1")
