"""Many nodes at once are one incident."""

import json

from finding_rows import at, event, finding

from graynode.detectors.event_rules import from_events
from graynode.detectors.incidents import Incidents


def blind(number: int, seconds: float) -> list[dict[str, object]]:
    """Node ``number`` loses NVML."""
    row = event(seconds, "nvml_blind", source="nvml", node_id=f"n{number:03d}", node=f"gpu-{number:03d}")
    return from_events([row])


def test_five_hundred_nodes_that_lose_nvml_are_one_event() -> None:
    """Nine are told by name until the tenth makes it one about the cluster, of which they are then a part."""
    incidents, told = Incidents("test"), []
    for i in range(500):
        told += incidents.add(blind(i, i * 0.1), at(i * 0.1))
    opened = [r for r in told if r["state"] == "open"]
    assert [r["subject"] for r in opened] == ["node"] * 9 + ["cluster"]
    assert opened[-1]["cause"] == "monitoring_blind"
    assert len(told) < 26
    (storm,) = incidents.current()
    ended = [r for r in told if r["state"] == "resolved"]
    assert [r["grouped_under"] for r in ended] == [storm["incident_id"]] * 9
    assert storm["subject"] == "cluster"
    assert storm["count"] > 250
    entry = json.loads(storm["evidence"])[0]
    assert len(entry["nodes"]) == 50
    assert "nodes within minutes: NVML does not answer" in entry["message"]


def test_a_node_of_the_storm_that_is_seen_again_opens_nothing() -> None:
    """While the cluster's incident is open, its nodes belong to it, half an hour later too."""
    incidents = Incidents("test", resolve_after_s=7200)
    for i in range(30):
        incidents.add(blind(i, i), at(i))
    again = [r for i in range(30) for r in incidents.add(blind(i, 1800 + i), at(1800 + i))]
    assert not [r for r in again if r["state"] == "open"]


def test_nodes_far_apart_in_time_are_themselves() -> None:
    """One node every ten minutes is no storm."""
    incidents, told = Incidents("test"), []
    for i in range(30):
        told += incidents.add(blind(i, i * 600), at(i * 600))
    assert {r["subject"] for r in told} == {"node"}


def test_lost_gpus_and_bad_memory_are_never_grouped() -> None:
    """Each is a GPU's own fault, however many there are."""
    incidents = Incidents("test")
    lost = [finding(0, "gpu_lost", "page", node_id=f"n{i}") for i in range(20)]
    memory = [finding(0, "memory_degraded", node_id=f"n{i}") for i in range(20)]
    assert {r["subject"] for r in incidents.add([*lost, *memory], at(0))} == {"node"}


def test_after_the_storm_nodes_are_themselves_again() -> None:
    """When the cluster's incident is over, a single node's trouble is its own."""
    incidents = Incidents("test", resolve_after_s=600)
    for i in range(30):
        incidents.add(blind(i, i), at(i))
    assert "cluster" in {r["subject"] for r in incidents.tick(at(2000))}
    assert [r["subject"] for r in incidents.add(blind(25, 5000), at(5000))] == ["node"]


def test_what_is_no_news_starts_no_storm() -> None:
    """Findings in shadow, for the digest, or of open incidents do not count."""
    incidents = Incidents("test")
    for i in range(30):
        incidents.add(
            [finding(i, "thermal", live=False, node_id=f"s{i}"), finding(i, "thermal", "digest", node_id=f"d{i}")],
            at(i),
        )
    assert [r["subject"] for r in incidents.add([finding(40, "thermal")], at(40))] == ["node"]


def test_old_faults_that_are_told_at_once_are_no_storm() -> None:
    """Twelve slow GPUs and twelve dead ports of a month, told in the first live round: each is its own."""
    incidents = Incidents("test")
    slow = [finding(0, "slow_gpu", node_id=f"s{i}", since=at(-3600)) for i in range(12)]
    dead = [finding(0, "link_down", node_id=f"d{i}", link="mlx5_0/1", gpu_uuid=None, subject="link",
                    since=at(-86_400.0 * i)) for i in range(12)]  # fmt: skip
    assert {r["subject"] for r in incidents.add([*slow, *dead], at(0))} == {"node"}
