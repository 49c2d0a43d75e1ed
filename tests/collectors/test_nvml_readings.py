"""What a healthy GPU's readings become, model by model, through the real pynvml."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import nvml_standin as standin
import pytest
from nvml_rig import quality, rig, samples

from graynode.pipeline.schema import TABLES

pytestmark = pytest.mark.nvml

GPU = {f.name: f for f in TABLES["gpu"].fields}


def test_h100_units(tmp_path: Path) -> None:
    """Eight H100s give eight rows in the contract's units: W from mW, ratios from percent, bytes from KiB and MiB."""
    with rig(tmp_path, gpus=8) as node:
        node.round()
        rows = node.round()
        assert [r["gpu_index"] for r in rows["gpu"]] == list(range(8))
        gpu = samples(rows)[node.scenario.uuid(3)]
        assert gpu["gpu_model"] == "NVIDIA H100 80GB HBM3"
        assert gpu["pci_bus_id"] == "0000:48:00.0"
        expected = {
            "sm_clock_mhz": 1980, "power_w": 652.34, "power_instant_w": 655.12, "power_limit_enforced_w": 700.0,
            "temp_c": 61, "mem_temp_c": 72, "temp_margin_c": 26, "gpu_util_percent": 100, "mem_util_percent": 62,
            "sm_active_ratio": 0.91, "tensor_active_ratio": 0.47, "pcie_tx_bytes_per_s": 1100 * 1048576,
            "nvlink_tx_bytes_per_s": 245 * 1048576, "mem_free_bytes": 14_890_809_984, "nvlink_links_active": 18,
            "clock_event_reasons": 4, "recovery_action": 0, "fabric_state": 3, "ecc_mode": 1, "mig_mode": 0,
        }  # fmt: skip
        assert {k: pytest.approx(v) for k, v in expected.items()} == {k: gpu[k] for k in expected}
        assert gpu["nvlink_tx_bytes"] % 1024 == 0
        assert gpu["nvlink_tx_bytes"] >= 500_000_000 * 1024


def test_every_value_has_the_contract_type(tmp_path: Path) -> None:
    """What is told of any model is a contract field, of its type, within its bounds."""
    for model in (standin.h100, standin.a100, standin.b200, standin.consumer):
        root = tmp_path / model.__name__
        root.mkdir()
        with rig(root, model, gpus=1) as node:
            node.round()
            for name, value in node.round()["gpu"][0].items():
                kind = GPU[name].type
                if value is None or kind == "string":
                    continue
                assert isinstance(value, int if kind.startswith("int") else (int, float)), (name, value)
                assert math.isfinite(value), (name, value)
                lo, hi = GPU[name].lo, GPU[name].hi
                assert lo is None or value >= lo, (name, value)
                assert hi is None or value <= hi, (name, value)


def test_only_what_is_due_is_read(tmp_path: Path) -> None:
    """A round of the 1 s class calls nothing of the slower classes, and its row has none of their fields."""
    with rig(tmp_path, gpus=1, record=True) as node:
        node.round()
        node.round()
        before = len(standin.called(node.calls))
        row = node.round(1)["gpu"][0]
        made = {key for key, _, _ in standin.called(node.calls)[before:]}
        assert {"power", "temp", "clock.sm", "fi.82"} <= made
        assert not made & {"mem.total", "ecc.0.0", "pcie.tx_kb", "fi.230", "remap.cor", "persistence"}
        assert {GPU[name].every_s for name in row} == {1}
        row = node.round(1, 10)["gpu"][0]
        assert {GPU[name].every_s for name in row} == {1, 10}
        assert "row_remap_failed" in row
        assert "row_remaps_correctable" not in row  # the same call's 60 s half


def test_not_supported_is_not_asked_again(tmp_path: Path) -> None:
    """A call that says NOT_SUPPORTED is made once, told once with its reason, and not made again."""
    with rig(tmp_path, standin.a100, gpus=1, record=True) as node:
        first = quality(node.round(), node.scenario.uuid(0))
        state, reason = first["temp_margin_c"]
        assert state == "unsupported"
        assert "nvmlDeviceGetMarginTemperature" in reason
        assert "not supported" in reason
        assert first["*"][0] == "measured"
        refused = Counter(standin.called(node.calls))
        for _ in range(3):
            assert "quality" not in node.round()
        again = Counter(standin.called(node.calls)) - refused
        assert again
        assert {call for call in again if call[2]} == set()


