"""The time of an nvidia-smi capture: local time without a zone, written in English whatever the locale."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from graynode.pipeline.normalise import AHEAD, EARLIEST
from graynode.service.config import ConfigError
from graynode.service.imports.smi_record import Moment
from graynode.service.imports.smi_values import Unreadable

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LOG: Final = re.compile(r"\w{3} (\w{3}) +(\d{1,2}) (\d{2}):(\d{2}):(\d{2}) (\d{4})", re.ASCII)
_QUERY: Final = re.compile(r"(\d{4})/(\d{2})/(\d{2}) (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Clock:
    """How a capture's time is read. ``otherwise`` is the time of a capture that has none; ``now`` bounds all."""

    zone: tzinfo
    otherwise: datetime
    now: datetime

    def moment(self, text: str | None) -> Moment:
        """``approximate`` where the text has a time, for its zone is assumed; else ``observed``.

        ``Unreadable`` where it is no time, or one that cannot be.
        """
        if text is None:
            return Moment(self.otherwise, "observed")
        ts = _local(text).replace(tzinfo=self.zone).astimezone(UTC)
        if not EARLIEST <= ts <= self.now + AHEAD:
            raise Unreadable("a time that cannot be")
        return Moment(ts, "approximate")


def _local(text: str) -> datetime:
    try:
        if (found := _LOG.fullmatch(text.strip())) is not None:
            month, day, hour, minute, second, year = found.groups()
            return datetime(int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second))
        if (found := _QUERY.fullmatch(text.strip())) is not None:
            whole = datetime(*(int(part) for part in found.groups()[:6]))  # type: ignore[arg-type]
            return whole + timedelta(microseconds=int((found[7] or "0").ljust(6, "0")))
    except ValueError as error:
        raise Unreadable(str(error)) from error
    raise Unreadable("not a time of nvidia-smi")


def zone_of(name: str) -> tzinfo:
    """The zone of that name. ``ConfigError`` where there is none. UTC needs no list of zones on the machine."""
    try:
        if name == "UTC":
            return UTC
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"--zone {name}: no such time zone; names are like UTC or Europe/Berlin") from error


def instant_of(text: str) -> datetime:
    """``--at``: ISO 8601 with a zone. ``ConfigError`` where it is not."""
    try:
        ts = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--at {text}: not an ISO 8601 time, such as 2026-07-14T09:00:27Z") from error
    if ts.tzinfo is None:
        raise ConfigError(f"--at {text}: has no zone; write 2026-07-14T09:00:27Z or +02:00")
    return ts.astimezone(UTC)
