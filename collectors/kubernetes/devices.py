"""From the device ids that Kubernetes knows to the GPUs that we know: ids of device plugins, DRA devices, CDI names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from graynode.collectors.context import GpuKey
from graynode.collectors.kubernetes.wire import Claimed, Held
from graynode.collectors.sysfs import names, whole_text

_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_GPU: Final = re.compile(rf"GPU-{_UUID}")
_MIG: Final = re.compile(rf"MIG-{_UUID}")
_OLD_MIG: Final = re.compile(rf"MIG-(GPU-{_UUID})/(\d{{1,3}})/\d{{1,3}}")
"""MIG ids before driver 470: the parent's UUID, GPU instance, compute instance."""
_MINOR: Final = re.compile(r"nvidia(\d{1,3})(?:/gi(\d{1,3}))?(?:/vgpu\d{1,3})?")
"""Ids of Google's device plugin: the device file, GPU instance, share."""
_DRA_GPU: Final = re.compile(r"gpu-(\d{1,3})")
_SHARE: Final = "::"
"""NVIDIA's device plugin names replicas of a shared device ``<id>::<n>``."""
_NVIDIA: Final = "nvidia.com/"
_DRA_DRIVER: Final = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True)
class Known:
    """What names lead to. ``minors``: ``/dev/nvidiaN`` to UUID, as the driver tells; ``mig``: MIG UUID to its GPU and
    instance, as NVML tells; ``slices``: (pool, device) to the UUID in the driver's ResourceSlice."""

    minors: Mapping[int, str] = field(default_factory=dict)
    mig: Mapping[str, GpuKey] = field(default_factory=dict)
    slices: Mapping[tuple[str, str], str] = field(default_factory=dict)


def gpus_of(held: Held, known: Known) -> tuple[set[GpuKey], list[str]]:
    """The GPUs that a container holds, and the ids of NVIDIA devices that could not be matched to one."""
    found: set[GpuKey] = set()
    unknown: list[str] = []
    wanted = [(id_, _of_id(id_, known), devices.resource) for devices in held.devices for id_ in devices.ids]
    for id_, key, resource in wanted:
        if key is not None:
            found.add(key)
        elif resource.startswith(_NVIDIA):
            unknown.append(id_)
    for claim in held.claims:
        keys = _of_claim(claim, known)
        found |= keys
        if not keys and claim.driver == _DRA_DRIVER:
            unknown.append(claim.device or "?")
    return found, unknown


def by_number(held: Iterable[Held]) -> bool:
    """Whether device numbers are needed to know these."""
    return any(
        container.claims or any(_MINOR.fullmatch(id_) for devices in container.devices for id_ in devices.ids)
        for container in held
    )


def gpu_minors(proc: Path) -> dict[int, str]:
    """Device file numbers of this machine's GPUs and their UUIDs, from ``/proc/driver/nvidia/gpus/*/information``."""
    at = proc / "driver/nvidia/gpus"
    return {
        minor: uuid
        for bus in names(at)
        for minor, uuid in [information(whole_text(at / bus / "information"))]
        if minor is not None and uuid is not None
    }


def information(text: str) -> tuple[int | None, str | None]:
    """Device minor and GPU UUID of one such file, ``None`` for what it does not say (UUIDs are hidden from some)."""
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    minor, uuid = said.get("Device Minor", ""), said.get("GPU UUID", "")
    return int(minor) if minor.isdecimal() and len(minor) < 4 else None, uuid if _GPU.fullmatch(uuid) else None


def _of_id(id_: str, known: Known) -> GpuKey | None:
    id_ = id_.partition(_SHARE)[0]
    if _GPU.fullmatch(id_):
        return GpuKey(id_)
    if _MIG.fullmatch(id_):
        return known.mig.get(id_)
    old = _OLD_MIG.fullmatch(id_)
    if old:
        return GpuKey(old[1], str(int(old[2])))
    by_file = _MINOR.fullmatch(id_)
    uuid = known.minors.get(int(by_file[1])) if by_file else None
    return GpuKey(uuid, by_file[2]) if by_file and uuid else None


def _of_claim(claim: Claimed, known: Known) -> set[GpuKey]:
    """The ResourceSlice is exact; CDI names may hold the UUID; ``gpu-N`` is the device file's number.

    A MIG device whose instance is not known is not the whole GPU's.
    """
    if claim.driver != _DRA_DRIVER:
        return set()
    uuid = known.slices.get((claim.pool, claim.device))
    if uuid is not None:
        key = _of_id(uuid, known)
        return {key} if key else set()
    by_cdi = {key for key in map(_of_cdi, claim.cdi) if key is not None}
    if by_cdi:
        return by_cdi
    whole = _DRA_GPU.fullmatch(claim.device)
    minor = known.minors.get(int(whole[1])) if whole else None
    return {GpuKey(minor)} if minor else set()


def _of_cdi(name: str) -> GpuKey | None:
    device = name.partition("=")[2]
    return GpuKey(device) if _GPU.fullmatch(device) else None
