"""One GPU's answer becomes rows: its samples, what changed about its fields, and the inventory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from graynode.collectors.base import Row
from graynode.collectors.context import GpuKey
from graynode.collectors.nvml import wire
from graynode.collectors.nvml.fields import NOT_SUPPORTED, quality_of, words
from graynode.collectors.nvml.nvlink_fields import EVERY as LINKS
from graynode.collectors.nvml.plausible import EVERY, FIELDS, Plausible
from graynode.collectors.nvml.presence import Known
from graynode.collectors.nvml.rows import Teller
from graynode.collectors.switches import Switches
from graynode.pipeline.schema import TABLES

_ABSENT: Final = ("unsupported", "not_permitted", "implausible")
_PLACE: Final = ("chassis_serial", "slot_number", "tray_index", "host_id", "module_id", "peer_type")
_LINK_FIELDS: Final = {f.name: f for f in TABLES["link"].fields}


class Told:
    """Tells rows and remembers, in what it is given of a GPU, what has been told."""

    def __init__(self, switches: Switches) -> None:
        self._switches = switches
        self._every = switches.every("gpu", EVERY)

    def samples(self, known: Known, read: wire.Read, at_s: float, teller: Teller) -> None:
        """The GPU's row and those of its MIG instances, after what its fields' states became. ``at_s`` is monotonic."""
        if not known.told:
            known.told = True
            teller.quality(known.entity, "*", "measured", "first seen")
            for table, names in (("gpu", EVERY), ("link", LINKS)):
                self._switches.tell(table, known.entity, names, teller)
        _learn(known, read, at_s, teller)
        _learn_links(known, read, teller)
        row = _row(known.gpu, read.values, read.max_ms, None)
        if read.parts:
            row["mig_profile"] = ",".join(part.profile for part in read.parts)
        teller.sample(row)
        for part in read.parts:
            _learn_part(known, part, at_s, teller)
            teller.sample(_row(known.gpu, part.values, None, str(part.gi)) | {"mig_profile": part.profile or None})

    def parts(self, known: Known, read: wire.Read, teller: Teller) -> None:
        """The inventory rows of MIG instances that came, changed or went, with their profiles."""
        here = {part.gi: part.profile for part in read.parts}
        for gi in [gi for gi in known.parts if gi not in here]:
            del known.parts[gi]
            who = {"kind": "mig", "entity": f"{known.gpu.uuid}/{gi}", "model": known.gpu.model}
            teller.inventory(who | {"valid_until": teller.ts})
            for name in [n for n in known.part_fields if n[0] == gi]:
                del known.part_fields[name]
        for gi, profile in here.items():
            if known.parts.get(gi) != profile:
                known.parts[gi] = profile
                teller.inventory({
                    "kind": "mig", "entity": f"{known.gpu.uuid}/{gi}", "model": known.gpu.model, "slot": known.gpu.bus,
                    "mig_profile": profile or None,
                    "attributes": json.dumps({"gpu_uuid": known.gpu.uuid, "mig_instance": str(gi)}),
                })  # fmt: skip

    def inventory(self, known: Known, driver_version: str | None, teller: Teller) -> None:
        """The inventory row, if it is another than the last one told. Asks for all classes to have been read."""
        gpu, facts = known.gpu, known.facts
        supported = [n for n in self._every if known.fields.get(n, ("", 0))[0] not in _ABSENT]
        place = {name: facts[name] for name in _PLACE if name in facts}
        row = {
            "kind": "gpu", "entity": gpu.uuid, "model": gpu.model, "serial": gpu.serial or None, "slot": gpu.bus,
            "vbios_version": gpu.vbios or None, "driver_version": driver_version,
            "mig_profile": facts.get("mig_profile"), "domain": facts.get("domain"),
            "attributes": json.dumps({"supported": supported, **place}),
        }  # fmt: skip
        text = json.dumps(row)
        if text != known.inventory:
            known.inventory = text
            teller.inventory(row)


def pids_of(
    answer: wire.Answer, slots: Mapping[int, Known], before: Mapping[GpuKey, Sequence[int]]
) -> Mapping[GpuKey, Sequence[int]]:
    """Compute processes by GPU and MIG instance. What was not counted in this round is as it was ``before``, as long
    as its GPU answers; a GPU in trouble has none that anybody knows."""
    found: dict[GpuKey, Sequence[int]] = {}
    for read in answer.reads:
        if read.trouble or read.slot not in slots:
            continue
        uuid = slots[read.slot].gpu.uuid
        told = [(GpuKey(uuid), read.pids)] + [(GpuKey(uuid, str(p.gi)), p.pids) for p in read.parts]
        for key, pids in told:
            if pids is not None:
                found[key] = pids
            elif key in before:
                found[key] = before[key]
    return found


def mig_of(answer: wire.Answer, slots: Mapping[int, Known], before: Mapping[str, GpuKey]) -> Mapping[str, GpuKey]:
    """Which MIG device is which instance. What was not told in this round is as ``before``, while it is there."""
    here: dict[GpuKey, list[str]] = {}
    for read in answer.reads:
        if read.slot in slots and not read.trouble:
            here |= {GpuKey(slots[read.slot].gpu.uuid, str(part.gi)): part.uuids for part in read.parts}
    kept = {uuid: key for uuid, key in before.items() if key in here and not here[key]}
    return kept | {uuid: key for key, uuids in here.items() for uuid in uuids}


def _learn(known: Known, read: wire.Read, at_s: float, teller: Teller) -> None:
    """Keep the state of fields, tell what changed, and take out of the values what cannot be."""
    mig = read.values.get("mig_mode", known.mig) == 1
    known.mig = int(mig)
    for name, code in read.errors.items():
        why = f"{words(code)}, as long as MIG is on" if mig and code == NOT_SUPPORTED else words(code)
        _field(known, name, quality_of(code), code, why, teller)
    if "ecc_mode" in known.fields:
        known.plausible.has_ecc = False
    elif "ecc_mode" in read.values:
        known.plausible.has_ecc = True
    for name, why in known.plausible.sift(read.values, at_s).items():
        _field(known, name, "implausible", 0, why, teller)
    for name in known.fields.keys() & read.values.keys():
        del known.fields[name]
        teller.quality(known.entity, name, "measured", "")


def _learn_links(known: Known, read: wire.Read, teller: Teller) -> None:
    """States of fields of table ``link``, for all of the GPU's links at once."""
    for name, code in read.link_errors.items():
        known.link_fields[name] = code
        reason = f"{_LINK_FIELDS[name].nvml or 'per link'}: {words(code)}"
        teller.quality(known.entity, name, quality_of(code), reason, table="link")
    if known.link_fields and read.links:
        here = {name for link in read.links for name in link.values}
        for name in known.link_fields.keys() & here:
            del known.link_fields[name]
            teller.quality(known.entity, name, "measured", "", table="link")


