"""What GPUs run under: who is whose peer by it, and what of it ends a baseline."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from window_rounds import START, Cluster

from graynode.detectors import capability, footing, residual
from graynode.detectors.base import Round, State
from graynode.detectors.frames import gpus
from graynode.detectors.residual import Residual
from graynode.detectors.slow import Slow
from graynode.detectors.thermal import Thermal

ONE = "GPU-001-3"


def inventory(uuids: list[str], vbios: list[str | None], ts: object = START) -> pl.DataFrame:
    rows = {"ts": ts, "kind": "gpu", "entity": uuids, "vbios_version": vbios}
    return pl.DataFrame(rows).with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC")))


def with_numbers(round_: Round, column: str, values: np.ndarray) -> Round:
    return replace(round_, gpu=round_.gpu.with_columns(pl.Series(column, values)))


def judged(round_: Round) -> Residual:
    """Clocks of one window against the peers that the footing leaves."""
    view = gpus(round_.gpu, capability.NUMBERS)
    groups = residual.peers(view, footing.read(view, round_))
    return residual.against_peers(capability.measured(view, 30)["clock"], groups)


def small() -> Round:
    """Two nodes of eight in one job, power limits known."""
    return next(Cluster(nodes=2, nodes_per_job=2).rounds(1))


def test_gpus_of_another_vbios_have_each_other_as_peers() -> None:
    """Five of sixteen are on another VBIOS: 4 peers there, 10 here, and none of them weak."""
    round_ = small()
    uuids = round_.gpu["gpu_uuid"].to_list()
    r = judged(replace(round_, inventory=inventory(uuids, ["96.00.A"] * 5 + ["96.00.B"] * 11)))
    assert r.peers.tolist() == [4] * 5 + [10] * 11
    assert not r.wide.any()


def test_where_too_few_share_a_vbios_the_job_serves_and_the_bands_are_wide() -> None:
    """Two on a VBIOS of their own are compared with all of the job, and that counts as weak."""
    round_ = small()
    uuids = round_.gpu["gpu_uuid"].to_list()
    r = judged(replace(round_, inventory=inventory(uuids, ["96.00.A"] * 2 + ["96.00.B"] * 14)))
    assert r.peers.tolist() == [15] * 2 + [13] * 14
    assert r.wide.tolist() == [True] * 2 + [False] * 14
    assert not np.isnan(r.excess).any()


def test_the_newest_word_of_the_inventory_counts() -> None:
    """A VBIOS that was updated on all GPUs divides nobody, whatever older rows say."""
    round_ = small()
    uuids = round_.gpu["gpu_uuid"].to_list()
    old = inventory(uuids[:5], ["96.00.A"] * 5, START - timedelta(days=9))
    new = inventory(uuids, ["96.00.B"] * 16)
    assert set(judged(replace(round_, inventory=pl.concat([new, old]))).peers) == {15}


def test_drivers_divide_a_job_as_vbios_does() -> None:
    """One node of four on another driver: its eight GPUs are each other's peers."""
    round_ = next(Cluster(nodes=4, nodes_per_job=4).rounds(1))
    drivers = pl.Series("driver_version_last", ["570.86.15", *["580.65.06"] * 3])
    r = judged(replace(round_, host=round_.host.with_columns(drivers)))
    assert r.peers.tolist() == [7] * 8 + [23] * 24


def test_a_gpu_with_a_power_limit_of_its_own_has_no_peers() -> None:
    """At 500 W among GPUs at 700 W it is slower by right: the answer is "cannot tell". Six at 500 W can be compared."""
    round_ = small()
    limit = np.full(16, 700.0)
    limit[3] = 500.0
    r = judged(with_numbers(round_, "power_limit_enforced_w_last", limit))
    assert np.isnan(r.excess).tolist() == [i == 3 for i in range(16)]
    limit[:6] = 500.0
    r = judged(with_numbers(round_, "power_limit_enforced_w_last", limit))
    assert r.peers.tolist() == [5] * 6 + [9] * 10


