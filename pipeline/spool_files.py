"""The files of a spool: segments of a topic, committed offsets of its groups, locks.

``DIR/<topic>/<first offset, 20 digits>.seg`` are the segments, the last one still growing;
``DIR/<topic>/groups/<group>`` holds a committed offset as text, and ``….lock`` beside it is held by the member
that reads; ``DIR/<topic>/writer.lock`` is held by the one writer and names its process.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.lock_file import LockFile, Taken

SUFFIX: Final = ".seg"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment: ``first`` is its first offset, ``after`` the next segment's (``None``: it still grows)."""

    topic: str
    first: int
    after: int | None
    size: int
    changed: float


def checked_name(name: str, what: str) -> str:
    """``name``, if it can be the name of a file here; ``BusRefused`` otherwise."""
    if not _NAME.fullmatch(name) or name.endswith(".lock"):
        raise BusRefused(f"{what} {name!r}: letters, digits, dot, dash and underscore only, at most 200")
    return name


def segment_path(root: Path, topic: str, first: int) -> Path:
    """The file of the segment that begins with offset ``first``."""
    return root / topic / f"{first:020d}{SUFFIX}"


def firsts(root: Path, topic: str) -> list[int]:
    """First offsets of the topic's segments, oldest first; ``[]`` for a topic that nothing was sent to."""
    try:
        names = [entry.name for entry in os.scandir(root / topic)]
    except FileNotFoundError:
        return []
    return sorted(int(n[: -len(SUFFIX)]) for n in names if n.endswith(SUFFIX))


def segments(root: Path, topic: str) -> list[Segment]:
    """The topic's segments with their sizes, oldest first; what vanishes meanwhile is left out."""
    starts = firsts(root, topic)
    found = []
    for first, after in zip(starts, [*starts[1:], None], strict=False):
        with contextlib.suppress(FileNotFoundError):
            stat = segment_path(root, topic, first).stat()
            found.append(Segment(topic, first, after, stat.st_size, stat.st_mtime))
    return found


def topics(root: Path) -> list[str]:
    """Topics that the spool has seen."""
    try:
        return sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except FileNotFoundError:
        return []


def groups(root: Path, topic: str) -> dict[str, int]:
    """The committed offset of each group of the topic; a file that says nothing counts as 0."""
    folder = root / topic / "groups"
    try:
        names = [entry.name for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        return {}
    return {n: read_offset(folder / n) or 0 for n in names if not n.endswith(".lock")}


def read_offset(path: Path) -> int | None:
    """The offset in a group's file, or ``None`` if there is none that can be read whole."""
    for _ in range(2):  # the second time, because a look may meet the writing of it
        try:
            text, _, check = path.read_bytes().partition(b" ")
        except FileNotFoundError:
            return None
        if text.isdigit() and check.strip() == _check(text):
            return int(text)
    return None


def write_offset(path: Path, offset: int) -> None:
    """Put the offset in the file, on disk. In place, so that a full disk does not hold up what would free it.

    The whole is far below a sector, and its check makes a torn one count as none: then a group begins at the
    oldest message again and nothing is removed, which doubles and does not lose.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = b"%020d" % offset
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(fd, text + b" " + _check(text) + b"\n", 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _check(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)


def sync_folder(folder: Path) -> None:
    """Make a new or removed name in the folder survive a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_writer(root: Path, topic: str) -> LockFile:
    """Become the topic's one writer. ``BusUnavailable`` names the process that is it already."""
    path = root / topic / "writer.lock"
    try:
        return LockFile(path)
    except Taken as taken:
        raise BusUnavailable(
            f"{path}: process {taken.owner} writes this topic already; one writer a topic: stop that one,"
            " or let this one use another spool directory"
        ) from taken
