"""Following a growing text file line by line, through rotation, truncation and restarts of the reader."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from graynode.collectors.sysfs import names

MAX_LINE: Final = 16 * 1024
"""Longer lines are cut here and their rest is dropped: no kernel line is as long, and memory stays bounded."""
_TAIL: Final = 64
"""Bytes before the position that must still be there: a file that was truncated and grew again is told by them."""
_IDLE_S: Final = 5.0
"""A last line without its end is taken after so long without growth."""


class LogFile:
    """The lines of a file since ``position``, which is a mapping that ``position()`` gave, or empty to begin.

    A renamed file is read to its end before the new one is begun, also when it was renamed while nobody read.
    ``gaps`` collects in words what may have been lost; the caller takes it. How reads are cut never matters.
    """

    def __init__(self, path: Path, position: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.gaps: list[str] = []
        self._fd = -1
        self._pending = b""
        self._skipping = False
        self._at_end = False
        self._idle_since: float | None = None
        self._idle_length = 0
        self._tail = b""
        self._offset = 0  # of what has been given as lines; what is pending comes after it
        self._known: tuple[int, int] | None = None
        self._restore(position or {})

    def lines(self, now_s: float, limit: int = 1 << 20) -> list[bytes]:
        """Whole lines that are new, without their ends, of at most about ``limit`` bytes. ``OSError`` from opening.

        ``now_s`` is any clock that goes on; it decides only when an unfinished last line is taken.
        """
        if self._fd < 0:
            self._open()
        found = list(self._read(limit))
        if self._at_end and self._replaced():
            found.extend(self._finish())
            with contextlib.suppress(OSError):  # renamed again meanwhile: the next look opens it
                self._begin(self.path)
                found.extend(self._read(limit))
        found.extend(self._idle(now_s, grown=bool(found)))
        return found

    def position(self) -> dict[str, Any]:
        """Where reading stands, to be given to a new ``LogFile`` later."""
        device, inode = self._known or (0, 0)
        return {
            "device": device,
            "inode": inode,
            "offset": self._offset,
            "tail": self._tail.hex(),
            "skipping": self._skipping,
        }

    def close(self) -> None:
        """Let go of the file; twice is as good as once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _restore(self, position: Mapping[str, Any]) -> None:
        try:
            inode, offset = int(position["inode"]), int(position["offset"])
            device, tail = int(position["device"]), bytes.fromhex(position["tail"])
        except (KeyError, TypeError, ValueError):
            return
        if inode and offset >= 0:
            self._known, self._offset, self._tail = (device, inode), offset, tail
            self._skipping = bool(position.get("skipping"))

    def _open(self) -> None:
        known = self._known
        if known is None or _identity(self.path) == known:
            self._begin(self.path, keep=known is not None)
            return
        for name in names(self.path.parent):
            sibling = self.path.with_name(name)
            if name.startswith(self.path.name) and _identity(sibling) == known:
                self._begin(sibling, keep=True)
                return
        self._begin(self.path)
        self.gaps.append(f"{self.path} was replaced while the agent was away; its last lines may be lost")

    def _begin(self, path: Path, *, keep: bool = False) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.close()
        self._fd = fd
        status = os.fstat(fd)
        self._known = (status.st_dev, status.st_ino)
        if not keep:
            self._rewind()

    def _rewind(self) -> None:
        self._offset, self._pending, self._skipping, self._tail = 0, b"", False, b""

    def _read(self, limit: int) -> Iterator[bytes]:
        self._check_same()
        taken, self._at_end = 0, False
        while taken < limit:
            try:
                chunk = os.pread(self._fd, min(1 << 16, limit - taken), self._offset + len(self._pending))
            except OSError:
                if taken:
                    return  # what was read is given first; the next look meets the error again
                raise
            if not chunk:
                self._at_end = True
                return
            taken += len(chunk)
            yield from self._split(chunk)

    def _check_same(self) -> None:
        size = os.fstat(self._fd).st_size
        held = self._offset + len(self._pending)
        if size == held or (
            size > held and os.pread(self._fd, len(self._tail), self._offset - len(self._tail)) == self._tail
        ):
            return
        self.gaps.append(f"{self.path} was cut or written anew; what it held since the last look may be lost")
        self._rewind()

    def _split(self, chunk: bytes) -> Iterator[bytes]:
        *whole, rest = (self._pending + chunk).split(b"\n")
        for line in whole:
            if not self._skipping:
                yield line[:MAX_LINE]
            self._skipping = False
            self._pass(line + b"\n")
        self._pending = rest
        if self._skipping or len(rest) > MAX_LINE:
            if not self._skipping:
                yield rest[:MAX_LINE]
            self._skipping = True
            self._pass(rest)
            self._pending = b""

    def _pass(self, given: bytes) -> None:
        self._offset += len(given)
        self._tail = (self._tail + given)[-_TAIL:] if len(given) < _TAIL else given[-_TAIL:]

    def _replaced(self) -> bool:
        """Whether another file stands at the path and has begun: the old one is finished then."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) != self._known and status.st_size > 0

    def _finish(self) -> Iterator[bytes]:
        if self._pending:
            yield self._pending
            self._pass(self._pending)
            self._pending = b""

    def _idle(self, now_s: float, *, grown: bool) -> Iterator[bytes]:
        if grown or len(self._pending) != self._idle_length or self._idle_since is None:
            self._idle_since, self._idle_length = now_s, len(self._pending)
        elif self._pending and now_s - self._idle_since >= _IDLE_S:
            yield from self._finish()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