def test_a100(tmp_path: Path) -> None:
    """An A100 on an older driver has no GPM, no margin, and no field ids for throttle time: absent, not zero."""
    with rig(tmp_path, standin.a100, gpus=1) as node:
        told = quality(node.round(), node.scenario.uuid(0))
        row = node.round()["gpu"][0]
        absent = ("sm_active_ratio", "temp_margin_c", "throttle_hw_thermal_ns", "nvlink5_rx_errors", "fabric_state")
        for name in absent:
            assert row.get(name) is None
            assert told[name][0] == "unsupported", name
        assert "no field id" in told["throttle_hw_thermal_ns"][1]
        assert row["throttle_sw_power_cap_ns"] == 0
        assert row["power_w"] == pytest.approx(391.12)
        assert row["nvlink_links_active"] == 12
        assert row["app_sm_clock_mhz"] == 1275


def test_b200_sums_and_bit_error_ratio(tmp_path: Path) -> None:
    """NVLink 5 counters are sums over links, and a packed bit error ratio is unpacked: mantissa × 10^−exponent."""
    with rig(tmp_path, standin.b200, gpus=1) as node:
        node.scenario.set(f"fi.222.{standin.ALL_LINKS}", 3 << 8 | 12).set(f"fi.208.{standin.ALL_LINKS}", 17).write()
        row = node.round()["gpu"][0]
        assert row["nvlink5_symbol_ber_ratio"] == pytest.approx(3e-12)
        assert row["nvlink5_effective_ber_ratio"] == pytest.approx(15e-255)
        assert row["nvlink5_rx_errors"] == 17
        assert row["nvlink_tx_bytes"] >= 9_000_000_000


def test_links_are_summed_where_the_driver_gives_no_sum(tmp_path: Path) -> None:
    """A driver that answers one link at a time gives the same field: the sum over links."""
    with rig(tmp_path, standin.b200, gpus=1) as node:
        node.scenario.unset(f"fi.208.{standin.ALL_LINKS}").unset("fi.52").set("link_errors.0", 2)
        node.scenario.set("fi.160", 21)
        for link in range(18):
            node.scenario.set(f"fi.208.{link}", link)
        node.scenario.write()
        row = node.round()["gpu"][0]
        assert row["nvlink5_rx_errors"] == sum(range(18))
        assert row["nvlink_replay_errors"] == 18 * 2
        assert row["nvlink_ecc_errors"] == 21


def test_nvlink_states(tmp_path: Path) -> None:
    """Sleep is not down, and a link with its traffic disabled is none of active, inactive, asleep."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.set("link.0", 0).set("link.1", 2).set("link.2", 2).set("link.3", 3).write()
        row = node.round()["gpu"][0]
        states = [row[f"nvlink_links_{s}"] for s in ("active", "inactive", "sleep")]
        assert states == [14, 1, 2]


def test_c2c(tmp_path: Path) -> None:
    """A Grace system's chip-to-chip links: how many, how many are up, and what one carries at most."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.update({"fi.170": "u3", "fi.171.0": "u1", "fi.171.1": "u1", "fi.171.2": "u0", "fi.172": "u44712"})
        node.scenario.write()
        row = node.round()["gpu"][0]
        assert (row["c2c_links"], row["c2c_links_up"], row["c2c_max_bw_mb_per_s"]) == (3, 2, 44712)


def test_consumer_nonsense(tmp_path: Path) -> None:
    """Success with blanks, zeros and impossible values becomes absent values with the reason, never a sample."""
    with rig(tmp_path, standin.consumer) as node:
        told = quality(node.round(), node.scenario.uuid(0))
        row = node.round()["gpu"][0]
        assert row["power_w"] == 210.0
        expected = {
            "mem_temp_c": "implausible",  # 0 °C: no HBM
            "energy_mj": "implausible",  # 0 mJ
            "mem_util_percent": "implausible",  # 255 %
            "temp_max_op_c": "implausible",  # 65535 °C
            "row_remap_failed": "implausible",  # success without ECC
            "power_limit_enforced_w": "unsupported",  # all bits set
            "power_instant_w": "unsupported",
            "pcie_replays": "unsupported",
            "pcie_correctable_errors": "unsupported",
        }
        assert {name: told[name][0] for name in expected} == expected
        assert all(row.get(name) is None for name in expected)


