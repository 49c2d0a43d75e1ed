"""Bounds against values from the literature, and the cluster bootstrap against independence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.benchmarks.detection.intervals import by_cluster
from graynode.detectors.exact_bounds import clopper_pearson, poisson_rate


def test_shares_known_from_the_literature() -> None:
    """8 of 10, and 0 of 20 (the rule of three's exact form)."""
    assert clopper_pearson(8, 10) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert clopper_pearson(0, 20)[1] == pytest.approx(1 - 0.025 ** (1 / 20))
    assert clopper_pearson(0, 20, one_sided=True)[1] == pytest.approx(1 - 0.05 ** (1 / 20))
    assert clopper_pearson(20, 20)[1] == 1.0


def test_two_events_certify_two_in_ten_thousand_node_days() -> None:
    """The budget's own arithmetic: at most 2 in 37,500 and 27 in 187,500 lie below 2e-4; one more does not."""
    for events, node_days in ((2, 37_500), (27, 187_500)):
        assert poisson_rate(events, node_days, one_sided=True)[1] <= 2e-4
        assert poisson_rate(events + 1, node_days, one_sided=True)[1] > 2e-4


@given(st.integers(0, 50), st.integers(1, 50))
def test_bounds_hold_the_share(hits: int, more: int) -> None:
    """Whatever was counted lies within its own bounds."""
    low, high = clopper_pearson(hits, hits + more)
    assert 0 <= low <= hits / (hits + more) <= high <= 1


def test_rows_of_one_cluster_do_not_count_as_many() -> None:
    """A hundred equal rows in each of ten clusters are ten observations: the interval is wide."""
    values = np.repeat(np.random.default_rng(1).normal(size=10), 100).reshape(10, 100)

    def mean(weights: np.ndarray) -> float:
        return float((weights[:, None] * values).sum() / (weights.sum() * 100))

    low, high = by_cluster(mean, 10, np.random.default_rng(2))
    assert high - low > 0.5


def test_a_figure_that_no_draw_has_is_not_a_number() -> None:
    """No draw gives the figure: no bound is made up."""
    assert np.isnan(by_cluster(lambda _: float("nan"), 3, np.random.default_rng(1))).all()
