"""Step times from a training loop: what a call costs, what happens without an agent, and what strangers may do."""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import node_files
import pytest
from agent_fakes import Hands, until
from hypothesis import given, settings
from hypothesis import strategies as st
from proc_files import Processes, v2

from graynode.collectors import steps
from graynode.collectors.base import NoSource, Rows
from graynode.collectors.context import GpuKey, JobContext, Placement
from graynode.collectors.step_message import MAX_BYTES, Refused, parse
from graynode.collectors.step_socket import Settings, StepSocket
from graynode.collectors.steps import KEPT, Reporter

A = GpuKey("GPU-a")
ENV = {"SLURM_JOB_ID": "7", "RANK": "3", "GRAYNODE_ROLE": "stage-1"}


class Agent:
    """The collector on a socket of the test's own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.hands, self.context, self.machine = Hands(), JobContext(), node_files.node(folder)
        self.processes = Processes(self.machine.proc)
        self.path = folder / "run/steps.sock"
        self.settings = Settings(self.path, **settings)
        self.second = 0
        self.start()

    def start(self) -> None:
        self.collector = StepSocket(self.machine, self.context, self.settings, monotonic=self.hands.monotonic)

    def look(self, after_s: int = 1) -> Rows:
        self.second += after_s
        self.hands.at += after_s
        return node_files.checked(self.collector.collect(node_files.round_at(self.second)), StepSocket.tables)

    def reporter(self, **env: str) -> Reporter:
        return Reporter(str(self.path), env=env or ENV, monotonic=self.hands.monotonic)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.collector.close()


def test_a_step_becomes_a_row(agent: Agent) -> None:
    """Who the sender is comes from its environment; the process is named by the kernel, its GPU by the driver."""
    agent.context.set_pids({A: [os.getpid()]})
    reporter = agent.reporter()
    reporter.report(12, 1.5, busy_s=1.0, wait_s=0.5)
    (row,) = agent.look()["step"]
    row.pop("ts")
    assert row == {
        "job_id": "7", "rank": 3, "role": "stage-1", "gpu_uuid": "GPU-a", "step": 12, "seconds": 1.5, "busy_s": 1.0,
        "wait_s": 0.5,
    }  # fmt: skip
    assert agent.context.of(A) == Placement("7", "stage-1", 3)
    reporter.report(13, 1)
    assert agent.look()["step"][0]["busy_s"] is None
    reporter.close()
    agent.look()
    assert agent.context.of(A) is None


def test_the_first_step_of_a_job(agent: Agent) -> None:
    """A job that no scheduler's source knows gets its own row, once; of others the context is told."""
    for rank in ("0", "1"):
        with_rank = agent.reporter(SLURM_JOB_ID="7", RANK=rank)
        with_rank.report(1, 1.0)
        rows = agent.look()
        assert [(r["job_id"], r["first_step_ts"]) for r in rows.get("job", [])] == (
            [("7", rows["step"][0]["ts"])] if rank == "0" else []
        )
        with_rank.close()
    assert agent.context.first_step("7")
    agent.processes.start(os.getpid(), v2(8))
    other = agent.reporter(SLURM_JOB_ID="8")
    other.report(1, 1.0)
    assert "job" not in agent.look()
    assert agent.context.first_step("8")
    other.close()


def test_nobody_reports_for_anothers_job(agent: Agent) -> None:
    """Root's cgroup says whose the process is; where there is none, the scheduler's placement of its GPU does. What
    the sender says otherwise is counted and told."""
    agent.processes.start(os.getpid(), v2(8))
    liar = agent.reporter(SLURM_JOB_ID="7")
    liar.report(1, 1.0, gpu_uuid="GPU-victim")
    assert agent.look()["step"][0]["job_id"] == "8"
    liar.close()
    agent.processes.start(os.getpid())
    agent.context.set_pids({A: [os.getpid()]})
    agent.context.place("slurm", {A: Placement("9")})
    liar = agent.reporter(SLURM_JOB_ID="7")
    liar.report(1, 1.0, gpu_uuid="GPU-victim")
    (row,) = agent.look()["step"]
    assert (row["job_id"], row["gpu_uuid"]) == ("9", "GPU-a")
    assert agent.context.of(A) == Placement("9")
    told = agent.look(58)["event"]
    assert any("messages that named another's job" in event["message"] for event in told)
    liar.close()


