"""What Slurm's programs write: captured output, the shapes of newer versions, and text that is none of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import node_files
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.collectors.slurm import text
from graynode.collectors.slurm.jobs import (
    SACCT_FORMAT,
    Job,
    Unreadable,
    aliases,
    parse_completion,
    parse_sacct,
    parse_show_job,
    parse_squeue,
)
from graynode.collectors.slurm.nodes import parse_config, parse_nodes, parse_partitions, parse_reservations
from graynode.collectors.slurm.process import parse_cgroup, parse_environ

CAPTURED = node_files.FIXTURES / "slurm"
BEGAN = datetime(2026, 11, 30, 13, 29, 25, tzinfo=UTC)


def captured(name: str) -> str:
    return (CAPTURED / name).read_text()


def set_(number: int | float) -> dict[str, Any]:
    """A number as data_parser v0.0.40 and newer write it."""
    return {"set": True, "infinite": False, "number": number}


UNSET: dict[str, Any] = {"set": False, "infinite": False, "number": 0}
NEWER: dict[str, Any] = {
    "job_id": 333, "job_state": ["COMPLETED", "COMPLETING"], "state_reason": "None", "account": "science",
    "array_job_id": set_(330), "array_task_id": set_(3), "array_task_string": "", "het_job_id": set_(0),
    "het_job_offset": set_(0), "user_name": "ada", "partition": "gpu", "nodes": "gpu[01-02]", "node_count": set_(2),
    "tasks": set_(16), "tres_alloc_str": "cpu=64,mem=1T,node=2,billing=64,gres/gpu=16,gres/gpu:h100=16",
    "gres_detail": [], "restart_cnt": 1, "submit_time": set_(1746693311), "start_time": set_(1746693312),
    "end_time": set_(1746693319),
    "exit_code": {"status": ["SIGNALED"], "return_code": UNSET, "signal": {"id": set_(9), "name": "KILL"}},
}  # fmt: skip
"""One job in the shape of 24.05 (data_parser v0.0.41)."""


def test_captured_queue() -> None:
    """22.05: states are words, exit codes raw wait statuses, GPUs only in the details."""
    jobs = {job.job_id: job for job in parse_squeue((CAPTURED / "squeue-22.05.8.json").read_bytes())}
    assert {i: j.state for i, j in jobs.items()} == {
        "1": "running", "2": "failed", "3": "failed", "5": "running", "6": "running", "4": "queued", "7": "running",
        "8": "running", "9": "queued", "10": "queued", "11": "cancelled",
    }  # fmt: skip
    assert (jobs["2"].exit_code, jobs["2"].exit_signal) == (0, 9)
    assert (jobs["3"].exit_code, jobs["3"].exit_signal, jobs["3"].reason) == (3, None, "NonZeroExitCode")
    assert (jobs["1"].gpus, jobs["1"].ended, jobs["1"].exit_code, jobs["1"].started) == (1, None, None, BEGAN)
    assert dict(aliases(jobs.values())) == {"4_0": "5", "4_1": "6", "7+0": "7", "7+1": "8"}
    assert jobs["4"].alias == "4_[2-5%2]"
    assert (jobs["9"].started, jobs["9"].reason) == (None, "BeginTime")


def test_text_says_what_json_says() -> None:
    """``scontrol -o show job`` stands in where Slurm was built without JSON: the same, but for who is not asked."""
    from_json = {j.job_id: j for j in parse_squeue((CAPTURED / "squeue-22.05.8.json").read_bytes())}
    for job in parse_show_job(captured("jobs-22.05.8.txt")):
        twin = from_json[job.job_id]
        for field in ("state", "alias", "user", "partition", "hosts", "exit_code", "exit_signal", "requeues", "reason"):
            assert getattr(job, field) == getattr(twin, field), (job.job_id, field)


def test_newer_shapes() -> None:
    """Lists of state words, numbers that may be unset, exit codes as objects, GPUs in the accounting string."""
    (job,) = parse_squeue(json.dumps({"jobs": [NEWER], "warnings": [], "errors": []}).encode())
    assert job == Job(
        "333", "completed", "330_3", None, "ada", "science", "gpu", "gpu[01-02]", 2, 16, 16, 1,
        datetime.fromtimestamp(1746693311, UTC), datetime.fromtimestamp(1746693312, UTC),
        datetime.fromtimestamp(1746693319, UTC), None, 9,
    )  # fmt: skip
    older = {**NEWER, "exit_code": {"return_code": 1, "signal": {"signal_id": 0}}, "restart_cnt": set_(2)}
    (job,) = parse_squeue(json.dumps({"jobs": [older]}).encode())
    assert (job.exit_code, job.exit_signal, job.requeues) == (1, None, 2)


@pytest.mark.parametrize(
    ("words", "state", "reason"),
    [
        (["OUT_OF_MEMORY"], "failed", "OUT_OF_MEMORY"),
        (["PREEMPTED", "COMPLETING"], "cancelled", "PREEMPTED"),
        (["NODE_FAIL"], "node_fail", None),
        (["BOOT_FAIL"], "node_fail", "BOOT_FAIL"),
        (["TIMEOUT"], "timeout", None),
        (["RUNNING", "CONFIGURING"], "allocated", None),
        (["PENDING", "REQUEUED"], "queued", "REQUEUED"),
        (["SUSPENDED"], "running", "SUSPENDED"),
        (["TELEPORTED"], None, "TELEPORTED"),
        (["COMPLETING", "COMPLETED"], "completed", None),
        ([], None, None),
    ],
)
def test_state_words(words: list[str], state: str | None, reason: str | None) -> None:
    """Every word of Slurm's has a state of the contract; a word of tomorrow is kept, with a null state."""
    (job,) = parse_squeue(json.dumps({"jobs": [{**NEWER, "job_state": words}]}).encode())
    assert (job.state, job.reason) == (state, reason)


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"{",
        b"[]",
        b'{"jobs": 3}',
        b'{"jobs": [{"job_id": 1',
        b'{"nodes": []}',
        b"[" * 100_000,
        b"\xff\x00",
        b"null",
    ],
)
def test_output_that_is_no_queue(output: bytes) -> None:
    """Cut, of another kind, nested without end, not text: one named error."""
    with pytest.raises(Unreadable, match="squeue --json"):
        parse_squeue(output)


