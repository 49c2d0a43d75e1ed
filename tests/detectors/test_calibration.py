"""Thresholds from healthy node-days: exact bounds, days that propose and days that judge, clusters, drift."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graynode.detectors import calibration
from graynode.detectors.calibration import TooFewDays, false_rate, fit, needed, upper_share
from graynode.detectors.drift import drifted, over_budget

CLOCK = ("slow", "clock", 30)
TEMP = ("thermal", "temp", 30)
SHIPPED = {CLOCK: 0.6, TEMP: 144.0}
FIRST = date(2026, 9, 1)


def maxima(nodes: int, days: int, seed: int, scale: float = 0.02, heavy: bool = False) -> pl.DataFrame:
    """Exponential (or Student's t4) maxima of two signals."""
    rng = np.random.default_rng(seed)
    parts = []
    for (detector, signal, window_s), unit in ((CLOCK, scale), (TEMP, 4.0)):
        draw = np.abs(rng.standard_t(4, (nodes, days))) if heavy else rng.exponential(1.0, (nodes, days))
        parts.append(
            pl.DataFrame(
                {
                    "node_id": np.repeat([f"n{i}" for i in range(nodes)], days),
                    "day": pl.Series([FIRST + timedelta(days=d) for d in range(days)] * nodes),
                    "detector": detector,
                    "signal": signal,
                    "window_s": pl.Series([window_s] * (nodes * days), dtype=pl.Int32),
                    "maximum": (unit * draw).ravel(),
                }
            )
        )
    return pl.concat(parts)


def told_days(events: list[tuple[int, int]], nodes: int, days: int) -> pl.DataFrame:
    hit = set(events)
    rows = [(f"n{n}", FIRST + timedelta(days=d), (n, d) in hit) for n in range(nodes) for d in range(days)]
    return pl.DataFrame(rows, schema=["node_id", "day", "told"], orient="row")


@pytest.mark.parametrize(("told", "of", "budget"), [(2, 37_500, 2e-4), (27, 187_500, 2e-4), (11, 37_500, 5e-4)])
def test_the_bounds_of_the_design_are_these(told: int, of: int, budget: float) -> None:
    """Two in 37,500 certify 2e-4, as 27 in 187,500 do; one more does not."""
    assert upper_share(told, of) <= budget < upper_share(told + 1, of)


@given(st.integers(0, 60), st.integers(1, 4000))
def test_the_bound_is_that_of_clopper_and_pearson(told: int, of: int) -> None:
    """At the bound, so few or fewer are seen once in twenty times."""
    if told < of:
        assert stats.binom.cdf(told, of, upper_share(told, of)) == pytest.approx(0.05, rel=1e-6)
    else:
        assert upper_share(told, of) == 1.0


@pytest.mark.parametrize(("budget", "days"), [(2e-4, 14_978), (1e-3, 2_995), (5e-4, 5_990)])
def test_about_three_over_the_budget_are_needed(budget: float, days: int) -> None:
    """As many certify it and one fewer does not."""
    assert needed(budget) == days
    assert upper_share(0, days) <= budget < upper_share(0, days - 1)


def test_what_is_accepted_keeps_the_budget_and_most_fits_are_accepted() -> None:
    """Fifty fleets whose law is known: of the accepted sets none has a true rate over the budget."""
    budget, kept = 1e-2, 0
    for seed in range(50):
        found = fit(maxima(40, 20, seed), SHIPPED, budget)
        true = np.exp(-found.values[CLOCK] / 0.02) + np.exp(-found.values[TEMP] / 4.0)
        if found.accepted:
            kept += 1
            assert true <= budget, seed
    assert kept >= 35


def test_tails_heavier_than_thought_are_refused_or_right() -> None:
    """Student's t4: the tail's form is not theirs, so the judging days have to say no where it does not hold."""
    budget, wrong = 1e-2, 0
    for seed in range(50):
        found = fit(maxima(40, 20, seed, heavy=True), SHIPPED, budget)
        true = 2 * stats.t.sf(found.values[CLOCK] / 0.02, 4) + 2 * stats.t.sf(found.values[TEMP] / 4.0, 4)
        wrong += found.accepted and true > budget
    assert wrong <= 3  # one in twenty is what 95 % promises


def test_no_day_proposes_and_judges() -> None:
    """Later days ten times as wild change no threshold; they refuse the set."""
    rows = maxima(60, 40, 3)
    calm = fit(rows, SHIPPED, 5e-3)
    cut = calm.judged_on[0]
    wild = rows.with_columns(
        pl.when(pl.col("day") >= cut).then(pl.col("maximum") * 10).otherwise("maximum").alias("maximum")
    )
    assert calm.accepted
    assert calm.proposed_on[1] < cut
    assert calm.judged.node_days >= max(needed(5e-3), 60 * 20)
    again = fit(wild, SHIPPED, 5e-3)
    assert again.values == calm.values
    assert not again.accepted


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**31))
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    """Values, bound and hash are those of the data."""
    rows = maxima(30, 40, 5)
    one, two = fit(rows, SHIPPED, 1e-2), fit(rows.sample(fraction=1.0, shuffle=True, seed=seed), SHIPPED, 1e-2)
    assert one.values == two.values
    assert one.digest == two.digest
    assert one.judged == two.judged
    assert calibration.digest(rows.with_columns(pl.col("maximum") + 1e-6)) != one.digest


