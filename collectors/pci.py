"""PCI: addresses in the one form that records use, and which devices are NVIDIA GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from graynode.collectors.sysfs import text_of

_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"
"""PCI base class of display controllers: VGA, 3D and other."""


def pci_address(text: str) -> str:
    """Lower case ``domain:bus:device.function`` with a domain of at least four digits, such as ``0000:9b:00.0``.

    Xid lines leave out the function and mean 0; NVML and fabric manager write eight domain digits; some lines
    begin with ``PCI:``.
    """
    found = text.strip().lower().removeprefix("pci:")
    if "." not in found:
        found += ".0"
    domain, _, rest = found.partition(":")
    if ":" not in rest:  # bus:device.function without a domain
        domain, rest = "0000", found
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


def is_nvidia_gpu(device: Path) -> bool:
    """Whether a folder of ``/sys/bus/pci/devices`` is an NVIDIA display controller."""
    return text_of(device / "vendor") == _NVIDIA and (text_of(device / "class") or "").startswith(_DISPLAY)
