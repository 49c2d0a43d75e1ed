"""Rows that the NVML collector tells beside samples: events, quality, inventory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from graynode.collectors.base import Machine, Row
from graynode.collectors.nvml.wire import Gpu, Happening
from graynode.pipeline.schema import stable_id

# nvmlEventType bits of nvml.h
XID: Final = 0x8
EVENT_KINDS: Final[Mapping[int, tuple[str, str]]] = {
    0x2: ("ecc_dbe", "uncorrected ECC error"),
    XID: ("xid", "Xid"),
    0x80: ("power_source_change", "power source changed"),
    0x100: ("mig_change", "MIG configuration changed"),
    0x200: ("ecc_sbe_storm", "storm of corrected ECC errors"),
    0x400: ("dram_retirement", "memory retired or remapped"),
    0x800: ("dram_retirement_failed", "memory could not be retired or remapped"),
    0x1000: ("poison_nonfatal", "non-fatal poison error"),
    0x2000: ("poison_fatal", "fatal poison error"),
    0x4000: ("gpu_unavailable", "GPU unavailable"),
    0x8000: ("recovery_action_change", "the driver's recovery action changed"),
}


class Teller:
    """Collects one round's rows."""

    def __init__(self, machine: Machine, driver_load: int, ts: datetime) -> None:
        self._machine, self._load, self.ts = machine, driver_load, ts
        self.rows: dict[str, list[Row]] = {}
        self._ids: set[str] = set()

    def event(
        self,
        kind: str,
        message: str,
        *,
        gpu_uuid: str | None = None,
        pci_bus_id: str | None = None,
        code: int | None = None,
        link: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """An event seen now. Equal ones of one round are told apart by their order."""
        m, said = self._machine, {k: v for k, v in (details or {}).items() if v is not None}
        key = ("nvml", m.boot_id, self._load, gpu_uuid or pci_bus_id, kind, code, self.ts.isoformat())
        n = 0
        event_id = stable_id("event", m.cluster, m.node_id, *key)
        while event_id in self._ids:
            n += 1
            event_id = stable_id("event", m.cluster, m.node_id, *key, n)
        self._ids.add(event_id)
        self._add("event", {
            "event_id": event_id, "source": "nvml", "kind": kind, "code": code, "gpu_uuid": gpu_uuid,
            "pci_bus_id": pci_bus_id, "link": link, "message": message, "driver_load": self._load,
            "attributes": json.dumps(said, sort_keys=True) if said else None,
            "observed_ts": self.ts, "ts_quality": "observed",
        })  # fmt: skip

    def quality(self, entity: str, field: str, state: str, reason: str, table: str = "gpu") -> None:
        """A change of a field's state; ``*``: every field. In table ``link``: of all of a GPU's links."""
        said = {"table_name": table, "entity": entity, "field": field, "state": state, "reason": reason}
        self._add("quality", said)

    def inventory(self, row: Row) -> None:
        """What there is, at first sight or changed."""
        self._add("inventory", row)

    def happening(self, what: Happening, gpu: Gpu | None) -> None:
        """An event of the NVML event set; ``gpu`` is ``None`` where its handle resolves to none."""
        kind, text = EVENT_KINDS.get(what.type, ("nvml_event", f"NVML event type {what.type:#x}"))
        name = gpu.bus if gpu else "a GPU that NVML no longer resolves"
        details = {"gpu_instance": what.gi, "compute_instance": what.ci}
        self.event(
            kind, f"{text} {what.data} on {name}" if what.type == XID else f"{text} on {name}",
            gpu_uuid=gpu.uuid if gpu else None, pci_bus_id=gpu.bus if gpu else None,
            code=what.data if what.type == XID else what.data or None,
            details={k: v for k, v in details.items() if v >= 0},
        )  # fmt: skip

    def sample(self, row: Row) -> None:
        """A row of table ``gpu``."""
        self._add("gpu", row | {"driver_load": self._load})

    def link(self, row: Row) -> None:
        """A row of table ``link``."""
        self._add("link", row | {"driver_load": self._load})

    def _add(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append(row)
