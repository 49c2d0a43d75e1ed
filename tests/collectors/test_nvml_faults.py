"""GPUs that are lost, hang, err or vanish: each costs its own rows only, and nobody is called lost on NVML's word."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import nvml_standin as standin
import pytest
from nvml_rig import HANG_S, PATIENT_S, SOON, Rig, events, quality, rig, samples

pytestmark = pytest.mark.nvml


def test_lost_with_pci_as_witness(tmp_path: Path) -> None:
    """A lost GPU that is off the PCI bus too is one event with what each witness said, and the others go on."""
    with rig(tmp_path, gpus=8) as node:
        lost = node.scenario.uuid(3)
        node.round()
        standin.fall_off(node.sys, node.scenario.bus(3))
        node.scenario.set("lost", 1, 3).write()
        rows = node.round(1)
        assert len(rows["gpu"]) == 7
        assert lost not in samples(rows)
        (event,) = events(rows)
        assert (event["kind"], event["gpu_uuid"], event["pci_bus_id"]) == ("gpu_lost", lost, node.scenario.bus(3))
        assert "GPU is lost" in event["attributes"]["nvml"]
        assert "all ones" in event["attributes"]["pci"]
        assert event["attributes"]["kernel_log"] == "nothing"
        assert quality(rows, lost) == {"*": ("lost", event["attributes"]["nvml"])}
        assert not events(node.round())
        assert node.collector.nvml_up is True
        assert node.collector.gpus_read == 7


def test_lost_by_nvml_alone_is_blindness(tmp_path: Path) -> None:
    """NVML's word alone loses no GPU: with the PCI bus well, it is blindness for that GPU."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("lost", 1, 1).write()
        rows = node.round(1)
        (event,) = events(rows)
        assert event["kind"] == "nvml_blind"
        assert event["gpu_uuid"] == node.scenario.uuid(1)
        assert "answers on the PCI bus" in event["attributes"]["pci"]
        assert quality(rows, node.scenario.uuid(1))["*"][0] == "error"
        assert samples(rows).keys() == {node.scenario.uuid(0)}


def test_kernel_log_as_late_witness(tmp_path: Path) -> None:
    """A GPU about which we are blind is lost as soon as the kernel log says so."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("lost", 1, 1).write()
        assert events(node.round(1), "nvml_blind")
        line = {"kind": "xid", "code": 79, "pci_bus_id": node.scenario.bus(1), "message": "Xid 79: fallen off the bus"}
        node.collector.note_kernel_events([{**line, "code": 31}, line])
        assert not events(node.round(1))  # witnesses are heard with the 10 s class
        (event,) = events(node.round())
        assert event["kind"] == "gpu_lost"
        assert event["attributes"]["kernel_log"] == "Xid 79: fallen off the bus"


def test_all_lost_at_once_is_one_blindness(tmp_path: Path) -> None:
    """All GPUs lost to NVML and well on the bus is one event of the node, and no GPU is called sick."""
    with rig(tmp_path, gpus=4) as node:
        node.round()
        node.scenario.set("lost", 1).write()
        rows = node.round(1)
        (event,) = events(rows)
        assert event["kind"] == "nvml_blind"
        assert event["gpu_uuid"] is None
        assert "gpu" not in rows
        assert node.collector.nvml_up is False
        assert node.collector.gpus_read == 0
        node.scenario.set("lost", 0).write()
        rows = node.round()
        assert [e["kind"] for e in events(rows)] == ["nvml_back"]
        assert len(rows["gpu"]) == 4
        assert node.collector.nvml_up is True


def test_lost_gpu_returns(tmp_path: Path) -> None:
    """A lost GPU is tried again every 10 s; its return is an event, and what it supports is learnt anew."""
    with rig(tmp_path) as node:
        node.round()
        standin.fall_off(node.sys, node.scenario.bus(1))
        node.scenario.set("lost", 1, 1).write()
        assert events(node.round(1), "gpu_lost")
        standin.pci_tree(node.sys, node.scenario)
        node.scenario.unset("lost", 1).error("temp.margin", standin.NOT_SUPPORTED, 1).write()
        assert not events(node.round(1))
        rows = node.round()
        (event,) = events(rows)
        assert (event["kind"], event["gpu_uuid"]) == ("gpu_returned", node.scenario.uuid(1))
        told = quality(rows, node.scenario.uuid(1))
        assert told["*"][0] == "measured"
        assert told["temp_margin_c"][0] == "unsupported"
        assert node.scenario.uuid(1) in samples(rows)


def test_reset_required(tmp_path: Path) -> None:
    """A GPU that needs a reset is told as that, not as lost; after the reset it is back."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("reset", 1, 0).write()
        rows = node.round(1)
        assert [e["kind"] for e in events(rows)] == ["gpu_reset_required"]
        assert samples(rows).keys() == {node.scenario.uuid(1)}
        node.scenario.unset("reset", 0).write()
        assert [e["kind"] for e in events(node.round())] == ["gpu_returned"]


