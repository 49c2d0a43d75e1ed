"""Times that a person names on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from graynode.collectors.base import utc_now
from graynode.service.config import ConfigError

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parsed(text: str) -> datetime:
    """A date or time in ISO 8601, UTC where it names no zone. ``ValueError`` for anything else."""
    told = datetime.fromisoformat(text)
    return told.replace(tzinfo=UTC) if told.tzinfo is None else told.astimezone(UTC)


def instant(option: str, text: str) -> datetime:
    """The time that an option names; ``ConfigError`` names the option and what is wanted."""
    try:
        return parsed(text)
    except (ValueError, OverflowError):
        raise ConfigError(f"{option} {text}: a date or time such as 2026-09-01 or 2026-09-01T12:00Z") from None


def past(option: str, text: str, now: datetime | None = None) -> datetime:
    """The same, of a time that has passed; empty: now. ``ConfigError`` for one that is to come."""
    current = now or utc_now()
    told = instant(option, text) if text else current
    if told > current:
        raise ConfigError(f"{option} {text}: is still to come; name a time that has passed")
    return told


def elapsed(text: str, units: str, most: int) -> timedelta | None:
    """``90s``, ``1h30m``, ``2d``: at most so many numbers of up to six digits, each with one of ``units``; or none."""
    if not re.fullmatch(rf"(?:[0-9]{{1,6}}[{units}]){{1,{most}}}", text):
        return None
    return timedelta(seconds=sum(int(n) * _SECONDS[unit] for n, unit in re.findall(rf"([0-9]+)([{units}])", text)))
