"""A detector's memory of its entities: one row each, found again by key, forgotten when long unseen.

A state frame has ``key``, ``seen`` (epoch s) and a column for each remembered value. All are float64 and NaN is
"nothing yet". So a state is as large as the number of entities and survives any store that keeps Arrow. It is kept in
columns, because they are what detectors reckon with: one array a row would have to be turned over twice a round, which
at 100,000 GPUs and 60 values is 0.15 s a detector.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from graynode.detectors.frames import Floats

FORGET_S: Final = 14 * 86_400.0
"""An entity unseen for two weeks is forgotten: longer than a repair usually takes, and it bounds the state."""

Arrays = dict[str, Floats]
"""Remembered values by name, in the order of the keys they were recalled for."""


def recall(state: pl.DataFrame | None, keys: pl.Series, columns: Iterable[str]) -> Arrays:
    """The remembered values of ``keys``, in their order; NaN for what is not remembered.

    What an older detector of the same version did not keep yet is not remembered of anybody; the rest is.
    """
    names = list(columns)
    if state is None or state.is_empty() or not len(keys):
        return {name: np.full(len(keys), np.nan) for name in names}
    state = _with(state, ["key", "seen", *names])
    known = state.get_column("key")
    if _same(known, keys):
        return {name: state.get_column(name).to_numpy().copy() for name in names}
    where = _places(known, keys)
    missing = where < 0
    values = {name: state.get_column(name).to_numpy()[where] for name in names}
    if missing.any():
        for held in values.values():
            held[missing] = np.nan
    return values


def remember(
    state: pl.DataFrame | None, keys: pl.Series, values: Arrays, now_s: float, *, forget_s: float = FORGET_S
) -> pl.DataFrame:
    """``values`` of ``keys`` in place of what was remembered of them; the others stay until unseen for ``forget_s``."""
    fresh = _one_each(_frame(keys, np.full(len(keys), now_s), values))
    if state is None or state.is_empty():
        return fresh.sort("key")
    state = _with(state, fresh.columns)
    old = state.get_column("key")
    if _same(old, keys):
        return fresh
    others = state.lazy().filter(pl.col("seen") >= now_s - forget_s).join(fresh.lazy(), on="key", how="anti")
    return pl.concat([others, fresh.lazy()]).sort("key").collect()


def _with(state: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """These columns in this order; those that the state lacks are NaN."""
    if state.columns == names:
        return state
    lacks = (pl.lit(np.nan).alias(name) for name in names if name not in state.columns)
    return state.with_columns(*lacks).select(names)


def _one_each(fresh: pl.DataFrame) -> pl.DataFrame:
    """Of several windows of an entity, which stand side by side in order of time, the last."""
    keys = fresh.get_column("key")
    if len(keys) < 2 or not (keys.slice(1) == keys.slice(0, len(keys) - 1)).any():
        return fresh
    return fresh.unique("key", keep="last", maintain_order=True)


def _frame(keys: pl.Series, seen: Floats, values: Arrays) -> pl.DataFrame:
    columns = (pl.Series(name, np.asarray(held, dtype=np.float64)) for name, held in values.items())
    return pl.DataFrame([keys.alias("key"), pl.Series("seen", seen), *columns])


def _same(held: pl.Series, keys: pl.Series) -> bool:
    return len(held) == len(keys) and held.equals(keys)


def _places(held: pl.Series, keys: pl.Series) -> NDArray[np.int64]:
    """Row of each key in ``held``, −1 where it is not there."""
    rows = pl.DataFrame({"key": held, "row": np.arange(len(held), dtype=np.int64)})
    wanted = keys.alias("key").to_frame().lazy()
    found = wanted.join(rows.lazy(), on="key", how="left", maintain_order="left").select(pl.col("row").fill_null(-1))
    return found.collect().get_column("row").to_numpy()