def test_a_name_that_the_scheduler_knows_as_another(agent: Agent) -> None:
    """Users call an array's task 123_4; Slurm's source knows its number."""
    agent.context.set_aliases("slurm", {"123_4": "126"})
    reporter = agent.reporter(GRAYNODE_JOB_ID="123_4")
    reporter.report(1, 1.0)
    assert agent.look()["step"][0]["job_id"] == "126"
    reporter.close()


def test_no_agent_costs_nothing_and_loses_the_oldest(tmp_path: Path) -> None:
    """Without a socket a call returns at once; the latest steps wait, the lost are counted, and the agent hears how
    many when it comes."""
    hands = Hands()
    reporter = Reporter(str(tmp_path / "run/steps.sock"), env=ENV, monotonic=hands.monotonic)
    for step in range(KEPT + 50):
        reporter.report(step, 0.1)
    assert reporter.lost == 50
    agent = Agent(tmp_path)
    hands.at += 10
    reporter.report(KEPT + 50, 0.1)
    rows: list[Any] = []
    for _ in range(5):
        rows += agent.look().get("step", [])
        reporter.report(5000, 0.1)
    numbers = [row["step"] for row in rows if row["step"] < 5000]
    assert numbers == list(range(51, KEPT + 51))
    (event,) = [e for e in agent.look(55)["event"] if "lost" in e["message"]]
    assert event["message"].endswith("steps lost before they reached the agent (51 times)")
    assert json.loads(event["attributes"])["count"] == 51
    reporter.close()
    agent.collector.close()


def test_messages_of_a_backlog_fit(tmp_path: Path) -> None:
    """All that wait, each field as long as it can be, still come: no message is over what the agent takes."""
    hands = Hands()
    long = {"SLURM_JOB_ID": "j" * 128, "RANK": "999999999", "GRAYNODE_ROLE": "\U0001f600" * 32}
    reporter = Reporter(str(tmp_path / "run/steps.sock"), env=long, monotonic=hands.monotonic)
    number, tiny = 1 << 52, 1.2345678901234567e-300
    for step in range(KEPT - 1):
        reporter.report(number + step, tiny, busy_s=tiny, wait_s=tiny)
    agent = Agent(tmp_path)
    sent: list[int] = []
    hands.at += 10
    reporter.report(number + KEPT - 1, 0.1)
    for _ in range(30):  # long steps use more of a sender's rate
        sent += [row["step"] for row in agent.look().get("step", [])]
        hands.at += 1
        reporter.report(0, 0.1)
    assert [step for step in sent if step] == [number + step for step in range(KEPT)]
    assert reporter.lost == 0
    reporter.close()
    agent.collector.close()


def test_an_agent_that_does_not_look_loses_nothing_for_a_while(agent: Agent) -> None:
    """The kernel's queue of a sender is short; what does not fit waits in the sender and goes with a later call."""
    reporter = agent.reporter()
    for step in range(300):
        reporter.report(step, 0.1)
    seen = [row["step"] for row in agent.look()["step"]]
    for step in range(300, 310):
        reporter.report(step, 0.1)
        seen += [row["step"] for row in agent.look().get("step", [])]
    assert seen == list(range(310))
    assert reporter.lost == 0
    reporter.close()


def test_a_restart_of_the_agent(agent: Agent) -> None:
    """Its socket is made anew; the sender finds it after a pause, and what it reported meanwhile arrives."""
    reporter = agent.reporter()
    reporter.report(1, 1.0)
    assert agent.look()["step"]
    agent.collector.close()
    assert not agent.path.exists()
    reporter.report(2, 1.0)
    agent.start()
    agent.hands.at += 10
    reporter.report(3, 1.0)
    assert [row["step"] for row in agent.look()["step"]] == [2, 3]
    reporter.close()


