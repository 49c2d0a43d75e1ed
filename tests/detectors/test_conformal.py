"""p-values: conformal, robust, negative binomial; and the list of Benjamini and Hochberg."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from graynode.detectors import conformal


def test_conformal_p_values_are_exact_for_healthy_scores() -> None:
    """Among healthy scores p ≤ α comes up in about a share α of cases, and never below 1/(n + 1)."""
    rng = np.random.default_rng(3)
    p = np.concatenate([conformal.p_values(rng.normal(size=99), rng.normal(size=20)) for _ in range(500)])
    for alpha in (0.05, 0.1, 0.5):
        assert abs((p <= alpha).mean() - alpha) < 0.01
    assert p.min() >= 1 / 100
    assert conformal.p_values(np.arange(99.0), np.array([1e9]))[0] == pytest.approx(0.01)


@given(st.lists(st.one_of(st.just(float("nan")), st.floats(0, 1)), max_size=30))
def test_benjamini_hochberg_follows_its_definition(values: list[float]) -> None:
    """The largest k with p(k) ≤ q·k/m, and everything up to it."""
    p = np.array(values, dtype=np.float64)
    known = sorted(v for v in values if not np.isnan(v))
    passing = [v for k, v in enumerate(known, 1) if v <= 0.05 * k / len(known)]
    wanted = [not np.isnan(v) and bool(passing) and v <= max(passing) for v in values]
    assert list(conformal.benjamini_hochberg(p)) == wanted


@pytest.mark.parametrize(("peers", "share"), [(8, 1.1e-2), (16, 4.4e-3), (32, 1.8e-3), (64, 8e-4), (512, 2.9e-4)])
def test_few_peers_make_a_large_z_common(peers: int, share: float) -> None:
    """P(z > 3.5) among healthy peers as simulated: within a factor 1.4 of it at every size."""
    said = float(conformal.robust_tail(np.array([3.5]), np.array([peers]))[0])
    assert 1 / 1.4 < said / share < 1.4


def test_the_negative_binomial_tail_is_scipy_s() -> None:
    """P(X ≥ x) for a rate that is Gamma(a, b) over exposure E is NB(a, b/(b + E))."""
    for count, shape, rate, exposure in ((1, 0.05, 25.0, 24.0), (3, 2.0, 600.0, 24.0), (10, 0.5, 10.0, 100.0)):
        one = [np.array([float(v)]) for v in (count, shape, rate, exposure)]
        wanted = stats.nbinom.sf(count - 1, shape, rate / (rate + exposure))
        assert np.isclose(conformal.negative_binomial_tail(*one)[0], wanted, rtol=1e-9)
    zero = conformal.negative_binomial_tail(np.zeros(1), np.ones(1), np.ones(1), np.ones(1))
    assert zero[0] == 1.0
