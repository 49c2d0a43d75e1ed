"""Columns of one window table's frame, from arrays of shape (windows, entities)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from graynode.collectors.simulated.fleet import Fleet
from graynode.collectors.simulated.noise import Array
from graynode.collectors.simulated.signals import Counter, Gauge, Grid
from graynode.pipeline.codec import arrow_schema

_NUMERIC: Final = ("int32", "int64", "float", "double")


@functools.cache
def _kinds(table: str) -> Mapping[str, np.dtype[np.generic]]:
    """NumPy types of a table's numeric columns."""
    return {f.name: np.dtype(f.type.to_pandas_dtype()) for f in arrow_schema(table) if str(f.type) in _NUMERIC}


class Columns:
    """Columns of one frame of a window table, each of shape (windows, entities); rows that nobody saw are left out."""

    def __init__(self, table: str, grid: Grid, fleet: Fleet, seen: Array) -> None:
        self._table, self._seen = table, seen > 0
        self._all, self._rows = bool(self._seen.all()), int(self._seen.sum())
        self._made: dict[str, pl.Series] = {}
        epoch_us = np.datetime64(fleet.origin.replace(tzinfo=None), "us").astype(np.int64)
        ts = np.broadcast_to((epoch_us + grid.start.astype(np.int64) * 1_000_000)[:, None], seen.shape)
        self._made["ts"] = pl.Series("ts", self._flat(ts)).cast(pl.Datetime("us", "UTC"))
        self.put(samples=seen, samples_expected=np.full((1, 1), grid.length))

    def _flat(self, values: Array) -> Array:
        wide = np.broadcast_to(values, self._seen.shape)
        out: Array = wide.reshape(-1) if self._all else wide[self._seen]
        return out

    def put(self, **columns: Array) -> None:
        """Numbers as they are, in the contract's type; an array of one value stands for all rows."""
        for name, values in columns.items():
            self._made[name] = pl.Series(name, self._flat(values).astype(_kinds(self._table)[name]))

    def text(self, name: str, words: Sequence[str | None], which: Array) -> None:
        """Words by number; number −1 is null where the last word is ``None``."""
        taken = self._flat(which).astype(np.int64)
        self._made[name] = pl.Series(name, words, dtype=pl.String).gather(taken % len(words))

    def gauge(self, name: str, g: Gauge) -> None:
        """Mean, min and max of a gauge; whole numbers where the device gives whole numbers."""
        kinds = _kinds(self._table)
        whole = kinds[f"{name}_min"].kind == "i"
        low, high = (np.rint(g.low), np.rint(g.high)) if whole else (g.low, g.high)
        low, high = (
            np.minimum(low, np.floor(g.mean) if whole else g.mean),
            np.maximum(high, np.ceil(g.mean) if whole else g.mean),
        )
        self.put(**{f"{name}_mean": g.mean, f"{name}_min": low, f"{name}_max": high})

    def steady(self, name: str, values: Array, spread: float = 0.0) -> None:
        """A gauge whose samples lie within a share ``spread`` of its mean."""
        self.gauge(name, Gauge(values, values * (1 - spread), values * (1 + spread)))

    def counter(self, name: str, c: Counter, reset: Array | None = None) -> None:
        """Delta and last reading; with ``reset`` (how many in each window) also the value since the reset."""
        self.put(**{f"{name}_delta": c.delta, f"{name}_last": c.last})
        if reset is None:
            return
        if reset.any():
            self.put(**{f"{name}_since_reset": c.last})
            self.blank(f"{name}_since_reset", reset <= 0)
        else:
            self._made[f"{name}_since_reset"] = pl.Series(
                f"{name}_since_reset", [None], dtype=pl.Int64
            ).extend_constant(None, self._rows - 1)

    def blank(self, name: str, where: Array) -> None:
        """Null where there is nothing to say."""
        column = self._made[name]
        self._made[name] = column.zip_with(pl.Series(~self._flat(where)), pl.Series([None], dtype=column.dtype))

    def frame(self) -> pl.DataFrame:
        """What has been put, as a frame."""
        return pl.DataFrame(list(self._made.values()))