def test_one_gpu_in_err(tmp_path: Path) -> None:
    """A GPU whose every call fails costs its own rows only, and is blindness."""
    with rig(tmp_path, gpus=3) as node:
        node.round()
        node.scenario.set("err", standin.UNKNOWN, 2).write()
        rows = node.round(1)
        assert len(rows["gpu"]) == 2
        assert [(e["kind"], e["gpu_uuid"]) for e in events(rows)] == [("nvml_blind", node.scenario.uuid(2))]
        node.scenario.unset("err", 2).write()
        assert [(e["kind"], e["gpu_uuid"]) for e in events(node.round())] == [("nvml_back", node.scenario.uuid(2))]


def test_gpu_without_handle_at_start(tmp_path: Path) -> None:
    """A GPU that gives no handle when the agent starts costs itself; it is named by its address, and taken in later."""
    with rig(tmp_path, gpus=3) as node:
        node.scenario.error("handle", standin.IRQ_ISSUE, 1).write()
        rows = node.round()
        assert samples(rows).keys() == {node.scenario.uuid(0), node.scenario.uuid(2)}
        (event,) = events(rows)
        assert (event["kind"], event["pci_bus_id"]) == ("nvml_blind", node.scenario.bus(1))
        assert "interrupt" in event["attributes"]["nvml"]
        assert node.collector.gpus_read == 2
        node.scenario.unset("handle", 1).write()
        rows = node.until(lambda r: len(r.get("gpu", ())) == 3)
        assert [(e["kind"], e["gpu_uuid"]) for e in events(rows)] == [("nvml_back", node.scenario.uuid(1))]
        assert quality(rows, node.scenario.uuid(1))["*"][0] == "measured"


def test_gpu_of_somebody_else(tmp_path: Path) -> None:
    """A GPU whose handle is not permitted is no trouble: told once, and the reader is not started anew for it."""
    with rig(tmp_path, record=True) as node:
        node.scenario.error("handle", standin.NO_PERMISSION, 1).write()
        rows = node.round()
        assert not events(rows)
        assert quality(rows, node.scenario.bus(1))["*"][0] == "not_permitted"
        for _ in range(3):
            rows = node.round()
            assert not events(rows)
            assert "quality" not in rows
        assert sum(key == "init" for key, _, _ in standin.called(node.calls)) == 1


def test_old_line_of_the_kernel_log_is_no_witness(tmp_path: Path) -> None:
    """What the kernel log said of a GPU that was read for a minute since does not make a later hiccup a loss."""
    with rig(tmp_path) as node:
        node.round()
        node.collector.note_kernel_events([{"kind": "gpu_off_bus", "pci_bus_id": node.scenario.bus(1)}])
        for _ in range(60):
            node.round(1)
        node.scenario.set("lost", 1, 1).write()
        assert [e["kind"] for e in events(node.round(1))] == ["nvml_blind"]


