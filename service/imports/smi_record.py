"""Values of one GPU in one capture as rows of ``gpu``, ``inventory`` and ``quality``; every value has one end.

Pure. The ledger counts where each value went: into a row of which table, or refused and why. Nothing is left out.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from graynode.collectors.pci import pci_address
from graynode.pipeline.schema import stable_id
from graynode.service.imports.smi_fields import Form
from graynode.service.imports.smi_ledger import NO_TIME, NO_UUID, Ledger, Reading
from graynode.service.imports.smi_sift import Sifted, sift
from graynode.service.imports.smi_values import Unreadable

Row = dict[str, Any]


@dataclass(slots=True)
class Device:
    """One GPU, or one MIG instance of it, as read: values in the order met, and its instances."""

    readings: list[Reading] = field(default_factory=list)
    parts: list[Device] = field(default_factory=list)

    def count(self) -> int:
        """Its values and those of its instances."""
        return len(self.readings) + sum(part.count() for part in self.parts)


@dataclass(frozen=True, slots=True)
class Where:
    """What the import knows that the text does not say."""

    cluster: str
    node: str
    node_id: str
    file_id: str
    """Stands for the machine where neither a host nor a UUID does: the file's hash."""
    source: str


@dataclass(slots=True)
class Told:
    """The rows of one GPU."""

    gpu: list[Row] = field(default_factory=list)
    inventory: list[Row] = field(default_factory=list)
    quality: list[Row] = field(default_factory=list)


# --- rows ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """When, and how well that is known: ``approximate`` (local time, zone assumed), ``observed`` (not in the text)."""

    ts: datetime
    quality: str


MomentOf = Callable[[str | None], Moment]
"""From a capture's own time, or ``None`` where it has none; ``Unreadable`` where it cannot be."""


def rows(
    form: Form, device: Device, shared: Sifted, moment_of: MomentOf, where: Where, ledger: Ledger
) -> tuple[Told, Sifted]:
    """Rows of one GPU, and its values. ``shared`` is what its capture says once for all; the caller counts that."""
    own, told = sift(form, device.readings, ledger), Told()
    uuid = own.gpu.get("gpu_uuid")
    try:
        moment = moment_of(own.facts.get("timestamp") or shared.facts.get("timestamp"))
    except Unreadable:
        return _without(NO_TIME, own, device, ledger)
    if not isinstance(uuid, str):
        return _without(NO_UUID, own, device, ledger)
    who = _who(own, shared, moment, where, uuid, ledger)
    told.gpu.append({**who, **_measured(own.gpu)})
    parts = _parts(form, device, told, who, where, ledger)
    told.inventory.append(_inventory(own, shared, who, moment, where, parts))
    told.quality += _quality(own, who, uuid, where)
    _spend(own, ledger)
    return told, own


def _without(reason: str, own: Sifted, device: Device, ledger: Ledger) -> tuple[Told, Sifted]:
    ledger.refuse(reason, own.spent.total() + sum(part.count() for part in device.parts))
    return Told(), own


def _spend(sifted: Sifted, ledger: Ledger) -> None:
    ledger.refuse("N/A, and no field of the contract", sifted.spent.pop("absent", 0))
    ledger.stored.update(+sifted.spent)


def spend_shared(shared: Sifted, any_row: bool, ledger: Ledger) -> None:
    """Count the values that a capture has once for all of its GPUs, after the rows are made."""
    if any_row:
        _spend(shared, ledger)
    else:
        ledger.refuse("its capture has no GPU", shared.spent.total())


def _who(own: Sifted, shared: Sifted, moment: Moment, where: Where, uuid: str, ledger: Ledger) -> Row:
    host = where.node or own.facts.get("hostname") or shared.facts.get("hostname")
    masked = not uuid.removeprefix("GPU-").strip("0-")
    if masked:
        ledger.notes["its GPU UUIDs are masked (all zeros): GPUs are told apart by machine only"] = None
    if where.node_id:
        node_id = where.node_id
    elif host:
        node_id = _machine(where.cluster, str(host))
    else:
        ledger.notes["it names no host: give --node, else its machines have no name"] = None
        known = shared.facts.get("machine") or uuid
        node_id = _machine(where.cluster, "of", where.file_id if masked else str(known))
    return {
        "ts": moment.ts, "cluster": where.cluster, "node_id": node_id, "node": str(host) if host else None,
        "gpu_uuid": uuid, "vendor": "NVIDIA",
    }  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _machine(*parts: str) -> str:
    return stable_id("import", *parts)


def _measured(gpu: Row) -> Row:
    row = dict(gpu)
    if "pci_bus_id" in row:
        row["pci_bus_id"] = pci_address(row["pci_bus_id"])
    return row


def _parts(form: Form, device: Device, told: Told, who: Row, where: Where, ledger: Ledger) -> list[Row]:
    """A row for each GPU instance; compute instances of one share its memory and are listed in the inventory."""
    listed: list[Row] = []
    seen: set[str] = set()
    for part in device.parts:
        own = sift(form, part.readings, ledger)
        instance = own.facts.get("gpu_instance")
        if instance is None:
            ledger.refuse("a MIG instance without its number", own.spent.total())
            continue
        own.spent["inventory"] += own.spent.pop("gpu", 0) if str(instance) in seen else 0
        listed.append({**own.facts, **own.attributes})
        if str(instance) not in seen:
            seen.add(str(instance))
            told.gpu.append(
                {**who, "gpu_model": told.gpu[0].get("gpu_model"), "mig_instance": str(instance), **own.gpu}
            )
            told.quality += _quality(own, who, f"{who['gpu_uuid']}/{instance}", where)
        _spend(own, ledger)
    return listed


def _inventory(own: Sifted, shared: Sifted, who: Row, moment: Moment, where: Where, parts: list[Row]) -> Row:
    facts = {**shared.inventory, **own.inventory}
    cluster, clique = facts.pop("cluster_uuid", None), facts.pop("clique", None)
    attributes = {**shared.attributes, **own.attributes, "ts_quality": moment.quality, "source": where.source}
    if parts:
        attributes["mig_instances"] = parts
    if cluster is None and clique is not None:
        attributes["clique"] = clique
    return {
        **{key: who[key] for key in ("ts", "cluster", "node_id", "node")},
        "kind": "gpu", "entity": who["gpu_uuid"], "model": own.gpu.get("gpu_model"),
        "slot": _measured(own.gpu).get("pci_bus_id"),
        "domain": f"{str(cluster).replace('-', '')}.{clique}" if cluster is not None and clique is not None else None,
        **facts,
        "attributes": json.dumps(attributes, sort_keys=True),
    }  # fmt: skip


def _quality(own: Sifted, who: Row, uuid: str, where: Where) -> list[Row]:
    return [
        {
            **{key: who[key] for key in ("ts", "cluster", "node_id", "node")},
            "table_name": "gpu", "entity": uuid, "field": name, "state": state, "reason": f"{where.source}: {text}",
        }
        for name, (state, text) in sorted(own.absent.items())
    ]  # fmt: skip
