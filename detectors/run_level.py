"""Judging single runs of a GPU (probes, benchmarks, short jobs): worse than its own earlier runs and than its peers.

excess = worse − median of the GPU's strictly earlier runs of the same work − leave-one-out median of the same over the
runs beside it. Two GPUs of one model differ by percents for ever, one GPU from run to run by a tenth of one; what all
runs of a node or job share at the same time is no fault of one of them.

score = excess / √(widening · spread²). The spread is the GPU's own run-to-run spread so far, shrunk towards the usual
one of GPUs at this work: the predictive scale of a normal with an inverse-gamma prior worth ``PRIOR_RUNS`` runs (Gelman
et al., Bayesian Data Analysis, 3.2). So a GPU that is always unsteady does not set everybody's limit. ``widening`` is
what the few earlier runs and few peers leave open: the variance of a median of n is π/2n.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from graynode.detectors.frames import Bools, Floats, Ints
from graynode.detectors.residual import MIN_PEERS, leave_one_out_median

PRIOR_RUNS: Final = 16
"""Runs that the usual spread counts as: a GPU's own tells after about as many of its own."""
_MEDIAN: Final = np.pi / 2.0
_LEAST: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Runs:
    """Single runs. ``history`` numbers GPU and work, whose earlier runs are one past; ``beside`` the runs of the same
    work at the same time and place (−1: none). ``time_s`` orders them. ``worse`` is the log of what was measured,
    signed so that higher is slower; NaN is "not known"."""

    history: Ints
    beside: Ints
    time_s: Floats
    worse: Floats


@dataclass(frozen=True, slots=True)
class Judged:
    """Of each run: the own ``baseline`` (NaN: no earlier run) from so many ``earlier`` runs, the ``shift`` of its
    ``peers`` (0 of 0 where they are too few), and the sum of ``squares`` of its earlier excess over ``settled`` runs,
    each in parts of its widening."""

    worse: Floats
    baseline: Floats
    earlier: Ints
    shift: Floats
    peers: Ints
    squares: Floats
    settled: Ints

    @property
    def excess(self) -> Floats:
        """How much slower than own past and present peers, in log units."""
        return np.asarray(self.worse - self.baseline - self.shift, dtype=np.float64)

    def excess_of(self, worse: Floats, which: Ints) -> Floats:
        """The excess of the runs ``which`` if they had been ``worse``, each alone and all else as it is."""
        return np.asarray(worse - self.baseline[which] - self.shift[which], dtype=np.float64)

    def spread(self, usual: float) -> Floats:
        """The standard deviation that this GPU's excess should have, ``usual`` being that of GPUs at this work."""
        own = (PRIOR_RUNS * usual**2 + self.squares) / (PRIOR_RUNS + self.settled)
        return np.asarray(np.sqrt(own * _widening(self.earlier, self.peers)), dtype=np.float64)

    def score(self, usual: float) -> Floats:
        """The excess in spreads. NaN without an earlier run."""
        return self.excess / self.spread(usual)


def judge(runs: Runs, *, peers: bool = True) -> Judged:
    """Judge every run by what was before it and beside it; what comes later changes nothing.

    ``peers=False`` leaves those beside it out, to measure what they are worth.
    """
    baseline, earlier = _earlier_median(runs)
    shift, beside = np.zeros(len(runs.worse)), np.zeros(len(runs.worse), dtype=np.int64)
    if peers:
        shift, beside = leave_one_out_median(runs.worse - baseline, runs.beside)
        few = beside < MIN_PEERS
        shift, beside = np.where(few, 0.0, shift), np.where(few, 0, beside)
    settled = np.square(runs.worse - baseline - shift) / _widening(earlier, beside)
    squares, count = _earlier_sum(runs, settled)
    return Judged(runs.worse, baseline, earlier, shift, beside, squares, count)