@pytest.mark.parametrize(
    "value", [None, "x", -1, 1e300, [], {}, {"set": 1}, {"number": "9" * 400}, True, "\x1b[2J" * 99]
)
def test_a_field_of_another_type_costs_itself(value: Any) -> None:
    """Every field of a job but its id may be anything."""
    for name in NEWER:
        jobs = parse_squeue(json.dumps({"jobs": [{**NEWER, name: value}, NEWER]}).encode())
        assert jobs[-1].job_id == "333"


def test_captured_completions() -> None:
    """The completion log; a placement that ended by a requeue is there as PENDING."""
    jobs = [parse_completion(line) for line in captured("jobcomp-22.05.8.txt").splitlines()]
    assert [(j.job_id, j.state, j.exit_signal) for j in jobs if j] == [
        ("2", "failed", 9), ("11", "cancelled", None), ("3", "failed", None), ("1", "cancelled", None),
    ]  # fmt: skip
    requeued = parse_completion(captured("jobcomp-22.05.8.txt").splitlines()[0].replace("FAILED", "PENDING"))
    assert requeued is not None
    assert requeued.state == "requeued"
    assert parse_completion("garbage") is None


def test_a_name_that_imitates_slurm_makes_the_state_unknown() -> None:
    """In the text form a job's name stands among Slurm's own words."""
    line = captured("jobs-22.05.8.txt").splitlines()[1].replace("JobName=wrap", "JobName=x JobState=COMPLETED")
    (job,) = parse_show_job(line)
    assert (job.job_id, job.state) == ("2", None)
    assert "imitates" in (job.reason or "")


def test_accounting() -> None:
    """sacct's lines; those of another shape are passed over."""
    line = "126|CANCELLED by 1000|0:15|100000000|1796045365|1796045369|n[1-2]|2|gres/gpu=4|ada|science|gpu|123_4"
    assert line.count("|") == SACCT_FORMAT.count(",")
    (job,) = parse_sacct(f"{line}\nnonsense|x\n")
    assert (job.job_id, job.alias, job.state, job.exit_signal, job.gpus) == ("126", "123_4", "cancelled", 15, 4)


def test_captured_accounting() -> None:
    """A real slurmdbd's answer; a job that is queued again has not ended."""
    jobs = {job.job_id: job for job in parse_sacct(captured("sacct-22.05.8.txt"))}
    assert {i: (j.state, j.exit_code, j.exit_signal) for i, j in jobs.items()} == {
        "1": ("completed", 0, None), "2": ("failed", 3, None), "3": ("failed", 0, 9), "5": ("cancelled", 0, None),
        "6": ("completed", 0, None), "4": ("completed", 0, None), "7": ("queued", None, None),
    }  # fmt: skip
    assert (jobs["1"].gpus, jobs["1"].hosts, jobs["6"].alias, jobs["7"].started) == (2, "n[1-2]", "4_1", None)


