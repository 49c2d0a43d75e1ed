"""MIG: instances under their parent, made and unmade while running; faults are the parent's; processes; the domain."""

from __future__ import annotations

import json
from pathlib import Path

import nvml_standin as standin
import pytest
from nvml_rig import Rig, events, quality, rig, samples

from graynode.collectors.base import Rows
from graynode.collectors.context import GpuKey, JobContext

pytestmark = pytest.mark.nvml


def parts(rows: Rows) -> dict[str, dict[str, object]]:
    """Rows of MIG instances by their id."""
    return {r["mig_instance"]: dict(r) for r in rows["gpu"] if r["mig_instance"] is not None}


def stock(rows: Rows) -> dict[str, dict[str, object]]:
    """Inventory of MIG instances by entity."""
    return {r["entity"]: dict(r) for r in rows.get("inventory", ()) if r["kind"] == "mig"}


def test_instances_are_keyed_under_their_parent(tmp_path: Path) -> None:
    """Each instance has a row with its GPU's uuid and its own memory, processes and engine activity, and a place in the
    inventory with its profile."""
    with rig(tmp_path, gpus=2) as node:
        standin.mig(node.scenario, gpu=1)
        first = node.round()
        uuid = node.scenario.uuid(1)
        told = stock(first)
        assert {entity: row["mig_profile"] for entity, row in told.items()} == {
            f"{uuid}/1": "3g.40gb", f"{uuid}/2": "4g.40gb",
        }  # fmt: skip
        assert json.loads(str(told[f"{uuid}/1"]["attributes"])) == {"gpu_uuid": uuid, "mig_instance": "1"}
        rows = node.round()
        assert not stock(rows)
        of = parts(rows)
        assert {row["gpu_uuid"] for row in of.values()} == {uuid}
        assert [of[gi]["mem_used_bytes"] for gi in ("1", "2")] == [10_000_000_000, 20_000_000_000]
        assert [of[gi]["sm_active_ratio"] for gi in ("1", "2")] == pytest.approx([0.4, 0.8])
        assert all("temp_c" not in row and "ecc_sbe_volatile" not in row for row in of.values())


def test_what_mig_takes_from_the_gpu_is_quality(tmp_path: Path) -> None:
    """Utilisation and row remaps are absent as long as MIG is on, with that reason; never zero."""
    with rig(tmp_path, gpus=1) as node:
        standin.mig(node.scenario)
        rows = node.round()
        told = quality(rows, node.scenario.uuid(0))
        for name in ("gpu_util_percent", "row_remaps_uncorrectable", "row_remap_failed"):
            assert told[name][0] == "unsupported"
            assert told[name][1].endswith("as long as MIG is on")
            assert samples(rows)[node.scenario.uuid(0)].get(name) is None


def test_what_an_instance_lacks_is_its_own_quality(tmp_path: Path) -> None:
    """A metric that GPM has for the GPU and not for an instance is told of that instance alone, once, and when back."""
    with rig(tmp_path, gpus=1) as node:
        standin.mig(node.scenario)
        node.scenario.error("mig.0.gpm.5", standin.UNKNOWN, 0).write()
        node.round()
        rows = node.round()
        uuid = node.scenario.uuid(0)
        assert quality(rows, f"{uuid}/1")["tensor_active_ratio"][0] == "error"
        assert "tensor_active_ratio" not in quality(rows, f"{uuid}/2")
        assert not quality(node.round(), f"{uuid}/1")
        node.scenario.set("mig.0.gpm.5", 50.0, 0).write()
        assert quality(node.round(), f"{uuid}/1")["tensor_active_ratio"][0] == "measured"