def usual_spread(judged: Judged, resolution: float = 0.0, among: Bools | None = None) -> float:
    """The spread usual among these runs (all): median absolute excess in parts of its widening, by 0.6745.

    Not less than half the signal's ``resolution`` (log units): runs that agree to the last digit make one digit no
    fault. NaN where no run has an earlier one.
    """
    known = np.abs(judged.excess) / np.sqrt(_widening(judged.earlier, judged.peers))
    known = known[~np.isnan(known) if among is None else among & ~np.isnan(known)]
    if not known.size:
        return float("nan")
    return max(float(np.median(known)) / 0.6745, resolution / 2.0, _LEAST)


def resolution(worse: Floats) -> float:
    """The step in which a signal is told, in log units: the usual gap between neighbouring values where values repeat.

    0 where most values are singular: the signal is told finely enough.
    """
    values, times = np.unique(worse[~np.isnan(worse)], return_counts=True)
    if len(values) < 2 or (times > 1).mean() < 0.5:
        return 0.0
    return float(np.median(np.diff(values)))


def _widening(earlier: Ints, peers: Ints) -> Floats:
    past = _MEDIAN / np.maximum(earlier, 1)
    present = np.where(peers > 0, _MEDIAN / np.maximum(peers, 1), 0.0)
    return np.asarray(1.0 + past + present, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Known runs sorted by history and time: their places, where their history begins, and how many are strictly
    earlier."""

    order: Ints
    start: Ints
    before: Ints


def _ordered(history: Ints, time_s: Floats, known: Bools) -> _Ordered:
    part = np.flatnonzero(known)
    order = part[np.lexsort((time_s[part], history[part]))]
    h, t = history[order], time_s[order]
    place = np.arange(len(order))
    new = np.r_[True, h[1:] != h[:-1]] if len(order) else np.empty(0, dtype=np.bool_)
    later = np.r_[True, (t[1:] != t[:-1]) | (h[1:] != h[:-1])] if len(order) else new
    start = np.maximum.accumulate(np.where(new, place, 0))
    return _Ordered(order, start, np.maximum.accumulate(np.where(later, place, 0)) - start)


def _earlier_median(runs: Runs) -> tuple[Floats, Ints]:
    """Median of the strictly earlier runs of the same history, and how many they are."""
    n = len(runs.worse)
    median, count = np.full(n, np.nan), np.zeros(n, dtype=np.int64)
    known = ~(np.isnan(runs.worse) | np.isnan(runs.time_s))
    o = _ordered(runs.history, runs.time_s, known)
    values = runs.worse[o.order]
    found = np.full(len(values), np.nan)
    # One step per length of the past, all GPUs at once: as many as the longest history has runs
    for length in np.unique(o.before[o.before > 0]):
        rows = np.flatnonzero(o.before == length)
        found[rows] = np.median(values[o.start[rows, None] + np.arange(length)], axis=1)
    median[o.order], count[o.order] = found, o.before
    return median, count


def _earlier_sum(runs: Runs, values: Floats) -> tuple[Floats, Ints]:
    """Sum over the strictly earlier runs of the same history, and of how many."""
    n = len(values)
    total, count = np.zeros(n), np.zeros(n, dtype=np.int64)
    o = _ordered(runs.history, runs.time_s, ~np.isnan(runs.time_s))
    part, held = values[o.order], ~np.isnan(values[o.order])
    # Summed within each history, so that one GPU's size is not another's rounding
    sums = _running(np.where(held, part, 0.0), o.start)
    numbers = _running(held.astype(np.float64), o.start)
    last = o.start + o.before - 1
    total[o.order] = np.where(o.before > 0, sums[last], 0.0)
    count[o.order] = np.where(o.before > 0, numbers[last], 0.0).astype(np.int64)
    return total, count


def _running(values: Floats, start: Ints) -> Floats:
    """Running sum that begins anew at every ``start``; one step per place in a history, all histories at once."""
    sums, place = values.copy(), np.arange(len(values)) - start
    by_place = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place)) if len(place) else np.empty(0, dtype=np.int64)
    for first, end in pairwise(ends):
        rows = by_place[first:end]
        sums[rows] += sums[rows - 1]
    return sums
