"""How values are written for a person: three digits that count, lengths of time in the unit that suits, shares in %."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from graynode.dashboards.charts import words_of
from graynode.dashboards.pieces import clean

_SPANS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
UNTOLD: Final = "–"
"""What stands for null: could not tell."""


def value(told: Any, unit: str = "") -> str:  # noqa: ANN401 (a cell)
    """A cell's value; ``unit`` ``s`` and ``share`` are written as a length of time and in percent."""
    if told is None:
        return UNTOLD
    if isinstance(told, bool):
        return "yes" if told else "no"
    if isinstance(told, datetime):
        return f"{told.astimezone(UTC):%Y-%m-%d %H:%M}"
    if not isinstance(told, (int, float)):
        return clean(told)
    if unit == "share":
        return share(float(told))
    if unit == "s":
        return span(float(told))
    return f"{told:,}" if isinstance(told, int) else words_of(told)


def share(told: float) -> str:
    """In percent; near 1 with as many digits as tell it from 1."""
    if 0.9999 < told < 1:
        return "over 99.99 %"
    return f"{100 * told:.{2 if 0.99 < told < 1 else 1}f} %"


def span(seconds: float) -> str:
    """A length of time in days, hours, minutes or seconds."""
    for size, word in _SPANS:
        if abs(seconds) >= size:
            return f"{words_of(seconds / size)} {word}"
    return f"{seconds:.0f} s"


def between(low: float | None, high: float | None, unit: str = "") -> str:
    """``a to b``; an open end is said."""
    if low is None and high is None:
        return UNTOLD
    if high is None:
        return f"at least {value(low, unit)}"
    return f"{value(low, unit)} to {value(high, unit)}"
