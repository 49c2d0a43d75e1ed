"""Fields switched off or slowed down in the configuration: not asked for, not sent, and no riddle."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import node_files
import nvml_standin as standin
import pytest
from nvml_rig import quality, rig, samples

from graynode.collectors.base import Round
from graynode.collectors.host import Host
from graynode.collectors.infiniband import Infiniband
from graynode.collectors.switches import WHY, Switches, switches

T0 = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
ALL = frozenset({1, 10, 60})


@pytest.mark.nvml
def test_what_is_off_is_not_asked_of_nvml(tmp_path: Path) -> None:
    """The calls of switched-off fields are never made, their fields are absent, and quality says why, once a GPU."""
    off = switches(["ecc_*_l2", "violation_*", "pcie_?x_kb_per_s", "tensor_active_ratio", "temp_c"], {})
    with rig(tmp_path, gpus=2, record=True, switches=off) as node:
        rows = node.round()
        told = quality(rows, node.scenario.uuid(1))
        row = samples(node.round())[node.scenario.uuid(1)]
        for name in ("ecc_sbe_volatile_l2", "violation_power_ns", "pcie_tx_kb_per_s", "tensor_active_ratio", "temp_c"):
            assert name not in row
            assert told[name] == ("unsupported", WHY)
        assert row["sm_active_ratio"] == pytest.approx(0.91)
        assert row["ecc_sbe_volatile_device"] == 0
        made = {key for key, _, _ in standin.called(node.calls)}
        assert not {k for k in made if k.startswith(("violation.", "pcie.tx_kb", "ecc.0.0.1")) or k == "temp"}
        assert "clock.sm" in made
        assert "quality" not in node.round()


@pytest.mark.nvml
def test_what_is_off_of_links(tmp_path: Path) -> None:
    """A switched-off counter of links is not read; without the state nothing is asked of single links at all."""
    with rig(tmp_path, standin.b200, gpus=1, record=True, switches=switches(["link.rx_*"], {})) as node:
        rows = node.round()
        assert "rx_errors" not in rows["link"][0]
        assert rows["link"][0]["malformed_packets"] == 0
        assert not [c for c in standin.called(node.calls) if c[0] == "fi.208.3"]
        of_links = {q["field"]: q["reason"] for q in rows["quality"] if q["table_name"] == "link"}
        assert of_links["rx_errors"] == WHY
    (tmp_path / "two").mkdir()
    with rig(tmp_path / "two", gpus=1, switches=switches(["link.*"], {})) as node:
        rows = node.round()
        assert "link" not in rows
        assert samples(rows)[node.scenario.uuid(0)]["nvlink_links_active"] == 18


@pytest.mark.nvml
def test_slower(tmp_path: Path) -> None:
    """A field of a slower class is read with that class."""
    with rig(tmp_path, gpus=1, record=True, switches=switches([], {"gpu.pcie_replays": 60, "power_w": 10})) as node:
        node.round()
        before = len(standin.called(node.calls))
        assert "power_w" not in node.round(1)["gpu"][0]
        row = node.round(1, 10)["gpu"][0]
        assert "pcie_replays" not in row
        assert row["power_w"] > 0
        made = [key for key, _, _ in standin.called(node.calls)[before:]]
        assert made.count("power") == 1
        assert "pcie.replays" not in made


def test_ports(tmp_path: Path) -> None:
    """Files of a port's switched-off counters are not opened, and quality names them."""
    machine = node_files.node(tmp_path)
    shutil.copytree(node_files.FIXTURES / "gpud/infiniband-h100", machine.sys / "class/infiniband")
    collector = Infiniband(machine)
    collector.switches = switches(
        ["link.symbol_errors", "link.?x_bytes", "link.tx_wait_ticks"], {"link.tx_discards": 60}
    )
    rows = collector.collect(Round(T0, ALL))
    row = rows["link"][0]
    assert not {"symbol_errors", "tx_bytes", "rx_bytes", "tx_wait_ticks"} & row.keys()
    assert row["tx_packets"] is not None
    told = {q["field"] for q in rows["quality"] if q["entity"] == row["link"] and q["reason"] == WHY}
    assert told == {"symbol_errors", "tx_bytes", "rx_bytes", "tx_wait_ticks"}
    rows = collector.collect(Round(T0, frozenset({1, 10}), 1.0))
    assert "tx_discards" not in rows["link"][0]
    assert not [q for q in rows.get("quality", ()) if q["reason"] == WHY]
    collector.close()


def test_host(tmp_path: Path) -> None:
    """A host's fields are left out, or kept for the slower class."""
    collector = Host(node_files.node(tmp_path, proc=Path("/proc"), sys=Path("/sys")))
    collector.switches = switches(["host.load1", "host.disk_io_ms"], {"host.mem_available_bytes": 10})
    rows = collector.collect(Round(T0, ALL))
    assert not {"load1", "disk_io_ms"} & rows["host"][0].keys()
    assert {q["field"] for q in rows["quality"]} == {"load1", "disk_io_ms"}
    rows = collector.collect(Round(T0, frozenset({1}), 1.0))
    assert "mem_available_bytes" not in rows["host"][0]
    assert "quality" not in rows
    collector.close()


@pytest.mark.parametrize(
    ("off", "every", "says"),
    [
        (["ecc_sbe_volatil"], {}, "did you mean 'gpu.ecc_sbe_volatile'?"),
        (["linc.symbol_errors"], {}, "did you mean 'link.symbol_errors'?"),
        (["no_such_*"], {}, "no field is called 'no_such_*'"),
        (["gpu.gpu_model"], {}, "cannot be switched"),
        (["finding.value"], {}, "no field is called"),
        ([], {"power_w": 5}, "allowed are 1, 10, 60"),
        ([], {"ecc_mode": 10}, "only slower will do"),
        ([], {"link.state": 60}, "has a pace of its own"),
        (["@profile"], {}, "no field is called '@profile'"),
        ([], {"gpu.powr_w": 10}, "did you mean 'gpu.power_w'?"),
    ],
)
def test_wrong_switches_are_said(off: list[str], every: dict[str, int], says: str) -> None:
    """An unknown name, one that others depend on, and a quicker class are errors that name what is near."""
    with pytest.raises(ValueError, match=re.escape(says)):
        switches(off, every)


@pytest.mark.nvml
def test_without_profiling_the_counters_are_left_alone(tmp_path: Path) -> None:
    """With ``@profiling`` off no sample is ever taken, so that a profiler finds the counters free."""
    with rig(tmp_path, gpus=1, record=True, switches=switches(["@profiling"], {})) as node:
        node.round()
        assert "sm_active_ratio" not in node.round()["gpu"][0]
        assert not [key for key, _, _ in standin.called(node.calls) if key.startswith("gpm")]


def test_needed_fields_stay_under_a_glob() -> None:
    """``gpu.*`` switches off all that may be, and keeps what says who the GPU is and whether we are blind."""
    off = switches(["gpu.*"], {})
    assert "gpu.power_w" in off.off
    assert not {"gpu.gpu_model", "gpu.energy_mj", "gpu.mig_mode"} & off.off


def test_nothing_switched_costs_nothing() -> None:
    """Without switches the very row comes back."""
    row = {"load1": 1.0}
    assert Switches().strip("host", row, ALL) is row
