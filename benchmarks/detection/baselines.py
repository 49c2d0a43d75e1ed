"""What our detectors are measured against: the usual detectors of single observations, each as its source has it.

One plain contract. A ``RowBaseline`` is fitted to rows of features and scores rows; higher is odder; it alarms where
its score is above ``limit``, the threshold of its source. ``threshold_at`` gives the other threshold, the one at which
healthy scores alarm at a wanted rate, so that methods can be compared at the same false-alarm rate.

Defined answers: a missing feature (NaN) says nothing, a row without any feature scores NaN, and so does every row
where nothing could be learned. A feature that never varied in training makes any departure from it odd.
Detectors of whole panels (time × units) are in ``baselines_panel``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import stats

FloatArray = npt.NDArray[np.float64]
Score = Callable[[FloatArray], FloatArray]
"""Rows × features in, one score per row out: higher is odder, NaN is "cannot tell"."""

_LEAST_SPREAD: Final = 1e-9
"""Of a feature that never varied, in parts of its size: what keeps its z finite."""


@dataclass(frozen=True, slots=True)
class RowBaseline:
    """``fit(train, seed)`` learns from rows × features and gives the score; it alarms above ``limit``."""

    name: str
    limit: float
    fit: Callable[[FloatArray, int], Score]


def threshold_at(healthy: FloatArray, rate: float) -> float:
    """The score above which at most a share ``rate`` of new healthy rows lie, on average (split-conformal).

    NaN where there are fewer than 1/rate − 1 healthy scores: no observed value can promise that rate.
    """
    known = np.sort(healthy[~np.isnan(healthy)])
    beyond = int(np.floor(rate * (len(known) + 1) + 1e-9))
    return float(known[len(known) - beyond]) if beyond else float("nan")


def rows_baselines(above: Sequence[float] | None = None) -> tuple[RowBaseline, ...]:
    """All of them. ``above`` are the fixed rule's limits, one per feature (NaN: none); without it there is no rule."""
    rule = () if above is None else (fixed_rule(above),)
    return (*rule, three_sigma(), mad(), isolation_forest(), pca(), mahalanobis(), kmeans())


def fixed_rule(above: Sequence[float]) -> RowBaseline:
    """A limit per feature, as health checks have them: the score is the largest feature in parts of its limit."""
    limits = np.asarray(above, dtype=np.float64)

    def fit(_train: FloatArray, _seed: int) -> Score:
        return lambda rows: _largest(rows / limits)

    return RowBaseline("fixed_rule", 1.0, fit)


def three_sigma(*, upper: bool = False) -> RowBaseline:
    """Distance from the mean in standard deviations, the worst feature's; ``upper`` counts the upper side only."""

    def fit(train: FloatArray, _seed: int) -> Score:
        return _standard(_nan(np.nanmean, train), _nan(np.nanstd, train), upper=upper)

    return RowBaseline("three_sigma", 3.0, fit)


def mad(*, upper: bool = False) -> RowBaseline:
    """0.6745·|x − median| / MAD, the worst feature's; above 3.5 is an outlier (Iglewicz and Hoaglin, 1993)."""

    def fit(train: FloatArray, _seed: int) -> Score:
        centre = _nan(np.nanmedian, train)
        return _standard(centre, _nan(np.nanmedian, np.abs(train - centre)) / 0.6745, upper=upper)

    return RowBaseline("mad", 3.5, fit)


def isolation_forest() -> RowBaseline:
    """scikit-learn's with its defaults; ``contamination='auto'`` alarms above an anomaly score of 0.5."""

    def fit(train: FloatArray, seed: int) -> Score:
        from sklearn.ensemble import IsolationForest

        prepare = _prepared(train)
        _, usable = prepare(train)
        if not len(usable):
            return _nothing
        forest = IsolationForest(contamination="auto", random_state=seed, n_jobs=1).fit(usable)
        # Rounded: rows that are all alike score 0.5 and a rounding error
        return _known(prepare, lambda rows: np.round(-forest.score_samples(rows), 12))

    return RowBaseline("isolation_forest", 0.5, fit)


