"""Faults of a fleet as arrays: what was known at a moment, and when nodes came back from repair.

Times are days since the history began. Pure; the frame side is in ``graynode.detectors.lemons``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CHAIN_D: Final = 7.0
"""A fault within a week of the return before belongs to the same unfinished repair: on InfiniteHBD's trace 31 % of
faults follow a return within 7 days, and the next 7 add 5 %."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of nodes 0 to ``nodes`` − 1, in order of ``start_d``; ``end_d`` is infinite while the node is down.

    ``kind`` is the number of the fault's class. ``nodes`` counts those without a fault as well.
    """

    nodes: int
    node: Ints
    start_d: Floats
    end_d: Floats
    kind: Ints

    def __len__(self) -> int:
        """How many faults."""
        return len(self.node)

    def known(self, at_d: float) -> Faults:
        """What was known just before ``at_d``: faults that had begun, and of these only the ends that had come."""
        began = self.start_d < at_d
        end_d = np.where(self.end_d <= at_d, self.end_d, np.inf)
        return Faults(self.nodes, self.node[began], self.start_d[began], end_d[began], self.kind[began])

    def merged(self, apart_d: float) -> Faults:
        """Each fault that begins within ``apart_d`` of the end of those before on its node made part of them."""
        order, reach = self._reach()
        first = self._gap(order, reach) > apart_d
        run = np.cumsum(first) - 1
        end_d = np.full(int(first.sum()), -np.inf)
        np.maximum.at(end_d, run, self.end_d[order])
        start_d = self.start_d[order][first]
        back = np.argsort(start_d, kind="stable")
        at = order[first][back]
        return Faults(self.nodes, self.node[at], start_d[back], end_d[back], self.kind[at])

    def counts(self, since_d: float, until_d: float) -> Ints:
        """Faults of each node that began in [``since_d``, ``until_d``)."""
        within = (self.start_d >= since_d) & (self.start_d < until_d)
        return np.bincount(self.node[within], minlength=self.nodes).astype(np.int64)

    def _reach(self) -> tuple[Ints, Floats]:
        """Order by node and start, and there the latest end so far of the node's faults."""
        order = np.lexsort((self.start_d, self.node)).astype(np.int64)
        # By rank, so that a running maximum that begins anew with each node is exact
        ends, rank = np.unique(self.end_d[order], return_inverse=True)
        before = self.node[order] * len(ends)
        return order, ends[np.maximum.accumulate(rank + before) - before]

    def _gap(self, order: Ints, reach: Floats) -> Floats:
        """Days from the end of all the node's faults before to each fault's start; infinite for a node's first."""
        gap = np.full(len(order), np.inf)
        same = self.node[order][1:] == self.node[order][:-1]
        gap[1:] = np.where(same, self.start_d[order][1:] - reach[:-1], np.inf)
        return gap


@dataclass(frozen=True, slots=True)
class Returns:
    """Returns from repair, in order of ``at_d``: overlapping faults are one outage with one return.

    ``next_d`` is how long after the return the node's next fault began, infinite where none has. ``chain`` is how many
    outages in a row before this one had each followed the return before within ``CHAIN_D``. ``kind`` is the class of
    the outage's first fault.
    """

    node: Ints
    at_d: Floats
    next_d: Floats
    chain: Ints
    kind: Ints


def returns(faults: Faults) -> Returns:
    """All returns of the history; nodes that are still down have none of their running outage."""
    outages = faults.merged(0.0)
    order, reach = outages._reach()
    gap = outages._gap(order, reach)
    linked = gap < CHAIN_D
    index = np.arange(len(order))
    broken = np.maximum.accumulate(np.where(linked, 0, index)) if len(order) else index
    node, end_d = outages.node[order], outages.end_d[order]
    next_d = np.full(len(order), np.inf)
    next_d[:-1] = np.where(node[1:] == node[:-1], gap[1:], np.inf)
    back = np.isfinite(end_d)
    by_time = np.argsort(end_d[back], kind="stable")
    chosen = np.flatnonzero(back)[by_time]
    chain = (index - broken).astype(np.int64)
    return Returns(node[chosen], end_d[chosen], next_d[chosen], chain[chosen], outages.kind[order][chosen])


def down(faults: Faults) -> Bools:
    """Which nodes have a fault that has not ended."""
    return np.bincount(faults.node[np.isinf(faults.end_d)], minlength=faults.nodes) > 0
