"""Where job outputs are, whose they are, and what is new in them.

Outputs lie in folders of users, and the agent may be root: a symbolic link below the configured part of a path is
never followed, so nobody makes the agent read what he may not read himself.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

FIRST_BYTES: Final = 64 << 10
"""Of a file that is met for the first time, so much of its end is read: what it says of an earlier life is old."""
LOOK_BYTES: Final = 256 << 10
"""Of one file in one look."""
BEHIND_BYTES: Final = 8 << 20
"""A file that has grown by more than this since it was read is read at its end; what is between is skipped, counted."""
MOST_FOUND: Final = 20_000
_TAIL: Final = 32
_SPECIFIER: Final = re.compile(r"%(%|\d{0,2}[A-Za-z])")
_BY_NAME: Final = re.compile(r"(?:^|[^\d])(\d{1,10})(?:_(\d{1,7}))?(?=[^\d]*$)")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One configured path: ``glob`` finds files, ``regex`` takes ids from their names."""

    glob: str
    regex: re.Pattern[str] | None

    @staticmethod
    def of(text: str) -> Pattern:
        """From a glob, in which Slurm's ``%j``, ``%A``, ``%a``, ``%J`` and ``%t`` name ids; others stand for any text.

        ``ValueError`` for a path that is not absolute.
        """
        if not text.startswith("/"):
            raise ValueError(f"{text!r} is not an absolute path")
        fixed = Path(*_fixed_parts(text))
        rest = text[len(str(fixed)) :].lstrip("/")
        root = os.path.realpath(fixed)  # the administrator's own links are followed once, here
        ids = {
            "j": r"(?P<job>\d+)",
            "A": r"(?P<array>\d+)",
            "a": r"(?P<task>\d+)",
            "J": r"(?P<job>\d+)[^/]*?",
            "t": r"(?P<rank>\d+)",
        }
        regex, globbed, at, seen = (
            [re.escape(root.rstrip("/") + "/")],
            [glob.escape(root.rstrip("/") + "/")],
            0,
            set[str](),
        )
        for match in _SPECIFIER.finditer(rest):
            letter = match[1].lstrip("0123456789")
            regex.append(_as_regex(rest[at : match.start()]))
            globbed.append(rest[at : match.start()])
            at = match.end()
            if match[1] == "%":
                regex.append("%")
                globbed.append("%")
                continue
            regex.append(ids[letter] if letter in ids and letter not in seen else "[^/]*?")
            globbed.append("*")
            seen.add(letter)
        regex.append(_as_regex(rest[at:]))
        globbed.append(rest[at:])
        return Pattern("".join(globbed), re.compile("".join(regex)) if seen else None)

    def ids(self, path: str) -> tuple[str | None, int | None]:
        """Job (``123`` or, of an array, ``123_4``) and rank of a file by its name, null where it has none."""
        match = self.regex.fullmatch(path) if self.regex else None
        if match:
            known = match.groupdict()
            job = known.get("job")
            if job is None and known.get("array"):
                job = f"{known['array']}_{known['task']}" if known.get("task") else known["array"]
            rank = known.get("rank")
            return job, int(rank) if rank and len(rank) < 10 else None
        plain = _BY_NAME.search(path.rpartition("/")[2]) if self.regex is None else None
        if plain is None:
            return None, None
        return f"{plain[1]}_{plain[2]}" if plain[2] else plain[1], None


def find(patterns: Sequence[Pattern]) -> Iterator[tuple[str, Pattern]]:
    """Files of the patterns, at most ``MOST_FOUND`` of each."""
    for pattern in patterns:
        for path in islice(glob.iglob(pattern.glob), MOST_FOUND):  # noqa: PTH207 (escaped parts, and no objects)
            yield path, pattern


class Output:
    """One file, told by device and inode; opened only to be read, so that thousands cost no descriptors."""

    def __init__(
        self,
        path: str,
        job: str | None,
        rank: int | None,
        kept: Any = None,  # noqa: ANN401 (a file's content)
    ) -> None:
        self.path, self.job, self.rank = path, job, rank
        self.skipped = 0
        """Bytes passed over because too much came at once."""
        self._offset: int | None = None
        self._written = 0
        self._tail = b""
        self._pending = b""
        match kept:
            case [int() as offset, str() as tail] if offset >= 0:
                self._offset = offset
                try:
                    self._tail = bytes.fromhex(tail)
                except ValueError:
                    self._offset = None

    @property
    def kept(self) -> list[Any] | None:
        """For the state file: where the first line that was not given begins, and what stands before it."""
        return None if self._offset is None else [self._offset - len(self._pending), self._tail.hex()]

    def lines(self, status: os.stat_result) -> list[bytes]:
        """Whole new lines, of at most ``LOOK_BYTES``, where the file is as ``status`` says. ``OSError`` from opening.

        ``PermissionError`` too where a link leads somewhere else.
        """
        size = status.st_size
        if size == self._offset and status.st_mtime_ns == self._written:
            return []
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return []
            if str(Path(f"/proc/self/fd/{fd}").readlink()) not in (self.path, f"{self.path} (deleted)"):
                raise PermissionError(1, "a symbolic link leads elsewhere", self.path)
            self._written = status.st_mtime_ns
            return self._read(fd, size)
        finally:
            os.close(fd)

    def _read(self, fd: int, size: int) -> list[bytes]:
        start = self._start(fd, size)
        content = os.pread(fd, LOOK_BYTES, start)
        self._offset = start + len(content)
        whole, newline, rest = (self._pending + content).rpartition(b"\n")
        if newline:
            self._tail = whole[-_TAIL:]
        self._pending = rest
        if len(rest) >= LOOK_BYTES:
            self._pending = self._tail = b""  # no line is as long: what follows counts as another
        return whole.split(b"\n") if newline else []

    def _start(self, fd: int, size: int) -> int:
        """Where to go on. From the beginning if the file was cut or is another one; at its end if it is far ahead."""
        if self._offset is None:
            return self._jump(max(0, size - FIRST_BYTES))
        line = self._offset - len(self._pending)
        same = size >= self._offset and (
            not self._tail or os.pread(fd, len(self._tail) + 1, line - len(self._tail) - 1) == self._tail + b"\n"
        )
        if not same:
            return self._jump(0)
        if size - self._offset > BEHIND_BYTES:
            self.skipped += size - LOOK_BYTES - self._offset
            return self._jump(size - LOOK_BYTES)
        return self._offset

    def _jump(self, offset: int) -> int:
        self._pending, self._tail = b"", b""
        return offset


def _fixed_parts(text: str) -> Iterator[str]:
    """Folders before the first that may be any."""
    yield "/"
    for part in Path(text).parent.parts[1:]:
        if any(char in part for char in "*?[%"):
            return
        yield part


def _as_regex(text: str) -> str:
    """A glob's piece as a regular expression over one path."""
    made = []
    for char in text:
        made.append({"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char)))
    return "".join(made)
