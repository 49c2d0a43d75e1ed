"""The supervisor of ``graynode up``: restarts what ends, ends what runs, leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from agent_fakes import until

from graynode.service.supervise import Child, Supervisor

SLEEPER = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def child(tmp_path: Path, name: str, code: str) -> Child:
    return Child(name, [sys.executable, "-c", code], tmp_path / f"{name}.log")


def test_child_that_ends_is_started_again_after_a_growing_pause(tmp_path: Path) -> None:
    """A crash is told with its code and log, and the pause before the next start grows."""
    clock = Clock()
    supervisor = Supervisor([child(tmp_path, "role", "raise SystemExit(3)")], clock)
    supervisor.start()
    said: list[str] = []
    for _ in range(2):
        assert until(lambda: said.extend(supervisor.check()) or supervisor.children[0].process is None)
        assert supervisor.check() == []
        clock.now += 5
        supervisor.check()
        assert supervisor.children[0].process is not None
    assert "role ended with 3; starting it again in 0.5 s" in said[0]
    assert "in 1 s" in said[1]
    supervisor.stop()


def test_stop_ends_all_and_names_whom_it_killed(tmp_path: Path) -> None:
    """SIGTERM first; who does not end in time is killed and named."""
    stubborn = child(tmp_path, "stubborn", STUBBORN)
    supervisor = Supervisor([child(tmp_path, "good", SLEEPER), stubborn])
    supervisor.start()
    assert until(lambda: b"up" in stubborn.log.read_bytes())
    processes = [c.process for c in supervisor.children]
    killed = supervisor.stop(each_s=0.5)
    assert [k.split()[0] for k in killed] == ["stubborn"]
    assert all(process is not None and process.poll() is not None for process in processes)


def test_killed_supervisor_leaves_no_child(tmp_path: Path) -> None:
    """Kill -9 of the supervisor ends its children too: their locks must not outlive it."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom graynode.service.supervise import Child, Supervisor\n"
        f"s = Supervisor([Child('c', [sys.executable, '-c', {SLEEPER!r}], Path({str(tmp_path / 'c.log')!r}))])\n"
        "s.start()\nprint(s.children[0].process.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert until(
        lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1][:3]
    )
