"""What to ask in which order, so that no answer exceeds a server's limits. Pure: numbers and words in and out.

A chunk is a UTC day or the whole hours of it that are wanted; a shard is some of the instances. One query is one field
of one shard in one chunk. Limits that are kept: 11,000 points a series (Prometheus; VictoriaMetrics has 30,000),
16 KiB a query (VictoriaMetrics), and memory here: a shard's rows of a chunk are held at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

HOUR_S: Final = 3600
DAY_S: Final = 86400
_MOST_ROWS: Final = 160_000
_GPUS_AN_INSTANCE: Final = 8
"""Assumed before anything has been read. Denser nodes make larger answers, not wrong ones."""
_MOST_TEXT: Final = 6_000
_SINCE: Final = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_SINCE_S: Final = {"m": 60, "h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
_SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Samples taken in ``(start_s, end_s]``: evaluations at ``start_s + step``, …, ``end_s``. Whole hours, epoch s."""

    start_s: int
    end_s: int

    def points(self, step_s: int) -> int:
        """Evaluations."""
        return (self.end_s - self.start_s) // step_s

    def halves(self) -> tuple[Chunk, Chunk] | None:
        """Two chunks of whole hours; ``None`` for an hour."""
        hours = (self.end_s - self.start_s) // HOUR_S
        if hours < 2:
            return None
        middle = self.start_s + hours // 2 * HOUR_S
        return Chunk(self.start_s, middle), Chunk(middle, self.end_s)


def checked_step(seconds: float) -> int:
    """The step, if it can be one: at least 10 s, and an hour is a whole number of them. ``ValueError``."""
    if not (10 <= seconds <= HOUR_S and seconds == int(seconds) and HOUR_S % int(seconds) == 0):
        raise ValueError("a step such as 30s, 1m, 5m or 1h is wanted: 10 s or more, and dividing an hour")
    return int(seconds)


def parse_ago(text: str) -> timedelta:
    """``90d``, ``36h``, ``12w``. ``ValueError``."""
    told = _SINCE.fullmatch(text.strip())
    if not told or not 0 < float(told[1]) * _SINCE_S[told[2]] <= 3650 * DAY_S:
        raise ValueError("a time such as 90d, 12w or 36h, ten years at most")
    return timedelta(seconds=float(told[1]) * _SINCE_S[told[2]])


def chunks(start_s: int, end_s: int) -> list[Chunk]:
    """UTC days in order, so that those done before are known again; start and end are rounded to whole hours inwards.

    At the shortest step of 10 s a day has 8,640 points, fewer than the 11,000 that Prometheus gives.
    """
    found, at = [], -(-start_s // HOUR_S) * HOUR_S
    last = end_s // HOUR_S * HOUR_S
    while at < last:
        until = min(at - at % DAY_S + DAY_S, last)
        found.append(Chunk(at, until))
        at = until
    return found


def shards(instances: Sequence[str], points: int) -> Iterator[list[str]]:
    """Instances in order, as many together as rows and query text allow."""
    most = max(1, _MOST_ROWS // (_GPUS_AN_INSTANCE * max(points, 1)))
    held: list[str] = []
    size = 0
    for instance in sorted(instances):
        length = len(_quoted(instance)) + 1
        if held and (len(held) >= most or size + length > _MOST_TEXT):
            yield held
            held, size = [], 0
        held.append(instance)
        size += length
    if held:
        yield held


def matchers(label: str, values: Sequence[str], more: str) -> str:
    """The inside of a selector: these values of the label, and what else was asked for."""
    named = "|".join(_quoted(value) for value in values)
    return f'{label}=~"{named}"' + (f",{more}" if more else "")


def _quoted(value: str) -> str:
    """One value inside a regular expression inside a string of PromQL."""
    escaped = _SPECIAL.sub(lambda m: "\\" + m[0], value)
    return escaped.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
