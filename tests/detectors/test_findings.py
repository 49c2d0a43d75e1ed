"""What is stored, what is told, one finding per entity, and one name for a shift that many share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from window_rounds import Cluster

from graynode.detectors import findings
from graynode.detectors.base import TOLD
from graynode.detectors.slow import Slow

ROUND = next(Cluster(nodes=12, nodes_per_job=6).rounds(1))
SLOW = Slow()


def candidate(node: int, score: float, **more: Any) -> dict[str, Any]:
    name = f"node{node:03d}"
    return {
        "cluster": "test", "node_id": f"id-{name}", "node": name, "gpu_uuid": f"GPU-{node:03d}-0", "subject": "gpu",
        "signal": "clock", "cause": "slow_gpu", "severity": "ticket", "score": score, "threshold": 1.0,
        "message": "slow", "action": "look", "evidence": {}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(("score", "p", "stored"), [(0.49, None, 0), (0.5, None, 1), (0.1, 0.01, 0), (0.1, 1e-3, 1)])
def test_stored_from_half_the_threshold_or_a_p_value_of_a_thousandth(
    score: float, p: float | None, stored: int
) -> None:
    """What is less is forgotten; what is stored but not told is a digest, whatever it would have been."""
    found = findings.collect(SLOW, ROUND, [candidate(1, score, p_value=p)])
    assert found.height == stored
    assert set(found["severity"]) <= {"digest"}
    assert found.filter(TOLD).is_empty()


def test_one_finding_per_entity_the_worst_with_the_others_in_its_evidence() -> None:
    """Told before watched, page before ticket, then the higher share of its threshold."""
    other = candidate(1, 3.0, signal="power_at_clock", severity="digest")
    found = findings.collect(
        SLOW, ROUND, [other, candidate(1, 1.1), candidate(1, 1.2, signal="throttle", severity="page")]
    )
    assert found["signal"].to_list() == ["throttle"]
    assert "power_at_clock" in found["evidence"][0]


def test_ids_follow_cluster_entity_detector_version_and_window_and_nothing_else() -> None:
    """The same window computed again gives the same id; another window or entity another."""
    one = findings.collect(SLOW, ROUND, [candidate(1, 1.5)])["finding_id"][0]
    again = findings.collect(SLOW, ROUND, [candidate(1, 1.7, message="worse")])["finding_id"][0]
    other = findings.collect(SLOW, ROUND, [candidate(2, 1.5)])["finding_id"][0]
    later = findings.collect(SLOW, list(Cluster(nodes=2).rounds(2))[1], [candidate(1, 1.5)])["finding_id"][0]
    assert one == again
    assert len({one, other, later}) == 3


def test_all_nodes_of_one_job_are_named_as_the_job() -> None:
    """Six of six nodes of a job of twelve nodes' cluster: one ticket about the job, its nodes in the evidence."""
    found = findings.collect(SLOW, ROUND, [candidate(n, 1.5 + n / 10) for n in range(6)])
    assert found.height == 1
    row = found.row(0, named=True)
    assert (row["subject"], row["node"], row["cause"], row["severity"]) == ("job", "job job-0", "fleet_shift", "ticket")
    assert "6 of 6 nodes of job job-0" in row["message"]
    assert row["node_id"] == "job:job-0"
    assert row["gpu_uuid"] is None


def test_nodes_of_one_driver_version_are_named_as_the_driver() -> None:
    """Where jobs differ and the driver does not."""
    nodes = [1, 2, 3, 7, 8, 9]
    host = ROUND.host.with_columns(
        driver_version_last=pl.when(pl.col("node_id").is_in([f"id-node{n:03d}" for n in nodes]))
        .then(pl.lit("590.1"))
        .otherwise(pl.lit("580.65"))
    )
    found = findings.collect(SLOW, replace(ROUND, host=host), [candidate(n, 1.5) for n in nodes])
    assert found["node"].to_list() == ["driver 590.1"]


def test_four_nodes_are_four_findings_and_a_shift_is_no_worse_than_its_members() -> None:
    """Fewer than five share nothing that is worth a name; a shift of digests is a digest."""
    assert findings.collect(SLOW, ROUND, [candidate(n, 1.5) for n in (0, 4, 7, 9)]).height == 4
    digests = [candidate(n, 1.5, severity="digest") for n in range(0, 12, 2)]
    found = findings.collect(SLOW, ROUND, digests)
    assert found.select("subject", "severity").rows() == [("cluster", "digest")]
