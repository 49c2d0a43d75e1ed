"""Numbers, times and states as a person reads them; filters of the templates.

None stays none (the page shows a dot for it): what could not be told is never a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

Value = Any

STATE_WORDS: Final[Mapping[str, str]] = {
    "healthy": "healthy", "suspect": "suspect", "quarantined": "quarantined", "in_repair": "in repair",
    "probation": "probation", "unknown": "unknown", "lost": "lost",
}  # fmt: skip
STATE_LETTERS: Final[Mapping[str, str]] = {
    "healthy": "h", "suspect": "s", "quarantined": "q", "in_repair": "r", "probation": "p", "unknown": "u", "lost": "l",
}  # fmt: skip
"""The class of a state's colour and pattern, and the letter that is shown with it."""
_STEPS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SIZES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def state_word(state: Value) -> str:
    """The word for a state; one that is not known is shown as it is."""
    return STATE_WORDS.get(str(state), str(state).replace("_", " "))


def letter(state: Value) -> str:
    """The class of a state, ``u`` for one that is not known."""
    return STATE_LETTERS.get(str(state), "u")


def when(value: Value) -> str | None:
    """``2026-11-30 12:00:05`` UTC; none where it is none."""
    moment = _moment(value)
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def minute(value: Value) -> str | None:
    """``2026-11-30 12:00`` UTC."""
    moment = _moment(value)
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def iso(value: Value) -> str:
    """For ``<time datetime>``; empty where it is none."""
    moment = _moment(value)
    return "" if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def age(value: Value, now: datetime) -> str | None:
    """How long before ``now``, in one unit and a half: ``3 h 20 min``; ``in 2 d`` for what is to come."""
    moment = _moment(value)
    if moment is None:
        return None
    seconds = (now - moment).total_seconds()
    return f"in {span(-seconds)}" if seconds < -1 else span(max(0.0, seconds))


def span(value: Value) -> str | None:
    """Seconds (or a timedelta) in words: ``2 d 3 h``, ``14 s``."""
    if value is None:
        return None
    seconds = round(value.total_seconds() if isinstance(value, timedelta) else float(value))
    for i, (length, unit) in enumerate(_STEPS):
        if seconds >= length:
            text = f"{seconds // length} {unit}"
            rest = seconds % length
            if i + 1 < len(_STEPS) - 1 and rest >= _STEPS[i + 1][0]:
                text += f" {rest // _STEPS[i + 1][0]} {_STEPS[i + 1][1]}"
            return text
    return "0 s"


def number(value: Value, digits: int = 0) -> str | None:
    """``12,345.6`` with so many digits after the point."""
    return None if value is None else f"{float(value):,.{digits}f}"


def short(value: Value) -> str | None:
    """At most three or four significant digits: ``0.0002``, ``1,755``, ``12.3 M``."""
    if value is None:
        return None
    told = float(value)
    size = abs(told)
    if size >= 1e5:
        for length, unit in _SIZES:
            if size >= length:
                return f"{told / length:.3g} {unit}"
    return f"{told:,.0f}" if size >= 1000 else f"{told:.3g}"


def percent(value: Value, digits: int = 1) -> str | None:
    """A share of one as ``12.3 %``."""
    return None if value is None else f"{100 * float(value):.{digits}f} %"


def gib(value: Value) -> str | None:
    """Bytes as GiB, without the unit."""
    return None if value is None else f"{float(value) / 2**30:.1f}"


def money(value: Value, currency: Value = None) -> str | None:
    """``1,234 EUR``; the currency where one is known."""
    if value is None:
        return None
    told = f"{float(value):,.0f}" if abs(float(value)) >= 100 else f"{float(value):,.2f}"
    return f"{told} {currency}" if currency else told


def spaced(value: Value) -> str | None:
    """``slow_gpu`` as ``slow gpu``."""
    return None if value is None else str(value).replace("_", " ")


def in_path(value: Value) -> str:
    """A name as a part of an address: everything but letters, digits and ``-._~`` is written as %XX."""
    return quote(str(value), safe="")


def _moment(value: Value) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "when": when, "minute": minute, "iso": iso, "age": age, "span": span, "number": number, "short": short,
    "percent": percent, "gib": gib, "money": money, "spaced": spaced, "in_path": in_path, "letter": letter,
    "state_word": state_word,
}  # fmt: skip
