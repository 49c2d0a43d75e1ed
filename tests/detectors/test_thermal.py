"""Heat at equal power, against neighbours and the own past."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from window_rounds import Change, Cluster, Columns

from graynode.detectors import capability, residual, thermal, thermal_curve
from graynode.detectors.base import TOLD, State
from graynode.detectors.frames import gpus

SICK = 11


@pytest.fixture(scope="module")
def past() -> State:
    return thermal.Thermal().learn(Cluster(nodes=4).history(step_h=12), {})


def told(fault: Change, state: State, windows: int = 40) -> pl.DataFrame:
    c, found = Cluster(nodes=4, gpu_fault=fault), []
    for round_ in c.rounds(windows):
        scored = thermal.Thermal().score(round_, state)
        state = scored.state
        found.append(scored.findings)
    return pl.concat(found).filter(TOLD)


def test_hotter_than_the_neighbours_at_the_same_power_is_told(past: State) -> None:
    """Twelve degrees more: a ticket that names the GPU and the degrees."""

    def hot(_: int, c: Columns) -> None:
        c["temp_c_mean"][SICK] += 12.0

    found = told(hot, past)
    assert set(found["gpu_uuid"]) == {"GPU-001-3"}
    assert set(found["signal"]) == {"temp"}
    assert "12 °C hotter" in found["message"][0]


def test_hotter_because_it_works_more_is_not(past: State) -> None:
    """At 200 W more, ten degrees more are physics."""

    def busy(_: int, c: Columns) -> None:
        c["power_w_mean"][::3] += 200.0
        c["temp_c_mean"][::3] += 10.0

    assert told(busy, past).is_empty()


def test_memory_that_drifts_from_the_core_is_told(past: State) -> None:
    """Core as ever, HBM fifteen degrees over its usual distance."""

    def drift(_: int, c: Columns) -> None:
        c["mem_temp_c_mean"][SICK] += 15.0

    assert set(told(drift, past)["signal"]) == {"gradient"}


def test_no_margin_left_for_five_minutes_is_told() -> None:
    """Before it throttles, and without any history."""

    def close(_: int, c: Columns) -> None:
        c["temp_margin_c_min"][SICK] = 1.0

    found = told(close, {}, 15)
    assert set(found["signal"]) == {"margin"}
    assert found.height == 6


def test_gpus_at_another_power_are_no_peers() -> None:
    """A rank that waits in the collective at half of the power is compared with nobody, and the others without it."""
    frame = next(Cluster(nodes=2, nodes_per_job=1).rounds(1)).gpu
    half = pl.when(pl.col("gpu_uuid") == "GPU-000-3").then(pl.col("power_w_mean") * 0.55).otherwise("power_w_mean")
    view = gpus(frame.with_columns(power_w_mean=half), (*capability.NUMBERS, "temp_c_mean", "mem_temp_c_mean"))
    temp = thermal.at_equal_power(view, residual.peers(view), 30)["temp"]
    assert np.isnan(temp[3])
    assert np.isnan(temp).sum() == 1


def test_a_job_that_takes_more_power_than_those_before_accuses_nobody() -> None:
    """Five degrees at 340 W for weeks, nine and a half at 640 W today: a heat sink that always was worse."""
    c = Cluster(nodes=4)
    history = c.history(step_h=12)
    sick = history.gpu["gpu_uuid"] == "GPU-001-3"
    lower = history.gpu.with_columns(
        power_w_mean=pl.col("power_w_mean") - 300.0, temp_c_mean=pl.col("temp_c_mean") - 15.0 + 5.0 * sick
    )
    state = thermal.Thermal().learn(replace(history, gpu=lower), {})

    def more(_: int, columns: Columns) -> None:
        columns["temp_c_mean"][SICK] += 9.5

    assert told(more, state, 80).is_empty()


def test_a_gpu_that_waits_beside_others_that_work_is_judged_at_its_own_power(past: State) -> None:
    """Half of the node takes 60 % of the power and is as much cooler: nobody is odd, and a fault there still shows."""

    def waiting(c: Columns) -> None:
        c["power_w_mean"][8:12] *= 0.6
        for column in ("temp_c_mean", "mem_temp_c_mean"):
            c[column][8:12] -= 0.4 * 640 * 0.05

    def healthy(_: int, c: Columns) -> None:
        waiting(c)

    def throttled(_: int, c: Columns) -> None:
        waiting(c)
        c["temp_c_mean"][SICK] += 14.0

    assert told(healthy, past).is_empty()
    assert set(told(throttled, past, 60)["gpu_uuid"]) == {"GPU-001-3"}


def test_a_hot_aisle_is_no_gpu_s_fault(past: State) -> None:
    """Nine degrees more on every GPU of a node, or of all: no GPU is named."""

    def aisle(_: int, c: Columns) -> None:
        c["temp_c_mean"][8:16] += 9.0

    assert told(aisle, past).is_empty()


def test_windows_in_which_power_moves_are_not_judged(past: State) -> None:
    """Core temperature follows by a minute or two: work that comes and goes every window accuses nobody."""

    def swinging(w: int, c: Columns) -> None:
        c["power_w_mean"][SICK] *= 0.5 if w % 2 else 1.0

    assert told(swinging, past, 60).is_empty()


def test_a_gpu_moved_to_another_slot_has_another_curve(past: State) -> None:
    """Eight degrees more where it sits now are the place: what it was elsewhere is forgotten, and nobody is told."""
    c, state, found = Cluster(nodes=4), past, []
    for w, round_ in enumerate(c.rounds(60)):
        here = pl.col("gpu_uuid") == "GPU-001-3"
        slot = pl.when(here & (w >= 5)).then(pl.lit("0000:99:00.0")).otherwise("pci_bus_id_last")
        warm = pl.when(here & (w >= 5)).then(pl.col("temp_c_mean") + 12.0).otherwise("temp_c_mean")
        moved = replace(round_, gpu=round_.gpu.with_columns(slot.alias("pci_bus_id_last"), warm.alias("temp_c_mean")))
        scored = thermal.Thermal().score(moved, state)
        state = scored.state
        found.append(scored.findings)
    assert pl.concat(found).filter(TOLD).is_empty()
    assert "GPU-001-3" not in state["history"]["key"].to_list()


def test_a_suspect_does_not_teach_its_curve(past: State) -> None:
    """A heat sink that stays blocked over midnight: of the evening only the first minutes are in that day's mean.

    Of 120 windows 30 were healthy; with all of them the day would lie ten degrees off.
    """

    def blocked(w: int, c: Columns) -> None:
        if w >= 2 * 60 * 17 + 30:  # 23:15
            c["temp_c_mean"][SICK] += 14.0

    c, state, found = Cluster(nodes=2, gpu_fault=blocked), past, []
    for round_ in c.rounds(200, first=2 * 60 * 17):
        scored = thermal.Thermal().score(round_, state)
        state = scored.state
        found.append(scored.findings)
    assert pl.concat(found).filter(TOLD)["ts"].max() == round_.start
    mine = state["history"].filter(pl.col("key") == "GPU-001-3").sort("day")
    assert mine["temp.y"][-1] == pytest.approx(mine["temp.y"][:-1].median(), abs=6.0)


def test_the_curve_is_found_again_from_days_at_different_powers() -> None:
    """Level and slope of 64 GPUs from three weeks of two loads a day, among a degree of noise."""
    rng, n = np.random.default_rng(4), 64
    level, slope = rng.normal(0, 3, n), rng.normal(0.004, 0.005, n)
    t = np.repeat(np.arange(21 * 6), n) * 14_400.0
    gpu = np.tile(np.arange(n), 21 * 6)
    power = np.where(t // 14_400 % 2 == 0, 350.0, 600.0) + rng.normal(0, 15, len(t))
    over = level[gpu] + slope[gpu] * (power - 475.0) + rng.normal(0, 1.0, len(t))
    keys = pl.Series("key", [f"g{i}" for i in gpu])
    history = thermal_curve.days_of(keys, t, power, {"temp": over}, 3600)
    own = pl.Series("key", [f"g{i}" for i in range(n)])
    curve = thermal_curve.fit(history, own, np.zeros(n, dtype=np.int64), "temp", 28.0)
    for at in (350.0, 600.0):
        off = curve.expected(np.full(n, at)) - level - slope * (at - 475.0)
        assert np.abs(off).max() < 1.5
        assert np.sqrt(np.mean(off**2)) < 0.5
    assert set(curve.firm) == {1.0}


def test_one_wild_day_moves_the_curve_by_a_fraction_of_a_degree() -> None:
    """A sensor stuck for a day in three weeks: 40 °C there, a third of a degree in the curve."""
    t = np.arange(21 * 12) * 7200.0
    wild = np.where(t // 86_400 == 9, 40.0, 0.0)
    history = thermal_curve.days_of(pl.Series("key", ["a"] * len(t)), t, np.full(len(t), 500.0), {"temp": wild}, 3600)
    curve = thermal_curve.fit(history, pl.Series("key", ["a"]), np.zeros(1, dtype=np.int64), "temp", 28.0)
    assert 0.0 <= curve.expected(np.full(1, 500.0))[0] < 0.35


def test_a_power_never_taken_is_asked_with_doubt() -> None:
    """Known at 340 W only: at 340 W sure to a fifth of a degree, at 640 W not to one and a half."""
    t = np.arange(21 * 12) * 7200.0
    history = thermal_curve.days_of(
        pl.Series("key", ["a"] * len(t)), t, np.full(len(t), 340.0), {"temp": np.full(len(t), 5.0)}, 3600
    )
    curve = thermal_curve.fit(history, pl.Series("key", ["a"]), np.zeros(1, dtype=np.int64), "temp", 28.0)
    assert curve.doubt(np.full(1, 340.0))[0] < 0.2
    assert curve.doubt(np.full(1, 640.0))[0] > 1.5


def test_the_order_of_the_days_changes_not_a_bit_of_the_curve() -> None:
    """Whatever order the past comes in, the curves are the same to the last digit: a replay must find the same."""
    rng = np.random.default_rng(1)
    names = [f"gpu{i}" for i in range(20)]
    keys = pl.Series("key", names * 28)
    t = np.repeat(np.arange(28.0), 20) * 86_400
    power, over = rng.uniform(300, 700, len(t)), rng.normal(0, 1, len(t))
    history = thermal_curve.days_of(keys, t, power, {"temp": over}, 3600)
    own, models = pl.Series("key", names), np.zeros(20, dtype=np.int64)
    first = thermal_curve.fit(history, own, models, "temp", 28.0)
    for seed in range(5):
        shuffled = history.sample(fraction=1.0, shuffle=True, seed=seed)
        other = thermal_curve.fit(shuffled, own, models, "temp", 28.0)
        for part in ("level", "at", "slope", "level_var", "slope_var", "days", "firm"):
            np.testing.assert_array_equal(getattr(first, part), getattr(other, part), part)
