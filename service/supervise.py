"""Runs the roles as child processes: starts, restarts with patience, and ends them in the order of the data."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PATIENCE_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
_STEADY_S: Final = 30.0
"""A child that ran this long has recovered: its next end counts as the first again."""
_PR_SET_PDEATHSIG: Final = 1


@dataclass(slots=True)
class Child:
    """One role: its command and where its log goes."""

    name: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    ends: int = 0
    started_s: float = 0.0
    start_at_s: float = 0.0


@dataclass(slots=True)
class Supervisor:
    """Children in the order of the data: the first feeds the second. ``clock`` is monotonic seconds."""

    children: list[Child]
    clock: Callable[[], float] = time.monotonic
    messages: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start all."""
        for child in self.children:
            self._start(child)

    def check(self) -> list[str]:
        """Restart what ended, after a pause that grows; what a person should know since the last call."""
        for child in self.children:
            if child.process is None:
                if self.clock() >= child.start_at_s:
                    self._start(child)
            elif (code := child.process.poll()) is not None:
                self._ended(child, code)
        said, self.messages = self.messages, []
        return said

    def stop(self, each_s: float = 20.0) -> list[str]:
        """End all in order, so that what one flushes the next still takes; who had to be killed."""
        killed = []
        for child in self.children:
            if child.process is None:
                continue
            child.process.send_signal(signal.SIGTERM)
            try:
                child.process.wait(each_s)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
                killed.append(f"{child.name} did not end within {each_s:g} s and was killed; see {child.log}")
            child.process = None
        return killed

    def _start(self, child: Child) -> None:
        with child.log.open("ab") as log:
            child.process = subprocess.Popen(
                list(child.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_end_with_parent
            )
        child.started_s = self.clock()

    def _ended(self, child: Child, code: int) -> None:
        child.ends = 1 if self.clock() - child.started_s > _STEADY_S else child.ends + 1
        pause = _PATIENCE_S[min(child.ends, len(_PATIENCE_S)) - 1]
        child.process, child.start_at_s = None, self.clock() + pause
        self.messages.append(f"{child.name} ended with {code}; starting it again in {pause:g} s (log: {child.log})")


def role_command(role: str, config: Path) -> list[str]:
    """The command of one role, as a unit file would have it."""
    return [sys.executable, "-m", "graynode.service.cli", role, "--config", str(config)]


def _end_with_parent() -> None:
    # Runs between fork and exec. A killed supervisor must not leave roles behind that hold its locks; Ctrl-C
    # reaches the whole foreground group, so children leave it and are ended in order instead.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)
