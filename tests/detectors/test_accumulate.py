"""The sequential layer: CUSUM in effect units."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graynode.detectors import accumulate
from graynode.detectors.accumulate import TAU, Run

FLOATS = st.one_of(st.just(float("nan")), st.floats(-1, 1, allow_nan=False))


@given(st.lists(FLOATS, max_size=60))
def test_the_sum_follows_its_formula(residuals: list[float]) -> None:
    """S = max(0, S + clip(r, ±1.2 τ) − τ/2), and NaN leaves it as it is."""
    s, expected = np.array([np.nan]), 0.0
    for r in residuals:
        s = accumulate.cusum(s, np.array([r]))
        if not np.isnan(r):
            expected = max(0.0, expected + min(max(r, -1.2 * TAU), 1.2 * TAU) - TAU / 2)
        assert np.isclose(s[0], expected)


def test_one_wild_window_counts_little_more_than_one_slow_one() -> None:
    """A window ten times slower adds 0.7 τ, one that is τ slower 0.5 τ."""
    zero = np.zeros(1)
    assert np.isclose(accumulate.cusum(zero, np.array([10.0]))[0], 0.7 * TAU)
    assert np.isclose(accumulate.cusum(zero, np.array([TAU]))[0], 0.5 * TAU)


def test_a_run_knows_since_when_and_how_much_and_forgets_when_it_is_over() -> None:
    """The mean covers the windows of the run only; after recovery the next run starts anew."""
    memory = {c: np.full(1, np.nan) for c in Run.columns("x")}
    residuals = [0.0, 0.06, 0.04, np.nan, 0.05, -0.06, -0.06, -0.06, 0.05]
    runs = [accumulate.advance(memory, "x", np.array([r]), np.array([float(i)])) for i, r in enumerate(residuals)]
    assert np.isnan(runs[0].since_s[0])
    assert runs[4].since_s[0] == 1.0
    assert np.isclose(runs[4].mean[0], 0.05)
    assert runs[7].sum[0] == 0
    assert runs[8].since_s[0] == 8.0
    assert np.isclose(runs[8].mean[0], 0.05)


def test_however_long_it_lasted_it_is_over_within_the_hour() -> None:
    """The sum stays within twice the limit: a day of 6 % is below half of the limit 36 windows after it has ended."""
    memory = {c: np.full(1, np.nan) for c in Run.columns("x")}
    for _ in range(2880):
        run = accumulate.advance(memory, "x", np.array([0.06]), np.zeros(1), limit=0.6)
    assert np.isclose(run.sum[0], 1.2)
    after = [accumulate.advance(memory, "x", np.zeros(1), np.zeros(1), limit=0.6).sum[0] for _ in range(37)]
    assert after[-1] < 0.3 <= after[-3]


def test_forgetting_starts_anew_only_where_told() -> None:
    """A new driver ends the run of its GPU, not of its neighbour."""
    memory = {c: np.full(2, np.nan) for c in Run.columns("x")}
    accumulate.advance(memory, "x", np.array([0.05, 0.05]), np.zeros(2))
    accumulate.forget(memory, "x", np.array([True, False]))
    run = accumulate.advance(memory, "x", np.array([0.05, 0.05]), np.ones(2))
    assert np.allclose(run.sum, [TAU / 2, TAU])


def test_strikes_are_windows_in_a_row_and_the_unknown_does_not_break_the_row() -> None:
    """Bad, unknown, bad is two in a row; a good one is zero."""
    count = np.array([np.nan])
    for bad, known, wanted in ((True, True, 1), (False, False, 1), (True, True, 2), (False, True, 0)):
        count = accumulate.strikes(count, np.array([bad]), np.array([known]))
        assert count[0] == wanted
