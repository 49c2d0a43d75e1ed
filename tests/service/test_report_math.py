"""Intervals, lengths with censoring, and whether the forecast covers what it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.service.report_math import between, dispersion, forecast, lengths, per_1000


def test_a_rate_has_garwoods_bounds() -> None:
    """Ten failures in 10,000 node-days: 1 per 1,000, 0.48 to 1.84; none in 1,000: at most 3.69, and no MTBF."""
    told = per_1000(10, 10_000)
    assert told.value == pytest.approx(1.0)
    assert (told.low, told.high) == (pytest.approx(0.4795, abs=1e-3), pytest.approx(1.839, abs=1e-3))
    assert per_1000(0, 1000).high == pytest.approx(3.689, abs=1e-3)
    assert between(0, 1000).value is None
    assert between(0, 1000).low == pytest.approx(1000 / 3.689, rel=1e-3)
    assert between(0, 1000).high is None
    assert per_1000(0, 0).value is None


def test_what_still_runs_counts_as_far_as_seen() -> None:
    """Kaplan and Meier's textbook case: steps at 1 and 3 of cases 1, 2+, 3, 4+."""
    told = lengths([1, 2, 3, 4], [True, False, True, False])
    assert told.t == (1.0, 3.0)
    assert told.share == (pytest.approx(0.25), pytest.approx(1 - 0.75 * 0.5))
    assert (told.quantile(0.5), told.quantile(0.9)) == (3.0, None)
    assert lengths([], []).quantile(0.5) is None


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=50))
def test_without_censoring_it_is_the_share_of_cases(seconds: list[float]) -> None:
    """Where all are over, the curve is the empirical distribution."""
    told = lengths(seconds, [True] * len(seconds))
    for t, s in zip(told.t, told.share, strict=True):
        assert s == pytest.approx(np.mean([x <= t for x in seconds]))


def _weeks(rng: np.random.Generator, world: str, n: int, mean: float) -> np.ndarray:
    if world == "poisson":
        return rng.poisson(mean, n)
    if world == "uneven weeks":
        return rng.poisson(rng.gamma(2.0, mean / 2.0, n))
    groups = rng.poisson(mean / 3, n)
    return np.array([rng.geometric(1 / 3, g).sum() for g in groups])


@pytest.mark.parametrize("world", ["poisson", "uneven weeks", "clumps"])
@pytest.mark.parametrize("mean", [3.0, 30.0])
def test_the_forecast_covers_what_it_says(world: str, mean: float) -> None:
    """From 26 weeks, the next four stay below the 95 % figure in 92 % or more of 600 made sites, and below the 99 %
    figure in 97 % or more: in a world of pure chance, of good and bad weeks, and of failures that come in clumps."""
    rng, below_95, below_99, sites = np.random.default_rng(7), 0, 0, 600
    for _ in range(sites):
        told = forecast(_weeks(rng, world, 26, mean).tolist(), [700.0] * 26, 2800.0, 100.0, 1.0)
        assert told is not None
        ahead = _weeks(rng, world, 4, mean).sum()
        below_95, below_99 = below_95 + (ahead <= told.failures_95), below_99 + (ahead <= told.failures_99)
    assert below_95 / sites >= 0.92
    assert below_99 / sites >= 0.97


def test_without_scatter_it_is_the_negative_binomial() -> None:
    """φ = 1: shape Y + 1/2 and p = E/(E+h), checked against a sum of its probabilities."""
    told = forecast([3, 3, 3, 3], [100.0] * 4, 100.0, 10.0, 2.0)
    assert told is not None
    assert told.dispersion == 1.0
    shape, p, total, k = 12.5, 0.8, 0.0, -1
    log_p = shape * np.log(p)
    while total < 0.95:
        k += 1
        total += np.exp(log_p)
        log_p += np.log((shape + k) / (k + 1) * (1 - p))
    assert told.failures_95 == k
    assert told.mean == pytest.approx(12.5 / 4)
    assert told.down_mean == pytest.approx(12.5 / 400 * 10 * 2)


def test_no_failure_still_has_an_upper_bound() -> None:
    """Half a failure of prior: none seen in 12 weeks is no promise of none."""
    told = forecast([0] * 12, [70.0] * 12, 300.0, 10.0, None)
    assert told is not None
    assert told.failures_99 >= 1
    assert told.down_95 is None
    assert forecast([], [], 300.0, 10.0, None) is None


def test_clumps_are_seen_as_scatter() -> None:
    """Twelve failures in one of twelve weeks scatter twelve times as wide as chance."""
    assert dispersion([12, *[0] * 11], [1.0] * 12) == pytest.approx(12.0)
