"""The agent as a process of its own, with a configuration in a folder, and what it put into its spool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from roles import to_toml

from graynode.pipeline.codec import decode
from graynode.pipeline.schema import EVENTS, SAMPLES
from graynode.pipeline.spool_reader import TopicReader

MAIN = "graynode.service.agent_main"


def kmsg_line(sequence: int, text: str) -> str:
    """A record as ``/dev/kmsg`` gives it, of now."""
    now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    return f"3,{sequence},{now_us},-;{text}\n"


class AgentProcess:
    """Starts and ends agents over one folder. The log file ``kmsg`` is there and empty."""

    def __init__(self, folder: Path, agent: dict[str, Any] | None = None, **sections: Any) -> None:
        self.folder, self.config = folder, folder / "graynode.toml"
        self.kmsg, self.bus = folder / "kmsg", folder / "bus"
        self.kmsg.touch()
        base = {
            "state_dir": str(folder / "state"), "metrics_listen": "", "batch_s": 0.5, "kmsg": str(self.kmsg),
            "collectors": ["kernel_log", "host"], "node_id": "machine-1",
        }  # fmt: skip
        settings = {"cluster": "test", "agent": {**base, **(agent or {})}, "bus": {"spool_dir": str(self.bus)}}
        self.config.write_text(to_toml({**settings, **sections}))
        self.env: dict[str, str] | None = None
        """Its environment; this process's where none is given."""
        self._running: subprocess.Popen[bytes] | None = None

    def command(self, *words: str) -> list[str]:
        """How it is started."""
        return [sys.executable, "-I", "-m", MAIN, "--config", str(self.config), *words]

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run to its end."""
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=60, check=False)

    def start(self) -> int:
        """Start; its process id."""
        with (self.folder / "agent.log").open("ab") as log:
            self._running = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env
            )
        return self._running.pid

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30) -> int:
        """Send a signal and give the exit code."""
        assert self._running is not None
        self._running.send_signal(number)
        code = self._running.wait(timeout_s)
        self._running = None
        return code

    @property
    def log(self) -> str:
        """All it has said."""
        return (self.folder / "agent.log").read_text(errors="replace")

    def until(self, done: Callable[[], Any], timeout_s: float = 30.0) -> Any:
        """Wait; a dead agent or the time ends the test with the log."""
        end = time.monotonic() + timeout_s
        while not (value := done()):
            if time.monotonic() > end or (self._running and self._running.poll() is not None):
                raise AssertionError(f"not within {timeout_s} s:\n{self.log[-3000:]}")
            time.sleep(0.05)
        return value

    def messages(self, topics: Sequence[str] = (SAMPLES, EVENTS), spool: Path | None = None) -> list[Any]:
        """All messages of the spool, read as no group does: nothing is registered or taken away."""
        found = []
        for topic in topics:
            reader = TopicReader(spool or self.bus, topic, "looking")
            reader.seek(0)
            while some := reader.take(1000, 1 << 26):
                found += [r.message for r in some]
            reader.close()
        return found

    def rows(self, table: str, spool: Path | None = None) -> list[dict[str, Any]]:
        """All rows of a table in the spool, nulls left out."""
        made = [row for m in self.messages(spool=spool) if m.headers["table"] == table for row in decode(m).to_pylist()]
        return [{k: v for k, v in row.items() if v is not None} for row in made]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._running is not None and self._running.poll() is None:
            os.kill(self._running.pid, signal.SIGKILL)
            self._running.wait()