def test_another_gpu_in_the_slot(tmp_path: Path) -> None:
    """A GPU that was replaced by another at its address is not missed, and the new one is taken in."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("uuid", "GPU-new", 1).error("power", 1).write()
        node.round(1)
        node.scenario.set("power", 100_000).write()
        rows = node.until(lambda r: "gpu" in r)
        assert samples(rows).keys() == {node.scenario.uuid(0), "GPU-new"}
        assert [e["kind"] for e in events(rows)] == ["nvml_back"]
        assert not events(node.round())


def test_gpu_not_listed_any_more(tmp_path: Path) -> None:
    """A GPU that a new child no longer finds, and that PCI lost too, is lost; listed again, it is back."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("gone", 1, 0).set("lost", 1, 0).write()
        device = node.sys / "bus/pci/devices" / node.scenario.bus(0)
        device.rename(tmp_path / "removed")
        (event,) = events(node.until(lambda r: bool(events(r))))
        assert (event["kind"], event["gpu_uuid"]) == ("gpu_lost", node.scenario.uuid(0))
        assert "not on the PCI bus" in event["attributes"]["pci"]
        (tmp_path / "removed").rename(device)
        node.scenario.unset("gone", 0).unset("lost", 0).write()
        (event,) = events(node.until(lambda r: bool(events(r))))
        assert (event["kind"], event["gpu_uuid"]) == ("gpu_returned", node.scenario.uuid(0))


def test_slow_call_is_measured(tmp_path: Path) -> None:
    """A slow call is no hang: the row says how slow the GPU's slowest call was, and the other rows do not."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("temp", "55 slow=300", 1).write()
        rows = samples(node.round(1))
        assert rows[node.scenario.uuid(1)]["nvml_call_max_ms"] >= 300
        assert rows[node.scenario.uuid(0)]["nvml_call_max_ms"] < 300
        assert node.collector.call_max_ms is not None
        assert node.collector.call_max_ms >= 300


def test_sampled_calls_are_not_latency(tmp_path: Path) -> None:
    """PCIe throughput takes its 20 ms by design: it does not count as a slow call."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.set("pcie.tx_kb", "1000 slow=250").write()
        row = node.round()["gpu"][0]
        assert row["pcie_tx_kb_per_s"] == 1000
        assert row["nvml_call_max_ms"] < 250


def hung(node: Rig, gpu: int) -> tuple[list[str], float]:
    """Let a GPU hang; the kinds of event of that round, and how long it took."""
    node.scenario.set("energy", "hang", gpu).write()
    started = time.monotonic()
    rows = node.hang()
    assert "gpu" not in rows
    return [e["kind"] for e in events(rows)], time.monotonic() - started


def test_hung_gpu_is_left_and_the_others_go_on(tmp_path: Path) -> None:
    """A call that does not return ends in the deadline; NVML is blind until a child without that GPU answers."""
    with rig(tmp_path, gpus=4) as node:
        node.round()
        kinds, took = hung(node, 2)
        assert sorted(kinds) == ["gpu_hung", "nvml_blind"]
        assert took < 5
        assert node.collector.nvml_up is False
        assert node.collector.call_max_ms is not None
        assert node.collector.call_max_ms >= 400
        rows = node.until(lambda r: "gpu" in r, 1)
        assert [e["kind"] for e in events(rows)] == ["nvml_back"]
        assert samples(rows).keys() == {node.scenario.uuid(g) for g in (0, 1, 3)}
        assert [r["gpu_index"] for r in rows["gpu"]] == [0, 1, 3]
        assert node.collector.nvml_up is True
        assert not events(node.round(1))