def test_a_fork_reports_as_itself(agent: Agent) -> None:
    """A child's connection is its own: the kernel names it, not its parent."""
    reporter = agent.reporter()
    reporter.report(1, 1.0)
    agent.look()
    hold, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        reporter.report(2, 1.0)
        os.read(hold, 1)  # until the parent closes its end
        os._exit(0)
    try:
        rows: list[Any] = []
        assert until(lambda: bool(rows.extend(agent.look().get("step", [])) or rows))
        assert {sender.pid for sender in agent.collector._senders.values()} == {os.getpid(), child}
    finally:
        os.close(go)
        os.close(hold)
        os.waitpid(child, 0)
    reporter.close()


def test_nothing_that_is_passed_makes_a_call_fail(agent: Agent) -> None:
    """Tensors, NaN, None, a thousand-digit number: a training run is worth more than its statistics."""
    reporter = agent.reporter()
    for bad in (object(), float("nan"), None, "x" * 100_000, 10**5000, -1, [1]):
        reporter.report(bad, bad, busy_s=bad, wait_s=bad, job=bad, rank=bad, role=bad, gpu_uuid=bad)  # type: ignore[arg-type]
    reporter.report(5, 1.0)
    for _ in range(3):
        agent.look()
        reporter.report(6, 1.0)
    assert any(row["step"] in (5, 6) for row in agent.look()["step"])
    reporter.close()


def _raw(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    made.connect(str(path))
    return made


@pytest.mark.parametrize(
    "content",
    [b"x", b"{}", b"[" * 60_000, b'{"v":1,"steps":{}}', b'{"v":2,"steps":[]}', b"\xff" * 100, b"x" * (MAX_BYTES + 500)],
)
def test_messages_that_are_none(agent: Agent, content: bytes) -> None:
    """Refused, counted and told; after twenty the connection is closed, after long ones it is slowed down first;
    another sender notices nothing."""
    stranger, reporter = _raw(agent.path), agent.reporter()
    for n in range(25):
        try:
            stranger.send(content)
        except OSError:
            break
        reporter.report(n, 1.0)
        assert [row["step"] for row in agent.look()["step"]] == [n]
    told = agent.look(60 - agent.second)["event"]
    assert any("closed (1 times)" in event["message"] or "slowed down" in event["message"] for event in told)
    stranger.close()
    reporter.close()


def test_a_flood_slows_the_flooder_alone(agent: Agent) -> None:
    """Beyond its rate a sender is not read: its queue fills, and nobody else's."""
    flooder, reporter = _raw(agent.path), agent.reporter()
    message = json.dumps({"v": 1, "job": "1", "steps": [[1, 1.0]] * 1000}).encode()
    taken = 0
    for n in range(40):
        for _ in range(100):
            try:
                flooder.send(message)
            except OSError:
                break
        reporter.report(n, 1.0)
        rows = agent.look()["step"]
        assert [row["step"] for row in rows if row["job_id"] == "7"] == [n]
        taken += len(rows) - 1
    assert taken <= 50 * (20 + 40) + 2000
    told = agent.look(60 - agent.second)["event"]
    assert any("slowed down to 50 steps a second" in event["message"] for event in told)
    flooder.close()
    reporter.close()


def test_a_user_has_so_many_connections_and_no_more(tmp_path: Path) -> None:
    """The others are closed at once and counted."""
    agent = Agent(tmp_path, senders=3)
    ways = [_raw(agent.path) for _ in range(10)]
    agent.look()
    assert len(agent.collector._senders) == 3
    assert "more than 3 connections (7 times)" in agent.look(59)["event"][0]["message"]
    for way in ways:
        way.close()
    agent.look()
    assert not agent.collector._senders
    agent.collector.close()


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=20))
def test_any_json_is_a_message_or_refused(value: Any) -> None:
    """What comes through is finite, bounded and of its type."""
    for said in (value, {"v": 1, "steps": value}, {"v": 1, "rank": value, "job": value, "steps": [value, [1, value]]}):
        try:
            told = parse(json.dumps(said).encode(), node_files.START)
        except Refused:
            continue
        assert all(0 <= step.seconds <= 1e7 for step in told.steps)
        assert told.job is None or len(told.job) <= 128