def test_blank_by_its_own_type(tmp_path: Path) -> None:
    """All bits of 32 set are a blank of a 32-bit value and a legal one of a 64-bit counter."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.set("energy", 0xFFFFFFFF).set("fi.173", 0xFFFFFFFF).set("pcie.replays", 0xFFFFFFFF)
        node.scenario.set("temp.margin", -4).write()
        row = node.round()["gpu"][0]
        assert row["energy_mj"] == 0xFFFFFFFF
        assert row["pcie_correctable_errors"] == 0xFFFFFFFF
        assert row.get("pcie_replays") is None
        assert row["temp_margin_c"] == -4


def test_a_number_that_no_integer_holds_costs_its_own_field(tmp_path: Path) -> None:
    """KiB beyond 2^54 are bytes beyond 2^64: implausible on that GPU, and all others are read on."""
    with rig(tmp_path) as node:
        node.round()
        for key in (f"fi.138.{standin.ALL_LINKS}", "fi.139.3"):
            node.scenario.set(key, -400_000_000, 0)  # all but the lowest bits of an unsigned 64-bit counter
        node.scenario.write()
        rows = node.round()
        told = quality(rows, node.scenario.uuid(0))
        assert told["nvlink_tx_bytes"][0] == "implausible"
        assert [row.get("nvlink_tx_bytes") is None for row in rows["gpu"]] == [True, False]
        assert "event" not in rows


def test_unknown_recovery_action_is_kept(tmp_path: Path) -> None:
    """The recovery action is an open enumeration: a number that no list has is told as it is."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.set("fi.230", "u7").write()
        assert node.round()["gpu"][0]["recovery_action"] == 7


def test_throttle_ids_follow_the_driver(tmp_path: Path) -> None:
    """Throttle time is read under 251–253 on driver 580.65 and under 269–271 on 580.126."""
    for driver, first in (("580.65.06", 251), ("580.126.09", 269)):
        root = tmp_path / driver
        root.mkdir()
        with rig(root, gpus=1, record=True) as node:
            node.scenario.set("driver", driver, "sys")
            for i in range(3):
                node.scenario.unset(f"fi.{269 + i}").set(f"fi.{first + i}", 1000 * (i + 1))
            node.scenario.write()
            row = node.round()["gpu"][0]
            names = ("throttle_sw_thermal_ns", "throttle_hw_thermal_ns", "throttle_hw_power_brake_ns")
            assert [row[n] for n in names] == [1000, 2000, 3000]
            asked = {key for key, _, _ in standin.called(node.calls)}
            assert f"fi.{520 - first}" not in asked  # 251 ↔ 269


def test_throttle_faster_than_time_is_another_field(tmp_path: Path) -> None:
    """A throttle time that grows by more than a second a second is not one: it stays out, with the reason."""
    with rig(tmp_path, gpus=1) as node:
        assert node.round()["gpu"][0]["throttle_hw_thermal_ns"] == 0
        node.scenario.set("fi.270", 10**15).set("fi.271", 1000).write()
        rows = node.round()
        row = rows["gpu"][0]
        assert row.get("throttle_hw_thermal_ns") is None
        assert row["throttle_hw_power_brake_ns"] == 1000
        state, reason = quality(rows, node.scenario.uuid(0))["throttle_hw_thermal_ns"]
        assert state == "implausible"
        assert "grew by" in reason


def test_older_driver_lacks_symbols(tmp_path: Path) -> None:
    """A library that lacks functions costs their fields only, and older functions serve where there are some."""
    lacking = (
        "nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlGpmQueryDeviceSupport",
        "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetSramEccErrorStatus",
    )  # fmt: skip
    with rig(tmp_path, gpus=1, without=lacking) as node:
        told = quality(node.round(), node.scenario.uuid(0))
        row = node.round()["gpu"][0]
        assert (row["temp_c"], row["clock_event_reasons"], row["processes"], row["fabric_state"]) == (61, 4, 1, 3)
        assert row["mem_used_bytes"] == 70_000_000_000
        for name in (
            "temp_margin_c",
            "mem_reserved_bytes",
            "fabric_health_mask",
            "sm_active_ratio",
            "sram_threshold_exceeded",
        ):
            assert row.get(name) is None
            assert told[name][0] == "unsupported", name
            assert "function not found" in told[name][1]