def test_hung_gpu_names_the_call(tmp_path: Path) -> None:
    """The event says which GPU and which call."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("energy", "hang", 1).write()
        (event,) = events(node.hang(), "gpu_hung")
        assert event["gpu_uuid"] == node.scenario.uuid(1)
        assert "nvmlDeviceGetTotalEnergyConsumption" in event["attributes"]["nvml"]


def test_hung_gpu_returns(tmp_path: Path) -> None:
    """The GPU that hung is tried alone, and read with the others as soon as it answers."""
    with rig(tmp_path) as node:
        node.round()
        hung(node, 0)
        node.until(lambda r: "gpu" in r, 1)
        node.scenario.set("energy", 5_000_000_000, 0).write()
        rows = node.until(lambda r: len(r.get("gpu", ())) == 2)
        assert [(e["kind"], e["gpu_uuid"]) for e in events(rows)] == [("gpu_returned", node.scenario.uuid(0))]
        assert quality(rows, node.scenario.uuid(0))["*"][0] == "measured"


def test_hung_gpu_that_falls_off_the_bus(tmp_path: Path) -> None:
    """A GPU that hangs and is off the PCI bus is lost: two witnesses."""
    with rig(tmp_path) as node:
        node.round()
        hung(node, 0)
        node.until(lambda r: "gpu" in r, 1)
        standin.fall_off(node.sys, node.scenario.bus(0))
        (event,) = events(node.round(), "gpu_lost")
        assert event["gpu_uuid"] == node.scenario.uuid(0)


def test_gpu_that_hangs_while_it_is_attached(tmp_path: Path) -> None:
    """A GPU that hangs when its handle is asked for, before anybody knows its address, is left out by its index."""
    with rig(tmp_path, gpus=3, patience=replace(SOON, start_s=2)) as node:
        node.scenario.set("handle", "hang", 1).write()
        rows = node.until(lambda r: "gpu" in r)
        assert samples(rows).keys() == {node.scenario.uuid(0), node.scenario.uuid(2)}
        node.scenario.unset("handle", 1).write()
        assert len(node.until(lambda r: len(r.get("gpu", ())) == 3)["gpu"]) == 3


def test_every_gpu_hangs(tmp_path: Path) -> None:
    """With every GPU hung NVML stays blind; one that answers again ends that."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("energy", "hang").write()
        node.collector.deadline_s = HANG_S
        node.until(lambda r: bool(events(r, "gpu_hung")), 1)
        node.until(lambda r: bool(events(r, "gpu_hung")), 1)
        node.collector.deadline_s = PATIENT_S
        assert node.collector.nvml_up is False
        node.scenario.set("energy", 5_000_000_000).write()
        node.until(lambda r: len(r.get("gpu", ())) == 2)
        assert node.collector.nvml_up is True


def test_crashing_reader(tmp_path: Path) -> None:
    """A reader that dies is reported with the signal, and another takes over."""
    with rig(tmp_path) as node:
        node.round()
        os.kill(children()[0], signal.SIGSEGV)
        rows = node.round(1)
        (event,) = events(rows)
        assert event["kind"] == "nvml_blind"
        assert "signal 11" in event["message"]
        rows = node.until(lambda r: "gpu" in r, 1)
        assert [e["kind"] for e in events(rows)] == ["nvml_back"]


def test_close_ends_the_child(tmp_path: Path) -> None:
    """``close`` ends the child, also one that hangs, and twice is as good as once."""
    with rig(tmp_path) as node:
        node.round()
        (pid,) = children()
        node.collector.close()
        node.collector.close()
        assert not Path(f"/proc/{pid}").exists()


def test_classes_of_a_blind_time_are_made_up_for(tmp_path: Path) -> None:
    """A slow class that was due while NVML was blind is read as soon as it answers again."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.set("temp", "hang", 0).write()
        assert "gpu" not in node.hang(1, 10, 60)
        rows = node.until(lambda r: "gpu" in r, 1)
        assert rows["gpu"][0]["pcie_gen_max"] == 5


def test_event_ids_are_stable_and_distinct(tmp_path: Path) -> None:
    """Two happenings have two ids; the same one at the same time has the same."""
    ts = datetime(2026, 11, 30, 12, tzinfo=UTC)
    told = []
    for name in ("a", "b"):
        root = tmp_path / name
        root.mkdir()
        with rig(root, gpus=3) as node:
            node.round()
            node.scenario.set("err", standin.UNKNOWN, 1).set("err", standin.UNKNOWN, 2).write()
            told.append([e["event_id"] for e in events(node.round(1, ts=ts))])
    assert told[0] == told[1]
    assert len(set(told[0])) == 2


def children() -> list[int]:
    """Readers that this process has started."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"nvml.reader" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found
