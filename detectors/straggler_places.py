"""Who is compared with whom in one job: ranks by role, by role and node, and by pipeline, as tables of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graynode.detectors.frames import Floats, Ints

Statistic = Callable[..., Floats]
"""Over one axis of an array, leaving NaN out."""


@dataclass(frozen=True, slots=True)
class Groups:
    """``rows`` is a table of row numbers (groups × largest size, filled with −1), ``of`` each row's group or −1."""

    rows: Ints
    of: Ints

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> Ints:
        """How many rows each group has."""
        return np.asarray((self.rows >= 0).sum(axis=1), dtype=np.int64)

    def each(self, values: Floats, statistic: Statistic) -> Floats:
        """A statistic over the rows of each group: groups × steps."""
        return statistic(np.where((self.rows >= 0)[..., None], values[self.rows], np.nan), axis=1)

    def over(self, values: Floats, statistic: Statistic) -> Floats:
        """The same, laid out on the rows; NaN for rows of no group."""
        if not len(self):
            return np.full(values.shape, np.nan)
        return np.where((self.of >= 0)[:, None], self.each(values, statistic)[self.of], np.nan)


def groups(code: Ints) -> Groups:
    """Groups of equal ``code``, in its order; −1 is in none."""
    known = np.flatnonzero(code >= 0)
    names, place = np.unique(code[known], return_inverse=True)
    order = np.argsort(place, kind="stable")
    size = np.bincount(place, minlength=len(names))
    within = np.arange(len(known)) - np.repeat(np.cumsum(size) - size, size)
    rows = np.full((len(names), int(size.max(initial=1))), -1, dtype=np.int64)
    rows[place[order], within] = known[order]
    of = np.full(len(code), -1, dtype=np.int64)
    of[known] = place
    return Groups(rows, of)


@dataclass(frozen=True, slots=True)
class Places:
    """The groups of a job. ``homes`` and ``cells`` are ranks of one role on one node, and of one role in one pipeline;
    ``homes_of`` groups the former by role, ``cells_of`` the latter by pipeline (``None``: data is not told apart)."""

    role: Groups
    homes: Groups
    homes_of: Groups
    cells: Groups | None
    cells_of: Groups | None

    def reference(self, level: Floats) -> Floats:
        """Per rank the level of its role that a slow node cannot move; of a role on one node, by ranks."""
        column = level[:, None]
        by_rank = self.role.over(column, lower_median)[:, 0]
        if not len(self.homes):
            return by_rank
        homes = self.homes.each(column, median)
        known = self.homes_of.each(np.isfinite(homes).astype(np.float64), total)[:, 0]
        by_node = np.where(known > 1, self.homes_of.each(homes, lower_median)[:, 0], np.nan)
        laid_out = np.where(self.role.of >= 0, by_node[self.role.of], np.nan)
        return np.where(np.isnan(laid_out), by_rank, laid_out)

    def of_pipelines(self, values: Floats, statistic: Statistic) -> Floats:
        """A statistic over the roles of each pipeline, a role's ranks there being one by their median; NaN for a
        pipeline with one role only, and where pipelines are not known."""
        if self.cells is None or self.cells_of is None:
            return np.full(values.shape, np.nan)
        cells = self.cells.each(values, median)
        lines = np.where(self.cells_of.size[:, None] > 1, self.cells_of.each(cells, statistic), np.nan)
        return np.where((self.cells.of >= 0)[:, None], lines[self.cells_of.of[self.cells.of]], np.nan)


def places(role: Ints, pipeline: Ints | None, node: Ints) -> Places:
    """The groups of a job from each rank's role, pipeline and node (−1: not known)."""
    homes = groups(np.where(role >= 0, role * (node.max(initial=0) + 1) + node, -1))
    by_role = groups(role)
    cells = cells_of = None
    if pipeline is not None and len(by_role) > 1 and bool(((pipeline >= 0) & (role >= 0)).any()):
        known = (role >= 0) & (pipeline >= 0)
        cells = groups(np.where(known, pipeline * (role.max(initial=0) + 1) + role, -1))
        cells_of = groups(pipeline[cells.rows[:, 0]])
    return Places(by_role, homes, groups(role[homes.rows[:, 0]]), cells, cells_of)


def median(values: Floats, axis: int = 0) -> Floats:
    """The median of what is known; NaN where nothing is. (numpy's own is many times slower on short rows.)"""
    ordered, count = _ordered(values, axis)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis=axis)
    return _squeezed((low + high) / 2, axis)


def lower_median(values: Floats, axis: int = 0) -> Floats:
    """The lower median: of an even number, the smaller of the middle two."""
    ordered, count = _ordered(values, axis)
    return _squeezed(np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=axis), axis)


def total(values: Floats, axis: int = 0) -> Floats:
    """The sum of what is known."""
    return np.asarray(np.nansum(values, axis=axis), dtype=np.float64)


def largest(values: Floats, axis: int = 0) -> Floats:
    """The largest of what is known; NaN where nothing is."""
    most = np.max(np.where(np.isnan(values), -np.inf, values), axis=axis)
    return np.where(np.isneginf(most), np.nan, most)


def _ordered(values: Floats, axis: int) -> tuple[Floats, Ints]:
    # NaN sorts last, so that where nothing is known the first is NaN as well
    return np.sort(values, axis=axis), np.isfinite(values).sum(axis=axis, keepdims=True)


def _squeezed(values: Floats, axis: int) -> Floats:
    return np.asarray(np.squeeze(values, axis), dtype=np.float64)
