"""Heat at equal power, against neighbours and the own past."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from window_rounds import Change, Cluster, Columns

from graynode.detectors import capability, residual, thermal
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
    """Five degrees at 340 W for weeks, nine and a half at 640 W today: a heat sink that always was worse, at more power."""
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
