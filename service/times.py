"""Times that a person names on the command line."""

from __future__ import annotations

from datetime import UTC, datetime

from graynode.collectors.base import utc_now
from graynode.service.config import ConfigError


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
