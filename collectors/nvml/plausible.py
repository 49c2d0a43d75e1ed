"""What a GPU may mean: readings that succeed and are nonsense, before they become samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graynode.pipeline.schema import TABLES, Field

FIELDS: Final[Mapping[str, Field]] = {f.name: f for f in TABLES["gpu"].fields if f.nvml}
"""Fields of table ``gpu`` that NVML fills."""
EVERY: Final[dict[str, int]] = {f.name: f.every_s for f in FIELDS.values()}

_LARGEST: Final = {"int32": 2**31 - 1, "int64": 2**63 - 1}
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    f.name: (
        f.lo if f.lo is not None else -_LARGEST.get(f.type, 3.4e38),
        f.hi if f.hi is not None else _LARGEST.get(f.type, 3.4e38),
    )
    for f in FIELDS.values()
    if f.type not in ("string", "timestamp", "bool")
}
_RATED: Final = frozenset(n for n in FIELDS if n.endswith("_ns"))
"""Times in which clocks were held: none can grow faster than time."""
_RATE_MAX: Final = 1.1
"""Ns per ns; a tenth for the jitter of when two readings were taken."""
_NEEDS_ECC: Final = frozenset(n for n in FIELDS if n.startswith(("row_remap", "bank_remap")))


class Plausible:
    """One GPU's readings, held against the contract's bounds, the clock and each other.

    A throttle time that grew faster than time is another field under that id on this driver: it stays out until
    the object is made anew, at the next load of the driver.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}
        self._wrong: dict[str, str] = {}
        self.has_ecc: bool | None = None
        """Known once ECC mode was asked for: consumer GPUs answer row remaps with success and have none."""

    def sift(self, values: dict[str, int | float], at_s: float) -> dict[str, str]:
        """Take what cannot be out of ``values``; the reasons by field. ``at_s`` is monotonic."""
        reasons: dict[str, str] = {}
        for name, value in values.items():
            lo, hi = _BOUNDS[name]
            if not lo <= value <= hi:  # NaN too
                reasons[name] = f"{value} is not between {lo:g} and {hi:g}"
            elif name in _RATED:
                self._rate(name, value, at_s)
        if values.get("energy_mj") == 0:
            reasons["energy_mj"] = "0 mJ from a GPU that runs"
        if self.has_ecc is False:
            reasons |= dict.fromkeys(_NEEDS_ECC & values.keys(), "success from a GPU without ECC")
        if self._wrong:
            reasons |= {n: why for n, why in self._wrong.items() if n in values}
        for name in reasons:
            values.pop(name)
        return reasons

    def _rate(self, name: str, value: float, at_s: float) -> None:
        before = self._before.get(name)
        self._before[name] = (value, at_s)
        if before is None or at_s <= before[1]:
            return
        rate = (value - before[0]) / ((at_s - before[1]) * 1e9)
        if rate > _RATE_MAX:
            self._wrong[name] = f"grew by {rate:.3g} s a second: this driver has something else under that id"
