"""GPUs by the names that a person can find on the machine."""

from __future__ import annotations

import pytest
from window_rounds import Cluster

from graynode.detectors.frames import gpus
from graynode.detectors.gpu_words import named
from graynode.detectors.incident_words import words

UUID = "GPU-f2e64736-1d5c-5c11-8cbb-7be5a1a0c001"
PCI = "0000:9b:00.0"


@pytest.mark.parametrize(
    ("index", "pci", "said"),
    [("3", PCI, f"GPU 3 ({PCI})"), (0, None, "GPU 0"), (None, PCI, f"GPU {PCI}"), (None, None, "GPU-f2e64736")],
)
def test_a_gpu_is_named_by_its_slot_and_else_by_the_beginning_of_its_uuid(
    index: object, pci: object, said: str
) -> None:
    """Index and PCI address where they are known; what is no UUID stays whole."""
    assert named(index, pci, UUID) == said
    assert named(None, None, "GPU-001-3") == "GPU-001-3"


def test_a_finding_s_message_names_the_slot_and_its_evidence_both() -> None:
    """Index 0 is an index; the UUID stays a column, the place goes into the evidence."""
    window = next(iter(Cluster(nodes=1).rounds(1))).gpu
    view = gpus(window.with_columns(gpu_index=3), ())
    assert view.gpu_name(3) == "GPU 3 (0000:14:00.0) on node000"
    assert view.identity(3)["gpu_uuid"] == "GPU-000-3"
    assert (view.identity(3)["gpu_index"], view.identity(3)["pci_bus_id"]) == ("3", "0000:14:00.0")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"gpu_index": "3", "pci_bus_id": PCI}, f"gpu-01: slow GPU (GPU 3, {PCI})"),
        ({"gpu_index": None, "pci_bus_id": PCI}, f"gpu-01: slow GPU (GPU {PCI})"),
        ({"gpu_index": None, "pci_bus_id": None}, "gpu-01: slow GPU (GPU-f2e64736)"),
    ],
)
def test_a_title_names_the_slot(place: dict[str, str | None], said: str) -> None:
    """As the message does, without brackets in brackets."""
    entry = dict.fromkeys(("link", "action", "action_source", "owner", "next_step"))
    entry |= {"severity": "ticket", "count": 1, "since": 0, "signal": "clock", "subject": "gpu", "gpu_uuid": UUID}
    told = words({"cause": "slow_gpu", "node": "gpu-01", "node_id": "n1"}, [entry | place], {})
    assert (told["title"], told["gpu_uuid"]) == (said, UUID)
