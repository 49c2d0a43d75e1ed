"""One GPU's answer becomes rows: its samples, what changed about its fields, and the inventory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from graynode.collectors import nvml_wire as wire
from graynode.collectors.base import Row
from graynode.collectors.nvml_fields import quality_of, words
from graynode.collectors.nvml_plausible import EVERY, FIELDS, Plausible
from graynode.collectors.nvml_presence import Known
from graynode.collectors.nvml_rows import Teller

_ABSENT: Final = ("unsupported", "not_permitted", "implausible")


def tell_samples(known: Known, read: wire.Read, at_s: float, teller: Teller) -> None:
    """The GPU's row and those of its MIG instances, after what its fields' states became. ``at_s`` is monotonic."""
    if not known.told:
        known.told = True
        teller.quality(known.entity, "*", "measured", "first seen")
    _learn(known, read, at_s, teller)
    teller.sample(_row(known.gpu, read.values, read.max_ms, None))
    for part in read.parts:
        values: dict[str, int | float] = dict(part.values)
        Plausible().sift(values, at_s)
        teller.sample(_row(known.gpu, values, None, str(part.gi)))


def tell_inventory(known: Known, driver_version: str | None, teller: Teller) -> None:
    """The inventory row, if it is another than the last one told. Asks for all classes to have been read."""
    gpu = known.gpu
    supported = [n for n in EVERY if known.fields.get(n, ("", 0))[0] not in _ABSENT]
    row = {
        "kind": "gpu", "entity": gpu.uuid, "model": gpu.model, "serial": gpu.serial or None, "slot": gpu.bus,
        "vbios_version": gpu.vbios or None, "driver_version": driver_version,
        "mig_profile": known.facts.get("mig_profile"), "domain": known.facts.get("domain"),
        "attributes": json.dumps({"supported": supported}),
    }  # fmt: skip
    text = json.dumps(row)
    if text != known.inventory:
        known.inventory = text
        teller.inventory(row)


def _learn(known: Known, read: wire.Read, at_s: float, teller: Teller) -> None:
    """Keep the state of fields, tell what changed, and take out of the values what cannot be."""
    for name, code in read.errors.items():
        _field(known, name, quality_of(code), code, words(code), teller)
    if "ecc_mode" in known.fields:
        known.plausible.has_ecc = False
    elif "ecc_mode" in read.values:
        known.plausible.has_ecc = True
    for name, why in known.plausible.sift(read.values, at_s).items():
        _field(known, name, "implausible", 0, why, teller)
    for name in known.fields.keys() & read.values.keys():
        del known.fields[name]
        teller.quality(known.entity, name, "measured", "")


def _field(known: Known, name: str, state: str, code: int, why: str, teller: Teller) -> None:
    if known.fields.get(name) != (state, code):
        known.fields[name] = (state, code)
        teller.quality(known.entity, name, state, f"{FIELDS[name].nvml}: {why}")


def _row(gpu: wire.Gpu, values: Mapping[str, int | float], max_ms: float | None, gi: str | None) -> Row:
    return {
        "gpu_uuid": gpu.uuid, "mig_instance": gi, "gpu_index": gpu.index if gpu.index >= 0 else None,
        "gpu_model": gpu.model, "pci_bus_id": gpu.bus, "nvml_call_max_ms": max_ms, **values,
    }  # fmt: skip
