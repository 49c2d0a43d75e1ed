"""Once a day: who is always slower, and who becomes slower bit by bit."""

from __future__ import annotations

import json
from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from window_rounds import START, Cluster, Columns

from graynode.detectors import slow_daily
from graynode.detectors.base import TOLD, Round, State
from graynode.detectors.slow import Slow

SICK = 11


def noisy(n: int, seed: int, sigma: float = 0.003, rho: float = 0.0) -> np.ndarray:
    """Daily centres of ``n`` healthy GPUs over five weeks."""
    rng = np.random.default_rng(seed)
    days, now = [], rng.normal(0, sigma, n)
    for _ in range(35):
        now = rho * now + np.sqrt(1 - rho * rho) * rng.normal(0, sigma, n)
        days.append(now)
    return np.column_stack(days)


@pytest.mark.parametrize("per_day", [0.001, 0.0015, 0.002])
def test_a_ramp_too_slow_for_the_own_baseline_is_a_trend(per_day: float) -> None:
    """0.1 % to 0.2 % a day among 0.3 % of noise: all found, with how far it has gone."""
    days = noisy(50, 1) + per_day * np.arange(35)
    drift, p = slow_daily.drifts(days)
    assert (p < 1e-6).all()
    assert np.allclose(drift, 34 * per_day, atol=0.006)


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_healthy_gpus_have_no_trend(rho: float) -> None:
    """Of 5,000, days alike or each for itself: none reaches half of τ."""
    drift, _ = slow_daily.drifts(noisy(5000, 2, rho=rho))
    assert drift.max() < 0.025


def test_a_gpu_that_becomes_faster_has_none() -> None:
    """Drift 0 and p 1: nobody is told of an improvement."""
    drift, p = slow_daily.drifts(noisy(3, 3) - 0.002 * np.arange(35))
    assert drift.tolist() == [0.0] * 3
    assert p.tolist() == [1.0] * 3


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(0, 20))
def test_slope_and_rank_test_are_scipy_s(seed: int, missing: int) -> None:
    """Theil-Sen's slope and Kendall's S as computed elsewhere, whatever days are missing."""
    rng = np.random.default_rng(seed)
    days = 0.002 * np.arange(35) + rng.normal(0, 0.003, 35)
    days[rng.permutation(np.arange(1, 34))[:missing]] = np.nan
    known = np.flatnonzero(~np.isnan(days))
    drift, _ = slow_daily.drifts(days[None, :])
    slope = stats.theilslopes(days[known], known).slope
    assert drift[0] == pytest.approx(slope * (known[-1] - known[0]))


def test_fewer_than_two_weeks_cannot_tell() -> None:
    """Thirteen days, whatever they show."""
    days = np.full((1, 35), np.nan)
    days[0, -13:] = np.arange(13) * 0.01
    assert np.isnan(slow_daily.drifts(days)).all()


def history(change: dict[str, np.ndarray] | None = None, power_limit: np.ndarray | None = None) -> tuple[Round, State]:
    """Five weeks of one job over eight nodes with rows changed by day, learned; and the first window after."""

    def changed(w: int, c: Columns) -> None:
        for column, by_day in (change or {}).items():
            c[column][SICK] *= by_day[min(w, len(by_day) - 1)]
        if power_limit is not None:
            c["power_limit_enforced_w_last"] = power_limit

    c = Cluster(nodes=4, nodes_per_job=4, gpu_fault=changed, sigma=0.001)
    rounds = [c.round(d * 2 + h, START - timedelta(days=35 - d, hours=-h), 3600) for d in range(35) for h in (0, 1)]
    frames = {t: pl.concat([getattr(r, t) for r in rounds]) for t in ("gpu", "link", "host")}
    empty = {t: pl.DataFrame() for t in ("events", "probes", "inventory", "quality")}
    state = Slow().learn(Round(rounds[0].start, 3600, **frames, **empty), {})
    return c.round(70, START), state


def test_always_slower_is_listed_with_its_rank_and_asks_for_a_probe() -> None:
    """8 % for five weeks: a digest that says the slowest of 32, in the first round of the day and not in the next."""
    round_, state = history({"sm_clock_mhz_mean": np.full(70, 0.92)})
    scored = Slow().score(round_, state)
    (level,) = scored.findings.filter(pl.col("signal") == "level").to_dicts()
    assert (level["gpu_uuid"], level["severity"], level["peers"]) == ("GPU-001-3", "digest", 31)
    assert json.loads(level["evidence"]) | {"rank": 1, "of": 32} == json.loads(level["evidence"])
    assert "GEMM benchmark" in level["action"]
    again = Slow().score(Cluster(nodes=4, nodes_per_job=4).round(71, START + timedelta(seconds=30)), scored.state)
    assert again.findings.filter(pl.col("signal") == "level").is_empty()


def test_a_lower_power_limit_is_another_level() -> None:
    """Eight GPUs at 500 W clock 8 % lower by right: each is compared with the other seven."""
    limit = np.full(32, 700.0)
    limit[8:16] = 500.0

    def capped(_: int, c: Columns) -> None:
        c["power_limit_enforced_w_last"] = limit
        c["sm_clock_mhz_mean"][8:16] *= 0.92

    c = Cluster(nodes=4, nodes_per_job=4, gpu_fault=capped, sigma=0.001)
    state = Slow().learn(c.history(step_h=12), {})
    assert Slow().score(c.round(0, START), state).findings.filter(TOLD).is_empty()


def test_a_trend_is_told_by_the_detector_with_what_it_comes_to() -> None:
    """0.1 % a day for five weeks: a digest below τ, 0.2 %: a ticket above; level and change aside."""
    for per_day, severity in ((0.001, "digest"), (0.002, "ticket")):
        round_, state = history({"sm_clock_mhz_mean": 1 - per_day * np.repeat(np.arange(35), 2)})
        found = Slow().score(round_, state).findings.filter(TOLD)
        (trend,) = found.filter(pl.col("gpu_uuid") == "GPU-001-3").to_dicts()
        assert (trend["signal"], trend["severity"]) == ("trend", severity)
        assert trend["effect"] == pytest.approx(34 * per_day, abs=0.006)
        assert trend["since"] < START - timedelta(days=30)
