"""Where wall seconds of a job grow: which worker, from which step to which. A place, never a cause.

Each worker's change against its own fastest quarter of the run is compared with the change of the fastest quarter of
the others: half of the workers may slow down together, and a worker that was always slower has not changed. What was
slower all along is told too, as a level.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from graynode.detectors.frames import Bools, Floats
from graynode.detectors.residual import log_of
from graynode.detectors.straggler import Limits, Straggler
from graynode.detectors.straggler_places import median
from graynode.detectors.work import Work

_SMOOTH: Final = 5
"""Steps of the running median: two odd steps are no change."""
_LEAST_STEPS: Final = 10
_SIGMAS: Final = 5.0


def locate(work: Work, limits: Limits) -> list[Straggler]:
    """Workers and steps whose wall seconds stand out, largest first; every cause is ``unknown``."""
    if work.wall is None or work.wall.shape[1] < _LEAST_STEPS or len(work) < 2:
        return []
    log = _smooth(log_of(np.where(np.isfinite(work.wall), work.wall, np.nan)))
    own = _fast(log)
    level = _against_others(own)[:, 0]
    change = _against_others(log - own)
    least = max(np.log1p(limits.wall_excess), _SIGMAS * _noise(log))
    found = []
    for rank in range(len(work)):
        for first, last in _runs(change[rank] >= least, limits.wall_steps):
            excess = float(np.nanmedian(change[rank, first : last + 1]))
            found.append(_located(work, rank, excess, {"kind": "change", "first_step": first, "last_step": last}))
        if level[rank] >= np.log1p(limits.wall_excess):
            found.append(_located(work, rank, float(level[rank]), {"kind": "level"}))
    return sorted(found, key=lambda s: (-(s.excess or 0.0), s.ranks))


def _located(work: Work, rank: int, log_excess: float, evidence: dict[str, Any]) -> Straggler:
    return Straggler(
        where="rank",
        ranks=(int(work.rank[rank]),),
        nodes=(int(work.node[rank]),),
        cause="unknown",
        reason="wall_only",
        excess=round(float(np.expm1(log_excess)), 4),
        confidence=0.5,
        evidence=evidence,
    )


def _smooth(log: Floats) -> Floats:
    padded = np.pad(log, ((0, 0), (_SMOOTH // 2, _SMOOTH // 2)), mode="edge")
    return median(np.lib.stride_tricks.sliding_window_view(padded, _SMOOTH, axis=1), axis=2)


def _fast(values: Floats) -> Floats:
    """The lower quartile of each row, NaN where nothing is known."""
    place = np.maximum(np.isfinite(values).sum(axis=1, keepdims=True) - 1, 0) // 4
    return np.asarray(np.take_along_axis(np.sort(values, axis=1), place, axis=1), dtype=np.float64)


def _against_others(values: Floats) -> Floats:
    """Each row less the lower quartile of the other rows, column by column."""
    order = np.argsort(values, axis=0, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(values))[:, None] + np.zeros_like(order), axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    others = np.isfinite(values).sum(axis=0) - 1
    quartile = np.maximum(others - 1, 0) // 4
    # Whoever is among the lower quartile himself has the next one as the others' quartile
    index = np.minimum(quartile + (place <= quartile), len(values) - 1)
    return np.where(others > 0, values - np.take_along_axis(ordered, index, axis=0), np.nan)


def _noise(log: Floats) -> float:
    """How much a smoothed worker moves from one smoothing window to the next."""
    steps = np.abs(log[:, _SMOOTH:] - log[:, :-_SMOOTH])
    return float(1.4826 / np.sqrt(2.0) * np.nanmedian(steps)) if np.isfinite(steps).any() else 0.0


def _runs(there: Bools, least: int) -> list[tuple[int, int]]:
    """From which step to which it is there for ``least`` steps or more; gaps shorter than that do not end it."""
    gaps = np.flatnonzero(np.diff(np.concatenate([[1], there.astype(np.int8), [1]]))).reshape(-1, 2)
    there = there.copy()
    for first, after in gaps:
        if after - first < least and first > 0 and after < len(there):
            there[first:after] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(np.int8), [0]])))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2) if b - a >= least]