def _learn_part(known: Known, part: wire.Part, at_s: float, teller: Teller) -> None:
    """States of what an instance is asked of its own; everything else is its GPU's, and no riddle."""
    entity = f"{known.gpu.uuid}/{part.gi}"
    wrong = Plausible().sift(part.values, at_s)
    told = {name: (quality_of(code), words(code)) for name, code in part.errors.items()}
    told |= {name: ("implausible", why) for name, why in wrong.items()}
    for name, (state, why) in told.items():
        if known.part_fields.get((part.gi, name)) != state:
            known.part_fields[part.gi, name] = state
            teller.quality(entity, name, state, f"{FIELDS[name].nvml} of the MIG instance: {why}")
    for gi, name in [key for key in known.part_fields if key[0] == part.gi and key[1] in part.values]:
        del known.part_fields[gi, name]
        teller.quality(entity, name, "measured", "")


def _field(known: Known, name: str, state: str, code: int, why: str, teller: Teller) -> None:
    if known.fields.get(name) != (state, code):
        known.fields[name] = (state, code)
        teller.quality(known.entity, name, state, f"{FIELDS[name].nvml}: {why}")


def _row(gpu: wire.Gpu, values: Mapping[str, int | float], max_ms: float | None, gi: str | None) -> Row:
    return {
        "gpu_uuid": gpu.uuid, "mig_instance": gi, "gpu_index": gpu.index if gpu.index >= 0 else None,
        "gpu_model": gpu.model, "pci_bus_id": gpu.bus, "nvml_call_max_ms": max_ms, **values,
    }  # fmt: skip
