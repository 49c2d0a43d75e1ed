"""What nodes share is named by what they share: rack, domain, switch, rail, job, driver, cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from window_rounds import START, Cluster

from graynode.detectors import findings
from graynode.detectors.base import Round
from graynode.detectors.links import Links
from graynode.detectors.places import places
from graynode.detectors.slow import Slow

NODES = 64


def inventory(nodes: int = NODES, ports: int = 8, *, switches: bool = True) -> pl.DataFrame:
    """Racks of four nodes, NVLink domains of eight, and a leaf switch for every port number of 32 nodes."""
    rows = []
    for n in range(nodes):
        who = {"ts": START - timedelta(days=9), "cluster": "test", "node_id": f"id-node{n:03d}", "node": f"node{n:03d}"}
        rack = json.dumps({"rack": f"r{n // 4:02d}"})
        rows.append({**who, "kind": "node", "entity": who["node_id"], "domain": None, "attributes": rack})
        rows.append({**who, "kind": "gpu", "entity": f"GPU-{n:03d}-0", "domain": f"d{n // 8}", "attributes": "{}"})
        for p in range(ports):
            leaf = json.dumps({"switch": f"leaf{n // 32}-{p}"}) if switches else None
            rows.append({**who, "kind": "port", "entity": f"mlx5_{p}/1", "domain": None, "attributes": leaf})
    return pl.DataFrame(rows, schema_overrides={"domain": pl.String, "attributes": pl.String})


def a_round(**other: Any) -> Round:
    made = next(Cluster(nodes=NODES, gpus=1, ports=8, nodes_per_job=32).rounds(1))
    return replace(made, inventory=inventory(), **other)


ROUND = a_round()


def sick(node: int, *, cause: str = "thermal", link: str | None = None, since_s: float = 0.0) -> dict[str, Any]:
    name = f"node{node:03d}"
    about = {"link": link, "subject": "link"} if link else {"gpu_uuid": f"GPU-{node:03d}-0", "subject": "gpu"}
    return {
        "cluster": "test", "node_id": f"id-{name}", "node": name, **about, "signal": "x", "cause": cause,
        "severity": "ticket", "score": 2.0, "threshold": 1.0, "message": f"{name} is odd", "action": "look",
        "since": START + timedelta(seconds=since_s), "evidence": {},
    }  # fmt: skip


def named(candidates: list[dict[str, Any]], round_: Round = ROUND) -> list[tuple[str, str, str]]:
    found = findings.collect(Slow(), round_, candidates)
    return [(r["subject"], r["node_id"], r["cause"]) for r in found.iter_rows(named=True)]


def test_three_of_the_four_nodes_of_a_rack_are_the_rack() -> None:
    """Heat in a rack is the rack's, and a fourth node far away stays itself."""
    assert named([sick(n) for n in (8, 9, 11, 40)]) == [
        ("gpu", "id-node040", "thermal"),
        ("rack", "rack:r02", "fleet_shift"),
    ]


def test_half_of_a_rack_is_two_nodes() -> None:
    """Two of four have nothing in common that is worth a name."""
    assert [s for s, _, _ in named([sick(8), sick(9)])] == ["gpu", "gpu"]


def test_an_nvlink_domain_is_named_where_all_of_it_is_concerned() -> None:
    """Eight nodes of two racks that are one domain."""
    assert named([sick(n, cause="nvlink_fault") for n in range(16, 24)]) == [("domain", "domain:d2", "fleet_shift")]


def test_ports_of_one_leaf_switch_are_the_switch() -> None:
    """Thirty-two nodes lose the same port: one finding about the switch, whose owner is the network."""
    down = [sick(n, cause="link_down", link="mlx5_3/1") for n in range(32)]
    found = findings.collect(Links(), ROUND, down)
    (row,) = found.iter_rows(named=True)
    assert (row["subject"], row["node_id"], row["node"]) == ("switch", "switch:leaf0-3", "switch leaf0-3")
    assert "32 of 32 nodes of switch leaf0-3" in row["message"]
    assert "not at its nodes" in row["action"]
    assert json.loads(row["evidence"])["owner"] == "network"


def test_where_no_switch_is_known_it_is_the_rail() -> None:
    """Equal ports that go within minutes: named by port and number of nodes."""
    blind = a_round()
    blind = replace(blind, inventory=inventory(switches=False))
    down = [sick(n, cause="link_down", link="mlx5_3/1", since_s=n) for n in range(20)]
    found = findings.collect(Links(), blind, [*down, sick(50, cause="link_down", link="mlx5_6/1")])
    assert [(r["subject"], r["node"]) for r in found.iter_rows(named=True)] == [
        ("link", "node050"),
        ("rail", "rail 3 (port mlx5_3/1 of 20 nodes)"),
    ]


def test_equal_ports_that_went_on_different_days_share_nothing() -> None:
    """Six dead cables that happen to be port 3 are six cables."""
    blind = replace(a_round(), inventory=inventory(switches=False))
    down = [sick(n, cause="link_down", link="mlx5_3/1", since_s=-86_400.0 * n) for n in range(6)]
    assert {s for s, _, _ in named(down, blind)} == {"link"}


def test_a_rack_within_a_job_is_the_rack_and_a_whole_job_is_the_job() -> None:
    """What explains more of it, and is explained more by it, is named."""
    assert named([sick(n, cause="slow_gpu") for n in range(4, 8)]) == [("rack", "rack:r01", "fleet_shift")]
    assert named([sick(n, cause="slow_gpu") for n in range(32)]) == [("job", "job:job-0", "fleet_shift")]


def test_ten_that_begin_together_are_one_thing_though_they_share_no_place() -> None:
    """Ten nodes within minutes are no chance; ten over a week are."""
    spread = [sick(n * 6, cause="power_brake", since_s=n * 20) for n in range(10)]
    assert [s for s, _, _ in named(spread)] == ["cluster"]
    week = [sick(n * 6, cause="power_brake", since_s=-n * 60_000) for n in range(10)]
    assert {s for s, _, _ in named(week)} == {"gpu"}


@pytest.mark.parametrize("cause", ["memory_errors", "gpu_lost", "slow_gpu", "thermal"])
def test_what_has_no_moment_is_never_one_for_having_begun_together(cause: str) -> None:
    """Memory wears GPU by GPU; and to a watch that begins, all that was slow before seems to begin with it."""
    assert {s for s, _, _ in named([sick(n * 6, cause=cause) for n in range(10)])} == {"gpu"}


@pytest.mark.parametrize("attributes", ["not JSON", '{"rack": 7}', None, ""])
def test_an_inventory_that_cannot_be_read_names_no_place(attributes: str | None) -> None:
    """Nothing raises, and what is not a name is none."""
    broken = inventory().with_columns(attributes=pl.lit(attributes, dtype=pl.String))
    known = places(replace(ROUND, inventory=broken))
    assert {p.kind for p in known.places} == {"job", "driver", "domain"}


def test_the_order_of_rows_and_findings_does_not_matter() -> None:
    """The same round in any order gives the same findings."""
    many = [sick(n) for n in (8, 9, 11, 40, 16, 17, 18)]
    shuffled = replace(
        ROUND, **{t: getattr(ROUND, t).sample(fraction=1.0, shuffle=True, seed=3) for t in ("gpu", "host", "inventory")}
    )
    assert findings.collect(Slow(), ROUND, many).equals(findings.collect(Slow(), shuffled, many[::-1]))
