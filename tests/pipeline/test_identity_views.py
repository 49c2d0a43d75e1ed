"""Machine, slot, GPU and name have records apart: what moved, what was renamed, what was replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lake_files import LakeFiles

from graynode.pipeline.queries import Queries

T = datetime(2026, 11, 2, 12, tzinfo=UTC)


def at(hours: float) -> datetime:
    return T + timedelta(hours=hours)


class Fleet:
    """Inventory as collectors write it, and questions about it."""

    def __init__(self, folder: Path) -> None:
        self.lake = LakeFiles(folder)
        self.queries = Queries(self.lake)

    def node(self, hours: float, node_id: str, node: str, source: str = "smbios", **more: Any) -> None:
        facts = json.dumps({"node": node, "node_id_source": source})
        self._put(hours, node_id, node, {"kind": "node", "entity": node_id, "attributes": facts, **more})

    def name(self, hours: float, node_id: str, system: str, name: str | None, uid: str | None = None) -> None:
        told: dict[str, Any] = {"kind": "node_name", "entity": system}
        told["attributes"] = json.dumps({k: v for k, v in (("name", name), ("uid", uid)) if v is not None})
        self._put(hours, node_id, "x", told | ({} if name else {"valid_until": at(hours)}))

    def gpu(self, hours: float, node_id: str, gpu: str, slot: str) -> None:
        row = {"kind": "gpu", "entity": gpu, "slot": slot, "model": "NVIDIA H100", "serial": f"S-{gpu}"}
        self._put(hours, node_id, f"host-{node_id}", row)

    def _put(self, hours: float, node_id: str, node: str, row: dict[str, Any]) -> None:
        self.lake.put("inventory", [{"ts": at(hours), "cluster": "c", "node_id": node_id, "node": node, **row}])

    def names(self, system: str, hours: float | None = None) -> list[tuple[Any, ...]]:
        source = "machine_names" if hours is None else f"machine_names('{at(hours)}')"
        sql = (
            f"SELECT name, node_id, since, until, ended_by FROM {source} WHERE system = '{system}' ORDER BY since, name"
        )
        return [tuple(row.values()) for row in self.queries.rows(sql)]

    def machine(self, node_id: str) -> dict[str, Any]:
        [row] = self.queries.rows(f"FROM machines WHERE node_id = '{node_id}'")
        return row


@pytest.fixture(scope="module")
def module_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("lake"))
    yield made
    made.queries.close()


@pytest.fixture
def fleet(module_fleet: Fleet) -> Fleet:
    module_fleet.lake.clear()
    return module_fleet


def test_a_machine_has_one_row_with_its_names_of_all_systems(fleet: Fleet) -> None:
    """What host, Slurm and Kubernetes say of one machine is merged; none hides the other."""
    fleet.node(0, "m1", "gpu-01.example", serial="SN1", model="DGX", driver_version="580.65.06")
    fleet.name(1, "m1", "slurm", "gpu-01")
    fleet.name(2, "m1", "kubernetes", "gpu-01.example", "uid-1")
    row = fleet.machine("m1")
    assert (row["hostname"], row["slurm_node"], row["kubernetes_node"]) == (
        "gpu-01.example",
        "gpu-01",
        "gpu-01.example",
    )
    assert (row["kubernetes_uid"], row["serial"], row["driver_version"]) == ("uid-1", "SN1", "580.65.06")
    assert (row["first_seen"], row["replaced_by"], row["confirmed"]) == (at(0), None, True)


def test_a_renamed_node_keeps_its_machine(fleet: Fleet) -> None:
    """The old name ends when the new one begins; the machine is the same."""
    fleet.node(0, "m1", "old")
    fleet.node(1, "m1", "old", driver_version="2")  # another fact changed: the name did not
    fleet.node(5, "m1", "new")
    assert fleet.names("hostname") == [("old", "m1", at(0), at(5), "renamed to new"), ("new", "m1", at(5), None, None)]
    assert [row[0] for row in fleet.names("hostname", 4.9)] == ["old"]
    assert [row[0] for row in fleet.names("hostname", 5)] == ["new"]
    assert fleet.machine("m1")["hostname"] == "new"


def test_a_hostname_reused_by_a_new_machine_goes_over_to_it(fleet: Fleet) -> None:
    """From the moment another machine reports the name, the old one has it no longer."""
    fleet.node(0, "m1", "gpu-01")
    fleet.node(10, "m2", "gpu-01")
    assert fleet.names("hostname") == [
        ("gpu-01", "m1", at(0), at(10), "taken by m2"), ("gpu-01", "m2", at(10), None, None),
    ]  # fmt: skip
    assert fleet.machine("m1")["hostname"] is None
    assert (fleet.machine("m1")["last_hostname"], fleet.machine("m1")["replaced_by"]) == ("gpu-01", "m2")


def test_a_vm_replaced_under_the_same_name_is_another_machine(fleet: Fleet) -> None:
    """Same host name, same Kubernetes node name, new instance id and new uid."""
    fleet.node(0, "i-0aaaaaaaaaaaaaaaa", "worker-3", source="instance_id")
    fleet.name(0.1, "i-0aaaaaaaaaaaaaaaa", "kubernetes", "worker-3", "uid-old")
    fleet.node(8, "i-0bbbbbbbbbbbbbbbb", "worker-3", source="instance_id")
    fleet.name(8.1, "i-0bbbbbbbbbbbbbbbb", "kubernetes", "worker-3", "uid-new")
    assert [row["node_id"] for row in fleet.queries.rows("FROM machines WHERE hostname = 'worker-3'")] == [
        "i-0bbbbbbbbbbbbbbbb"
    ]
    uids = fleet.queries.rows("SELECT uid, until FROM machine_names WHERE system = 'kubernetes' ORDER BY since")
    assert [tuple(row.values()) for row in uids] == [("uid-old", at(8.1)), ("uid-new", None)]
    assert fleet.machine("i-0aaaaaaaaaaaaaaaa")["replaced_by"] == "i-0bbbbbbbbbbbbbbbb"


def test_a_node_registered_again_in_kubernetes_has_a_new_uid_and_is_the_same_machine(fleet: Fleet) -> None:
    """The uid is an identity of its own: deleting the node object makes another one of the same machine."""
    fleet.name(0, "m1", "kubernetes", "w", "uid-1")
    fleet.name(3, "m1", "kubernetes", "w", "uid-2")
    assert [(row[3], row[4]) for row in fleet.names("kubernetes")] == [(at(3), "renamed to w"), (None, None)]
    assert fleet.machine("m1")["kubernetes_uid"] == "uid-2"


def test_a_name_that_its_source_withdraws_is_nobodys(fleet: Fleet) -> None:
    """A node taken out of Slurm has no NodeName, until it has one again."""
    fleet.name(0, "m1", "slurm", "n1")
    fleet.name(4, "m1", "slurm", None)
    fleet.name(9, "m1", "slurm", "n1")
    assert fleet.names("slurm") == [("n1", "m1", at(0), at(4), "withdrawn"), ("n1", "m1", at(9), None, None)]
    assert fleet.names("slurm", 5) == []


def test_a_name_goes_to_and_fro(fleet: Fleet) -> None:
    """Two machines that say the same name in turn hold it in turn."""
    for hours, node_id in ((0, "m1"), (1, "m2"), (2, "m1")):
        fleet.node(hours, node_id, "twin")
    assert [row[1:4] for row in fleet.names("hostname")] == [
        ("m1", at(0), at(1)), ("m2", at(1), at(2)), ("m1", at(2), None),
    ]  # fmt: skip


def test_two_machines_under_one_name_at_once_are_seen(fleet: Fleet) -> None:
    """Their windows overlap in time, which a replacement's do not."""
    windows = [(0, "m1"), (30, "m1"), (60, "m1"), (30, "m2"), (60, "m2"), (90, "m2")]
    for seconds, node_id in windows:
        row = {"ts": T + timedelta(seconds=seconds), "cluster": "c", "node_id": node_id, "node": "twin"}
        fleet.lake.put("host_30s", [row, {**row, "node_id": f"other-{node_id}", "node": f"own-{node_id}"}])
    [conflict] = fleet.queries.rows(f"FROM name_conflicts('{at(-1)}', '{at(1)}')")
    assert (conflict["name"], conflict["machines"], conflict["windows"]) == ("twin", ["m1", "m2"], 2)
    assert (conflict["since"], conflict["until"]) == (T + timedelta(seconds=30), T + timedelta(seconds=90))


