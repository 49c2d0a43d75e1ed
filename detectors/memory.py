"""A detector's memory of its entities: one row each, found again by key, forgotten when long unseen.

A state frame has ``key``, ``seen`` (epoch s) and ``values``, one fixed-width array a row: a hundred columns of their
own would cost more than the detection. All remembered values are float64 and NaN is "nothing yet". So a state is as
large as the number of entities and survives any store that keeps Arrow.
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

    A state of another width (an older detector's) counts as nothing remembered.
    """
    names = list(columns)
    if state is None or state.is_empty() or not len(keys) or _width(state) != len(names):
        return dict(zip(names, np.full((len(names), len(keys)), np.nan), strict=True))
    held, known_keys = _matrix(state), state.get_column("key")
    if _same(known_keys, keys):
        return dict(zip(names, np.array(held.T, order="C"), strict=True))
    values, where = np.full((len(names), len(keys)), np.nan), _places(known_keys, keys)
    known = where >= 0
    values[:, known] = held[where[known]].T
    return dict(zip(names, values, strict=True))


def remember(
    state: pl.DataFrame | None, keys: pl.Series, values: Arrays, now_s: float, *, forget_s: float = FORGET_S
) -> pl.DataFrame:
    """``values`` of ``keys`` in place of what was remembered of them; the others stay until forgotten."""
    matrix = np.column_stack(list(values.values())) if len(keys) else np.zeros((0, len(values)))
    fresh = _frame(keys, np.full(len(keys), now_s), np.ascontiguousarray(matrix, dtype=np.float64))
    if state is None or state.is_empty() or _width(state) != len(values):
        return fresh.sort("key")
    old = state.get_column("key")
    if _same(old, keys):
        return fresh
    others = state.lazy().filter(pl.col("seen") >= now_s - forget_s).join(fresh.lazy(), on="key", how="anti")
    return pl.concat([others, fresh.lazy()]).sort("key").collect()


def _frame(keys: pl.Series, seen: Floats, matrix: NDArray[np.float64]) -> pl.DataFrame:
    values = pl.Series("values", matrix, dtype=pl.Array(pl.Float64, matrix.shape[1]))
    return pl.DataFrame([keys.alias("key"), pl.Series("seen", seen), values])


def _width(state: pl.DataFrame) -> int:
    held = state.schema["values"]
    return held.size if isinstance(held, pl.Array) else -1


def _matrix(state: pl.DataFrame) -> NDArray[np.float64]:
    matrix: NDArray[np.float64] = state.get_column("values").to_numpy()
    return matrix


def _same(held: pl.Series, keys: pl.Series) -> bool:
    return len(held) == len(keys) and held.equals(keys)


def _places(held: pl.Series, keys: pl.Series) -> NDArray[np.int64]:
    """Row of each key in ``held``, −1 where it is not there."""
    rows = pl.DataFrame({"key": held, "row": np.arange(len(held), dtype=np.int64)})
    wanted = keys.alias("key").to_frame().lazy()
    found = wanted.join(rows.lazy(), on="key", how="left", maintain_order="left").select(pl.col("row").fill_null(-1))
    return found.collect().get_column("row").to_numpy()
