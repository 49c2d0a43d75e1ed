"""The driver load id: counters are compared only inside one load of the driver."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nvml_standin as standin
import pytest
from agent_fakes import machine
from nvml_rig import events, quality, rig

from graynode.collectors.nvml.driver_load import DriverLoad

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.nvml
def test_driver_reload_with_another_version(tmp_path: Path) -> None:
    """A driver that goes away and comes back as another version: blind, back, a reload event, a new id in the rows."""
    with rig(tmp_path) as node:
        before = node.round()["gpu"][0]["driver_load"]
        node.scenario.error("power", 1).set("init", f"!{standin.DRIVER_NOT_LOADED}", "sys").write()
        assert events(node.round(1), "nvml_blind")
        node.scenario.set("driver", "590.48.01", "sys").unset("init", "sys").set("energy", 1000).set("power", 90_000)
        node.scenario.write()
        rows = node.until(lambda r: "gpu" in r)
        assert {e["kind"] for e in events(rows)} == {"driver_reload", "nvml_back"}
        assert "580.126.09 became 590.48.01" in events(rows, "driver_reload")[0]["message"]
        assert [r["driver_load"] for r in rows["gpu"]] == [before + 1] * 2
        assert node.collector.driver_load == before + 1
        assert node.collector.driver_version == "590.48.01"
        assert not events(node.round())


@pytest.mark.nvml
def test_energy_falls_on_all(tmp_path: Path) -> None:
    """Energy that falls on every GPU is a reload, and what is supported is learnt anew."""
    with rig(tmp_path) as node:
        node.scenario.error("temp.margin", standin.NOT_SUPPORTED).write()
        load = node.round()["gpu"][0]["driver_load"]
        node.scenario.set("temp.margin", 30).set("energy", 5).write()
        rows = node.round(1)
        assert [e["kind"] for e in events(rows)] == ["driver_reload"]
        assert rows["gpu"][0]["driver_load"] == load + 1
        rows = node.until(lambda r: "gpu" in r)
        assert quality(rows, node.scenario.uuid(0))["temp_margin_c"][0] == "measured"
        assert rows["gpu"][0]["temp_margin_c"] == 30


@pytest.mark.nvml
def test_counter_reset_of_one_gpu(tmp_path: Path) -> None:
    """Energy that falls on one GPU alone is a reset of that GPU; the load stays."""
    with rig(tmp_path) as node:
        load = node.round()["gpu"][0]["driver_load"]
        node.scenario.set("energy", 5, 1).write()
        rows = node.round(1)
        assert [(e["kind"], e["gpu_uuid"]) for e in events(rows)] == [("counter_reset", node.scenario.uuid(1))]
        assert {r["driver_load"] for r in rows["gpu"]} == {load}
        assert not events(node.round(1))


@pytest.mark.nvml
def test_restart_of_the_agent_keeps_the_load(tmp_path: Path) -> None:
    """The id is on disk: an agent that starts again goes on with it."""
    with rig(tmp_path) as node:
        load = node.round()["gpu"][0]["driver_load"]
        node.restart()
        rows = node.round()
        assert rows["gpu"][0]["driver_load"] == load
        assert not events(rows)


@pytest.mark.nvml
def test_load_line_of_the_kernel_log(tmp_path: Path) -> None:
    """The kernel log's line of a later load raises the id; the same load seen by NVML does not raise it again."""
    with rig(tmp_path) as node:
        load = node.round()["gpu"][0]["driver_load"]
        node.collector.note_kernel_events([{"kind": "nvrm_load", "ts": datetime.now(UTC) + timedelta(seconds=1)}])
        node.scenario.set("energy", 5).write()
        rows = node.round(1)
        assert [e["kind"] for e in events(rows)] == ["driver_reload"]
        assert rows["gpu"][0]["driver_load"] == load + 1
        node.collector.note_kernel_events([{"kind": "nvrm_load", "ts": datetime.now(UTC) - timedelta(hours=1)}])
        rows = node.until(lambda r: "gpu" in r)
        assert not events(rows)
        assert rows["gpu"][0]["driver_load"] == load + 1


def test_reboot_is_another_load(tmp_path: Path) -> None:
    """After a reboot the driver was loaded again, whatever the counters say."""
    here = machine(tmp_path)
    first = DriverLoad(here, NOW)
    first.observe("580.1", {"a": 100}, NOW)
    again = DriverLoad(replace(here, boot_id="22222222-0000-0000-0000-000000000000"), NOW)
    assert again.current == first.current + 1
    assert again.observe("580.1", {"a": 200}, NOW) is None


def test_reload_while_the_agent_was_away(tmp_path: Path) -> None:
    """Energy below what was saved says that the driver was loaded while nobody looked."""
    here = machine(tmp_path)
    first = DriverLoad(here, NOW)
    first.observe("580.1", {"a": 100, "b": 50}, NOW + MINUTE)
    again = DriverLoad(here, NOW + 5 * MINUTE)
    assert again.current == first.current
    assert again.observe("580.1", {"a": 3, "b": 2}, NOW + 5 * MINUTE) is not None
    assert again.current == first.current + 1
    assert DriverLoad(here, NOW + 6 * MINUTE).current == again.current


def test_some_fall(tmp_path: Path) -> None:
    """Some falling energies are resets of those GPUs; a GPU never seen before does not count."""
    load = DriverLoad(machine(tmp_path), NOW)
    load.observe("580.1", {"a": 100, "b": 100}, NOW)
    assert load.observe("580.1", {"a": 1, "b": 101, "c": 1}, NOW) is None
    assert load.fallen == ("a",)
    assert load.observe("580.1", {"a": 2, "b": 102, "c": 2}, NOW) is None
    assert load.fallen == ()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"load": "x"}', '{"load": -3, "boot_id": 1}', '{"load": 2, "energy": 7}']
)
def test_damaged_file(tmp_path: Path, text: str) -> None:
    """A file that is not what was written counts as none: the id begins anew, and goes on from there."""
    (tmp_path / "driver_load.json").write_text(text)
    load = DriverLoad(machine(tmp_path), NOW)
    assert load.current >= 1
    assert DriverLoad(machine(tmp_path), NOW).current == load.current
