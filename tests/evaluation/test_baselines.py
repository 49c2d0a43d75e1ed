"""The baselines against answers known by construction, and on input that has no answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.benchmarks.detection import baselines, baselines_panel
from graynode.benchmarks.detection.baselines import FloatArray, RowBaseline
from graynode.benchmarks.detection.baselines_panel import PanelBaseline

ROWS = baselines.rows_baselines(above=(5.0, 5.0, np.nan))
PANELS = baselines_panel.panel_baselines(sample_s=30.0)


def names(baseline: RowBaseline | PanelBaseline) -> str:
    return baseline.name


def train(rows: int = 400, features: int = 3, seed: int = 4) -> FloatArray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, features)) @ (0.3 * np.eye(features) + 1.0)


@pytest.mark.parametrize("baseline", ROWS, ids=names)
def test_what_is_far_from_everything_is_odder_than_the_middle_and_alarms(baseline: RowBaseline) -> None:
    """A point at (30, −30, 30) alarms under its published limit, the mean does not."""
    score = baseline.fit(train(), 1)
    odd, middle = score(np.array([[30.0, -30.0, 30.0], [0.0, 0.0, 0.0]]))
    assert odd > baseline.limit
    assert middle <= baseline.limit


@pytest.mark.parametrize("baseline", ROWS, ids=names)
def test_the_same_seed_gives_the_same_scores_in_any_order_of_rows(baseline: RowBaseline) -> None:
    """Fitting twice changes nothing; a row's score does not depend on its neighbours."""
    rows = train(seed=9)
    first, again = baseline.fit(train(), 3)(rows), baseline.fit(train(), 3)(rows[::-1])[::-1]
    assert np.array_equal(first, again)


@pytest.mark.parametrize("baseline", ROWS, ids=names)
def test_a_missing_feature_says_nothing_and_a_row_without_any_has_no_score(baseline: RowBaseline) -> None:
    """NaN is no number to be odd by."""
    holes = train()
    holes[::7, 0] = np.nan
    scores = baseline.fit(holes, 1)(np.array([[np.nan, 0.0, 0.0], [np.nan, np.nan, np.nan]]))
    assert scores[0] <= baseline.limit
    assert np.isnan(scores[1])


@pytest.mark.parametrize("baseline", ROWS, ids=names)
def test_equal_training_rows_make_an_equal_row_no_alarm(baseline: RowBaseline) -> None:
    """All the same, and one more of the same."""
    same = np.full((50, 3), 2.0)
    assert baseline.fit(same, 1)(same[:1])[0] <= baseline.limit


@pytest.mark.parametrize("baseline", [b for b in ROWS if b.name != "fixed_rule"], ids=names)
def test_nothing_to_learn_from_gives_no_score(baseline: RowBaseline) -> None:
    """No rows, and rows without a value."""
    for empty in (np.empty((0, 3)), np.full((5, 3), np.nan)):
        assert np.isnan(baseline.fit(empty, 1)(np.zeros((2, 3)))).all()


def test_scores_known_by_hand() -> None:
    """3 σ and MAD of 1 to 5: mean and median 3, σ √2, MAD 1; one side only where that is asked."""
    learned = np.arange(1.0, 6.0)[:, None]
    rows = np.array([[7.0], [-1.0]])
    assert baselines.three_sigma().fit(learned, 1)(rows) == pytest.approx([4 / 2**0.5] * 2)
    assert baselines.mad().fit(learned, 1)(rows) == pytest.approx([4 * 0.6745] * 2)
    assert baselines.mad(upper=True).fit(learned, 1)(rows) == pytest.approx([4 * 0.6745, -4 * 0.6745])
    rule = baselines.fixed_rule([10.0, np.nan]).fit(learned, 1)
    assert rule(np.array([[5.0, 99.0], [12.0, 0.0]])) == pytest.approx([0.5, 1.2])


def test_the_chi_square_limits_hold_on_normal_rows() -> None:
    """Mahalanobis alarms on 2.5 % of normal rows, the reconstruction error on about 1 %."""
    rows = np.random.default_rng(8).normal(size=(4000, 6)) * np.array([9, 7, 5, 1, 1, 1])
    for baseline, share in ((baselines.mahalanobis(), 0.025), (baselines.pca(explained=0.4), 0.01)):
        score = baseline.fit(rows[:2000], 1)
        assert (score(rows[2000:]) > baseline.limit).mean() == pytest.approx(share, abs=0.015)


@given(st.integers(0, 60), st.sampled_from([0.05, 0.1, 0.5]))
def test_a_threshold_at_a_rate_is_only_given_where_the_scores_can_promise_it(n: int, rate: float) -> None:
    """Exactly the share of rate·(n + 1) of the scores lies at or above it; with too few there is none."""
    scores = np.random.default_rng(n).permutation(np.arange(float(n)))
    limit = baselines.threshold_at(np.r_[scores, np.nan], rate)
    beyond = int(rate * (n + 1) + 1e-9)
    assert np.isnan(limit) if beyond == 0 else (scores >= limit).sum() == beyond


def panel(times: int = 40, units: int = 12, seed: int = 3) -> FloatArray:
    return 10.0 + 0.05 * np.random.default_rng(seed).normal(size=(times, units))


