"""A GPU as a person names it: by the slot that can be found on the machine; the UUID stays in the evidence."""

from __future__ import annotations

import re
from typing import Final

_UUID: Final = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]+", re.IGNORECASE)


def named(gpu_index: object, pci_bus_id: object, gpu_uuid: object) -> str:
    """ "GPU 3 (0000:9b:00.0)", or what of it is known, else the beginning of the UUID, "GPU-f2e64736"."""
    known = [str(x) for x in (gpu_index, pci_bus_id) if x is not None]
    if len(known) == 2:
        return f"GPU {known[0]} ({known[1]})"
    if known:
        return f"GPU {known[0]}"
    return short(gpu_uuid)


def short(gpu_uuid: object) -> str:
    """The beginning of a UUID that is one; any other name as it is."""
    found = _UUID.fullmatch(str(gpu_uuid))
    name = found[1] if found else str(gpu_uuid)
    return name if name.startswith(("GPU-", "MIG-")) else f"GPU {name}"
