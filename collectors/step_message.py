"""What a training loop wrote, checked: a message is bytes from a stranger until it has been through here."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

MAX_BYTES: Final = 64 << 10
MAX_STEPS: Final = 1000
_OLDEST: Final = timedelta(hours=1)
"""A step may wait for an agent that is away; older than this, its time is not believed."""
_MOST_S: Final = 1e7
_TEXT: Final = 128


class Refused(ValueError):
    """Not a message of ours; the text says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Seconds are wall seconds; ``busy_s`` and ``wait_s`` where the loop splits them."""

    step: int
    seconds: float
    busy_s: float | None
    wait_s: float | None
    ts: datetime


@dataclass(frozen=True, slots=True)
class Told:
    """A message: who says he is, how many steps he lost before, his steps."""

    job: str | None
    rank: int | None
    role: str | None
    gpu_uuid: str | None
    lost: int
    steps: tuple[Step, ...]
    bad_steps: int


def parse(content: bytes, now: datetime) -> Told:
    """A message, or ``Refused``. A step that is none costs itself and is counted in ``bad_steps``."""
    if len(content) > MAX_BYTES:
        raise Refused(f"longer than {MAX_BYTES} bytes")
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused("not JSON") from error
    if not isinstance(said, dict) or said.get("v") != 1:
        raise Refused("not a message of version 1")
    some = said.get("steps")
    if not isinstance(some, list) or len(some) > MAX_STEPS:
        raise Refused(f"no list of at most {MAX_STEPS} steps")
    steps = [_step(each, now) for each in some]
    good = tuple(step for step in steps if step is not None)
    rank = said.get("rank")
    return Told(
        _text(said.get("job")),
        rank if type(rank) is int and 0 <= rank < 1 << 31 else None,
        _text(said.get("role")),
        _text(said.get("gpu_uuid")),
        _count(said.get("lost")),
        good,
        len(steps) - len(good),
    )


def _step(said: Any, now: datetime) -> Step | None:  # noqa: ANN401 (a stranger's JSON)
    if not isinstance(said, list) or not 2 <= len(said) <= 16:
        return None
    number, seconds = said[0], _seconds(said[1])
    if type(number) is not int or not 0 <= number < 1 << 53 or seconds is None:
        return None
    busy, wait, at = (*said[2:5], None, None, None)[:3]
    return Step(number, seconds, _seconds(busy), _seconds(wait), _time(at, now))


def _seconds(value: Any) -> float | None:  # noqa: ANN401 (the same)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MOST_S:
        return None
    return float(value) if value >= 0 and math.isfinite(value) else None


def _time(value: Any, now: datetime) -> datetime:  # noqa: ANN401 (the same)
    try:
        at = datetime.fromtimestamp(float(value), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return now
    return at if now - _OLDEST <= at <= now else now


def _text(value: Any) -> str | None:  # noqa: ANN401 (the same)
    return value if isinstance(value, str) and 0 < len(value) <= _TEXT and value.isprintable() else None


def _count(value: Any) -> int:  # noqa: ANN401 (the same)
    return value if type(value) is int and 0 <= value < 1 << 40 else 0
