"""What the three readers of nvidia-smi give: captures, each with values of all GPUs and devices with their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from graynode.service.import_smi_fields import Form
from graynode.service.import_smi_ledger import Reading
from graynode.service.import_smi_record import Device

LONGEST: Final = 1 << 20
"""Characters of a line; the longest real one (a header of 214 columns) has 8 thousand."""


@dataclass(slots=True)
class Capture:
    """One run of nvidia-smi. ``schema`` names its form for people: a DTD, ``-q`` or ``--query-gpu``."""

    form: Form
    schema: str
    shared: list[Reading] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
