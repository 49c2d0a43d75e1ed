"""A program that runs beside the rounds: started, looked after once a round, ended at its deadline.

``squeue`` takes seconds on a large cluster and hangs for minutes when slurmctld is away; no round waits for it. Its
output goes to a file in memory that cannot grow past a bound, so a program that writes for ever costs itself only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from graynode.collectors.sysfs import whole_text

MAX_OUTPUT: Final = 256 << 20
"""Some 25,000 jobs of the largest JSON that Slurm writes (10 KB a job), where memory is not limited."""
_SHARE: Final = 4
"""Of the memory that this process and its children may use: the output lies in it, is read and taken apart."""
_SAID: Final = 400
"""Of what a program says on stderr, so much is kept."""


class ProgramFailed(Exception):
    """It gave no usable output; the text says why."""


class Ended(NamedTuple):
    """How a program ended: its exit code (negative: the signal), what it wrote, the end of what it complained."""

    code: int
    output: bytes
    complaint: str


class Program:
    """One run of a program by argument list, no shell. ``poll`` once a round; it waits only as long as it is told to.

    ``deadline_s`` after which the program and its children are killed; ``most`` bytes that it may write, by default
    ``MAX_OUTPUT`` or a share of what the cgroup may use: else a program that writes for ever takes the agent with it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        deadline_s: float,
        most: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.argv, self._deadline_s, self._monotonic = tuple(argv), deadline_s, monotonic
        self._most = most = output_bound(memory_limit()) if most is None else most
        self._out = os.memfd_create("graynode-output", os.MFD_CLOEXEC)
        self._err = os.memfd_create("graynode-complaint", os.MFD_CLOEXEC)
        self._since = monotonic()
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                env=dict(env),
                start_new_session=True,  # its children end with it
            )
        except OSError as error:
            self._forget()
            raise ProgramFailed(f"{argv[0]}: {error.strerror}") from error
        with contextlib.suppress(OSError, ValueError):  # it has ended already
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (most, most))

    def poll(self, wait_s: float = 0.0) -> Ended | None:
        """``None`` while it runs; else how it ended, once. ``ProgramFailed`` if it was killed at its deadline.

        ``wait_s`` is granted to a program that has just been started and takes some milliseconds.
        """
        code = self._process.poll()
        if code is None and wait_s > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(wait_s)
        if code is None:
            if self._monotonic() - self._since < self._deadline_s:
                return None
            self.kill()
            raise ProgramFailed(f"{self.argv[0]} gave no answer within {self._deadline_s:g} s; it was ended")
        flooded = code == -signal.SIGXFSZ
        output = b"" if flooded else _content(self._out, self._most)
        complaint = _content(self._err, 1 << 20)[-_SAID:].decode("utf-8", "replace").strip()
        self._forget()
        if flooded:
            way_out = "; more is taken where the agent may use more memory" if self._most < MAX_OUTPUT else ""
            raise ProgramFailed(f"{self.argv[0]} wrote more than {self._most} bytes; it was ended{way_out}")
        return Ended(code, output, complaint)

    def kill(self) -> None:
        """End it and its children now; twice is as good as once."""
        if self._out < 0:
            return
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._forget()

    def _forget(self) -> None:
        for fd in (self._out, self._err):
            if fd >= 0:
                os.close(fd)
        self._out = self._err = -1


def _content(fd: int, most: int) -> bytes:
    size = min(os.fstat(fd).st_size, most)
    chunks: list[bytes] = []
    at = 0
    while at < size and (chunk := os.pread(fd, size - at, at)):
        chunks.append(chunk)
        at += len(chunk)
    return b"".join(chunks)


def output_bound(limit: int | None) -> int:
    """How many bytes a program may write where so much memory may be used; ``None``: there is no limit."""
    return MAX_OUTPUT if limit is None else min(MAX_OUTPUT, limit // _SHARE)


def memory_limit(cgroup: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that this process's cgroup may use, or one above it (v1 and v2); ``None`` where nothing says a limit."""
    limits: list[int] = []
    for line in whole_text(cgroup).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            limits += _limits(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(root / "memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _limits(root: Path, path: str, name: str) -> Iterator[int]:
    inside = PurePosixPath(path.lstrip("/"))
    for folder in (inside, *inside.parents):
        text = whole_text(root / folder / name).strip()
        if text.isdecimal():
            yield int(text)
