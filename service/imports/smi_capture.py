"""What the three readers of nvidia-smi give: captures, each with values of all GPUs and devices with their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from graynode.service.imports.smi_fields import Form
from graynode.service.imports.smi_ledger import Reading
from graynode.service.imports.smi_record import Device

MOST_VALUES: Final = 1_000_000
"""Values of one capture; the largest real one, with all its possible clocks, has some thousand a GPU."""
MOST_DEVICES: Final = 256
LONGEST: Final = 1 << 20
"""Characters of a line; the longest real one (a header of 214 columns) has 8 thousand."""


@dataclass(slots=True)
class Capture:
    """One run of nvidia-smi. ``schema`` names its form for people: a DTD, ``-q`` or ``--query-gpu``."""

    form: Form
    schema: str
    shared: list[Reading] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
