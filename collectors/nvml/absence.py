"""NVML that is not there: whether that is a machine without GPUs or a blind one, and what a person can do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from graynode.collectors.base import NoSource
from graynode.collectors.nvml.presence import pci_gpus

_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED = 12, 9
_WAY_OUT: Final = {
    _DRIVER_NOT_LOADED: "; load the NVIDIA kernel module",
    18: "; the driver was replaced under a loaded kernel module: reload the module or reboot",
    999: "; in a container: it may have been cut off from the GPUs (systemctl daemon-reload), restart it",
}


def way_out(code: int) -> str:
    """What helps where NVML says so, to be added to the message; empty where we know nothing."""
    return _WAY_OUT.get(code, "")


def refuse(code: int, sys: Path) -> None:
    """``NoSource`` where NVML cannot be here; a machine with GPUs and a driver that is down is blind instead."""
    on_bus = pci_gpus(sys)
    if code == _LIBRARY_NOT_FOUND:
        here = f"although PCI lists {len(on_bus)} NVIDIA GPUs" if on_bus else "and PCI lists no NVIDIA GPU"
        raise NoSource(
            f"libnvidia-ml.so.1 is not found, {here}; with GPUs: install the driver's libraries, or run the "
            "container with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=utility"
        )
    if code == _DRIVER_NOT_LOADED and not on_bus:
        raise NoSource("NVML says that the NVIDIA driver is not loaded, and PCI lists no NVIDIA GPU")
