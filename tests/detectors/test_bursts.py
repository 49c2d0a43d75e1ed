"""Intermittent faults: windows beyond τ within a day against their expectation."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import stats
from window_rounds import Cluster, Columns

from graynode.detectors import bursts
from graynode.detectors.accumulate import TAU
from graynode.detectors.base import TOLD, State
from graynode.detectors.slow import Slow
from graynode.detectors.thresholds import shipped

SICK = 11
H = shipped().value("slow", "bursts", 30)


def memory(n: int = 1, base: float = np.nan) -> dict[str, np.ndarray]:
    return {c: np.full(n, np.nan) for c in bursts.COLUMNS} | {"bursts.base": np.full(n, base)}


def score(excess: np.ndarray, base: float = np.nan) -> np.ndarray:
    """The score after each window."""
    held = memory(1, base)
    return np.array(
        [bursts.advance(held, np.full(1, x), TAU, np.full(1, 30.0 * w), 30)[0] for w, x in enumerate(excess)]
    )


def test_the_tail_is_that_of_a_negative_binomial() -> None:
    """Of the mean that is expected, with three times a Poisson's variance."""
    count, expected = np.array([10.0, 24.0, 40.0]), np.array([1.2, 2.0, 3.0])
    law = stats.nbinom(expected / 2.0, 1.0 / 3.0)
    assert np.allclose(law.var() / law.mean(), bursts.DISPERSION)
    assert np.allclose(bursts.tail(count, expected), law.sf(count - 1))


def test_one_window_in_ten_is_told_within_three_hours_and_the_sum_never_would() -> None:
    """8 % slow for 90 s of every 15 minutes."""
    duty = np.where(np.arange(400) % 30 < 3, 0.08, 0.0)
    scores = score(duty)
    assert 90 < int(np.argmax(scores >= H)) < 360
    total = np.zeros(1)
    for x in duty:
        total = np.maximum(0.0, total + np.clip(x, -0.06, 0.06) - TAU / 2)
        assert total < 0.3


def test_a_gpu_that_always_had_such_windows_is_judged_by_its_own_share() -> None:
    """With 10 % on the days before, 10 % today is no news."""
    duty = np.where(np.arange(400) % 30 < 3, 0.08, 0.0)
    assert score(duty, base=0.1).max() < H / 2


def test_nothing_is_said_three_hours_after_the_last() -> None:
    """The count remembers the day, and what has passed is not told on."""
    duty = np.where((np.arange(1200) % 30 < 3) & (np.arange(1200) < 400), 0.08, 0.0)
    scores = score(duty)
    assert scores[399] >= H
    assert (scores[770:] == 0).all()


def test_windows_that_cannot_tell_count_nowhere() -> None:
    """An idle night takes nothing off and puts nothing on."""
    held = memory()
    for w in range(100):
        bursts.advance(held, np.full(1, 0.08 if w % 10 == 0 else 0.0), TAU, np.full(1, 30.0 * w), 30)
    before = held["bursts.count"].copy()
    bursts.advance(held, np.full(1, np.nan), TAU, np.full(1, 3030.0), 30)
    assert np.array_equal(held["bursts.count"], before)


@pytest.mark.long
def test_healthy_node_days_stay_below_half_of_the_threshold_and_more() -> None:
    """200 node-days of 8 GPUs: AR(1) 0.8, t4, sigma 1 %, GPU × job offset 0.3 %."""
    rng, n = np.random.default_rng(7), 1600
    held, noise, bias, most = memory(n), np.zeros(n), rng.normal(0, 0.003, n), 0.0
    for w in range(2880):
        noise = 0.8 * noise + 0.6 * rng.standard_t(4, n) / np.sqrt(2)
        most = max(most, bursts.advance(held, 0.01 * noise + bias, TAU, np.full(n, 30.0 * w), 30).max())
    assert most < 0.6 * H


def test_the_detector_tells_an_intermittent_fault_as_a_ticket_that_says_how_often() -> None:
    """One window in five of 8 %: the sums stay low, and the day's share is in the message."""

    def now_and_then(w: int, c: Columns) -> None:
        if w % 5 == 0:
            c["sm_clock_mhz_mean"][SICK] *= 0.92

    c = Cluster(nodes=2, nodes_per_job=2)
    state: State = Slow().learn(c.history(step_h=12), {})
    found = []
    for round_ in Cluster(nodes=2, nodes_per_job=2, gpu_fault=now_and_then).rounds(120):
        scored = Slow().score(round_, state)
        state = scored.state
        found.append(scored.findings)
    told = pl.concat(found).filter(TOLD)
    assert set(told["gpu_uuid"]) == {"GPU-001-3"}
    assert set(told["signal"]) == {"bursts"}
    assert set(told["severity"]) == {"ticket"}
    assert "20.0% of the day's windows" in told["message"][-1]
    assert state["gpu"]["clock.sum"].max() < 0.3
