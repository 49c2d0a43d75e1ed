"""Piecewise constant functions of many entities, with closed-form integrals.

Load, power and rates of a simulated GPU change when a job starts or a fault begins and hold in between. So a
counter is an integral that can be read at any time, and a window's mean is a difference of two of them: history
written as windows and samples taken live continue each other exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from graynode.collectors.simulated.noise import Array

SPAN: Final = float(1 << 32)
"""Seconds set aside for one entity on the common axis; 1,024 entities keep 0.5 ms of resolution."""


class Steps:
    """Values of ``columns`` hold from each start to the next of the same entity.

    Every entity must have a step that starts at 0 or before what will be asked.
    """

    def __init__(self, entity: Array, start: Array, columns: Mapping[str, Array]) -> None:
        order = np.lexsort((start, entity))
        self.entity: Array = np.asarray(entity)[order]
        self.start: Array = np.asarray(start, np.float64)[order]
        self._keys: Array = np.asarray(entity, np.float64)[order] * SPAN + self.start
        self.columns = {name: np.asarray(column)[order] for name, column in columns.items()}
        self._last = len(order) - 1
        lasting = np.diff(self.start, append=self.start[-1:])
        self._lasting: Array = np.where(lasting > 0, lasting, 0.0)
        self._sums: dict[str, Array] = {}

    def at(self, entity: Array, t: Array) -> Array:
        """Index of the step in force for each broadcast pair of entity and time."""
        return np.searchsorted(self._keys, entity * SPAN + t, side="right") - 1

    def integral(self, name: str, index: Array, t: Array) -> Array:
        """Integral of a column up to ``t`` (value × seconds); only differences within one entity mean anything."""
        column = self.columns[name]
        if name not in self._sums:
            self._sums[name] = self._summed(column.astype(np.float64) * self._lasting)
        out: Array = self._sums[name][index] + column[index] * (t - self.start[index])
        return out

    def _summed(self, pieces: Array) -> Array:
        """Sum of each entity's pieces before each of its steps; one by one, so that no digit is lost to others."""
        out = np.zeros(len(pieces))
        bounds = [0, *(np.nonzero(np.diff(self.entity))[0] + 1).tolist(), len(pieces)]
        for first, end in pairwise(bounds):
            out[first + 1 : end] = np.cumsum(pieces[first : end - 1])
        return out

    def extremes(self, name: str, first: Array, last: Array) -> tuple[Array, Array]:
        """Lowest and highest value over the steps ``first`` to ``last``, both included."""
        column = self.columns[name]
        low, high = column[first], column[first].copy()
        low = low.copy()
        several = np.nonzero(last > first)
        if len(several[0]):
            edges = np.empty(2 * len(several[0]), np.int64)
            edges[0::2], edges[1::2] = first[several], np.minimum(last[several] + 1, self._last)
            low[several] = np.minimum(np.minimum.reduceat(column, edges)[0::2], column[last[several]])
            high[several] = np.maximum(np.maximum.reduceat(column, edges)[0::2], column[last[several]])
        return low, high


class Jumps:
    """Counters that grow at moments: ``weight`` is added to ``entity`` at ``t``."""

    def __init__(self, moments: Sequence[tuple[int, float, float]]) -> None:
        table = np.array(sorted(moments), np.float64).reshape(-1, 3)
        self.entity, self.t, self.weight = table[:, 0], table[:, 1], table[:, 2]
        self._keys: Array = self.entity * SPAN + self.t
        self._sums: Array = np.concatenate(([0.0], np.cumsum(self.weight)))

    def total(self, entity: Array, t: Array) -> Array:
        """What has been added to each entity up to and including ``t``."""
        upto = np.searchsorted(self._keys, entity * SPAN + np.maximum(t, -1.0), side="right")
        since = np.searchsorted(self._keys, entity * SPAN - 1.0, side="right")
        out: Array = self._sums[upto] - self._sums[since]
        return out