def test_a_gpu_that_moves_is_followed_and_its_slot_stays_with_the_machine(fleet: Fleet) -> None:
    """The GPU's record goes on elsewhere; the slot's record says who sat there, one after the other."""
    fleet.gpu(0, "m1", "GPU-a", "0000:1b:00.0")
    fleet.gpu(0, "m1", "GPU-b", "0000:43:00.0")
    fleet.gpu(2, "m1", "GPU-a", "0000:1b:00.0")  # told again by a restarted agent
    fleet.gpu(24, "m2", "GPU-a", "0000:8a:00.0")
    fleet.gpu(25, "m1", "GPU-c", "0000:1b:00.0")
    homes = fleet.queries.rows(
        "SELECT node_id, slot, since, until, ended_by FROM gpu_homes WHERE gpu_uuid = 'GPU-a' ORDER BY since"
    )
    assert [tuple(row.values()) for row in homes] == [
        ("m1", "0000:1b:00.0", at(0), at(24), "moved to m2"), ("m2", "0000:8a:00.0", at(24), None, None),
    ]  # fmt: skip
    slot = fleet.queries.rows(
        "SELECT gpu_uuid, since, until FROM gpu_homes WHERE node_id = 'm1' AND slot = '0000:1b:00.0' ORDER BY since"
    )
    assert [tuple(row.values()) for row in slot] == [("GPU-a", at(0), at(24)), ("GPU-c", at(25), None)]
    now = fleet.queries.rows("SELECT node_id, entity FROM inventory_now ORDER BY entity")
    assert [tuple(row.values()) for row in now] == [("m2", "GPU-a"), ("m1", "GPU-b"), ("m1", "GPU-c")]


