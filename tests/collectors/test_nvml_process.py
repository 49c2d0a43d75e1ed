"""The child as a process: what it loads, how it ends, and the agent around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from agent_fakes import Sink, Source, until
from nvml_rig import rig

from graynode.collectors.agent import Agent, Settings
from graynode.collectors.health import children
from graynode.collectors.nvml.patience import Pause

pytestmark = pytest.mark.nvml

HEAVY = ("pyarrow", "numpy", "polars", "duckdb", "kafka", "sklearn", "structlog", "graynode.pipeline")


def test_the_child_is_light() -> None:
    """The child's module imports pynvml, msgspec and the standard library, and nothing of the pipeline."""
    code = "import sys, graynode.collectors.nvml.reader; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "pynvml" in loaded
    assert not [name for name in loaded if name.startswith(HEAVY)]


def test_the_parent_does_not_load_pynvml() -> None:
    """The collector itself never loads pynvml: a library that crashes takes the child only."""
    code = "import sys, graynode.collectors.nvml.collector; print('pynvml' in sys.modules, 'ctypes' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"


PARENT = """
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from graynode.collectors.base import Machine, Round
from graynode.collectors.nvml.collector import Nvml
state, sysfs = map(Path, sys.argv[1:])
nvml = Nvml(Machine("c", "n", "i", "configured", "b", state, sys=sysfs), deadline_s=30)
for due in ({1, 10, 60}, {1}):
    print(len(nvml.collect(Round(datetime.now(UTC), frozenset(due))).get("gpu", ())), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_the_child_ends_with_its_parent(tmp_path: Path, hangs: bool) -> None:
    """An agent that is killed leaves no reader behind, also not one in the middle of a call."""
    with rig(tmp_path) as node:
        command = [sys.executable, "-I", "-c", PARENT, str(tmp_path / "state2"), str(node.sys)]
        parent = subprocess.Popen(command, env=node.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline().strip() == "2"
        if hangs:
            node.scenario.set("temp", "hang").write()
            parent.stdin.write("go on\n")
            parent.stdin.flush()
            time.sleep(0.3)
        (reader,) = readers(parent.pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        parent.stdin.close()
        assert until(lambda: not alive(reader))


def test_the_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """The agent's threads come and go; a child started from one that has ended is still there."""
    with rig(tmp_path) as node:
        thread = threading.Thread(target=node.round)
        thread.start()
        thread.join()
        (reader,) = readers(os.getpid())
        time.sleep(0.2)
        assert alive(reader)
        assert len(node.round(1)["gpu"]) == 2
        assert readers(os.getpid()) == [reader]


def test_signals_to_the_group_do_not_end_the_child(tmp_path: Path) -> None:
    """Ctrl-C and a service manager signal every process; the last round must not look like a failure of NVML."""
    with rig(tmp_path) as node:
        node.round()
        (reader,) = readers(os.getpid())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(reader, number)
        assert len(node.round(1)["gpu"]) == 2
        assert readers(os.getpid()) == [reader]


def test_pauses_double_up_to_the_longest() -> None:
    """Between children that fail the pause doubles, up to the longest, and begins anew after a success."""
    pause, now, begun = Pause((1.0, 5.0)), 100.0, []
    for _ in range(5):
        assert pause.over(now)
        pause.begin(now)
        length = next(s / 10 for s in range(1, 100) if pause.over(now + s / 10))
        begun.append(length)
        now += length
    assert begun == [1, 2, 4, 5, 5]
    pause.reset()
    pause.begin(now)
    assert pause.over(now + 1)


def test_a_hung_gpu_in_the_agent(tmp_path: Path) -> None:
    """In the agent, a GPU that hangs costs the other collectors no round, and its rows are sent without it."""
    with rig(tmp_path, gpus=3, deadline_s=2.0) as node:
        other, sink, stop = Source(), Sink(), threading.Event()
        agent = Agent(
            node.machine, [node.collector, other], sink, 1,
            settings=Settings(batch_s=0.1, tick_s=0.05), driver_load=lambda: node.collector.driver_load,
        )  # fmt: skip
        thread = threading.Thread(target=agent.run, args=(stop,))
        thread.start()
        assert until(lambda: gpu_rows(sink) >= 6)
        node.scenario.set("temp", "hang", 1).write()
        assert until(lambda: {"gpu_hung", "nvml_blind"} <= kinds(sink))
        rounds, sent = len(other.rounds), gpu_rows(sink)
        assert until(lambda: "nvml_back" in kinds(sink) and gpu_rows(sink) > sent + 4)
        assert len(other.rounds) > rounds
        stop.set()
        thread.join(20)
        assert not thread.is_alive()
        assert agent.misfits.counts == {}


def test_rounds_end_by_their_deadline(tmp_path: Path) -> None:
    """Whatever hangs, and however often, ``collect`` returns by its deadline."""
    with rig(tmp_path, gpus=3) as node:
        node.round()
        node.collector.deadline_s = 0.3
        for gpu in range(3):
            node.scenario.set("temp", "hang", gpu).write()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            started = time.monotonic()
            node.round(1)
            assert time.monotonic() - started < 3
        assert node.collector.nvml_up is False
        assert len(readers(os.getpid())) <= 4


def readers(pid: int) -> list[int]:
    """Living readers that a process has started."""
    found = []
    for child in children(Path("/proc"), pid):
        if alive(child) and b"nvml.reader" in Path(f"/proc/{child}/cmdline").read_bytes():
            found.append(child)
    return found


def alive(pid: int) -> bool:
    """True for a process that runs: neither gone nor waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kinds(sink: Sink) -> set[str]:
    return {e["kind"] for e in sink.rows("event")}


def gpu_rows(sink: Sink) -> int:
    return len(sink.rows("gpu"))
