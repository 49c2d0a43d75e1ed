"""What an incident says of itself: title, action, owner, next step, and the GPU or link it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graynode.detectors.advice import ADVICE
from graynode.detectors.evidence import Entry, worst
from graynode.detectors.gpu_words import named


def words(told: Mapping[str, Any], entries: Sequence[Entry]) -> dict[str, Any]:
    """What the incident says of itself, from its worst entry and, where that is silent, from its cause."""
    speaker = worst(entries)
    advice = ADVICE.get(told["cause"], ADVICE["unusual"])
    name = told["node"] or told["node_id"]
    gpus = {e["pci_bus_id"] or e["gpu_uuid"] for e in entries} - {None}
    return {
        "gpu_uuid": speaker["gpu_uuid"],
        "link": speaker["link"],
        "pci_bus_id": speaker["pci_bus_id"],
        "severity": speaker["severity"],
        "title": f"{name}: {advice.title}{_where(speaker, len(gpus))}{_number(speaker)}",
        "action": speaker["action"] or advice.action,
        "action_source": speaker["action_source"] or "graynode",
        "owner": speaker["owner"] or advice.owner,
        "next_step": speaker["next_step"] or advice.next_step,
    }


def _where(speaker: Entry, gpus: int) -> str:
    if speaker["link"]:
        return f" (link {speaker['link']})"
    more = f" and {gpus - 1} more" if gpus > 1 else ""
    if speaker["gpu_uuid"] or (speaker["pci_bus_id"] and speaker["subject"] == "gpu"):
        gpu = named(speaker["gpu_index"], speaker["pci_bus_id"], speaker["gpu_uuid"])
        return f" ({gpu.replace(' (', ', ').rstrip(')')}{more})"
    return f" (device {speaker['pci_bus_id']}{more})" if speaker["pci_bus_id"] else ""


def _number(speaker: Entry) -> str:
    kind, _, code = str(speaker["signal"]).partition("_")
    return {"xid": f": Xid {code}", "sxid": f": SXid {code}"}.get(kind, "")
