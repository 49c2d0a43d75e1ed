"""Prospective ranking: at each moment of a grid nodes are ranked by what was known, and the next faults are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.benchmarks.detection.intervals import FloatArray, IntArray, by_cluster
from graynode.benchmarks.detection.result import Figure
from graynode.detectors.fault_history import Faults

_LEAST_NODES: Final = 3
"""Drawing one or two nodes with faults again and again says nothing of others."""
Scorer = Callable[[Faults, float, float], FloatArray]
"""What was known at a moment, the moment, and the horizon in days → a score of each node; larger is likelier."""


@dataclass(frozen=True, slots=True)
class Setting:
    """When nodes are ranked (``grid``), what counts, and at whom one looks.

    ``apart_d``: faults within that time of the end of those before are part of these, in the history (as far as it was
    known) and among the faults to foretell. ``share`` is the part of the nodes that is looked at.
    """

    grid: tuple[float, ...]
    horizon_d: float
    share: float
    apart_d: float | None = None

    def history(self, faults: Faults, at_d: float) -> Faults:
        """What was known at ``at_d``."""
        past = faults.known(at_d)
        return past if self.apart_d is None else past.merged(self.apart_d)

    def target(self, faults: Faults) -> Faults:
        """The faults to foretell."""
        return faults if self.apart_d is None else faults.merged(self.apart_d)


@dataclass(frozen=True, slots=True)
class Held:
    """Of each node, summed over the grid: faults to foretell, and those foretold (in expectation over ties)."""

    hits: FloatArray
    faults: FloatArray


def grid(days: float, horizon_d: float, first_d: float, step_d: float) -> tuple[float, ...]:
    """Moments from ``first_d`` on whose horizon ends within the trace."""
    return tuple(np.arange(first_d, days - horizon_d + 1e-9, step_d).tolist())


def looked_at(score: FloatArray, share: float) -> FloatArray:
    """Probability of each node to be among the ``share`` with the largest scores, ties drawn by chance."""
    places = share * len(score)
    cut = np.sort(score)[::-1][int(np.ceil(places - 1e-9)) - 1]
    above, tied = score > cut, score == cut
    return np.where(above, 1.0, np.where(tied, (places - above.sum()) / tied.sum(), 0.0))


def held(faults: Faults, scorer: Scorer, setting: Setting) -> Held:
    """Rank along the grid. The scorer is given nothing but the history at each moment."""
    hits, total = np.zeros(faults.nodes), np.zeros(faults.nodes)
    target = setting.target(faults)
    for at_d in setting.grid:
        chosen = looked_at(scorer(setting.history(faults, at_d), at_d, setting.horizon_d), setting.share)
        coming = target.counts(at_d, at_d + setting.horizon_d)
        hits += chosen * coming
        total += coming
    return Held(hits, total)


def share_of(one: Held, rng: np.random.Generator, draws: int) -> Figure:
    """Share of the faults that fall on the nodes looked at; interval by bootstrap over nodes."""
    return _figure(lambda w: _ratio(w, one.hits, one.faults), one, rng, draws)


def gain_over(one: Held, other: Held, rng: np.random.Generator, draws: int) -> Figure:
    """How much more of the faults ``one`` holds than ``other``, on the same nodes and moments."""
    return _figure(lambda w: _ratio(w, one.hits - other.hits, one.faults), one, rng, draws)


def _ratio(weight: IntArray, above: FloatArray, below: FloatArray) -> float:
    total = float(weight @ below)
    return float(weight @ above) / total if total else float("nan")


def _figure(statistic: Callable[[IntArray], float], of: Held, rng: np.random.Generator, draws: int) -> Figure:
    nodes = len(of.faults)
    if not of.faults.sum():
        return Figure(None, note="no fault to foretell on the grid: the trace is too short or too quiet")
    faulty = int((of.faults > 0).sum())
    value = statistic(np.ones(nodes, dtype=np.int64))
    if faulty < _LEAST_NODES:
        return Figure(value, n=faulty, note="n: nodes with a fault to foretell; too few for an interval")
    low, high = by_cluster(statistic, nodes, rng, draws)
    return Figure(value, low, high, faulty, "n: nodes with a fault to foretell")
