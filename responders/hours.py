"""Times of day as people say them: quiet hours and when a digest goes out, in the place where the receiver sleeps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_SPAN: Final = re.compile(r"([0-2][0-9]):([0-5][0-9])-([0-2][0-9]):([0-5][0-9])")
_TIME: Final = re.compile(r"([0-2][0-9]):([0-5][0-9])")
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def zone(name: str) -> ZoneInfo:
    """A time zone by its name in the IANA database. ``ValueError`` with the way out."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}; write Europe/Berlin, America/New_York or UTC") from None


def clock_time(text: str) -> time:
    """``08:30``. ``ValueError`` for anything else."""
    found = _TIME.fullmatch(text)
    try:
        if found:
            return time(int(found[1]), int(found[2]))
    except ValueError:
        pass
    raise ValueError(f"{text!r} is no time of day; write 08:00")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Hours of each day, over midnight where the end is before the start, and whole days of the week."""

    start: time
    end: time
    zone: ZoneInfo
    days: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str, zone_name: str, days: tuple[str, ...] = ()) -> QuietHours | None:
        """``22:00-07:00``; none where neither hours nor days are said. ``ValueError`` says what is wrong."""
        if not text and not days:
            return None
        unknown = [day for day in days if day not in DAYS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no day of the week; there are {', '.join(DAYS)}")
        found = _SPAN.fullmatch(text)
        if text and not found:
            raise ValueError(f"{text!r} are no hours; write 22:00-07:00")
        start, end = text.split("-") if found else ("00:00", "00:00")
        return cls(clock_time(start), clock_time(end), zone(zone_name), frozenset(DAYS.index(d) for d in days))

    def until(self, now: datetime) -> datetime | None:
        """The end of the quiet that holds now, UTC; none where it is not quiet.

        By the wall clock of the zone, so an hour that is set back or forward belongs to the day that has it.
        """
        moment, last = now, None
        for _ in range(2 * len(DAYS)):
            ended = self._end_at(moment)
            if ended is None:
                break
            last = moment = ended
        return last

    def _end_at(self, now: datetime) -> datetime | None:
        local = now.astimezone(self.zone)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        if local.weekday() in self.days:
            return (midnight + timedelta(days=1)).astimezone(UTC)
        at = local.time().replace(tzinfo=None)
        if self.start < self.end:
            quiet, next_day = self.start <= at < self.end, False
        else:
            quiet, next_day = self.start != self.end and (at >= self.start or at < self.end), at >= self.start
        if not quiet:
            return None
        day = midnight + timedelta(days=1) if next_day else midnight
        return day.replace(hour=self.end.hour, minute=self.end.minute).astimezone(UTC)


def next_digest(after: datetime, at: str, zone_name: str) -> datetime:
    """When the next digest goes out: ``hourly`` on the hour, or ``08:00`` once a day in that zone."""
    if at == "hourly":
        return after.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    wanted = clock_time(at)
    local = after.astimezone(zone(zone_name))
    today = local.replace(hour=wanted.hour, minute=wanted.minute, second=0, microsecond=0, fold=0)
    due = today if today > local else today + timedelta(days=1)
    return due.astimezone(UTC)
