"""What others rank nodes by. All are given the history at the moment, as ours is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from scipy import stats

from graynode.benchmarks.detection.intervals import FloatArray
from graynode.detectors.fault_history import Faults, down

_WINDOWS_D: Final = (3.0, 7.0, 14.0, 28.0, 90.0, 1e6)
_REFIT: Final = 4
"""Learned baselines are fitted anew every fourth ranking: the time goes there, and four weeks change little."""
_LEAST_D: Final = 28.0


def count(days: float) -> Callable[[Faults, float, float], FloatArray]:
    """Faults of the last ``days``."""

    def score(past: Faults, at_d: float, horizon_d: float) -> FloatArray:
        del horizon_d
        return past.counts(at_d - days, at_d).astype(np.float64)

    return score


def chance(past: Faults, at_d: float, horizon_d: float) -> FloatArray:
    """All alike."""
    del at_d, horizon_d
    return np.zeros(past.nodes)


def poisson_flags(past: Faults, at_d: float, horizon_d: float) -> FloatArray:
    """Nodes whose count is above a Poisson fleet's, Benjamini–Hochberg at 5 %; flagged before not flagged."""
    del horizon_d
    counts = past.counts(0.0, at_d)
    p = stats.poisson.sf(counts - 1, max(counts.mean(), 1e-12))
    order = np.argsort(p, kind="stable")
    passed = p[order] <= 0.05 * np.arange(1, len(p) + 1) / len(p)
    most = np.flatnonzero(passed)
    limit = p[order][most[-1]] if len(most) else -1.0
    return np.asarray(p <= limit, dtype=np.float64)


def three_sigma(past: Faults, at_d: float, horizon_d: float) -> FloatArray:
    """Nodes whose count of 28 days is three standard deviations above the fleet's mean; flagged before not flagged."""
    del horizon_d
    counts = past.counts(at_d - 28.0, at_d)
    return np.asarray(counts > counts.mean() + 3.0 * counts.std(), dtype=np.float64)


def three_faults(past: Faults, at_d: float, horizon_d: float) -> FloatArray:
    """A fixed rule: three faults in 28 days; flagged before not flagged."""
    del horizon_d
    return (past.counts(at_d - 28.0, at_d) >= 3).astype(np.float64)


class Learned:
    """A classifier of scikit-learn on counts and ages, fitted to rankings whose outcome was known."""

    def __init__(self, make: Callable[[], Any], step_d: float) -> None:
        self._make, self._step_d = make, step_d
        self._model: Any = None
        self._age = 0

    def __call__(self, past: Faults, at_d: float, horizon_d: float) -> FloatArray:
        """Probability of a fault within the horizon; all alike before anything can be fitted."""
        if self._age % _REFIT == 0:
            self._fit(past, at_d, horizon_d)
        self._age += 1
        if self._model is None:
            return np.zeros(past.nodes)
        return np.asarray(self._model.predict_proba(_features(past, at_d))[:, 1], dtype=np.float64)

    def _fit(self, past: Faults, at_d: float, horizon_d: float) -> None:
        moments = np.arange(at_d - horizon_d, _LEAST_D - 1e-9, -self._step_d)
        if not len(moments):
            return
        x = np.concatenate([_features(past.known(m), float(m)) for m in moments])
        y = np.concatenate([past.counts(float(m), float(m) + horizon_d) > 0 for m in moments])
        if y.any() and not y.all():
            self._model = self._make().fit(x, y)


def logit(step_d: float) -> Learned:
    """Logistic regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return Learned(lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)), step_d)


def boosting(step_d: float, seed: int) -> Learned:
    """Gradient-boosted trees, small ones: there are few faults."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    def make() -> Any:  # noqa: ANN401 (scikit-learn has no types)
        return HistGradientBoostingClassifier(
            max_iter=60, max_leaf_nodes=8, learning_rate=0.1, early_stopping=False, random_state=seed
        )

    return Learned(make, step_d)


def _features(past: Faults, at_d: float) -> FloatArray:
    counts = [past.counts(at_d - days, at_d).astype(np.float64) for days in _WINDOWS_D]
    last = np.full(past.nodes, -365.0)
    np.maximum.at(last, past.node, past.start_d)
    return np.column_stack([*counts, np.log1p(at_d - last), down(past).astype(np.float64)])