def test_a_gpu_replaced_in_its_slot_is_gone_though_nobody_said_so(fleet: Fleet) -> None:
    """Returned to the vendor: it is never seen anywhere again."""
    fleet.gpu(0, "m1", "GPU-bad", "0000:1b:00.0")
    fleet.gpu(48, "m1", "GPU-good", "0000:1b:00.0")
    [row] = fleet.queries.rows("SELECT until, ended_by FROM gpu_homes WHERE gpu_uuid = 'GPU-bad'")
    assert row == {"until": at(48), "ended_by": "its slot holds GPU-good"}
    assert [r["entity"] for r in fleet.queries.rows("FROM inventory_now")] == ["GPU-good"]


def test_a_gpu_that_comes_back_has_two_stays(fleet: Fleet) -> None:
    """There and back again: three homes, the first machine's two apart."""
    for hours, node_id in ((0, "m1"), (1, "m2"), (2, "m1")):
        fleet.gpu(hours, node_id, "GPU-a", "0000:1b:00.0")
    homes = fleet.queries.rows("SELECT node_id, since, until FROM gpu_homes ORDER BY since")
    assert [tuple(row.values()) for row in homes] == [("m1", at(0), at(1)), ("m2", at(1), at(2)), ("m1", at(2), None)]


def test_an_identity_that_is_only_an_address_is_not_confirmed(fleet: Fleet) -> None:
    """Nothing may be done to a node of which nobody knows which machine it is."""
    fleet.node(0, "10.0.0.7:9400", "10.0.0.7", source="agentless")
    fleet.name(0, "m9", "slurm", "only-slurm-knows")
    assert fleet.machine("10.0.0.7:9400")["confirmed"] is False
    assert fleet.machine("m9")["confirmed"] is False


def test_a_scraped_address_takes_no_machine_its_name(fleet: Fleet) -> None:
    """An exporter that calls itself gpu-01 may be anybody; the machine whose agent says so keeps the name."""
    fleet.node(0, "m1", "gpu-01")
    fleet.node(1, "exporter-7", "gpu-01", source="exporter")
    assert fleet.names("hostname") == [("gpu-01", "m1", at(0), None, None)]
    assert fleet.machine("m1")["hostname"] == fleet.machine("exporter-7")["hostname"] == "gpu-01"
    assert (fleet.machine("m1")["confirmed"], fleet.machine("exporter-7")["confirmed"]) == (True, False)


@pytest.mark.parametrize("attributes", ["{", "[]", "null", "", '{"name": {"deep": 1}}', '{"name": 7}'])
def test_broken_attributes_cost_only_themselves(fleet: Fleet, attributes: str) -> None:
    """A hostile or cut JSON text makes no name, or the text that it is; every other machine's names are there."""
    who = {"ts": at(0), "cluster": "c", "node_id": "bad", "kind": "node_name", "entity": "slurm"}
    fleet.lake.put("inventory", [{**who, "attributes": attributes}])
    fleet.name(0, "m1", "slurm", "good")
    assert ("good", "m1", at(0), None, None) in fleet.names("slurm")
    assert fleet.machine("m1")["slurm_node"] == "good"
