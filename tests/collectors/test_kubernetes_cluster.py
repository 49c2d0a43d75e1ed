"""A cluster as a whole: states of nodes, and what waits in Kueue's queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kube_api_stub as kube
import msgspec
import pytest
from agent_fakes import until
from kube_api_stub import NODES, KubeApi, Trouble
from node_files import checked, node, round_at

from graynode.collectors.base import NoSource
from graynode.collectors.kubernetes.api import Access
from graynode.collectors.kubernetes.cluster import KubernetesCluster, node_facts
from graynode.collectors.kubernetes.objects import Node
from graynode.collectors.kubernetes.settings import Settings

QUEUE = "/apis/kueue.x-k8s.io/v1beta2/workloads"
JOB = kube.owner("Job", "fit", "u-fit")
Rows = dict[str, list[dict[str, Any]]]
Look = Callable[[], Rows]


class Rig:
    def __init__(self, folder: Path, api: KubeApi) -> None:
        self.api, self.machine, self.now, self.second = api, node(folder), 0.0, 0
        self.made: list[KubernetesCluster] = []

    def collector(self, **settings: Any) -> KubernetesCluster:
        known = {"api": self.api.url, "access": Access("", None, None)} | settings
        made = KubernetesCluster(
            self.machine, Settings(**known), env={}, monotonic=lambda: self.now, first_wait_s=0.02
        )  # fmt: skip
        self.made.append(made)
        return made

    def until(self, collector: KubernetesCluster, table: str, count: int = 1) -> list[dict[str, Any]]:
        """So many rows of a table, over as many rounds as they take."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            self.now += 1.0
            self.second += 60
            found.extend(checked(collector.collect(round_at(self.second)), KubernetesCluster.tables).get(table, []))
            return len(found) >= count

        assert until(look), found
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with KubeApi() as api:
        made = Rig(tmp_path, api)
        yield made
        for collector in made.made:
            collector.close()


def test_states_of_nodes_as_they_change(rig: Rig) -> None:
    """As ``kubectl`` words them, under the node's name and boot; heartbeats and labels change nothing."""
    rig.api.put(NODES, kube.node("n1", boot_id="b1"))
    rig.api.put(NODES, kube.node("n2"))
    collector = rig.collector(kueue=False)
    first = rig.until(collector, "node_state", 2)
    assert first[0] == {
        "node_id": "kubernetes:n1", "node": "n1", "boot_id": "b1", "scheduler_state": "Ready", "reason": None,
        "who": "kubernetes",
    }  # fmt: skip
    rig.api.put(NODES, kube.node("n2"))  # a heartbeat
    rig.api.put(NODES, kube.node("n1", boot_id="b1", unschedulable=True, taints=[
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "value": "bad", "effect": "NoSchedule"}]))  # fmt: skip
    (cordoned,) = rig.until(collector, "node_state")
    assert cordoned["scheduler_state"] == "Ready,SchedulingDisabled"
    assert cordoned["reason"] == "taint nvidia.com/gpu=bad:NoSchedule"
    rig.api.put(NODES, kube.node("n2", ready="Unknown"))
    (lost,) = rig.until(collector, "node_state")
    assert (lost["node"], lost["scheduler_state"], lost["reason"]) == ("n2", "Unknown", "KubeletNotReady")
    rig.api.drop(NODES, "uid-n2")
    (gone,) = rig.until(collector, "node_state")
    assert (gone["node_id"], gone.get("scheduler_state")) == ("kubernetes:n2", None)
    assert gone["reason"] == "no longer a node of the cluster"


def test_a_restart_tells_nothing_twice(rig: Rig) -> None:
    """What was told is kept; what changed meanwhile is told."""
    for name in ("n1", "n2", "n3"):
        rig.api.put(NODES, kube.node(name))
    first = rig.collector(kueue=False)
    rig.until(first, "node_state", 3)
    first.close()
    rig.api.put(NODES, kube.node("n2", ready="False"))
    rig.api.drop(NODES, "uid-n3")
    rows = rig.until(rig.collector(kueue=False), "node_state", 2)
    assert [(r["node"], r.get("scheduler_state")) for r in rows] == [("n2", "NotReady"), ("n3", None)]


