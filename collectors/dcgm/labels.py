"""Whom a line of a dcgm-exporter page is about: GPU or MIG instance, its facts, and the job on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from graynode.collectors.pci import pci_address

_LONGEST: Final = 128
"""Characters of an id or name; longer ones are no GPU's."""
_UUIDS: Final = ("UUID", "uuid", "gpu_uuid")
_HOSTS: Final = ("Hostname", "hostname")
_JOBS: Final = ("hpc_job", "jobid")
"""dcgm-exporter's label of ``--hpc-job-mapping-dir``, and what a widespread fork makes of it."""


class About(NamedTuple):
    """What a label set says. ``instance`` is the GPU instance id of MIG, ``uuid`` then the parent's."""

    uuid: str
    instance: str | None = None
    profile: str | None = None
    number: int | None = None
    model: str | None = None
    bus: str | None = None
    driver: str | None = None
    serial: str | None = None
    vbios: str | None = None
    host: str | None = None
    job: str | None = None


def about(labels: Mapping[str, str]) -> About | str:
    """Whom the labels name, or why none: links, switches and CPUs have lines too."""
    uuid = _first(labels, _UUIDS)
    if "nvlink" in labels:
        return "per link"
    if not uuid:
        return "no GPU is named"
    if len(uuid) > _LONGEST:
        return "GPU id too long"
    instance = labels.get("GPU_I_ID") or None
    if instance is not None and not (instance.isascii() and instance.isdigit() and len(instance) < 6):
        return f"GPU instance id {instance[:40]!r} is no number"
    number, bus = labels.get("gpu", ""), labels.get("pci_bus_id")
    return About(
        uuid, instance, _short(labels.get("GPU_I_PROFILE")),
        int(number) if number.isascii() and number.isdigit() and len(number) < 6 else None,
        _short(labels.get("modelName") or labels.get("model_name")),
        pci_address(bus) if bus and len(bus) < 32 else None,
        _short(labels.get("DCGM_FI_DRIVER_VERSION") or labels.get("DCGM_FI_SYSTEM_DRIVER_VERSION")),
        _short(labels.get("DCGM_FI_DEV_SERIAL")), _short(labels.get("DCGM_FI_DEV_VBIOS_VERSION")),
        _short(_first(labels, _HOSTS)), job_of(labels),
    )  # fmt: skip


def job_of(labels: Mapping[str, str]) -> str | None:
    """``namespace/pod`` or the batch system's id; null where no job is named.

    In pages that went through a Prometheus, ``pod`` is the exporter's own and the job's is ``exported_pod``.
    """
    hpc = _short(_first(labels, _JOBS))
    if hpc:
        return hpc
    prefix = "exported_" if labels.get("exported_pod") else ""
    pod, namespace = _short(labels.get(f"{prefix}pod")), _short(labels.get(f"{prefix}namespace"))
    if not pod:
        return None
    return f"{namespace}/{pod}" if namespace else pod


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _short(text: str | None) -> str | None:
    return text if text and len(text) <= 2 * _LONGEST else None
