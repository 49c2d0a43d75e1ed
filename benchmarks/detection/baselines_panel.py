"""What our detectors are measured against: the published detectors of panels, time × units, one signal at a time.

A ``PanelBaseline`` scores every unit at every time against the others; it alarms where its score is above ``limit``,
the threshold of its source, which may mean that the whole panel is looked at, as its source does. Larger values of the
signal are worse: give times and temperatures as they are, clocks and bandwidths inverted.

Defined answers: an unknown value (NaN) scores NaN and takes no part in the others' scores.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats

from graynode.benchmarks.detection.baselines import FloatArray, threshold_at

__all__ = [
    "PanelBaseline",
    "dbscan",
    "double_mad",
    "load_regression",
    "minder",
    "panel_baselines",
    "ratio",
    "threshold_at",
]

_TINY: Final = 1e-12


@dataclass(frozen=True, slots=True)
class PanelBaseline:
    """``score(panel)`` of time × units; it alarms above ``limit``."""

    name: str
    limit: float
    score: Callable[[FloatArray], FloatArray]


def panel_baselines(*, sample_s: float) -> tuple[PanelBaseline, ...]:
    """Those that need the signal alone; ``load_regression`` needs the load too."""
    return dbscan(), double_mad(), minder(sample_s=sample_s), ratio(), ratio(own=True)


def dbscan(sensitivity: float = 0.5) -> PanelBaseline:
    """Grafana's DBSCAN of one dimension, at each time: who is not in the cluster that more than half are in.

    eps = (1 − sensitivity) · span of the whole panel (at least 0.1) · 1.1, so that one huge outlier hides the others;
    without such a cluster everybody is an outlier, of two units nobody (grafana/augurs, its outlier crate). The score
    is the distance from that cluster in eps; an outlier for want of a cluster scores 1 and its distance from the median
    in parts of the span.
    """

    def score(panel: FloatArray) -> FloatArray:
        if not np.isfinite(panel).any():
            return np.full(panel.shape, np.nan)
        span = max(float(np.nanmax(panel) - np.nanmin(panel)), 0.1)
        eps = (1.0 - min(sensitivity, 0.999)) * span * 1.1
        low, high, units = main_cluster(panel, eps)
        away = np.maximum(np.maximum(low - panel, panel - high), 0.0) / eps
        lost = np.isnan(low)
        alone = 1.0 + np.abs(panel - _median(panel)) / span
        scores = np.where(lost, np.maximum(alone, np.nextafter(1.0, 2.0)), away)
        return np.where(np.isnan(panel), np.nan, np.where(units <= 2, 0.0, scores))

    return PanelBaseline("grafana_dbscan", 1.0, score)


def main_cluster(panel: FloatArray, eps: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Of each time the lowest and highest value of the cluster that more than half are in (NaN: none), and how many
    units there are."""
    ordered = np.sort(panel, axis=1)
    cluster = np.cumsum(np.diff(ordered, axis=1, prepend=ordered[:, :1]) > eps, axis=1)
    units = (~np.isnan(panel)).sum(axis=1, keepdims=True)
    # The middle value is in any cluster of more than half
    middle = np.take_along_axis(cluster, np.maximum(units - 1, 0) // 2, axis=1)
    inside = (cluster == middle) & ~np.isnan(ordered)
    main = inside.sum(axis=1, keepdims=True) >= units // 2 + 1
    low = np.where(inside, ordered, np.inf).min(axis=1, keepdims=True)
    high = np.where(inside, ordered, -np.inf).max(axis=1, keepdims=True)
    return np.where(main, low, np.nan), np.where(main, high, np.nan), units.astype(np.float64)


def double_mad(sensitivity: float = 0.5) -> PanelBaseline:
    """Grafana's MAD: distance from the panel's median in 1.4826 median deviations of its own side.

    Above 7.941 − (7.941 − 0.842)·√sensitivity is an outlier: 2.92 at 0.5 (grafana/augurs, its outlier crate). A side
    without spread gives no score (NaN), as there.
    """

    def score(panel: FloatArray) -> FloatArray:
        return sided_deviation(panel, panel)

    return PanelBaseline("grafana_mad", 7.941 - (7.941 - 0.842) * float(np.sqrt(sensitivity)), score)


def sided_deviation(values: FloatArray, of: FloatArray) -> FloatArray:
    """Distance of ``values`` from the median of ``of`` in 1.4826 median deviations of ``of`` on that side."""
    known = of[np.isfinite(of)]
    if not known.size:
        return np.full(values.shape, np.nan)
    off, seen = values - np.median(known), known - np.median(known)
    side = 1.4826 * np.where(off < 0, np.median(-seen[seen <= 0]), np.median(seen[seen >= 0]))
    return np.where(off == 0, 0.0, np.abs(off) / np.where(side > 0, side, np.nan))


def minder(*, sample_s: float, window: int = 8, continuity_s: float = 240.0, limit: float = 3.0) -> PanelBaseline:
    """A distance in Minder's manner (arXiv 2411.01791), on windows as they are instead of an LSTM-VAE's.

    Windows of 8 samples, each machine's sum of Euclidean distances to the others, as z among the others; the machine
    with the largest is the candidate, and the same machine has to be it for 4 minutes: the score is the least z of
    those minutes, 0 for whoever was not the candidate all the time. Minder's similarity threshold is not published: 3.
    """
    steps = max(1, int(np.ceil(continuity_s / sample_s)))

    def score(panel: FloatArray) -> FloatArray:
        z = _distance_z(panel, window)
        candidate = (z == np.where(np.isnan(z), -np.inf, z).max(axis=1, keepdims=True)) & (z > 0)
        standing = np.where(candidate, z, 0.0)
        held = np.lib.stride_tricks.sliding_window_view(
            np.vstack([np.zeros((steps - 1, panel.shape[1])), standing]), steps, axis=0
        )
        return np.where(np.isnan(z), np.nan, held.min(axis=2))

    return PanelBaseline("minder_like", limit, score)


def _distance_z(panel: FloatArray, window: int) -> FloatArray:
    """Of each unit's sum of distances to the others, the z among the others' sums; NaN before the first window."""
    z = np.full(panel.shape, np.nan)
    if len(panel) < window:
        return z
    windows = np.lib.stride_tricks.sliding_window_view(panel, window, axis=0)
    # A loop over times: all pairs of units at all times at once would not fit
    for time, rows in enumerate(windows, start=window - 1):
        known = ~np.isnan(rows).any(axis=1)
        if known.sum() > 2:
            z[time, known] = _others_z(_distance_sums(rows[known]))
    return z


def _distance_sums(rows: FloatArray) -> FloatArray:
    centred = rows - rows.mean(axis=0)
    square = np.square(centred).sum(axis=1)
    apart = np.maximum(square[:, None] + square - 2.0 * centred @ centred.T, 0.0)
    np.fill_diagonal(apart, 0.0)
    return np.asarray(np.sqrt(apart).sum(axis=1), dtype=np.float64)


def _others_z(sums: FloatArray) -> FloatArray:
    others = len(sums) - 1
    mean = (sums.sum() - sums) / others
    variance = np.maximum((np.square(sums).sum() - np.square(sums)) / others - np.square(mean), 0.0)
    # Sums that agree to rounding are equal
    floor = 1e-6 * max(float(np.abs(sums).max()), _TINY)
    return np.asarray((sums - mean) / np.maximum(np.sqrt(variance), floor), dtype=np.float64)


def ratio(limit: float = 0.75, *, own: bool = False) -> PanelBaseline:
    """NVRx's straggler score: the best unit's time by this unit's (or with ``own`` its own best so far by its present).

    Below 0.75 is a straggler; the score here is the inverse, so that higher is worse. Values are positive times.
    """

    def score(panel: FloatArray) -> FloatArray:
        times = np.where(panel > 0, panel, np.nan)
        seen = np.where(np.isnan(times), np.inf, times)
        best = np.minimum.accumulate(seen, axis=0) if own else seen.min(axis=1, keepdims=True, initial=np.inf)
        return np.asarray(times / best, dtype=np.float64)

    return PanelBaseline("ratio_0.75_own" if own else "ratio_0.75", 1.0 / limit, score)


def load_regression(
    train: FloatArray, train_load: FloatArray, *, degree: int = 2, window: int = 4, bound: float = 0.999
) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Perseus' load regression (FAST'23): slowdown ratios against what this load should take; it alarms above 1.

    A polynomial of the signal on the load over all training points, fitted again without those beyond 3 standard
    deviations (Perseus: PCA and DBSCAN); the ratio is the value by the upper 99.9 % prediction bound at its load. More
    than half of the last ``window`` ratios above 1 is an event: the score is the largest value that more than half
    reach. Returns ``score(panel, load)``; NaN where training had fewer points than ``degree`` + 3.
    """
    x, y = train_load.ravel(), train.ravel()
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(y) < degree + 3:
        return lambda panel, _load: np.full(panel.shape, np.nan)
    upper = _upper_bound(x, y, degree, bound)

    def score(panel: FloatArray, load: FloatArray) -> FloatArray:
        ratios = panel / np.maximum(upper(load), _TINY)
        padded = np.vstack([np.full((window - 1, ratios.shape[1]), np.nan), ratios])
        last = np.lib.stride_tricks.sliding_window_view(padded, window, axis=0)
        most = np.sort(np.where(np.isnan(last), -np.inf, last), axis=2)[..., window - 1 - window // 2]
        return np.where(np.isnan(ratios), np.nan, most)

    return score


def _upper_bound(x: FloatArray, y: FloatArray, degree: int, bound: float) -> Callable[[FloatArray], FloatArray]:
    centre, scale = float(x.mean()), max(float(x.std()), _TINY)
    degree = min(degree, len(np.unique(x)) - 1)

    def terms(load: FloatArray) -> FloatArray:
        return np.asarray(((load - centre) / scale)[..., None] ** np.arange(degree + 1), dtype=np.float64)

    def fit(keep: np.ndarray) -> tuple[FloatArray, float, FloatArray]:
        design = terms(x[keep])
        weights = np.linalg.lstsq(design, y[keep], rcond=None)[0]
        rest = y[keep] - design @ weights
        sigma = float(np.sqrt(np.square(rest).sum() / max(len(rest) - degree - 1, 1)))
        return weights, sigma, np.asarray(np.linalg.pinv(design.T @ design), dtype=np.float64)

    weights, sigma, _ = fit(np.ones(len(x), dtype=np.bool_))
    keep = np.abs(y - terms(x) @ weights) <= 3.0 * sigma + _TINY
    weights, sigma, inverse = fit(keep)
    t = float(stats.t.ppf(bound, max(int(keep.sum()) - degree - 1, 1)))

    def upper(load: FloatArray) -> FloatArray:
        at = terms(load)
        leverage = np.einsum("...i,ij,...j->...", at, inverse, at)
        return np.asarray(at @ weights + t * sigma * np.sqrt(1.0 + leverage), dtype=np.float64)

    return upper


def _median(panel: FloatArray) -> FloatArray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(panel, axis=1, keepdims=True), dtype=np.float64)