def test_too_few_days_are_counted() -> None:
    """Less than the budget asks for, none at all, or all of them on one day."""
    with pytest.raises(TooFewDays) as few:
        fit(maxima(10, 20, 1), SHIPPED, 1e-2)
    assert (few.value.have, few.value.need) == (200, 299)
    with pytest.raises(TooFewDays):
        fit(maxima(10, 20, 1).clear(), SHIPPED, 1e-2)
    with pytest.raises(TooFewDays):
        fit(maxima(400, 1, 1), SHIPPED, 1e-2)


def test_one_odd_node_or_one_hot_day_widens_the_bound() -> None:
    """Ten findings of one node, or of one day, say less than ten of ten nodes on ten days."""
    apart = false_rate(told_days([(i, i) for i in range(10)], 60, 30))
    one_node = false_rate(told_days([(0, d) for d in range(10)], 60, 30))
    one_day = false_rate(told_days([(n, 0) for n in range(10)], 60, 30))
    assert apart.told == one_node.told == one_day.told == 10
    assert one_node.upper > 1.2 * apart.upper
    assert one_day.upper > 1.2 * apart.upper
    assert one_node.by == "bootstrap over nodes and days"
    assert false_rate(told_days([], 60, 30)).by == "exact binomial"


def test_a_signal_that_nobody_saw_keeps_a_part_of_the_shipped_threshold() -> None:
    """And calm weeks bring none below a quarter of it."""
    found = fit(maxima(60, 40, 3, scale=1e-4), {**SHIPPED, ("slow", "throttle", 30): 0.8}, 5e-3)
    assert found.values["slow", "throttle", 30] == pytest.approx(0.2, rel=1e-4)
    assert found.values[CLOCK] == pytest.approx(0.15, rel=1e-4)
    assert ("slow", "throttle", 30) not in found.usual_most


def test_a_fit_near_what_scores_are_cut_at_says_so() -> None:
    """Sums are kept up to twice the threshold in force: a quantile there may be the cut and no quantile."""
    found = fit(maxima(60, 40, 3), SHIPPED, 5e-3, in_force={CLOCK: 0.05, TEMP: 144.0})
    assert found.capped == (CLOCK,)


def test_the_days_that_set_it_are_named() -> None:
    """The node-days that came nearest, the most telling first, for a person to look at."""
    top = fit(maxima(60, 40, 3), SHIPPED, 5e-3).top
    assert top.height == 5
    assert top["part"].is_sorted(descending=True)
    assert set(top.columns) >= {"node_id", "day", "signal", "maximum"}


def test_drift_of_a_fleet_is_told_and_one_odd_node_or_chance_is_not() -> None:
    """Maxima half as large again: 1 % becomes 4.6 %. The p-value is the binomial's."""
    before, usual = maxima(100, 30, 1), {}
    usual = {CLOCK: float(before.filter(pl.col("signal") == "clock")["maximum"].quantile(0.99) or 0.0)}
    assert sum(bool(drifted(maxima(100, 7, seed), usual)) for seed in range(20, 60)) <= 1
    (moved,) = drifted(maxima(100, 7, 2, scale=0.03), usual)
    assert moved.key == CLOCK
    assert moved.expected == pytest.approx(7.0)
    assert moved.p_value == pytest.approx(stats.binom.sf(moved.above - 1, 700, 0.01), rel=1e-6)
    odd = maxima(100, 7, 3).with_columns(
        pl.when(pl.col("node_id").is_in(["n1", "n2"])).then(9.0).otherwise(pl.lit(0.0)).alias("maximum")
    )
    assert drifted(odd, usual) == []
    assert drifted(maxima(100, 7, 2).clear(), usual) == []


def test_a_budget_that_is_not_kept_shows() -> None:
    """Three where 0.3 were due: one in 278 by chance."""
    assert over_budget(3, 1500, 2e-4) == pytest.approx(stats.binom.sf(2, 1500, 2e-4))
    assert over_budget(0, 1500, 2e-4) == 1.0