def test_no_permission(tmp_path: Path) -> None:
    """What the agent may not read is told as not permitted, and the rest is read."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.error("ecc.0.0", standin.NO_PERMISSION).write()
        rows = node.round()
        assert quality(rows, node.scenario.uuid(0))["ecc_sbe_volatile"][0] == "not_permitted"
        assert rows["gpu"][0]["ecc_dbe_volatile"] == 0


def test_passing_error_and_back(tmp_path: Path) -> None:
    """A field that fails for a while is told once as error and once as measured again; it is asked every time."""
    with rig(tmp_path, gpus=1) as node:
        node.round()
        node.scenario.error("temp", standin.UNKNOWN).write()
        told = quality(node.round(1), node.scenario.uuid(0))
        assert told["temp_c"][0] == "error"
        assert "quality" not in node.round(1)
        node.scenario.set("temp", 50).write()
        rows = node.round(1)
        assert quality(rows, node.scenario.uuid(0))["temp_c"][0] == "measured"
        assert rows["gpu"][0]["temp_c"] == 50
        assert node.collector.errors["unknown error (NVML 999)"] == 2


def test_mig(tmp_path: Path) -> None:
    """A GPU with MIG gives its own row and one per instance; the inventory has the profiles."""
    with rig(tmp_path, gpus=2) as node:
        standin.mig(node.scenario, gpu=1)
        rows = [node.round() for _ in range(3)]
        parts = {r["mig_instance"]: r for r in rows[-1]["gpu"] if r["mig_instance"] is not None}
        assert parts.keys() == {"1", "2"}
        assert {p["gpu_uuid"] for p in parts.values()} == {node.scenario.uuid(1)}
        assert [parts[i]["mem_used_bytes"] for i in ("1", "2")] == [10_000_000_000, 20_000_000_000]
        assert [parts[i]["sm_active_ratio"] for i in ("1", "2")] == pytest.approx([0.4, 0.8])
        assert [parts[i]["processes"] for i in ("1", "2")] == [1, 2]
        parent = samples(rows[-1])[node.scenario.uuid(1)]
        assert parent["mig_mode"] == 1
        assert parent.get("gpu_util_percent") is None
        assert samples(rows[-1])[node.scenario.uuid(0)]["gpu_util_percent"] == 100
        stock = {r["entity"]: r for r in rows[0]["inventory"]}
        assert stock[node.scenario.uuid(1)]["mig_profile"] == "3g.40gb,4g.40gb"
        assert stock[node.scenario.uuid(0)]["mig_profile"] is None


def test_mig_switched_off_again(tmp_path: Path) -> None:
    """When MIG ends, its instances' rows end, and what it had taken from the GPU is read again."""
    with rig(tmp_path, gpus=1) as node:
        standin.mig(node.scenario)
        node.round()
        assert len(node.round()["gpu"]) == 3
        node.scenario.set("mig", 0, 0)
        for key in ("util.gpu", "util.memory", "remap.cor"):
            node.scenario.unset(key, 0)
        node.scenario.write()
        rows = node.round()
        assert [r["mig_instance"] for r in rows["gpu"]] == [None]
        assert rows["gpu"][0]["gpu_util_percent"] == 100
        assert quality(rows, node.scenario.uuid(0))["gpu_util_percent"][0] == "measured"


def test_inventory_once_and_on_change(tmp_path: Path) -> None:
    """The inventory names each GPU once, with what it supports, and again when something about it changes."""
    with rig(tmp_path, gpus=2) as node:
        rows = [r for r in node.round()["inventory"] if r["kind"] == "gpu"]
        assert [r["entity"] for r in rows] == [node.scenario.uuid(0), node.scenario.uuid(1)]
        assert rows[0]["serial"] == "1654023000000"
        assert rows[0]["slot"] == "0000:18:00.0"
        assert rows[0]["domain"] == "ab" * 16 + ".1"
        supported = json.loads(rows[0]["attributes"])["supported"]
        assert "power_w" in supported
        assert "nvlink5_rx_errors" not in supported
        assert "inventory" not in node.round()
        node.scenario.set("fabric.clique", 2, 1).write()
        assert [r["domain"] for r in node.round()["inventory"]] == ["ab" * 16 + ".2"]


def test_gpm_samples_are_freed(tmp_path: Path) -> None:
    """Every GPM sample and event set that the child allocated is free when it ends."""
    with rig(tmp_path, gpus=2, record=True) as node:
        standin.mig(node.scenario, gpu=1)
        for _ in range(3):
            node.round()
        node.collector.close()
        ended = [key for key, _, _ in standin.called(node.calls) if key.startswith("shutdown")]
        assert ended == ["shutdown:samples=0,sets=0"]


def test_gpm_in_use_is_paused(tmp_path: Path) -> None:
    """While a profiler holds the counters, engine activity is absent and told as paused; afterwards it is back."""
    with rig(tmp_path, gpus=1) as node:
        node.round()
        node.scenario.error("gpm.sample", 19).write()
        rows = node.round(1)
        assert quality(rows, node.scenario.uuid(0))["sm_active_ratio"][0] == "paused"
        assert rows["gpu"][0].get("sm_active_ratio") is None
        node.scenario.set("gpm.sample", 1).write()
        node.round(1)
        rows = node.round(1)
        assert rows["gpu"][0]["sm_active_ratio"] == pytest.approx(0.91)
        assert quality(rows, node.scenario.uuid(0))["sm_active_ratio"][0] == "measured"
