"""What an incident says of itself: title, action, owner, next step, and the GPU or link it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graynode.detectors.advice import ADVICE
from graynode.detectors.evidence import ALSO, Entry, worst
from graynode.detectors.gpu_words import named


def words(told: Mapping[str, Any], entries: Sequence[Entry], also: Mapping[str, str]) -> dict[str, Any]:
    """What the incident says of itself, from its worst entry and, where that is silent, from its cause.

    ``also`` are the incidents (id → title) that this page speaks for.
    """
    speaker = worst(entries)
    advice = ADVICE.get(speaker.get("cause") or told["cause"]) or ADVICE.get(told["cause"], ADVICE["unusual"])
    name = told["node"] or told["node_id"]
    gpus = {e["pci_bus_id"] or e["gpu_uuid"] for e in entries} - {None}
    return {
        "gpu_uuid": speaker["gpu_uuid"],
        "link": speaker["link"],
        "pci_bus_id": speaker["pci_bus_id"],
        "severity": speaker["severity"],
        "title": f"{name}: {speaker.get('title') or advice.title}{_where(speaker, len(gpus))}{_number(speaker)}"
        f"{_more(also)}",
        "action": speaker["action"] or advice.action,
        "action_source": speaker["action_source"] or "graynode",
        "owner": speaker["owner"] or advice.owner,
        "next_step": (speaker["next_step"] or advice.next_step) + _waits(also),
    }


def also_pages(entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, str]]:
    """Entries as they came from detectors, and the incidents that this page spoke for, by id."""
    also: dict[str, str] = {}
    for e in entries:
        if e["signal"] == ALSO:
            also.update({str(k): str(v) for k, v in (e.get("incidents") or {}).items()})
    return [e for e in entries if e["signal"] != ALSO], also


def _more(also: Mapping[str, str]) -> str:
    return f" (and {len(also)} more that would page)" if also else ""


def _waits(also: Mapping[str, str]) -> str:
    """The page budget's overflow, so that whoever is awake sees it."""
    if not also:
        return ""
    first = "; ".join(f"{title} ({identity[:8]})" for identity, title in sorted(also.items())[:3])
    return f" Also waiting for a decision: {first}{' …' if len(also) > 3 else ''}."


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
