"""Faults at the rate at which they happen, in a fleet that runs for weeks: what share of the findings is right.

A finding opens on a node when a sum reaches its threshold and closes when all have fallen to half of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from graynode.benchmarks.detection import faults
from graynode.benchmarks.detection.fleet_core import DAY, WINDOW_S, Bools, Fleet, Limits, Size
from graynode.benchmarks.detection.fleet_sweep import HORIZON
from graynode.benchmarks.detection.noise import Array, Noise

RATES: Final = (2.14, 4.20, 6.50)
"""Faults per 1,000 node-days: hardware faults and all faults of InfiniteHBD-Trace (400 nodes, 348 days), and node
failures of Meta's RSC-1."""
MEASURED_AT: Final = 4.20
_MEDIAN_S: Final = 8 * 3600.0
"""A fault lasts eight hours in the middle, log-normal with spread 1, ten minutes at least: a stated choice."""
_SEVERITY: Final = (0.05, 0.30)
"""Share of speed lost, log-uniform: from the least worth a person's time to a third. A stated choice."""
_SETTLE: Final = 240
_AFTER: Final = 120
"""Windows after a fault's end in which a finding on its node is still about it."""


@dataclass(slots=True)
class Fault:
    """One fault in its place; ``start`` and ``end`` are windows of the run, ``found`` the one that crossed."""

    job: int
    gpu: int
    node: int
    start: int
    end: int
    severity: float
    found: int | None = None


@dataclass(slots=True)
class Natural:
    """What happened in ``node_days``: the faults, the findings on nodes without any, and in words what went wrong."""

    node_days: float
    faults: list[Fault]
    false: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def found(self) -> int:
        """Faults that were found."""
        return sum(f.found is not None for f in self.faults)


def natural(noise: Noise, size: Size, days: int, limits: Limits, rng: np.random.Generator, rate: float) -> Natural:
    """``days`` of a fleet in which ``rate`` faults per 1,000 node-days begin, none in its last four hours."""
    placed = _placed(size, days, rate, rng)
    fleet = Fleet(noise, size, rng)
    fleet.limits = limits
    for _ in range(_SETTLE):
        fleet.step()
    told = _Findings(placed, size, limits)
    effect: Array = np.zeros((size.jobs, size.gpus), dtype=np.float32)
    turns = {w for f in placed for w in (f.start, f.end)}
    for window in range(days * DAY):
        if window in turns:
            effect[:] = 0.0
            for f in placed:
                if f.start <= window < f.end:
                    effect[f.job, f.gpu] += faults.lost(f.severity)
        fleet.step(effect)
        told.take(window, fleet)
        if (window + 1) % DAY == 0:
            fleet.midnight()
    result = Natural(size.nodes * days, placed, told.false, told.wrong)
    result.wrong += [
        f"missed: {f.severity:.1%} slower for {(f.end - f.start) * WINDOW_S / 60:.0f} min, node {f.node}, "
        f"window {f.start}"
        for f in placed
        if f.found is None
    ]
    return result


def _placed(size: Size, days: int, rate: float, rng: np.random.Generator) -> list[Fault]:
    """Faults by chance over nodes and time, at most one a node at any time."""
    last = days * DAY - HORIZON
    many = rng.poisson(rate / 1000.0 * size.nodes * last / DAY)
    found: list[Fault] = []
    for start in np.sort(rng.integers(0, last, many)).tolist():
        gpu = int(rng.integers(size.jobs * size.gpus))
        lasts = max(600.0, float(rng.lognormal(np.log(_MEDIAN_S), 1.0))) / WINDOW_S
        severity = float(np.exp(rng.uniform(np.log(_SEVERITY[0]), np.log(_SEVERITY[1]))))
        node = gpu // size.per_node
        if all(f.node != node or f.end + _AFTER <= start for f in found):
            end = start + round(lasts)
            found.append(Fault(gpu // size.gpus, gpu % size.gpus, node, int(start), end, severity))
    return found


class _Findings:
    """Open findings of every node."""

    def __init__(self, placed: list[Fault], size: Size, limits: Limits) -> None:
        self._placed, self._size, self._limits = placed, size, limits
        halves = (None if limit is None else limit / 2 for limit in (limits.across, limits.in_job))
        self._half = Limits(*halves)
        self._open: Bools = np.zeros(size.nodes, dtype=np.bool_)
        self.false, self.wrong = 0, list[str]()

    def take(self, window: int, fleet: Fleet) -> None:
        """Open and close after one window."""
        told = self._by_node(self._limits.told(fleet.across, fleet.in_job))
        opened = np.flatnonzero(told & ~self._open)
        if self._open.any() or len(opened):
            self._open = told | (self._open & self._by_node(self._half.told(fleet.across, fleet.in_job)))
        for node in opened.tolist():
            self._judge(node, window)

    def _judge(self, node: int, window: int) -> None:
        for f in self._placed:
            if f.node == node and f.start <= window < f.end + _AFTER:
                if f.found is None and window < f.end:
                    f.found = window
                return
        self.false += 1
        self.wrong.append(f"false finding on node {node} at window {window}")

    def _by_node(self, told: Bools) -> Bools:
        return np.asarray(told.reshape(self._size.nodes, -1).any(axis=1), dtype=np.bool_)
