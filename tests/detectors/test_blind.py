"""The monitoring itself: silent nodes, lost samples, vanished fields, slow calls; and many at once are one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import polars as pl
from window_rounds import START, Cluster, Columns

from graynode.detectors.base import TOLD, Round
from graynode.detectors.blind import Blind


def told(c: Cluster, windows: int, cut: Callable[[int, Round], Round] = lambda _, r: r) -> pl.DataFrame:
    state, found = Blind().learn(Cluster(nodes=c.nodes).history(step_h=12), {}), []
    for w, round_ in enumerate(c.rounds(windows)):
        scored = Blind().score(cut(w, round_), state)
        state = scored.state
        found.append(scored.findings)
    return pl.concat(found).filter(TOLD)


def without(nodes: set[str], since: int) -> Callable[[int, Round], Round]:
    def cut(w: int, r: Round) -> Round:
        if w < since:
            return r
        return replace(r, **{t: getattr(r, t).filter(~pl.col("node_id").is_in(nodes)) for t in ("gpu", "link", "host")})

    return cut


def test_a_silent_node_is_told_after_ten_minutes_with_the_time_it_was_last_heard() -> None:
    """Unknown, not healthy; it is told until it is heard again. A restart takes less and is no news."""
    found = told(Cluster(nodes=8), 30, without({"id-node003"}, 5))
    assert set(found["node_id"]) == {"id-node003"}
    assert found["ts"].min() == START + timedelta(seconds=24 * 30)
    assert "last heard of at 06:02:00" in found["message"][0]
    assert set(found["cause"]) == {"monitoring_blind"}


def test_six_nodes_of_eight_at_once_are_one_cause() -> None:
    """A switch, a bus or a driver: one finding on the cluster, with the nodes in its evidence."""
    found = told(Cluster(nodes=8), 30, without({f"id-node{i:03d}" for i in range(6)}, 5))
    assert set(found["subject"]) == {"cluster"}
    assert set(found["cause"]) == {"monitoring_blind"}
    assert found.group_by("ts").len()["len"].max() == 1
    assert "id-node004" in found["evidence"][0]


def test_lost_samples_are_told() -> None:
    """Seven of ten samples for five minutes."""

    def lossy(_: int, c: Columns) -> None:
        c["samples_taken_sum"][2] *= 0.7

    def lost(_: int, c: Columns) -> None:
        c["samples"][16:24] = 18.0

    found = told(Cluster(nodes=4, host_fault=lossy, gpu_fault=lost), 12)
    assert set(found["signal"]) == {"samples"}
    assert set(found["node"]) == {"node002"}


def test_a_field_that_vanishes_is_told_and_one_that_never_was_is_not() -> None:
    """Power of one GPU disappears; a field that no GPU has is no news."""

    def vanish(w: int, c: Columns) -> None:
        c["temp_c_mean"][:] = np.nan
        if w >= 5:
            c["power_w_mean"][11] = np.nan

    found = told(Cluster(nodes=4, gpu_fault=vanish), 20)
    assert set(found["gpu_uuid"]) == {"GPU-001-3"}
    assert found["message"][0].endswith("no longer gives power_w")


def test_calls_that_take_four_times_as_long_are_told_against_their_own_past() -> None:
    """Growth of the call latency is the one published precursor of a GPU that falls off the bus."""

    def slow(_: int, c: Columns) -> None:
        c["nvml_call_max_ms_mean"][1] *= 4.0

    found = told(Cluster(nodes=4, host_fault=slow), 40)
    assert set(found["signal"]) == {"call_latency"}
    assert set(found["node"]) == {"node001"}


def test_a_dead_exporter_beside_nvml_is_no_blindness() -> None:
    """A third of the collections fails, and all GPU samples are there: a line of the digest that names the source."""

    def lossy(_: int, c: Columns) -> None:
        c["samples_taken_sum"][2] *= 0.66

    said = {"ts": START, "node_id": "id-node002", "entity": "GPU-002-0", "field": "*", "state": "stale",
            "reason": "the exporter does not answer", "table_name": "gpu"}  # fmt: skip
    quality = pl.DataFrame([said])
    found = told(Cluster(nodes=4, host_fault=lossy), 12, lambda _, r: replace(r, quality=quality))
    assert set(found["signal"]) == {"source"}
    assert set(found["severity"]) == {"digest"}
    assert "one source fails (the exporter does not answer)" in found["message"][0]


def gpus_gone(since: int, quality: pl.DataFrame | None = None) -> Callable[[int, Round], Round]:
    def cut(w: int, r: Round) -> Round:
        gone = replace(r, gpu=r.gpu.filter(pl.col("node_id") != "id-node001")) if w >= since else r
        return gone if quality is None else replace(gone, quality=quality)

    return cut


def test_a_node_that_speaks_without_its_gpus_is_told() -> None:
    """Host rows go on, no GPU row comes: nothing is known of the GPUs."""
    found = told(Cluster(nodes=6), 20, gpus_gone(5))
    assert set(found["signal"]) == {"no_gpu_rows"}
    assert set(found["node_id"]) == {"id-node001"}
    assert found["ts"].min() == START + timedelta(seconds=14 * 30)


def test_gpus_that_somebody_has_taken_from_monitoring_are_not_missed() -> None:
    """``agent release`` says so itself; a node that never had a GPU has none to miss."""
    said = {"ts": START, "node_id": "id-node001", "table_name": "gpu", "entity": "id-node001", "field": "*",
            "state": "paused", "reason": "planned: released for a reset"}  # fmt: skip
    assert told(Cluster(nodes=6), 20, gpus_gone(5, pl.DataFrame([said]))).is_empty()
    assert told(Cluster(nodes=6), 20, gpus_gone(0)).is_empty()


def test_a_rack_that_falls_silent_is_the_rack() -> None:
    """Its nodes are in no row of the round any more; the inventory still knows where they stood."""
    rows = [{"ts": START, "node_id": f"id-node{n:03d}", "kind": "node", "entity": f"id-node{n:03d}", "domain": None,
             "attributes": f'{{"rack": "r{n // 4}"}}'} for n in range(24)]  # fmt: skip
    stands = pl.DataFrame(rows, schema_overrides={"domain": pl.String})
    dark = without({f"id-node{n:03d}" for n in range(4, 8)}, 5)
    found = told(Cluster(nodes=24), 27, lambda w, r: replace(dark(w, r), inventory=stands))
    assert set(found["node_id"]) == {"rack:r1"}
    assert set(found["cause"]) == {"monitoring_blind"}
