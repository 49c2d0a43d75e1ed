"""Slurm's one-line records (``scontrol -o``, the job completion log) and its lists of host names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Final

MAX_HOSTS: Final = 100_000
"""A list of more names than any cluster has nodes is cut here."""
_BRACKETS: Final = 8
"""Slurm allows two in a name."""
_NOTHING: Final = frozenset({"", "(null)", "N/A", "None", "none", "Unknown", "n/a", "n/s", "UNLIMITED"})
_KEY: Final = re.compile(r"(?:^|(?<= ))([A-Za-z][A-Za-z0-9_:/&.]{0,40})=")
_EPOCH: Final = re.compile(r"\d{9,11}")


def records(text: str) -> Iterator[Mapping[str, str]]:
    """A mapping a line, values as written. A value runs up to the next ``Key=`` that stands after a space.

    Text that people wrote (a reason, a comment) may look like a key. Slurm writes those last, and the first value of a
    key counts, so such text cannot pass itself off as a state.
    """
    for line in text.splitlines():
        found = list(_KEY.finditer(line))
        record: dict[str, str] = {}
        for n, match in enumerate(found):
            end = found[n + 1].start() if n + 1 < len(found) else len(line)
            record.setdefault(match[1], line[match.end() : end].strip())
        if record:
            yield record


def word(value: str | None) -> str | None:
    """A value, ``None`` where Slurm writes that there is none."""
    return None if value is None or value in _NOTHING else value


def moment(value: str | int | float | None) -> datetime | None:
    """A time in seconds since 1970 (``SLURM_TIME_FORMAT=%s``), or ISO without zone, which is this machine's.

    ``None`` for 0, for what is not set, and for what is no time.
    """
    try:
        if isinstance(value, str):
            if not _EPOCH.fullmatch(value):
                return datetime.fromisoformat(value).astimezone(UTC) if word(value) else None
            value = int(value)
        if not value or value < 0 or value > 1 << 33:
            return None
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def number(value: str | None) -> int | None:
    """A whole number, ``None`` where it is none."""
    return int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 16 else None


def hosts(text: str | None, most: int = MAX_HOSTS) -> list[str]:
    """The names of a list such as ``n[1-3,07-09],gpu-a[1-2]-b``, in its order, at most ``most`` of them."""
    names = (name for part in _parts(word(text) or "") for name in _expand(part, most))
    return list(islice(names, most))


def _parts(text: str) -> Iterator[str]:
    """Split at commas outside of brackets."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    if text[start:]:
        yield text[start:]


def _expand(part: str, most: int) -> Iterator[str]:
    """Names of one part; brackets are expanded from the left, the last one fastest."""
    head, open_, rest = part.partition("[")
    ranges, close, tail = rest.partition("]")
    if not open_ or not close or part.count("[") > _BRACKETS:
        if part:
            yield part
        return
    ends = list(islice(_expand(tail, most), most)) if tail else [""]
    if ends:  # else every name would be looked for in vain
        yield from (f"{head}{number_}{end}" for number_ in _ranges(ranges) for end in ends)


def _ranges(text: str) -> Iterator[str]:
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if not dash:
            yield first
        elif first.isdigit() and last.isdigit() and len(last) < 12 and len(first) < 12:
            width = len(first)
            yield from (str(n).zfill(width) for n in range(int(first), int(last) + 1))