@pytest.mark.parametrize("at", [None, "x", 0, 1e300, -5, [], node_files.START.timestamp() + 3600])
def test_a_time_that_cannot_be_is_now(at: Any) -> None:
    """Not in the future, not older than an hour; the round's time stands for it."""
    told = parse(json.dumps({"v": 1, "steps": [[1, 1.0, None, None, at]]}).encode(), node_files.START)
    assert told.steps[0].ts == node_files.START


def test_the_socket_and_what_may_stand_in_its_place(tmp_path: Path) -> None:
    """A dead agent's socket is replaced; a living one's, and a file, are left alone and said."""
    path = tmp_path / "run/steps.sock"
    agent = Agent(tmp_path)
    with pytest.raises(NoSource, match="another agent listens there"):
        StepSocket(agent.machine, settings=Settings(path))
    assert oct(path.stat().st_mode)[-3:] == "666"
    agent.collector._listener.close()  # as a kill leaves it
    again = StepSocket(agent.machine, settings=Settings(path, mode=0o660))
    assert oct(path.stat().st_mode)[-3:] == "660"
    path.unlink()
    again.collect(node_files.round_at(60))
    assert path.exists()
    again.close()
    again.close()
    path.write_text("precious")
    with pytest.raises(NoSource, match="is there and no socket"):
        StepSocket(agent.machine, settings=Settings(path))
    assert path.read_text() == "precious"
    agent.collector.close()


def test_the_client_is_one_file_without_dependencies(agent: Agent) -> None:
    """Copied beside a script it works in a bare interpreter, and it imports nothing of graynode."""
    folder = agent.path.parent / "alone"
    folder.mkdir()
    (folder / "graynode_steps.py").write_text(Path(steps.__file__).read_text())
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "from graynode_steps import report, lost\n"
        "report(4, 0.5, busy_s=0.25); print(lost(), [m for m in sys.modules if m.startswith('graynode.')])"
    )
    env = {"GRAYNODE_STEPS_SOCKET": str(agent.path), "SLURM_JOB_ID": "7"}
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n"
    assert [row["step"] for row in agent.look()["step"]] == [4]


@pytest.mark.long
def test_the_package_of_one_file(tmp_path: Path) -> None:
    """``make steps-wheel`` gives a wheel that holds the client and nothing else, and needs nothing."""
    root = Path(__file__).resolve().parents[2]
    shutil.copy(root / "deploy/steps/pyproject.toml", tmp_path)
    shutil.copy(root / "collectors/steps.py", tmp_path / "graynode_steps.py")
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path / "dist"),
        str(tmp_path),
    ]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "dist").glob("graynode_steps-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if "dist-info" not in name] == ["graynode_steps.py"]
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        assert b"Requires-Dist" not in archive.read(metadata)
    code = f"import sys; sys.path.insert(0, {str(wheel)!r}); from graynode_steps import report; report(1, 1.0)"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


def test_the_client_is_written_for_older_interpreters_too() -> None:
    """Images of training jobs have Python 3.9 and newer: no syntax of later ones."""
    ast.parse(Path(steps.__file__).read_text(), feature_version=(3, 9))


def test_what_a_call_costs(agent: Agent) -> None:
    """Some 10 to 20 µs with an agent, less without; asserted a hundred times above that."""
    reporter = agent.reporter()
    began = time.perf_counter()
    for step in range(500):
        reporter.report(step, 0.1, busy_s=0.05, wait_s=0.05)
        if step % 8 == 0:
            agent.collector.collect(node_files.round_at(1))
    assert (time.perf_counter() - began) / 500 < 2e-3
    reporter.close()