@pytest.mark.parametrize(
    ("item", "state", "reason"),
    [
        ({"status": {}}, "Unknown", None),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}]}},
         "Ready", "DiskPressure"),
        ({"status": {"conditions": [{"type": "GpuSick", "status": "True", "reason": "x"}]}}, "Unknown", "GpuSick: x"),
        ({"spec": {"taints": [{"key": "k" * 500, "effect": "NoExecute"}]}}, "Unknown", "taint " + "k" * 394),
    ],
)  # fmt: skip
def test_nodes_of_other_shapes(item: dict[str, Any], state: str, reason: str | None) -> None:
    """No conditions, conditions of other programs, texts without end."""
    facts = node_facts(msgspec.convert(item, Node))
    assert (facts.state, facts.reason) == (state, reason)


def _condition(status: str, reason: str, at: str = "2026-03-01T10:30:00Z") -> dict[str, str]:
    return {"status": status, "reason": reason, "lastTransitionTime": at}


def test_a_job_in_the_queue(rig: Rig) -> None:
    """Waiting, let in, preempted, let in again and over: queue, size, times and Kueue's reason."""
    rig.api.put(QUEUE, kube.workload("w", JOB, QuotaReserved=_condition("False", "Pending")))
    collector = rig.collector()
    told = rig.until(collector, "job")
    yes = {"QuotaReserved": _condition("True", "QuotaReserved"), "Admitted": _condition("True", "Admitted")}
    for conditions in (
        yes,
        {"QuotaReserved": _condition("False", "Pending"), "Admitted": _condition("False", "NoReservation"),
         "Evicted": _condition("True", "Preempted")},
        yes | {"Evicted": _condition("False", "QuotaReserved")},
        yes | {"Finished": _condition("True", "Succeeded", "2026-03-01T12:00:00Z")},
    ):  # fmt: skip
        rig.api.put(QUEUE, kube.workload("w", JOB, **conditions))
        told += rig.until(collector, "job")
    assert [(r["state"], r["reason"]) for r in told] == [
        ("queued", "Pending"), ("allocated", None), ("requeued", "Preempted"), ("allocated", None),
        ("completed", "Succeeded"),
    ]  # fmt: skip
    assert {(r["job_id"], r["node_id"], r["partition"], r["gpus"]) for r in told} == {
        ("team/job/fit", "kubernetes", "gpu-queue", 16)
    }
    assert (told[0]["queued_ts"].hour, told[0]["allocated_ts"]) == (9, None)
    assert (told[1]["allocated_ts"].minute, told[-1]["end_ts"].hour) == (30, 12)


def test_a_job_taken_out_of_the_queue(rig: Rig) -> None:
    """Deleted before it ran is cancelled; one that was over before we came is not told."""
    rig.api.put(QUEUE, kube.workload("w", JOB, QuotaReserved=_condition("False", "Pending")))
    done = kube.workload("old", kube.owner("Job", "old", "u-old"), Finished=_condition("True", "Succeeded"))
    rig.api.put(QUEUE, done)
    collector = rig.collector()
    rig.until(collector, "job")
    rig.api.drop(QUEUE, "uid-w")
    (row,) = rig.until(collector, "job")
    assert (row["job_id"], row["state"]) == ("team/job/fit", "cancelled")


def test_no_kueue_is_said_once(rig: Rig) -> None:
    """A cluster without it has nodes all the same."""
    rig.api.put(NODES, kube.node("n1"))
    collector = rig.collector()
    said = rig.until(collector, "quality", 2)
    states = {q["table_name"]: (q["state"], q["reason"]) for q in said}
    assert states == {
        "job": ("unsupported", "kubernetes_cluster: Kueue is not installed"),
        "node_state": ("measured", "kubernetes_cluster: the API server answers"),
    }


def test_permission_that_is_lacking_is_said(rig: Rig) -> None:
    """Nodes refused: that alone, with the server's words."""
    rig.api.trouble = lambda asked: Trouble(403, "nodes is forbidden") if asked.path == NODES else None
    rig.api.put(QUEUE, kube.workload("w", JOB, QuotaReserved=_condition("False", "Pending")))
    collector = rig.collector()
    (refused,) = [q for q in rig.until(collector, "quality", 2) if q["table_name"] == "node_state"]
    assert refused["state"] == "not_permitted"
    assert "nodes is forbidden" in refused["reason"]


def test_no_api_server_is_no_source(tmp_path: Path) -> None:
    """Said at the start."""
    with pytest.raises(NoSource, match="no Kubernetes API server"):
        KubernetesCluster(node(tmp_path), env={})