def test_instances_come_and_go(tmp_path: Path) -> None:
    """An administrator destroys one and makes two others: the GPU and the instance that stayed are read on in every
    round, the inventory follows, and no GPU is lost."""
    with rig(tmp_path, gpus=1) as node:
        standin.mig(node.scenario)
        node.round()
        node.round()
        uuid = node.scenario.uuid(0)
        standin.no_instance(node.scenario, 0, 0)
        standin.instance(node.scenario, 0, 2, 7, "1g.10gb")
        standin.instance(node.scenario, 0, 3, 8, "1g.10gb").write()
        between = node.round(1)
        assert samples(between)[uuid]["power_w"] > 0
        assert set(parts(between)) == {"2"}
        rows = node.round(1, 10)
        assert set(parts(rows)) == {"2", "7", "8"}
        told = stock(between) | stock(rows)
        assert told[f"{uuid}/1"]["valid_until"] is not None
        assert told[f"{uuid}/7"]["mig_profile"] == "1g.10gb"
        assert not [e for r in (between, rows) for e in events(r) if e["kind"].startswith("gpu_")]
        profile = [r["mig_profile"] for r in node.round()["inventory"] if r["kind"] == "gpu"]
        assert profile == ["4g.40gb,1g.10gb,1g.10gb"]


def test_the_driver_says_that_mig_changed(tmp_path: Path) -> None:
    """The event of a MIG change is told, and instances are looked for with it, not with the next 10 s."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.set("event_types", 0x108)
        standin.mig(node.scenario)
        node.round()
        standin.instance(node.scenario, 0, 2, 7, "1g.10gb").event(0, 0, 0x100).write()
        rows = node.round(1)
        assert events(rows, "mig_change")
        assert set(parts(rows)) == {"1", "2", "7"}


def test_another_profile_under_the_same_id(tmp_path: Path) -> None:
    """An instance that was made anew with the same id and another profile is another instance."""
    with rig(tmp_path, gpus=1) as node:
        standin.mig(node.scenario)
        node.round()
        node.scenario.set("mig.0.name", "NVIDIA H100 80GB HBM3 MIG 2g.20gb", 0).write()
        assert stock(node.round(1, 10))[f"{node.scenario.uuid(0)}/1"]["mig_profile"] == "2g.20gb"


def test_two_compute_instances_share_one_gpu_instance(tmp_path: Path) -> None:
    """Two compute instances in a GPU instance are one row: their processes are added, their memory is not."""
    context = JobContext()
    with rig(tmp_path, gpus=1, context=context) as node:
        standin.mig(node.scenario)
        standin.instance(node.scenario, 0, 2, 1, "1c.3g.40gb")
        node.scenario.set("mig.0.pids", "11,12", 0).set("mig.2.pids", "13", 0).write()
        row = parts(node.round())["1"]
        assert (row["processes"], row["mem_used_bytes"]) == (3, 10_000_000_000)
        assert context.pids[GpuKey(node.scenario.uuid(0), "1")] == [11, 12, 13]


def test_a_physical_fault_is_the_parents(tmp_path: Path) -> None:
    """An Xid comes by the parent's handle and names the instance where the driver does; ECC and heat are the GPU's."""
    with rig(tmp_path, gpus=1) as node:
        standin.mig(node.scenario)
        node.round()
        node.scenario.event(0, 94, gi=2, ci=0).event(0, 48).set("ecc.1.0", 3).write()
        rows = node.round()
        contained, dbe = events(rows, "xid")
        assert (contained["code"], contained["gpu_uuid"]) == (94, node.scenario.uuid(0))
        assert contained["attributes"] == {"gpu_instance": 2, "compute_instance": 0}
        assert dbe["attributes"] == {}
        assert samples(rows)[node.scenario.uuid(0)]["ecc_dbe_volatile"] == 3
        assert all("ecc_dbe_volatile" not in row for row in parts(rows).values())


def test_a_lost_gpu_takes_its_instances_along(tmp_path: Path) -> None:
    """A GPU that is lost gives no rows of instances either; they are back with it."""
    with rig(tmp_path, gpus=2) as node:
        standin.mig(node.scenario, gpu=1)
        node.round()
        node.scenario.set("lost", 1, 1).write()
        assert {r["gpu_uuid"] for r in node.round()["gpu"]} == {node.scenario.uuid(0)}
        node.scenario.set("lost", 0, 1).write()
        rows = node.until(lambda r: bool(parts(r)))
        assert set(parts(rows)) == {"1", "2"}


@pytest.mark.parametrize("code", [1, 2, 6, 15, 28])
def test_whatever_a_dead_instance_answers(tmp_path: Path, code: int) -> None:
    """Uninitialised, lost, not found: said by the handle of one instance it costs that instance, not the GPU."""
    with rig(tmp_path, gpus=1) as node:
        standin.mig(node.scenario)
        node.round()
        node.scenario.error("mig.0.processes", code, 0)
        for key in ("total", "used", "reserved"):
            node.scenario.error(f"mig.0.mem.{key}", code, 0)
        node.scenario.write()
        rows = node.round(1, 10)
        assert samples(rows)[node.scenario.uuid(0)]["power_w"] > 0
        assert "2" in parts(rows)
        assert not rows.get("event")


def test_mig_handles_without_permission(tmp_path: Path) -> None:
    """Where instances cannot be listed the GPU's own row goes on."""
    with rig(tmp_path, gpus=1) as node:
        standin.mig(node.scenario)
        for n in (0, 1):
            node.scenario.error(f"mig.{n}.mem.total", standin.NO_PERMISSION, 0)
        node.scenario.write()
        rows = node.round()
        assert quality(rows, f"{node.scenario.uuid(0)}/1")["mem_used_bytes"][0] == "not_permitted"
        assert samples(rows)[node.scenario.uuid(0)]["power_w"] > 0


