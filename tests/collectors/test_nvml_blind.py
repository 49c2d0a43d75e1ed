"""NVML that is not there, of another version, or cut off: each says what it is and the way out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import nvml_standin as standin
import pytest
from agent_fakes import machine
from nvml_rig import SOON, events, quality, rig

from graynode.collectors.base import NoSource, Round
from graynode.collectors.nvml.collector import Nvml

pytestmark = pytest.mark.nvml


def test_no_library_no_gpu(tmp_path: Path) -> None:
    """Without libnvidia-ml.so.1 there is no such source, and the text says so."""
    with rig(tmp_path) as node:
        env = {**node.env, "LD_LIBRARY_PATH": str(tmp_path)}
        collector = Nvml(machine(tmp_path / "other", sys=tmp_path / "nothing"), env=env, patience=SOON)
        with pytest.raises(NoSource, match=r"libnvidia-ml\.so\.1 is not found, and PCI lists no NVIDIA GPU"):
            collector.collect(round_())
        collector.close()


def test_no_library_though_there_are_gpus(tmp_path: Path) -> None:
    """With GPUs on the bus the text says how many, and what a container needs."""
    with rig(tmp_path) as node:
        node.env["LD_LIBRARY_PATH"] = str(tmp_path)
        node.restart()
        with pytest.raises(NoSource, match=r"PCI lists 2 NVIDIA GPUs; .*NVIDIA_DRIVER_CAPABILITIES=utility"):
            node.round()


def test_driver_not_loaded(tmp_path: Path) -> None:
    """No driver and no GPU is no source; no driver and GPUs on the bus is blindness, with the way out."""
    with rig(tmp_path) as node:
        node.scenario.set("init", f"!{standin.DRIVER_NOT_LOADED}", "sys").write()
        (event,) = events(node.round())
        assert event["kind"] == "nvml_blind"
        assert event["code"] == standin.DRIVER_NOT_LOADED
        assert "load the NVIDIA kernel module" in event["message"]
        assert node.collector.nvml_up is False
        alone = Nvml(machine(tmp_path / "other", sys=tmp_path / "nothing"), env=node.env, patience=SOON)
        with pytest.raises(NoSource, match="driver is not loaded"):
            alone.collect(round_())
        alone.close()


def test_no_gpu_at_all(tmp_path: Path) -> None:
    """NVML that lists no GPU on a machine without any is no source."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.set("gpus", 0, "sys").write()
        alone = Nvml(machine(tmp_path / "other", sys=tmp_path / "nothing"), env=node.env, patience=SOON)
        with pytest.raises(NoSource, match="lists no GPU"):
            alone.collect(round_())
        alone.close()


def test_no_gpu_listed_though_there_are_some(tmp_path: Path) -> None:
    """NVML that lists none of the GPUs on the bus is blind, until it lists them."""
    with rig(tmp_path) as node:
        node.scenario.set("gpus", 0, "sys").write()
        (event,) = events(node.round())
        assert event["kind"] == "nvml_blind"
        assert "PCI lists 2" in event["message"]
        node.scenario.set("gpus", 2, "sys").write()
        rows = node.until(lambda r: "gpu" in r)
        assert [e["kind"] for e in events(rows)] == ["nvml_back"]


def test_driver_and_library_differ(tmp_path: Path) -> None:
    """A driver replaced under a loaded module is blindness from start on, and told once."""
    with rig(tmp_path) as node:
        node.scenario.set("init", f"!{standin.VERSION_MISMATCH}", "sys").write()
        (event,) = events(node.round())
        assert "different versions" in event["message"]
        assert "reload the module or reboot" in event["message"]
        for _ in range(5):
            assert not events(node.round())
        counted = node.collector.errors["driver and library are of different versions (NVML 18)"]
        assert counted == 6
        node.scenario.unset("init", "sys").write()
        rows = node.until(lambda r: "gpu" in r)
        assert [e["kind"] for e in events(rows)] == ["nvml_back"]


def test_cut_off_from_the_gpus(tmp_path: Path) -> None:
    """A container that loses its GPUs in mid-run is blind, no GPU is lost, and the rows say so until it is back."""
    with rig(tmp_path, gpus=8) as node:
        node.round()
        node.scenario.set("err", standin.UNKNOWN).set("init", f"!{standin.UNKNOWN}", "sys").write()
        rows = node.round(1)
        (event,) = events(rows)
        assert (event["kind"], event["gpu_uuid"]) == ("nvml_blind", None)
        assert "unknown error" in event["message"]
        assert [quality(rows, node.scenario.uuid(g))["*"][0] for g in range(8)] == ["error"] * 8
        assert node.collector.host_fields()["nvml_up"] == 0
        node.scenario.unset("err").unset("init", "sys").write()
        rows = node.round()
        assert [e["kind"] for e in events(rows)] == ["nvml_back"]
        assert [quality(rows, node.scenario.uuid(g))["*"][0] for g in range(8)] == ["measured"] * 8


def test_container_says_unknown_error_at_start(tmp_path: Path) -> None:
    """ "Failed to initialize NVML: Unknown Error" at start is blindness that names the container as a cause."""
    with rig(tmp_path) as node:
        node.scenario.set("init", f"!{standin.UNKNOWN}", "sys").write()
        (event,) = events(node.round())
        assert "container" in event["message"]


def test_nvml_uninitialised_in_mid_run(tmp_path: Path) -> None:
    """A driver that is taken away under the child ends it; the next one says why it cannot start."""
    with rig(tmp_path) as node:
        node.round()
        node.scenario.error("power", standin.DRIVER_NOT_LOADED).set(
            "init", f"!{standin.DRIVER_NOT_LOADED}", "sys"
        ).write()
        (event,) = events(node.round(1))
        assert (event["kind"], event["code"]) == ("nvml_blind", standin.DRIVER_NOT_LOADED)
        node.scenario.set("power", 100_000).unset("init", "sys").write()
        rows = node.until(lambda r: "gpu" in r)
        assert rows["gpu"][0]["power_w"] == 100.0


def test_library_older_than_everything(tmp_path: Path) -> None:
    """A library without the function that starts it is blindness that says that the library is old."""
    with rig(tmp_path, without=("nvmlInitWithFlags",)) as node:
        (event,) = events(node.round())
        assert "nvmlInit" in event["message"]
        assert "older" in event["message"]


def test_slow_start_is_not_blindness(tmp_path: Path) -> None:
    """A driver that takes seconds to attach GPUs is starting; nothing is told until it answers."""
    with rig(tmp_path, deadline_s=0.2) as node:
        node.scenario.set("init", "0 slow=1200", "sys").write()
        assert node.round() == {}
        assert node.collector.nvml_up is None
        rows = node.until(lambda r: "gpu" in r)
        assert not events(rows)


def round_() -> Round:
    """A round of everything."""
    return Round(datetime.now(UTC), frozenset({1, 10, 60}))