def test_captured_nodes_partitions_reservations() -> None:
    """A drained node with who and why, whose reason holds an equals sign and a quote; planned maintenance."""
    nodes = {node.name: node for node in parse_nodes(captured("nodes-22.05.8.txt"))}
    assert (nodes["n1"].state, nodes["n1"].reason) == ("MIXED", None)
    drained = nodes["n3"]
    assert (drained.state, drained.reason, drained.who) == ("IDLE+DRAIN", 'bad "gpu" = 1 user@host', "root")
    assert [(p.name, p.state) for p in parse_partitions(captured("parts-22.05.8.txt"))] == [("main", "UP")]
    (maint,) = parse_reservations(captured("res-22.05.8.txt"))
    assert (maint.name, maint.nodes, maint.flags) == ("maint", "n2", "MAINT,IGNORE_JOBS,SPEC_NODES")
    assert parse_reservations("No reservations in the system\n") == []
    assert parse_config("SlurmctldHost[0]        = a(b)\nClusterName = t\n")["ClusterName"] == "t"


def test_a_reason_cannot_change_a_state() -> None:
    """Who may write a reason writes words that look like Slurm's: the first of a key counts."""
    line = captured("nodes-22.05.8.txt").splitlines()[2].replace('bad "gpu"', "NodeName=n9 State=IDLE")
    (node,) = parse_nodes(line)
    assert (node.name, node.state) == ("n3", "IDLE+DRAIN")


@pytest.mark.parametrize(
    ("list_", "names"),
    [
        ("n[1-3,07-09]", ["n1", "n2", "n3", "n07", "n08", "n09"]),
        ("a,b[1-2]-x[3-4],c", ["a", "b1-x3", "b1-x4", "b2-x3", "b2-x4", "c"]),
        ("(null)", []), ("", []), ("None", []), ("n[1", ["n[1"]), ("n[a-b]", []), ("n[3-1]", []),
    ],
)  # fmt: skip
def test_host_lists(list_: str, names: list[str]) -> None:
    """Ranges keep their leading zeros; what is no list gives nothing or itself."""
    assert text.hosts(list_) == names


def test_host_lists_are_bounded() -> None:
    """A list of more names than a cluster has is cut, in no time."""
    assert len(text.hosts("n[1-99999999]", 500)) == 500
    assert len(text.hosts("n[1-99999999]x[1-99999999]", 500)) == 500
    assert len(text.hosts("n[" + "1," * 100_000 + "1]", 500)) == 500


@settings(deadline=None)
@given(st.text(alphabet="n0123456789[],-ab", max_size=60))
def test_any_host_list_ends(list_: str) -> None:
    """Whatever it is, it is expanded within the bound."""
    assert len(text.hosts(list_, 50)) <= 50


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_taken_apart(line: str) -> None:
    """No text makes a parser fail."""
    list(text.records(line))
    parse_nodes(line)
    parse_show_job(f"JobId=1 JobState={line}")
    parse_sacct(line)
    parse_cgroup(line)
    parse_environ(line.encode("utf-8", "replace"))
    text.moment(line)


def test_times() -> None:
    """Seconds since 1970; ISO without a zone is this machine's; zero is none."""
    assert text.moment("1796045365") == BEGAN
    assert text.moment(1796045365) == BEGAN
    assert text.moment(BEGAN.astimezone().strftime("%Y-%m-%dT%H:%M:%S")) == BEGAN
    assert [text.moment(x) for x in (0, None, "Unknown", "soon", 1 << 62, -5, "2026-13-01T00:00:00")] == [None] * 7


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        ("0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n", ("12", "0")),
        ("0::/system.slice/n1_slurmstepd.scope/job_12/step_batch/user/task_special\n", ("12", "batch")),
        ("10:devices:/slurm/uid_2101171/job_280678/step_interactive/task_0\n", ("280678", "interactive")),
        ("4:memory:/slurm_n1/uid_0/job_3/step_extern\n", ("3", "extern")),
        ("0::/system.slice/slurmstepd.scope/system\n", (None, None)),
        ("0::/slurm/job_3\n", (None, None)),
        ("0::/user.slice/job_3\n", (None, None)),
        ("", (None, None)),
    ],
)
def test_cgroup_paths(cgroup: str, found: tuple[str | None, str | None]) -> None:
    """Both versions, several slurmd on a machine, and folders that only look alike."""
    assert parse_cgroup(cgroup)[:2] == found