def pids(node: Rig, context: JobContext, *due: int) -> dict[GpuKey, list[int]]:
    """What the context was told after a round."""
    node.round(*due)
    return {key: list(some) for key, some in context.pids.items()}


def test_processes_of_gpus(tmp_path: Path) -> None:
    """Who computes on which GPU is told with the 10 s class, kept between, and forgotten with a GPU in trouble."""
    context = JobContext()
    with rig(tmp_path, gpus=3, context=context) as node:
        uuids = [node.scenario.uuid(n) for n in range(3)]
        node.scenario.set("pids", "300,200,200", 0).set("pids", "", 1).error("processes", 999, 2)
        node.scenario.write()
        assert pids(node, context) == {GpuKey(uuids[0]): [200, 300], GpuKey(uuids[1]): []}
        node.scenario.set("pids", "400", 0).write()
        assert pids(node, context, 1)[GpuKey(uuids[0])] == [200, 300]
        assert pids(node, context, 1, 10)[GpuKey(uuids[0])] == [400]
        node.scenario.set("lost", 1, 0).write()
        assert GpuKey(uuids[0]) not in pids(node, context, 1, 10)


def test_processes_while_blind(tmp_path: Path) -> None:
    """While NVML does not answer nobody knows who is on the GPUs."""
    context = JobContext()
    with rig(tmp_path, gpus=1, context=context) as node:
        assert pids(node, context)
        node.scenario.set("power", "hang").write()
        node.hang()
        assert context.pids == {}
        node.scenario.set("power", 1000).write()


def test_domain_and_place_of_a_rack(tmp_path: Path) -> None:
    """On a rack-scale system the inventory has the NVLink domain (cluster UUID and clique), chassis, slot and tray."""
    with rig(tmp_path, standin.gb200, gpus=2) as node:
        rows = {r["entity"]: r for r in node.round()["inventory"] if r["kind"] == "gpu"}
        row = rows[node.scenario.uuid(1)]
        assert row["domain"] == "c7" * 16 + ".3"
        facts = json.loads(row["attributes"])
        assert {k: v for k, v in facts.items() if k != "supported"} == {
            "chassis_serial": "1820224000317", "slot_number": "24", "tray_index": "14", "host_id": "1",
            "module_id": "2", "peer_type": "1",
        }  # fmt: skip


def test_no_domain_on_hgx(tmp_path: Path) -> None:
    """A fabric that is registered without a cluster UUID is no domain, and a platform without slots has no place."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.set("fabric.cluster", 0).write()
        (row,) = [r for r in node.round()["inventory"] if r["kind"] == "gpu"]
        assert row["domain"] is None
        assert set(json.loads(row["attributes"])) == {"supported"}


def test_a_place_that_is_nonsense(tmp_path: Path) -> None:
    """A chassis without a readable serial number is no place."""
    with rig(tmp_path, standin.gb200, gpus=1) as node:
        node.scenario.set("platform.serial", "\x01\x02").write()
        (row,) = [r for r in node.round()["inventory"] if r["kind"] == "gpu"]
        assert set(json.loads(row["attributes"])) == {"supported"}
