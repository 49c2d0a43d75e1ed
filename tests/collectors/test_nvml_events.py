"""Events of the NVML event set, through the real pynvml."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import nvml_standin as standin
import pytest
from nvml_rig import events, rig

pytestmark = pytest.mark.nvml


def test_xid(tmp_path: Path) -> None:
    """An Xid is an event with the GPU's UUID and address, told once."""
    with rig(tmp_path, gpus=4) as node:
        node.round()
        node.scenario.event(2, 94).write()
        (event,) = events(node.round(1))
        assert (event["kind"], event["source"], event["code"]) == ("xid", "nvml", 94)
        assert (event["gpu_uuid"], event["pci_bus_id"]) == (node.scenario.uuid(2), node.scenario.bus(2))
        assert event["ts_quality"] == "observed"
        assert not events(node.round(1))


def test_same_xid_twice_is_two_events(tmp_path: Path) -> None:
    """The same Xid twice in a round is two events with ids of their own; a level would hide the second."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.event(0, 31).event(0, 31).write()
        found = events(node.round(1))
        assert [e["code"] for e in found] == [31, 31]
        assert len({e["event_id"] for e in found}) == 2


def test_xid_of_before_the_start_is_not_told(tmp_path: Path) -> None:
    """A child tells what happens while it lives; what was before is the kernel log's to tell."""
    with rig(tmp_path) as node:
        node.scenario.event(0, 79).write()
        assert not events(node.round())


def test_xid_of_a_lost_gpu(tmp_path: Path) -> None:
    """The handle of a lost GPU's event resolves nowhere any more; the event names the GPU all the same."""
    with rig(tmp_path) as node:
        node.round()
        standin.fall_off(node.sys, node.scenario.bus(1))
        node.scenario.set("lost", 1, 1).event(1, 79).write()
        kinds = {e["kind"]: e for e in events(node.round(1))}
        assert kinds.keys() == {"xid", "gpu_lost"}
        assert kinds["xid"]["gpu_uuid"] == node.scenario.uuid(1)


def test_xid_ahead_of_a_hang_is_kept(tmp_path: Path) -> None:
    """What was told before a GPU hung is not lost with the child that hung."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.event(0, 119).set("power", "hang", 0).write()
        assert {e["kind"] for e in events(node.hang())} == {"xid", "gpu_hung", "nvml_blind"}


def test_xid_on_a_mig_instance(tmp_path: Path) -> None:
    """On MIG the Xid comes through the parent; the instance is kept beside it."""
    with rig(tmp_path) as node:
        standin.mig(node.scenario)
        node.round()
        node.scenario.event(0, 43, gi=2, ci=0).write()
        (event,) = events(node.round(1))
        assert event["attributes"] == {"gpu_instance": 2, "compute_instance": 0}


def test_other_events(tmp_path: Path) -> None:
    """An uncorrected ECC error and a failed retirement are events of their own kind; ones not registered stay out."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.event(0, 0, 0x2).event(1, 0, 0x800).event(0, 0, 0x10).write()
        assert [e["kind"] for e in events(node.round(1))] == ["ecc_dbe", "dram_retirement_failed"]


def test_gpu_without_events(tmp_path: Path) -> None:
    """A GPU that supports no events costs nothing but its events."""
    with rig(tmp_path) as node:
        node.scenario.unset("event_types").set("event_types", standin.XID, 1).write()
        node.round()
        node.scenario.event(0, 79).event(1, 31).write()
        rows = node.round(1)
        assert [e["gpu_uuid"] for e in events(rows)] == [node.scenario.uuid(1)]
        assert len(rows["gpu"]) == 2


def test_events_after_a_reset(tmp_path: Path) -> None:
    """A GPU that came back has another handle, and is registered for events again."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("err", standin.UNKNOWN, 1).write()
        node.round()
        node.scenario.unset("err", 1).set("epoch", 1, 1).write()
        node.until(lambda r: len(r.get("gpu", ())) == 2)
        node.scenario.event(1, 63).write()
        assert [e["code"] for e in events(node.round(1), "xid")] == [63]


def test_same_event_same_id(tmp_path: Path) -> None:
    """The id is made of machine, boot, driver load, GPU, code and time: the same everywhere."""
    ts = datetime(2026, 11, 30, 12, tzinfo=UTC)
    ids = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with rig(tmp_path / name) as node:
            node.round()
            node.scenario.event(0, 94).write()
            ids.append(events(node.round(1, ts=ts))[0]["event_id"])
    assert ids[0] == ids[1]
