"""What a page's value means for its field: the field's value, or the state that the field is in and why.

Blanks are known by the field's own type, because an int32 blank is a legal number of bytes or millijoules. A blank
of another type counts as one where the field's legal range leaves it out: exporters convert between types.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from graynode.collectors.dcgm.fields import Column
from graynode.collectors.switches import WHY
from graynode.pipeline.schema import FLOAT64_BLANK, INT32_BLANK, INT64_BLANK

Number = int | float


class Refused(NamedTuple):
    """Why a value is none: a state of ``schema.QUALITY_STATES``, and the reason for a person."""

    state: str
    reason: str


_BLANKS: Final = (
    Refused("stale", "DCGM blank: no value has been read"),
    Refused("error", "DCGM: not found"),
    Refused("unsupported", "DCGM: not supported"),
    Refused("not_permitted", "DCGM: not permitted"),
)
_OFF: Final = Refused("unsupported", WHY)
_BLURRED: Final = Refused("unsupported", "DCGM blank that went through a float; which one it was is lost")
_BLURRED_FROM: Final = float(INT64_BLANK[0] - 16)
"""All four int64 blanks become 9.223372036854775807e18 as a float; decimal texts of it end in …776000."""
_WORDS: Final = {
    "<<<null>>>": _BLANKS[0],
    "<<<not_found>>>": _BLANKS[1],
    "<<<not_supported>>>": _BLANKS[2],
    "<<<not_perm>>>": _BLANKS[3],
    "n/a": Refused("unsupported", "N/A"),
    "[n/a]": Refused("unsupported", "[N/A]"),
    "[not supported]": Refused("unsupported", "[Not Supported]"),
    "[insufficient permissions]": Refused("not_permitted", "[Insufficient Permissions]"),
}


def value_of(column: Column, given: Number | bytes) -> Number | Refused:
    """The field's value in its own unit and type. ``given`` is bytes where the page has no number."""
    if column.off:
        return _OFF
    if isinstance(given, bytes):
        return of_words(given)
    if not column.low <= given <= column.high:  # NaN too
        return blank(given) or _implausible(column, given)
    if column.flag:
        return 1 if given else 0
    if not column.whole or isinstance(given, int):
        return given * column.scale
    if not given.is_integer():
        return Refused("implausible", f"{given!r} where only whole numbers are")
    return int(given) * column.scale


def of_words(given: bytes) -> Refused:
    """What a text in the place of a number says."""
    text = given.decode("utf-8", "backslashreplace")
    known = _WORDS.get(text.lower())
    return known or Refused("error", f"no number: {text[:60]!r}")


def blank(given: Number) -> Refused | None:
    """Which DCGM blank a number is, of any type; null for none."""
    if isinstance(given, int):
        for blanks in (INT32_BLANK, INT64_BLANK):
            if given in blanks:
                return _BLANKS[given - blanks[0]]
    if given in FLOAT64_BLANK:
        return _BLANKS[FLOAT64_BLANK.index(float(given))]
    if given in INT32_BLANK:  # through a float that holds it exactly
        return _BLANKS[int(given) - INT32_BLANK[0]]
    return _BLURRED if _BLURRED_FROM <= given < 9.3e18 else None


def _implausible(column: Column, given: Number) -> Refused:
    if given != given:
        return Refused("implausible", "not a number")
    return Refused("implausible", f"{given} is not between {column.low:g} and {column.high:g}")
