"""From fault to finding: how long, where some are never found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def quantile(delay: Floats, share: float, followed: Floats | None = None) -> float:
    """The delay by which ``share`` of faults are found (Kaplan and Meier, 1958); infinite where they never are.

    ``delay`` is infinite for a miss: a fault that was followed to its end and not found has no delay, and leaving it
    out would flatter the rest. ``followed`` says how long a fault could be watched where that was cut short by
    something else than its end (the end of the data): such a fault counts as at risk until then.
    """
    cut = np.full(len(delay), np.inf) if followed is None else followed
    time, found = np.minimum(delay, cut), np.isfinite(delay) & (delay <= cut)
    left = 1.0
    for moment in np.unique(time[found]):
        left *= 1.0 - (found & (time == moment)).sum() / (time >= moment).sum()
        if 1.0 - left >= share - 1e-12:
            return float(moment)
    return float("inf")


def bounds(delay: Floats, share: float, rng: np.random.Generator, draws: int = 400) -> tuple[float, float]:
    """95 % bounds of ``quantile``: percentile bootstrap over faults, by order statistics so that misses stay misses."""
    ordered = np.sort(delay)
    if not len(ordered):
        return float("nan"), float("nan")
    rank = max(int(np.ceil(share * len(ordered))) - 1, 0)
    drawn = np.sort(rng.integers(0, len(ordered), (draws, len(ordered))), axis=1)[:, rank]
    low, high = np.sort(ordered[drawn])[[int(0.025 * draws), int(0.975 * draws)]]
    return float(low), float(high)