@pytest.mark.parametrize("baseline", PANELS, ids=names)
def test_a_unit_that_becomes_twice_as_slow_alarms_and_alone(baseline: PanelBaseline) -> None:
    """Unit 4 from time 20 on: named at the end, nobody else is, and nobody before."""
    slow = panel()
    slow[20:, 4] *= 2.0
    alarms = baseline.score(slow) > baseline.limit
    assert alarms[-1, 4]
    assert not alarms[-1, np.arange(12) != 4].any()
    if baseline.name != "grafana_mad":  # it alarms on the 0.4 % of healthy values that its limit means
        assert not alarms[:20].any()


@pytest.mark.parametrize("baseline", PANELS, ids=names)
def test_equal_units_and_one_unit_give_no_alarm(baseline: PanelBaseline) -> None:
    """Nobody differs, or there is nobody to differ from."""
    assert not (baseline.score(np.full((30, 5), 7.0)) > baseline.limit).any()
    assert not (baseline.score(np.full((30, 1), 7.0)) > baseline.limit).any()


@pytest.mark.parametrize("baseline", PANELS, ids=names)
def test_an_unknown_value_has_no_score_and_does_not_silence_the_others(baseline: PanelBaseline) -> None:
    """A unit that is never known leaves the slow one named; a panel without values has no scores."""
    holes = panel()
    holes[20:, 4] *= 2.0
    holes[:, 0] = np.nan
    scores = baseline.score(holes)
    assert np.isnan(scores[:, 0]).all()
    assert scores[-1, 4] > baseline.limit
    assert np.isnan(baseline.score(np.full((30, 3), np.nan))).all()


def test_one_huge_outlier_hides_the_small_one_from_dbscan() -> None:
    """eps follows the span of the panel: its published weakness."""
    values = np.array([[1.0, 1.1, 1.2, 1.3, 1.4, 3.0]])
    dbscan = baselines_panel.dbscan()
    assert list(dbscan.score(values)[0] > 1) == [False] * 5 + [True]
    values[0, 0] = 100.0
    assert list(dbscan.score(values)[0] > 1) == [True] + [False] * 5


def test_dbscan_without_a_cluster_of_more_than_half_makes_everybody_an_outlier() -> None:
    """Two equal groups far apart; with two units there is no verdict."""
    dbscan = baselines_panel.dbscan(sensitivity=0.9)
    assert (dbscan.score(np.array([[0.0, 0.1, 9.0, 9.1]])) > 1).all()
    assert not (dbscan.score(np.array([[0.0, 9.0]])) > 1).any()


def test_double_mad_measures_each_side_by_its_own_spread() -> None:
    """Median 0; below, deviations of 1, above of 10: −3 is as odd as 30."""
    values = np.array([[-1.0, -1.0, -1.0, 0.0, 10.0, 10.0, 10.0, 30.0, -3.0]])
    scores = baselines_panel.double_mad().score(values)[0]
    assert scores[-1] == pytest.approx(scores[-2])
    assert baselines_panel.double_mad().limit == pytest.approx(2.92, abs=0.005)


def test_minder_waits_for_the_same_machine_for_four_minutes() -> None:
    """At 10 s, 100 s of trouble touch 17 windows and 4 minutes are 24: no alarm; what lasts alarms after them."""
    minder = baselines_panel.minder(sample_s=10.0)
    short, lasting = panel(80), panel(80)
    short[20:30, 4] *= 2.0
    lasting[20:, 4] *= 2.0
    assert not (minder.score(short) > minder.limit).any()
    alarms = minder.score(lasting)[:, 4] > minder.limit
    assert np.flatnonzero(alarms)[0] == 43


def test_the_ratio_needs_a_third_more_time() -> None:
    """1.33 is within 0.75 of the best, 1.34 beyond; own best is the best so far, not the best to come."""
    assert list(baselines_panel.ratio().score(np.array([[1.0, 1.33, 1.34]]))[0] > 1 / 0.75) == [False, False, True]
    own = baselines_panel.ratio(own=True).score(np.array([[2.0], [1.0], [2.0]]))
    assert own[:, 0] == pytest.approx([1.0, 1.0, 2.0])


def test_load_regression_judges_a_value_by_its_load() -> None:
    """What is normal at a high load is slow at a low one; half of a window is no event, more is."""
    rng = np.random.default_rng(5)
    load = rng.uniform(1, 10, size=(200, 8))
    latency = 1.0 + 0.3 * load**2 + 0.1 * rng.normal(size=load.shape)
    score = baselines_panel.load_regression(latency, load, window=4)
    assert (score(latency, load) > 1).mean() < 1e-3
    slow = latency.copy()
    slow[100:102, 0] *= 1.5
    slow[100:103, 1] *= 1.5
    alarms = score(slow, load) > 1
    assert not alarms[:, 0].any()
    assert alarms[102, 1]


def test_load_regression_with_one_load_is_a_limit_and_with_nothing_learned_has_no_score() -> None:
    """A constant load leaves a constant bound; too few points leave none."""
    values = 10 + 0.1 * np.random.default_rng(1).normal(size=(50, 4))
    score = baselines_panel.load_regression(values, np.ones_like(values), window=1)
    assert score(np.array([[10.0, 11.0]]), np.ones((1, 2)))[0] == pytest.approx([0.97, 1.067], abs=0.01)
    nothing = baselines_panel.load_regression(values[:1], np.full((1, 4), np.nan))
    assert np.isnan(nothing(values, values)).all()
