"""What is said of NVLinks beside samples: where they lead, and that they went down or came up."""

from __future__ import annotations

import json
from collections.abc import Mapping

from graynode.collectors.nvml.rows import Teller
from graynode.collectors.nvml.wire import Gpu
from graynode.collectors.outages import Change


def device_of(remote: Mapping[str, str]) -> str | None:
    """``NVLink 4.0 to switch 0000:05:00.0``; ``None`` where nothing is known."""
    if not remote:
        return None
    name = f"NVLink {remote['version']}" if "version" in remote else "NVLink"
    far = [remote[k] for k in ("remote", "remote_pci") if k in remote]
    return f"{name} to {' '.join(far)}" if far else name


def inventory_of(gpu: Gpu, n: int, remote: Mapping[str, str], told: str, teller: Teller) -> str:
    """Tell the link's inventory row if it is another than ``told``; what has been told now."""
    if not remote:
        return told
    facts = {"gpu_uuid": gpu.uuid, "link": n, **remote}
    text = json.dumps(facts, sort_keys=True)
    if text != told:
        model = f"NVLink {remote['version']}" if "version" in remote else "NVLink"
        row = {"kind": "port", "entity": f"{gpu.uuid}/{n}", "model": model, "slot": gpu.bus, "attributes": text}
        teller.inventory(row)
    return text


def events_of(gpu: Gpu, changes: Mapping[int, Change], teller: Teller) -> None:
    """One event a GPU and kind: when a switch or a fabric manager goes, all links of all GPUs go with it."""
    down = [n for n, change in changes.items() if change.went_down]
    up = {n: change for n, change in changes.items() if change.came_up}
    if down:
        _event("link_down", gpu, down, "went down", {}, teller)
    if up:
        longest = max(change.outage_s or 0.0 for change in up.values())
        _event("link_up", gpu, [*up], f"came up again after {longest:.0f} s", {"outage_s": longest}, teller)


def _event(kind: str, gpu: Gpu, links: list[int], what: str, facts: Mapping[str, object], teller: Teller) -> None:
    names = ", ".join(map(str, links))
    teller.event(
        kind,
        f"NVLink {names} of GPU {gpu.bus} {what}",
        gpu_uuid=gpu.uuid,
        pci_bus_id=gpu.bus,
        link=f"{gpu.uuid}/{links[0]}" if len(links) == 1 else None,
        details={"link_kind": "nvlink", "links": links, **facts},
    )
