"""A node's day in one row: the largest score of each signal, whatever else happens in between."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from finding_rows import finding
from window_rounds import EMPTY, Cluster, Columns

from graynode.detectors import make
from graynode.detectors.base import Detector, State
from graynode.detectors.findings import none
from graynode.detectors.node_days import ALL, NodeDays, fitted_signals
from graynode.detectors.thresholds import shipped

EVENING = datetime(2026, 3, 2, 23, 40, tzinfo=UTC)
MIDNIGHT = 40
HOT = 13
H = shipped().value("thermal", "temp", 30)


def hot(w: int, c: Columns) -> None:
    c["temp_c_mean"][HOT] += 25.0


def primed(name: str, cluster: Cluster) -> tuple[Detector, State]:
    detector = make(name)
    return detector, detector.learn(cluster.history(before=EVENING), {})  # type: ignore[attr-defined]


def go(windows: int, *, broken_at: int = -1) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Rounds over midnight; a restart hands over what is remembered and nothing else. Rows, and each node's largest."""
    cluster = Cluster(nodes=4, gpu_fault=hot)
    detector, state = primed("thermal", cluster)
    days, kept, told = NodeDays(), {}, []
    largest: dict[str, float] = {}
    for w in range(windows):
        round_ = cluster.round(w, EVENING + timedelta(seconds=30 * w))
        scored = detector.score(round_, state)
        state = scored.state
        if w == broken_at:
            days = NodeDays()
        kept, ended = days.take(round_, {"thermal": state}, scored.findings, shipped(), kept)
        told += ended
        if w < MIDNIGHT:
            for key, total in state["gpu"].select("key", "temp.sum").iter_rows():
                node = f"id-node{key[4:7]}"
                largest[node] = max(largest.get(node, 0.0), total)
    return told, largest


def test_the_row_is_the_largest_sum_of_the_day_and_of_all_gpus() -> None:
    """Beside the detector's own memory, looked at after every window, as the oracle."""
    told, largest = go(MIDNIGHT + 1)
    temp = {row["node_id"]: row for row in told if (row["detector"], row["signal"]) == ("thermal", "temp")}
    assert {n: r["maximum"] for n, r in temp.items()} == pytest.approx(largest)
    sick = temp["id-node001"]
    assert sick["maximum"] == max(largest.values()) > H / 2
    assert sick["ts"] == datetime(2026, 3, 2, tzinfo=UTC)
    assert (sick["windows"], sick["window_s"], sick["threshold"]) == (MIDNIGHT, 30, H)
    whole = {row["node_id"]: row for row in told if row["detector"] == ALL}
    assert len(whole) == 4
    assert whole["id-node001"]["maximum"] == pytest.approx(sick["maximum"] / H)


def test_a_restart_in_mid_day_loses_nothing() -> None:
    """What a new process knows is the state alone."""
    assert go(MIDNIGHT + 1, broken_at=20)[0] == go(MIDNIGHT + 1)[0]


def test_nothing_is_said_before_the_day_is_over_and_a_day_is_said_once() -> None:
    """Its rows come with the first window of the next day."""
    assert go(MIDNIGHT)[0] == []
    assert len(go(MIDNIGHT + 20)[0]) == len(go(MIDNIGHT + 1)[0])


def test_findings_count_where_no_sum_is_kept_and_shifts_and_digests_do_not() -> None:
    """A finding of ``pcie`` at its threshold is told; one for the digest, or about the whole cluster, tells nobody."""
    cluster, days = Cluster(nodes=2, gpus=2), NodeDays()
    said = {"detector": "pcie", "signal": "width", "score": 6.0, "threshold": 4.0, "severity": "ticket"}
    rows = [
        finding(0, node_id="id-node000", **said),
        finding(0, node_id="id-node001", **{**said, "severity": "digest"}),
        finding(0, node_id="cluster:test", **said),
    ]
    found = pl.DataFrame(rows, schema=none().schema)
    kept, _ = days.take(cluster.round(0, EVENING), {}, found, shipped(), {})
    _, told = days.take(cluster.round(1, EVENING + timedelta(hours=1)), {}, none(), shipped(), kept)
    parts = {row["node_id"]: row["maximum"] for row in told if row["detector"] == ALL}
    assert parts == {"id-node000": 1.5, "id-node001": 0.0}
    assert [(r["node_id"], r["maximum"]) for r in told if r["detector"] == "pcie"] == [("id-node000", 1.5)]


def test_a_gpu_that_has_gone_and_a_round_of_nothing_change_nothing() -> None:
    """Memory of what is not there now counts for no node; an empty round is no day."""
    cluster, days = Cluster(nodes=2), NodeDays()
    detector, state = primed("thermal", cluster)
    state = detector.score(cluster.round(0, EVENING), state).state
    later = cluster.round(1, EVENING + timedelta(seconds=30))
    kept, ended = days.take(later, {"thermal": state}, none(), shipped(), {})
    assert kept["day"].get_column("thermal.temp").null_count() == 2
    assert ended == []
    empty = replace(later, start=EVENING + timedelta(days=2), gpu=EMPTY, link=EMPTY, host=EMPTY)
    assert days.take(empty, {"thermal": state}, none(), shipped(), kept) == (kept, [])


def test_what_a_site_can_fit_has_its_maxima_kept() -> None:
    """The signals of sums, each with its shipped threshold; those for the digest spend no budget."""
    signals = fitted_signals(shipped(), 30)
    assert ("slow", "clock", 30) in signals
    assert ("thermal", "temp", 30) in signals
    assert all(key[1] != "power_at_clock" for key in signals)
    assert all(value > 0 for value in signals.values())
