"""Single values of nvidia-smi: a text with its unit becomes a number of the contract, or says why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

Value = int | float | str


@dataclass(frozen=True, slots=True)
class Absent:
    """The text says that there is no value: a state of ``schema.QUALITY_STATES``, and the text itself."""

    state: str
    text: str


class Unreadable(ValueError):
    """The text is no value of that field; the message is the reason that is counted."""


_ABSENT: Final[Mapping[str, str]] = {
    "n/a": "unsupported",
    "not supported": "unsupported",
    "requested functionality has been deprecated": "unsupported",
    "function not found": "unsupported",
    "insufficient permissions": "not_permitted",
    "no permission": "not_permitted",
    "err!": "error",
    "unknown error": "error",
    "gpu requires reset": "error",
    "gpu is lost": "lost",
}
"""What nvidia-smi writes in place of a value, lower case and without its brackets."""


def absent(text: str) -> Absent | None:
    """Why there is no value, or ``None`` where the text may be one.

    A text in brackets that nobody knows yet is an error of the device, never a value.
    """
    bare = text.strip().lower()
    bracketed = bare.startswith("[") and bare.endswith("]")
    state = _ABSENT.get(bare[1:-1].strip() if bracketed else bare, "error" if bracketed else "")
    return Absent(state, text.strip()[:100]) if state else None


_NUMBER: Final = re.compile(r"([-+]?\d{1,20}(?:\.\d{1,12})?)\s*([^\d\s].{0,15})?", re.ASCII)
_FACTORS: Final[Mapping[tuple[str, str], float]] = {
    ("KiB", "MiB"): 1 / 1024, ("GiB", "MiB"): 1024, ("mW", "W"): 1e-3, ("kW", "W"): 1e3, ("GHz", "MHz"): 1e3,
    ("MB/s", "KB/s"): 1e3, ("ms", "us"): 1e3, ("ns", "us"): 1e-3, ("s", "us"): 1e6,
}  # fmt: skip
"""Units that a text may have instead of the usual one."""
Convert = Callable[[str], Value]


def number(unit: str, factor: float = 1.0, *, whole: bool = True) -> Convert:
    """Reads ``345 MHz`` or a bare ``345`` (``nounits``); ``factor`` takes nvidia-smi's unit to the contract's."""

    def convert(text: str) -> Value:
        found = _NUMBER.fullmatch(text.strip())
        if found is None:
            raise Unreadable("not a number")
        said = (found[2] or "").strip()
        scale = 1.0 if said in ("", unit) else _FACTORS.get((said, unit), 0.0)
        if not scale:
            raise Unreadable(f"in {said}, where {unit or 'no unit'} is known")
        if whole and "." not in found[1] and scale == 1.0 and factor == int(factor):
            return int(found[1]) * int(factor)
        value = float(found[1]) * scale * factor
        if not whole:
            return value
        if value != round(value):
            raise Unreadable("not a whole number")
        return round(value)

    return convert


def word(known: Mapping[str, int]) -> Convert:
    """Reads one of these words, in any case."""

    def convert(text: str) -> Value:
        try:
            return known[text.strip().lower()]
        except KeyError:
            raise Unreadable("a word that this version does not know") from None

    return convert


def bit(mask: int) -> Convert:
    """Reads ``Active`` as that bit."""
    return word({"active": mask, "not active": 0})


def mask(text: str) -> Value:
    """Reads ``0x0000000000000004``."""
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text.strip()) is None:
        raise Unreadable("not a bit mask")
    value = int(text.strip(), 16)
    if value >= 1 << 63:
        raise Unreadable("not a bit mask")
    return value


def pstate(text: str) -> Value:
    """Reads ``P8``."""
    if re.fullmatch(r"P\d{1,2}", text.strip()) is None:
        raise Unreadable("not a performance state")
    return int(text.strip()[1:])


def plain(text: str) -> Value:
    """A text as it is, without what would move a cursor and without a note in brackets after it."""
    bare = text.partition(" [")[0].strip()[:200]
    shown = bare if bare.isprintable() else "".join(c if c.isprintable() else "�" for c in bare)
    if not shown:
        raise Unreadable("empty")
    return shown


def identity(text: str) -> Value:
    """A serial number or the like. One of zeros or dashes only is a mask, and would make all devices one."""
    shown = str(plain(text))
    if not shown.strip("0-x"):
        raise Unreadable("a placeholder, no identity")
    return shown


YES_NO: Final = word({"yes": 1, "no": 0})
ON_OFF: Final = word({"enabled": 1, "disabled": 0})
FABRIC: Final = word({"not started": 1, "in progress": 2, "completed": 3})
SUCCESS: Final = word({"success": 0})
RECOVERY: Final = word(
    {"none": 0, "reset": 1, "gpu reset": 1, "reboot": 2, "node reboot": 2, "drain p2p": 3, "drain and reset": 4}
)
"""Words for the values on which all driver branches agree; any other is not guessed at."""


def compute_process(text: str) -> Value:
    """1 for a process with a compute context (``C``, ``C+G``, ``M+C``), 0 for graphics alone."""
    kinds = set(text.strip().split("+"))
    if not kinds <= {"C", "G", "M"}:
        raise Unreadable("a kind of process that this version does not know")
    return int("C" in kinds)


def no_process(text: str) -> Value:
    """An empty list of processes, which is a measurement: zero."""
    if text.strip().lower() not in ("", "none"):
        raise Unreadable("not a list of processes")
    return 0
