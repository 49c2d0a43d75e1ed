"""Which fields are read, and how often: what the configuration switches off or slows down.

    [fields]
    off = ["ecc_*_l1", "violation_*", "link.symbol_*"]
    every = { "gpu.pcie_replays" = 60 }

A name is ``table.field`` or, for table ``gpu``, the field alone; ``*`` and ``?`` stand for characters; ``@profiling``
and the like are groups. Only slower classes than the contract's, so that nothing is read more often than its reading
was measured for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Protocol

from graynode.collectors.base import CADENCES_S, Row
from graynode.pipeline.schema import TABLES, Field

SWITCHED: Final = ("gpu", "link", "host")
_NEEDED: Final = frozenset({
    "gpu.gpu_model", "gpu.pci_bus_id", "gpu.energy_mj", "gpu.mig_mode", "gpu.nvml_call_max_ms", "gpu.job_id",
    "gpu.job_role", "gpu.job_rank", "link.link_kind", "link.down_s", "link.outage_s", "link.downs", "link.unseen_s",
    "link.carrier_changes", "link.link_downed", "host.nvml_up", "host.nvml_call_max_ms", "host.gpus_expected",
    "host.gpus_read", "host.samples_expected", "host.samples_taken", "host.samples_missed", "host.uptime_s",
})  # fmt: skip
"""What others are made of or judged by: who a GPU is, whether the driver was loaded anew, whether we are blind."""
_UNPACED: Final = frozenset({"link.state"})
"""What has a pace of its own: seconds down are counted from look to look."""
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "@profiling": ("gpu.*_active_ratio", "gpu.sm_occupancy_ratio", "gpu.*_bytes_per_s"),
    "@deprecated": ("gpu.violation_*", "gpu.app_*_clock_mhz"),
    "@ecc_places": tuple(
        f"gpu.ecc_*_{place}" for place in ("l1", "l2", "device", "register", "texture", "shared", "cbu", "sram")
    ),
}
"""Names for what goes together: ``@profiling`` is all that NVML's performance counters give; with all of it off they
are left to whoever profiles."""
WHY: Final = "switched off in configuration (fields.off)"


class Ear(Protocol):
    """Takes ``quality`` rows (``nvml.rows.Teller``)."""

    def quality(self, entity: str, field: str, state: str, reason: str, table: str = "gpu") -> None:
        """One row."""
        ...


def _fields() -> dict[str, Field]:
    return {f"{t}.{f.name}": f for t in SWITCHED for f in TABLES[t].fields if f.kind != "key"}


@dataclass(frozen=True, slots=True)
class Switches:
    """``off`` and ``slower`` by ``table.field``; nothing in them: all as the contract says."""

    off: frozenset[str] = frozenset()
    slower: Mapping[str, int] = field(default_factory=dict)

    def every(self, table: str, names: Mapping[str, int]) -> dict[str, int]:
        """Reading classes as configured, of fields with those of ``names``; what is off is not in it."""
        return {
            name: max(every, self.slower.get(f"{table}.{name}", every))
            for name, every in names.items()
            if f"{table}.{name}" not in self.off
        }

    def off_in(self, table: str) -> frozenset[str]:
        """Names of the table's fields that are off."""
        return frozenset(f.name for f in TABLES[table].fields if f"{table}.{f.name}" in self.off)

    def strip(self, table: str, row: Row, due: frozenset[int]) -> Row:
        """The row without what is off, and without what is not due by its slower class."""
        if not self.off and not self.slower:
            return row
        return {
            name: value
            for name, value in row.items()
            if f"{table}.{name}" not in self.off and self.slower.get(f"{table}.{name}", 1) in due | {1}
        }

    def told(self, table: str, entity: str, names: Iterable[str]) -> list[Row]:
        """``quality`` rows of an entity, to be told once: which of the fields that would be read are off."""
        off = [name for name in names if f"{table}.{name}" in self.off]
        who = {"table_name": table, "entity": entity, "state": "unsupported", "reason": WHY}
        return [{**who, "field": name} for name in off]

    def tell(self, table: str, entity: str, names: Iterable[str], teller: Ear) -> None:
        """Tell of an entity, once, which of the fields that would be read are off."""
        for row in self.told(table, entity, names):
            teller.quality(entity, row["field"], row["state"], row["reason"], table=table)


def switches(off: Sequence[str], every: Mapping[str, int]) -> Switches:
    """The switches of the configuration; ``ValueError`` says which entry cannot be, and what is near it."""
    known = _fields()
    found_off: set[str] = set()
    off = [name for pattern in off for name in GROUPS.get(pattern, (pattern,))]
    for pattern in off:
        found_off |= _matching("off", pattern, known)
    slower: dict[str, int] = {}
    for pattern, seconds in every.items():
        if seconds not in CADENCES_S:
            raise ValueError(f"every.{pattern!r} = {seconds}: allowed are {', '.join(map(str, CADENCES_S))}")
        for name in _matching("every", pattern, known):
            if name in _UNPACED:
                raise ValueError(f"every.{pattern!r}: {name} has a pace of its own; it can be switched off")
            if seconds < known[name].every_s:
                raise ValueError(
                    f"every.{pattern!r} = {seconds}: {name} is read every {known[name].every_s} s; only slower will do"
                )
            slower[name] = seconds
    return Switches(frozenset(found_off), slower)


def _matching(key: str, pattern: str, known: Mapping[str, Field]) -> set[str]:
    full = pattern if "." in pattern else f"gpu.{pattern}"
    found = {name for name in known if fnmatchcase(name, full)}
    if not found:
        near = difflib.get_close_matches(full, known, n=1) or difflib.get_close_matches(
            full.strip("*"), known, n=1, cutoff=0.5
        )
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else f"names are table.field of {', '.join(SWITCHED)} (docs/metrics.md)"
        )
        raise ValueError(f"{key}: no field is called {pattern!r}; {hint}")
    wanted = found - _NEEDED
    if not wanted:
        raise ValueError(
            f"{key}: {pattern!r} cannot be switched: other fields and the agent's own health are made of it"
        )
    return wanted
