"""Samples and what came before them, in order of entity and time: where windows lie in them, and where segments end."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from graynode.pipeline.schema import TABLES

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_US: Final = 1_000_000
_FAR: Final = np.iinfo(np.int64).max


class Sorted:
    """Carry rows and samples in order of entity and time, one per entity and time, and where windows lie.

    Arrays are over sorted positions. ``group`` is the window's number, −1 in carry rows; ``real`` are positions of
    samples; ``starts``/``last`` the first and last *sample* of each group among ``real``.
    """

    def __init__(self, table: str, carry: pl.DataFrame, rows: pl.DataFrame, window_s: int) -> None:
        names = [*TABLES[table].entity, "ts", "boot_id", "driver_load"]
        if table == "link":
            names = [*dict.fromkeys([*names, "gpu_uuid"])]
        both = pl.concat([carry.select(names), rows.select(names)])
        entity = _codes(both, list(TABLES[table].entity))
        ts = both["ts"].dt.timestamp("us").to_numpy()
        is_carry = np.arange(both.height) < carry.height
        order = np.lexsort((ts, entity))
        again = np.zeros(both.height, bool)
        same = (entity[order][1:] == entity[order][:-1]) & (ts[order][1:] == ts[order][:-1])
        again[1:] = same & ~is_carry[order][:-1]
        order = order[~again]
        self.order, self.offset = order, carry.height
        self.entity, self.ts = entity[order], ts[order]
        self.boot = _codes(both, ["boot_id"])[order]
        self.load = _load(table, both)[order]
        self.window_of = self.ts - self.ts % (window_s * _US)
        is_real = ~is_carry[order]
        new = np.ones(len(order), bool)
        new[1:] = (
            (self.entity[1:] != self.entity[:-1])
            | (self.window_of[1:] != self.window_of[:-1])
            | (is_real[1:] & ~is_real[:-1])
        )
        self.group = np.where(is_real, np.cumsum(new & is_real) - 1, -1)
        self.real = np.flatnonzero(is_real)
        starts = np.flatnonzero((new & is_real)[self.real])
        self.starts, self.groups = starts, len(starts)
        self.sizes = np.diff(np.append(starts, len(self.real)))
        self.last = self.real[starts + self.sizes - 1] if self.groups else self.real
        self.segment_changed = np.zeros(len(order), bool)
        same_entity = self.entity[1:] == self.entity[:-1]
        moved = (self.boot[1:] != self.boot[:-1]) | (self.load[1:] != self.load[:-1])
        self.segment_changed[1:] = same_entity & moved
        self.reset = self.segment_changed.copy()

    def row(self, positions: Ints) -> Ints:
        """Row numbers in the samples' frame of sorted positions."""
        return self.order[positions] - self.offset

    def spacing_s(self, least: float) -> NDArray[np.float64]:
        """Seconds a sample stands for, per group: its shortest spacing, so that a gap is not filled up."""
        step = np.full(len(self.real), _FAR, np.int64)
        step[1:] = np.diff(self.ts[self.real])
        step[self.starts] = _FAR
        shortest = np.minimum.reduceat(step, self.starts) if self.groups else step
        return np.where(shortest == _FAR, least, np.maximum(shortest / _US, least))


def _codes(frame: pl.DataFrame, names: list[str]) -> Ints:
    """A number per distinct combination; null is a value of its own."""
    distinct = frame.select(names).unique(maintain_order=True).with_row_index("_code")
    joined = frame.select(names).join(distinct, on=names, how="left", nulls_equal=True, maintain_order="left")
    return joined["_code"].cast(pl.Int64).to_numpy()


def _load(table: str, frame: pl.DataFrame) -> Ints:
    load = frame["driver_load"].fill_null(-1)
    if table == "link":  # a network port does not care for the GPU driver; an NVLink does
        return np.where(frame["gpu_uuid"].is_null().to_numpy(), 0, load.to_numpy())
    return np.zeros(frame.height, np.int64) if table == "host" else load.to_numpy()


def spread(values: Any, present: Ints, groups: int) -> pl.Series:  # noqa: ANN401 (array of any number type)
    """One value per group; groups without one are null."""
    if len(present) == groups:
        return pl.Series(values)
    full = np.zeros(groups, values.dtype)
    full[present] = values
    there = np.zeros(groups, bool)
    there[present] = True
    return pl.Series(full).set(pl.Series(~there), None)
