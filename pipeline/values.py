"""Which values of a column are no measurements: blanks, NaN, infinities, what the device cannot mean.

Blanks are matched by the field's own type: an int32 blank is a legal value of a 64-bit byte counter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from graynode.pipeline.schema import FLOAT64_BLANK, INT32_BLANK, INT64_BLANK, TABLES, Field

_BLANK_MEANS: Final = (
    ("stale", "DCGM blank"),
    ("error", "DCGM: not found"),
    ("unsupported", "DCGM: not supported"),
    ("not_permitted", "DCGM: not permitted"),
)
_TEXT_BLANK: Final = {
    "<<<NULL>>>": _BLANK_MEANS[0],
    "<<<NOT_FOUND>>>": _BLANK_MEANS[1],
    "<<<NOT_SUPPORTED>>>": _BLANK_MEANS[2],
    "<<<NOT_PERM>>>": _BLANK_MEANS[3],
    **dict.fromkeys(("N/A", "[N/A]", "[Not Supported]"), ("unsupported", "nvidia-smi: not supported")),
    "[Insufficient Permissions]": ("not_permitted", "nvidia-smi: insufficient permissions"),
    **dict.fromkeys(
        ("ERR!", "[Unknown Error]", "[GPU is lost]", "[GPU requires reset]"), ("error", "nvidia-smi: error")
    ),
}
"""What stands for a text that there is none of, in DCGM and as nvidia-smi prints it."""
_FLOATED_INT64_BLANK: Final = 9.223372036854775e18
"""An int64 blank that went through a float, as exporters have been seen to give it."""
_OVERFLOWN: Final = (2**63 - 1, -(2**63))
"""The same, made an integer again: it does not fit and comes out at one end."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with one value: a state of ``schema.QUALITY_STATES`` and why."""

    state: str
    reason: str


@functools.cache
def checked_fields(table: str) -> tuple[Field, ...]:
    """Fields whose values are looked at: everything but keys and booleans; text of sample tables only."""
    return tuple(
        f
        for f in TABLES[table].fields
        if f.kind != "key"
        and f.type not in ("bool", "timestamp")
        and (f.type != "string" or table in ("gpu", "link", "host"))
    )


def suspect(field: Field, column: pl.Series) -> bool:
    """Quickly: whether any value of the column may be no measurement."""
    if column.null_count() == len(column):
        return False
    if field.type == "string":
        return bool(column.is_in(list(_TEXT_BLANK)).any())
    if field.type.startswith("float") and not column.is_finite().all():
        return True
    low, high = _bounds(field)
    least, most = column.min(), column.max()
    return bool(least < low or most > high)  # type: ignore[operator]  # a number, by the field's type


def bad_mask(field: Field, column: pl.Series) -> pl.Series:
    """True where a value is no measurement; never null."""
    if field.type == "string":
        return column.is_in(list(_TEXT_BLANK)).fill_null(value=False)
    low, high = _bounds(field)
    bad = (column < low) | (column > high)
    if field.type.startswith("float"):
        bad |= ~column.is_finite()
        bad |= column.is_in([_as(field, blank) for blank in FLOAT64_BLANK])
    return bad.fill_null(value=False)


def judge(field: Field, value: object) -> Verdict | None:
    """Why a bad value is bad; ``None`` where it is a value that the field may have."""
    if isinstance(value, str):
        return Verdict(*_TEXT_BLANK[value]) if value in _TEXT_BLANK else None
    blank = _blank(field, value)
    if blank is not None:
        return Verdict(*blank)
    low, high = _bounds(field)
    number = float(value)  # type: ignore[arg-type]  # a number, by the field's type
    if number != number:
        return Verdict("implausible", "not a number")
    if number in (float("inf"), float("-inf")):
        return Verdict("implausible", "infinite")
    if low <= number <= high:
        return None
    side, bound = ("below", low) if number < low else ("above", high)
    return Verdict("implausible", f"{value} is {side} {bound:g}")


def _blank(field: Field, value: object) -> tuple[str, str] | None:
    if field.type == "int32" and value in INT32_BLANK:
        return _BLANK_MEANS[int(value) - INT32_BLANK[0]]  # type: ignore[call-overload]  # an int: it equals one
    if field.type == "int64" and value in INT64_BLANK:
        return _BLANK_MEANS[int(value) - INT64_BLANK[0]]  # type: ignore[call-overload]  # an int: it equals one
    if field.type == "int64" and value in _OVERFLOWN:
        return "unsupported", "DCGM int64 blank that went through a float"
    if field.type == "float64" and value in FLOAT64_BLANK:
        return _BLANK_MEANS[FLOAT64_BLANK.index(value)]
    if field.type == "float32" and value == FLOAT64_BLANK[0]:
        return "unsupported", "DCGM blank; which one a 32-bit float cannot tell"
    if field.type.startswith("float") and isinstance(value, float) and value >= _FLOATED_INT64_BLANK:
        return "unsupported", "DCGM int64 blank as a float"
    return None


@functools.cache
def _bounds(field: Field) -> tuple[float, float]:
    """What lies outside is no measurement. Counters count from 0; blanks are above every legal value."""
    low = field.lo if field.lo is not None else (0.0 if field.kind == "counter" else float("-inf"))
    high = field.hi if field.hi is not None else float("inf")
    if field.type == "int32":
        return max(low, -(2**31)), min(high, INT32_BLANK[0] - 1)
    if field.type == "int64":
        return max(low, -(2**63)), min(high, INT64_BLANK[0] - 1)
    return low, min(high, FLOAT64_BLANK[0] - 1 if field.kind != "counter" else float("inf"))


def _as(field: Field, value: float) -> float:
    if field.type == "float64":
        return value
    rounded: Sequence[float] = pl.Series([value], dtype=pl.Float32).to_list()
    return rounded[0]