def test_a_power_limit_that_is_told_every_other_window_divides_nobody() -> None:
    """Half of the nodes tell theirs in even windows and half in odd ones: the last known one counts."""
    c, state, detector = Cluster(nodes=2, nodes_per_job=2), {}, Slow()
    for w, round_ in enumerate(c.rounds(4)):
        limit = np.where(np.arange(16) // 8 == w % 2, 700.0, np.nan)
        told = round_.gpu.with_columns(pl.Series("power_limit_enforced_w_last", limit, nan_to_null=True))
        scored = detector.score(replace(round_, gpu=told), state)
        state = dict(scored.state)
    windows = state["gpu"].get_column("clock.begun_windows")
    assert set(windows.to_list()) == {4.0}  # the job's beginning was learned in each, so peers were there in each


def driver(r: Round) -> Round:
    first = pl.when(pl.col("node_id") == "id-node001").then(pl.lit("590.10.01")).otherwise("driver_version_last")
    return replace(r, host=r.host.with_columns(first.alias("driver_version_last")))


def vbios(r: Round) -> Round:
    return replace(r, inventory=pl.concat([r.inventory, inventory([ONE], ["96.00.C"], START + timedelta(minutes=1))]))


def repair(r: Round) -> Round:
    rows = pl.DataFrame({"ts": [START + timedelta(minutes=1)], "node_id": ["id-node001"], "gpu_uuid": [ONE]})
    return replace(r, repairs=rows.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC"))))


def power_limit(r: Round) -> Round:
    mine = pl.when(pl.col("gpu_uuid") == ONE).then(500.0).otherwise("power_limit_enforced_w_last")
    return replace(r, gpu=r.gpu.with_columns(mine.alias("power_limit_enforced_w_last")))


def mig(r: Round) -> Round:
    mine = pl.when(pl.col("gpu_uuid") == ONE).then(pl.lit("3g.40gb,4g.40gb")).otherwise(pl.lit(None))
    return replace(r, gpu=r.gpu.with_columns(mine.cast(pl.String).alias("mig_profile_last")))


def job(r: Round) -> Round:
    return replace(r, gpu=r.gpu.with_columns(job_id_last=pl.lit("another")))


@pytest.fixture(scope="module")
def past() -> dict[type, State]:
    history = Cluster(nodes=2, nodes_per_job=2).history(step_h=12)
    return {d: d().learn(history, {}) for d in (Slow, Thermal)}


@pytest.mark.parametrize("detector", [Slow, Thermal], ids=lambda d: d.name)
@pytest.mark.parametrize("change", [driver, vbios, repair, power_limit, mig, job], ids=lambda c: c.__name__)
def test_what_ends_a_baseline(past: dict[type, State], detector: type, change: Callable[[Round], Round]) -> None:
    """A repair, a driver, VBIOS, power limit or MIG profile ends that of the GPUs it is about; a new job does not."""
    state, made = past[detector], detector()
    logged = pl.DataFrame(schema={"ts": pl.Datetime("us", "UTC"), "node_id": pl.String, "gpu_uuid": pl.String})
    for w, round_ in enumerate(Cluster(nodes=2, nodes_per_job=2).rounds(6)):
        known = inventory(round_.gpu["gpu_uuid"].to_list(), ["96.00.B"] * 16)
        told = replace(round_, inventory=known, repairs=logged)
        state = made.score(change(told) if w >= 3 else told, state).state
    left = set(state["history"].get_column("key"))
    everyone = set(Cluster(nodes=2).uuids)
    ended = {job: set(), driver: {u for u in everyone if u.startswith("GPU-001")}}.get(change, {ONE})
    assert everyone - left == ended


def test_a_repair_counts_from_its_time_on() -> None:
    """In a round before it the log is as if it were not written: a replay gives what was given."""
    (round_,) = Cluster(nodes=2).rounds(1)
    view = gpus(round_.gpu, capability.NUMBERS)
    later = pl.DataFrame({"ts": [START + timedelta(hours=1)], "node_id": ["id-node001"], "gpu_uuid": [None]})
    later = later.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC")), pl.col("gpu_uuid").cast(pl.String))
    assert set(footing.read(view, replace(round_, repairs=later))["repaired"]) == {0.0}
    after = replace(round_, start=START + timedelta(hours=1), repairs=later)
    of_node = footing.read(gpus(round_.gpu.clone(), capability.NUMBERS), after)["repaired"]
    assert (of_node > 0).tolist() == [False] * 8 + [True] * 8


@pytest.mark.parametrize("detector", [Slow, Thermal], ids=lambda d: d.name)
def test_what_was_before_a_repair_is_not_learned(detector: type) -> None:
    """Priming after a repair ten days ago takes ten days of that GPU, and all of the others'."""
    history = Cluster(nodes=1, nodes_per_job=1).history(days=30, step_h=12)
    at = pl.DataFrame({"ts": [START - timedelta(days=10)], "node_id": ["id-node000"], "gpu_uuid": ["GPU-000-3"]})
    state = detector().learn(replace(history, repairs=at.cast({"ts": pl.Datetime("us", "UTC")})), {})
    days = dict(state["history"].group_by("key").len().iter_rows())
    assert days["GPU-000-3"] <= 11
    assert days["GPU-000-4"] >= 29


def test_a_null_is_no_change() -> None:
    """The last known value stands until another is known."""
    memory = {"driver": np.array([580.0, 580.0, np.nan])}
    known, ended = footing.recall(memory, {"driver": np.array([np.nan, 590.0, 590.0])})
    assert ended.tolist() == [False, True, False]
    assert known["driver"].tolist() == [580.0, 590.0, 590.0]


def test_numbers_of_texts_are_the_same_in_every_process() -> None:
    """A baseline kept over an update of a library is not ended by that library's hash."""
    told = footing.numbers(pl.Series("x", ["96.00.B", None, "96.00.B", "b"]))
    assert told[0] == told[2] == zlib.crc32(b"96.00.B")
    assert np.isnan(told[1])
    assert told[3] != told[0]
