"""Programs that parts of ``services`` start in one round and read in a later one; no round waits for them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from graynode.collectors.program import Ended, Program, ProgramFailed

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for: not in the environment's places, for the agent may run with more rights than the
owner of a folder there."""
_NEVER: Final = 10.0**9


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended. ``trouble``: it gave nothing usable, and why."""

    code: int = 0
    text: str = ""
    complaint: str = ""
    trouble: str = ""


class Runner:
    """Programs that run, by a key of whoever asked: one at a time for each key."""

    def __init__(self, path: str = PATH, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path, self._monotonic = path, monotonic
        self._running: dict[str, tuple[Program, float]] = {}
        self._failed: dict[str, str] = {}

    def finds(self, program: str) -> bool:
        """Whether there is such a program."""
        return shutil.which(program, path=self.path) is not None

    def start(self, key: str, program: str, arguments: Sequence[str], *, deadline_s: float | None, most: int) -> bool:
        """Start it unless the one before still runs. Without a deadline it is left alone until it ends by itself."""
        if key in self._running:
            return False
        found = shutil.which(program, path=self.path)
        if found is None:
            self._failed[key] = f"no {program} in {self.path}"
            return True
        env = {"PATH": self.path, "LC_ALL": "C.UTF-8"}
        try:
            started = Program(
                [found, *arguments], env, deadline_s=deadline_s or _NEVER, most=most, monotonic=self._monotonic
            )
        except ProgramFailed as error:
            self._failed[key] = str(error)
            return True
        self._running[key] = started, self._monotonic()
        return True

    def running_s(self, key: str) -> float | None:
        """How long it has been running, ``None`` if it is not."""
        running = self._running.get(key)
        return None if running is None else self._monotonic() - running[1]

    def take(self, key: str) -> Answer | None:
        """Its answer once it has ended, given once; ``None`` while there is none."""
        failed = self._failed.pop(key, None)
        if failed is not None:
            return Answer(trouble=failed)
        running = self._running.get(key)
        if running is None:
            return None
        try:
            ended = running[0].poll()
        except ProgramFailed as error:
            del self._running[key]
            return Answer(trouble=str(error))
        if ended is None:
            return None
        del self._running[key]
        return _answer(ended)

    def close(self) -> None:
        """End what runs; twice is as good as once."""
        for program, _ in self._running.values():
            program.kill()
        self._running.clear()


def _answer(ended: Ended) -> Answer:
    return Answer(ended.code, ended.output.decode("utf-8", "replace"), ended.complaint)
