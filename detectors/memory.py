"""A detector's memory of its entities: one row each, found again by key, forgotten when long unseen.

All remembered values are float64 and NaN is "nothing yet"; times are epoch seconds. So a state frame is as
large as the number of entities and survives any store that keeps Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import polars as pl

from graynode.detectors.frames import Floats

FORGET_S: Final = 14 * 86_400.0
"""An entity unseen for two weeks is forgotten: longer than a repair usually takes, and it bounds the state."""

Arrays = dict[str, Floats]


def recall(state: pl.DataFrame | None, keys: pl.Series, columns: Iterable[str]) -> Arrays:
    """The remembered values of ``keys``, in their order; NaN for what is not remembered."""
    names = list(columns)
    if state is None or state.is_empty() or keys.is_empty():
        return {n: np.full(len(keys), np.nan) for n in names}
    have = [n for n in names if n in state.columns]
    found = keys.alias("key").to_frame().join(state.select("key", *have), on="key", how="left", maintain_order="left")
    return {
        n: found.get_column(n).fill_null(float("nan")).to_numpy().copy() if n in have else np.full(len(keys), np.nan)
        for n in names
    }


def remember(state: pl.DataFrame | None, keys: pl.Series, values: Mapping[str, Floats], now_s: float) -> pl.DataFrame:
    """``values`` of ``keys`` in place of what was remembered of them; the others stay until forgotten."""
    fresh = pl.DataFrame(
        {
            "key": keys,
            "seen": np.full(len(keys), now_s),
            **{n: np.asarray(v, dtype=np.float64) for n, v in values.items()},
        },
        schema_overrides={"key": pl.String},
    )
    if state is None or state.is_empty():
        return fresh.sort("key")
    others = state.filter(pl.col("seen") >= now_s - FORGET_S).join(fresh.select("key"), on="key", how="anti")
    if others.is_empty():
        return fresh.sort("key")
    return pl.concat([others, fresh], how="diagonal").fill_null(float("nan")).sort("key")
