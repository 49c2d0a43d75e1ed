"""What a GPU node lives by beside its GPUs: services, mounts, memory, disks and the BMC's log, into ``service``.

Five sources, each optional, each a file of its own (``services.units``, ``services.mounts``, ``services.edac``,
``services.nvme``, ``services.ipmi``); one that this machine lacks is said once in ``quality``. No round waits for a
program: what is started in a minute's round is read in the seconds after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.collectors.services.edac import Edac
from graynode.collectors.services.ipmi import Ipmi
from graynode.collectors.services.look import Ledger, Part, Seen
from graynode.collectors.services.mounts import Mounts
from graynode.collectors.services.nvme import Nvme
from graynode.collectors.services.program import Runner
from graynode.collectors.services.units import UNITS, Units
from graynode.collectors.state_file import StateFile


class Services:
    """Changes of state as rows of ``service`` (all again once an hour), faults as events, counts in ``host``.

    ``units`` are watched; ``full_ratio`` of a local file system in use is full. ``parts`` and ``runner`` are other ones
    in tests.
    """

    name: ClassVar[str] = "services"
    tables: ClassVar[tuple[str, ...]] = ("service", "event", "quality")
    every_s: ClassVar[int] = 10

    def __init__(
        self,
        machine: Machine,
        *,
        units: Sequence[str] = UNITS,
        full_ratio: float = 0.97,
        runner: Runner | None = None,
        parts: Sequence[Part] | None = None,
    ) -> None:
        self._machine, self._runner = machine, runner or Runner()
        self._parts: Sequence[Part] = parts or (
            Units(machine, self._runner, units),
            Mounts(machine, self._runner, full_ratio=full_ratio),
            Edac(machine),
            Nvme(machine, self._runner),
            Ipmi(machine, self._runner),
        )
        self._ledger = Ledger(machine)
        self._state = StateFile(machine.state_dir / "services.json")
        self._said: dict[str, str] = {}
        self._fresh = True
        self._restore()

    def collect(self, round_: Round) -> Rows:
        """What is new. ``NoSource`` where no part has its source."""
        rows: dict[str, list[Row]] = {"service": [], "event": [], "quality": []}
        here = [part for part in self._parts if not part.absent]
        if not here:
            raise NoSource("; ".join(part.absent for part in self._parts))
        if self._fresh:
            self._fresh = False
            rows["quality"] = [self._quality(p.name, "unsupported", p.absent) for p in self._parts if p.absent]
        for part in here:
            seen = self._look(part, round_)
            if seen is None:
                continue
            made, events = self._ledger.note(seen, round_.ts)
            rows["service"] += made
            rows["event"] += events
            rows["quality"] += self._trouble(part.name, seen)
        if rows["service"] or rows["event"] or 60 in round_.due:
            self._keep()
        return {table: some for table, some in rows.items() if some}

    def host_fields(self, due: frozenset[int]) -> dict[str, Any]:
        """Fields of table ``host`` as of the look before; in rounds of the 60 s class alone."""
        if 60 not in due or self._fresh:
            return {}
        fields: dict[str, Any] = {}
        for part in self._parts:
            if not part.absent:
                fields |= part.host_fields()
        return fields

    def close(self) -> None:
        """Keep what must be kept, end what runs; twice is as good as once."""
        if not self._fresh:
            self._keep()
        for part in self._parts:
            part.close()
        self._runner.close()

    def _look(self, part: Part, round_: Round) -> Seen | None:
        """One part's failure is that part's alone."""
        try:
            return part.look(round_)
        except Exception as error:
            return Seen(trouble=f"{type(error).__name__}: {error}"[:300])

    def _trouble(self, name: str, seen: Seen) -> list[Row]:
        """Said when it begins, when it changes, and when whole looks come again without it."""
        before = self._said.get(name, "")
        if seen.trouble and seen.trouble != before:
            self._said[name] = seen.trouble
            return [self._quality(name, "error", seen.trouble)]
        if before and not seen.trouble and seen.looks:
            del self._said[name]
            return [self._quality(name, "measured", "read again")]
        return []

    def _quality(self, field: str, state: str, reason: str) -> Row:
        who = {"table_name": "service", "entity": self._machine.node_id, "field": field}
        return who | {"state": state, "reason": reason}

    def _restore(self) -> None:
        kept = self._state.load()
        if kept.get("boot_id") != self._machine.boot_id:
            return
        self._ledger.remember(kept.get("states"))
        memories = kept.get("parts")
        for part in self._parts:
            if isinstance(memories, dict):
                part.remember(memories.get(part.name))

    def _keep(self) -> None:
        memories = {part.name: part.memory() for part in self._parts}
        self._state.save(
            {"boot_id": self._machine.boot_id, "states": self._ledger.memory(), "parts": memories}
        )  # the same content twice is written once