def pca(explained: float = 0.9) -> RowBaseline:
    """Squared reconstruction error of the components that hold 90 % of the variance, in parts of its 99 % limit.

    The limit is Q's by Box (1954): g·χ²(h), g = θ₂/θ₁, h = θ₁²/θ₂ over the variances left out. Where no component is
    left out the error says nothing, and the score is 0.
    """

    def fit(train: FloatArray, _seed: int) -> Score:
        prepare = _prepared(train)
        _, usable = prepare(train)
        if len(usable) < 2:
            return _nothing
        _, size, axes = np.linalg.svd(usable - usable.mean(axis=0), full_matrices=False)
        variance = size**2 / (len(usable) - 1)
        share = np.cumsum(variance) / max(variance.sum(), _LEAST_SPREAD)
        kept = axes[: int(np.searchsorted(share, explained)) + 1]
        left = variance[len(kept) :]
        limit = _box_limit(left)

        def error(rows: FloatArray) -> FloatArray:
            off = rows - usable.mean(axis=0)
            return np.asarray(np.square(off - off @ kept.T @ kept).sum(axis=1) / limit, dtype=np.float64)

        return _known(prepare, error)

    return RowBaseline("pca", 1.0, fit)


def _box_limit(left: FloatArray) -> float:
    first, second = float(left.sum()), float(np.square(left).sum())
    if first < _LEAST_SPREAD:
        return float("inf")
    return second / first * float(stats.chi2.ppf(0.99, first**2 / second))


def mahalanobis() -> RowBaseline:
    """Squared Mahalanobis distance in parts of the 97.5 % quantile of χ² with as many degrees as features."""

    def fit(train: FloatArray, _seed: int) -> Score:
        prepare = _prepared(train)
        _, usable = prepare(train)
        if len(usable) < 2:
            return _nothing
        centre = usable.mean(axis=0)
        inverse = np.linalg.pinv(np.atleast_2d(np.cov(usable, rowvar=False)), hermitian=True)
        limit = float(stats.chi2.ppf(0.975, train.shape[1]))

        def distance(rows: FloatArray) -> FloatArray:
            off = rows - centre
            return np.asarray(np.einsum("ij,jk,ik->i", off, inverse, off) / limit, dtype=np.float64)

        return _known(prepare, distance)

    return RowBaseline("mahalanobis", 1.0, fit)


def kmeans(clusters: int = 2) -> RowBaseline:
    """Distance to the nearest centre, where 0 and 1 are the least and the largest in training; above 0.99 alarms.

    Two clusters and 0.99 are Netdata's (its documentation); Netdata's vote of 18 models needs 54 h of history.
    """

    def fit(train: FloatArray, seed: int) -> Score:
        from sklearn.cluster import KMeans

        prepare = _prepared(train)
        _, usable = prepare(train)
        if not len(usable):
            return _nothing
        number = min(clusters, len(np.unique(usable, axis=0)))
        model = KMeans(number, n_init=10, random_state=seed).fit(usable)

        def distance(rows: FloatArray) -> FloatArray:
            return np.asarray(model.transform(rows).min(axis=1), dtype=np.float64)

        seen = distance(usable)
        low, span = float(seen.min()), max(float(np.ptp(seen)), _LEAST_SPREAD)
        return _known(prepare, lambda rows: (distance(rows) - low) / span)

    return RowBaseline("kmeans", 0.99, fit)


def _nothing(rows: FloatArray) -> FloatArray:
    return np.full(len(rows), np.nan)


def _largest(values: FloatArray) -> FloatArray:
    known = ~np.isnan(values)
    most = np.where(known, values, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(known.any(axis=1), most, np.nan)


def _nan(statistic: Callable[..., FloatArray], rows: FloatArray) -> FloatArray:
    """A statistic of each feature; NaN, silently, of one that is never known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(statistic(rows, axis=0), dtype=np.float64)


def _spread(centre: FloatArray, spread: FloatArray) -> FloatArray:
    return np.maximum(spread, _LEAST_SPREAD * np.maximum(np.abs(centre), 1.0))


def _standard(centre: FloatArray, spread: FloatArray, *, upper: bool) -> Score:
    wide = _spread(centre, spread)

    def score(rows: FloatArray) -> FloatArray:
        z = (rows - centre) / wide
        return _largest(z if upper else np.abs(z))

    return score


Prepare = Callable[[FloatArray], tuple[npt.NDArray[np.bool_], FloatArray]]
"""Which rows can be scored, and these standardised."""


def _prepared(train: FloatArray) -> Prepare:
    """Rows standardised by the training rows; missing features at their mean, rows without any left out."""
    centre = _nan(np.nanmean, train)
    wide = _spread(centre, _nan(np.nanstd, train))

    def prepare(rows: FloatArray) -> tuple[npt.NDArray[np.bool_], FloatArray]:
        z = (rows - centre) / wide
        known = np.asarray(~np.isnan(z).all(axis=1))
        return known, np.nan_to_num(z[known], nan=0.0)

    return prepare


def _known(prepare: Prepare, score: Score) -> Score:
    def of_all(rows: FloatArray) -> FloatArray:
        scores = np.full(len(rows), np.nan)
        known, usable = prepare(rows)
        if len(usable):
            scores[known] = score(usable)
        return scores

    return of_all
