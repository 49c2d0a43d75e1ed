"""Which NVIDIA kernel module is loaded, from the line that the driver writes of itself."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MODULE: Final = re.compile(r"NVIDIA UNIX (Open )?(?:\S+ )?Kernel Module(?: for \S+)? +(\d+(?:\.\d+)+)")
"""As in ``/proc/driver/nvidia/version`` and in the kernel log at load: the open module says ``UNIX Open
Kernel Module for x86_64  550.54.15``, the proprietary one ``UNIX x86_64 Kernel Module  535.129.03``."""


class DriverModule(NamedTuple):
    """Version and flavour (``open`` or ``proprietary``) of the kernel module."""

    version: str
    kind: str


def driver_module(text: str) -> DriverModule | None:
    """The module that the text names, if it names one."""
    found = _MODULE.search(text)
    return DriverModule(found[2], "open" if found[1] else "proprietary") if found else None
