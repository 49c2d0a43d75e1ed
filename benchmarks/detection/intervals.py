"""Confidence intervals over clusters; those of plain counts are in ``graynode.detectors.exact_bounds``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


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
