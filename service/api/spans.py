"""Times as callers write them: ISO 8601, epoch seconds or milliseconds, and Grafana's ``now-6h`` or ``now/d``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from graynode.service.api.problems import Problem, shown
from graynode.service.times import parsed

LONGEST: Final = timedelta(days=3660)
"""Ten years: more than any lake keeps. A longer range is answered as this one."""
_FIRST: Final = datetime(1900, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Whoever reads the lake adds hours and weeks to a range: there must be room for them in what a time can say."""
WHOLE_FROM: Final = timedelta(days=1)
"""A range of this length or longer is reckoned in whole hours."""
POINTS: Final = 11_000
"""Points of one series, at most."""
_RELATIVE: Final = re.compile(r"now((?:[+-][0-9]{1,6}[smhdwMy])*)(?:/([smhdwMyQ]))?")
_PIECE: Final = re.compile(r"([+-])([0-9]+)([smhdwMy])")
_NUMBER: Final = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,9})?")
_STEP: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d|w)?")
_MILLISECONDS: Final = 100_000_000_000
"""Epoch seconds reach this in the year 5138, milliseconds in 1973."""
_UNITS: Final = {
    "ms": timedelta(milliseconds=1), "s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1),
    "d": timedelta(days=1), "w": timedelta(weeks=1), "M": timedelta(days=30), "y": timedelta(days=365),
}  # fmt: skip
_WANTED: Final = "ISO 8601, epoch seconds or milliseconds, or now-6h, now/d"


@dataclass(frozen=True, slots=True)
class Span:
    """From when until when, UTC, and the step asked for. ``said``: the caller named one of them. ``notes`` say what was
    made of too much."""

    since: datetime
    until: datetime
    step_s: float | None = None
    notes: tuple[str, ...] = ()
    said: bool = True

    @property
    def sql(self) -> str:
        """As two arguments of a table macro."""
        return f"{sql_time(self.since)}, {sql_time(self.until)}"

    @property
    def in_hours(self) -> Span:
        """Whole hours, where it is a day or longer; the hour that has begun is left out. A dashboard whose range moves
        on with the clock asks for the same again until the next hour, and has the answer that is kept.
        """
        if self.until - self.since < WHOLE_FROM:
            return self
        return replace(self, since=whole_hour(self.since), until=whole_hour(self.until))


def whole_hour(ts: datetime) -> datetime:
    """The hour's beginning."""
    return ts.replace(minute=0, second=0, microsecond=0)


def sql_time(ts: datetime) -> str:
    """A time as SQL writes it."""
    return f"TIMESTAMPTZ '{ts.astimezone(UTC).isoformat()}'"


def span(from_: str, to: str, step: str, now: datetime, usual: timedelta) -> Span:
    """The range asked for; ``usual`` before now where nothing is said. ``Problem`` 400 names what is wrong."""
    until = moment("to", to, now, end=True) if to else now
    if not _FIRST + usual <= until <= _LAST:
        raise Problem(400, f"to={shown(to)}: between the years {_FIRST.year} and {_LAST.year}")
    since = max(moment("from", from_, now), _FIRST) if from_ else until - usual
    if since >= until:
        raise Problem(400, f"from {since.isoformat()} is not before to {until.isoformat()}")
    notes: tuple[str, ...] = ()
    if until - since > LONGEST:
        since, notes = until - LONGEST, ("the range was cut to its last ten years",)
    return Span(since, until, length("step", step) if step else None, notes, bool(from_ or to))


def moment(name: str, text: str, now: datetime, *, end: bool = False) -> datetime:
    """One time. ``now/d`` is the day's beginning, or as an ``end`` its end, as Grafana reads it."""
    try:
        told = text.strip()
        relative = _RELATIVE.fullmatch(told)
        if relative:
            return _relative(relative, now, end=end)
        if _NUMBER.fullmatch(told):
            number = float(told)
            return datetime.fromtimestamp(number / 1000 if number >= _MILLISECONDS else number, UTC)
        return parsed(told.replace(" ", "+") if re.search(r"T.* [0-9]{2}:[0-9]{2}$", told) else told)
    except (ValueError, OverflowError, OSError):
        raise Problem(400, f"{name}={shown(text)}: not a time; {_WANTED}") from None


def _relative(found: re.Match[str], now: datetime, *, end: bool) -> datetime:
    told = now
    for sign, number, unit in _PIECE.findall(found[1]):
        shift = int(number) * _UNITS[unit]
        told = told + shift if sign == "+" else told - shift
    return told if found[2] is None else _rounded(told, found[2], end=end)


def _rounded(ts: datetime, unit: str, *, end: bool) -> datetime:
    day = ts.replace(hour=0, minute=0, second=0, microsecond=0)
    first = {
        "s": ts.replace(microsecond=0),
        "m": ts.replace(second=0, microsecond=0),
        "h": ts.replace(minute=0, second=0, microsecond=0),
        "d": day,
        "w": day - timedelta(days=day.weekday()),
        "M": day.replace(day=1),
        "Q": day.replace(month=3 * ((day.month - 1) // 3) + 1, day=1),
        "y": day.replace(month=1, day=1),
    }[unit]
    if not end:
        return first
    if unit in "MQy":
        months = {"M": 1, "Q": 3, "y": 12}[unit]
        over = first.month - 1 + months
        return first.replace(year=first.year + over // 12, month=over % 12 + 1)
    return first + _UNITS[unit]


def length(name: str, text: str) -> float:
    """Seconds of ``30``, ``30s``, ``5m``, ``1h``, ``500ms``. ``Problem`` 400; nothing under a second."""
    found = _STEP.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2] or "s"].total_seconds() if found else 0.0
    if not 0 < seconds <= LONGEST.total_seconds():
        raise Problem(400, f"{name}={shown(text)}: not a length of time; 30s, 5m or 1h")
    return max(seconds, 1.0)
