"""Confidence intervals of the figures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def clopper_pearson(
    hits: int, trials: int, confidence: float = 0.95, *, one_sided: bool = False
) -> tuple[float, float]:
    """Exact bounds of a share (Clopper and Pearson, 1934); one-sided each at ``confidence`` if so asked."""
    tail = (1.0 - confidence) / (1.0 if one_sided else 2.0)
    low = 0.0 if hits == 0 else float(stats.beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(stats.beta.ppf(1.0 - tail, hits + 1, trials - hits))
    return low, high


def poisson_rate(
    events: int, exposure: float, confidence: float = 0.95, *, one_sided: bool = False
) -> tuple[float, float]:
    """Exact bounds of a rate per unit of ``exposure`` (Garwood, 1936): chi2(a/2; 2x)/2E to chi2(1−a/2; 2x+2)/2E."""
    tail = (1.0 - confidence) / (1.0 if one_sided else 2.0)
    low = 0.0 if events == 0 else float(stats.chi2.ppf(tail, 2 * events)) / 2.0 / exposure
    return low, float(stats.chi2.ppf(1.0 - tail, 2 * events + 2)) / 2.0 / exposure


def by_cluster(
    statistic: Callable[[IntArray], float],
    clusters: int,
    rng: np.random.Generator,
    draws: int = 1000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap over whole clusters (GPUs, nodes): rows of one are not independent of each other.

    ``statistic`` is given how often each cluster was drawn (length ``clusters``) and gives the figure, or NaN where
    that draw has none; such draws are left out.
    """
    tail = (1.0 - confidence) / 2.0
    weights = rng.multinomial(clusters, np.full(clusters, 1.0 / clusters), size=draws).astype(np.int64)
    values = np.array([statistic(weight) for weight in weights], dtype=np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return float(low), float(high)
