"""Heat at equal power, against neighbours and the own past."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from window_rounds import Change, Cluster, Columns

from graynode.detectors import residual, thermal
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


def test_the_slope_is_that_of_the_window_and_stays_physical() -> None:
    """0.05 °C/W in, 0.05 out; where power hardly differs or the fit is absurd, a bound or the default."""
    rng = np.random.default_rng(1)
    view = gpus(next(Cluster(nodes=4).rounds(1)).gpu, ("power_w_mean",))
    groups = residual.peers(view)
    power = 300 + 400 * rng.random(len(view))
    temp = 30 + 0.08 * power + rng.normal(0, 0.5, len(view))
    assert thermal.degrees_per_watt(temp, power, groups) == pytest.approx(0.08, abs=0.005)
    assert thermal.degrees_per_watt(10 * temp, power, groups) == 0.15
    assert thermal.degrees_per_watt(temp, np.full(len(view), 600.0), groups) == 0.05
