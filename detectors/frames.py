"""From contract frames to arrays: the columns a detector reads, one row per entity and window, sorted.

An absent column is all null, null and non-finite numbers are NaN, rows without identity are left out. Sorting
by entity makes every detector indifferent to the order of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_WHO: Final = ("cluster", "node_id", "node", "boot_id")
GPU_TEXTS: Final = ("gpu_uuid", "gpu_model_last", "pci_bus_id_last", "job_id_last", "job_role_last")


@dataclass(frozen=True, slots=True)
class View:
    """Rows of one window table as arrays. ``keys`` names the entity, ``t_s`` is the window's start (epoch s)."""

    keys: pl.Series
    who: pl.DataFrame
    t_s: Floats
    x: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.keys)

    def text(self, name: str) -> pl.Series:
        """A text column; null where it was absent."""
        return self.who.get_column(name)

    def identity(self, row: int) -> dict[str, object]:
        """The key columns of one row, as a finding carries them."""
        named = self.who.row(row, named=True)
        return {k: named[k] for k in (*_WHO, "gpu_uuid", "link") if k in named}


def gpus(frame: pl.DataFrame, numbers: Sequence[str]) -> View:
    """GPU windows; a MIG instance is an entity of its own."""
    mig = pl.lit("") if "mig_instance" not in frame.columns else pl.col("mig_instance").fill_null("")
    key = pl.col("gpu_uuid") + pl.when(mig == "").then(pl.lit("")).otherwise(pl.lit("/") + mig)
    return _view(frame, "gpu_uuid", key, GPU_TEXTS, numbers)


def links(frame: pl.DataFrame, numbers: Sequence[str]) -> View:
    """Link windows; a link's name is unique on its machine only."""
    key = pl.concat_str("node_id", "link", separator="|")
    return _view(frame, "link", key, ("link", "gpu_uuid", "link_kind_last", "state_last"), numbers)


def hosts(frame: pl.DataFrame, numbers: Sequence[str]) -> View:
    """Host windows."""
    return _view(frame, "node_id", pl.col("node_id"), ("driver_version_last",), numbers)


def _view(frame: pl.DataFrame, identity: str, key: pl.Expr, texts: Sequence[str], numbers: Sequence[str]) -> View:
    names = [*_WHO, *(t for t in texts if t not in _WHO)]
    if not {identity, "node_id", "ts"} <= set(frame.columns):
        frame = pl.DataFrame(schema={n: pl.String for n in names} | {"ts": pl.Datetime("us", "UTC")})
    known = set(frame.columns)
    rows = (
        frame.lazy()
        .filter(pl.col(identity).is_not_null() & pl.col("node_id").is_not_null() & pl.col("ts").is_not_null())
        .select(
            key.alias("_key"),
            (pl.col("ts").cast(pl.Datetime("us", "UTC")).dt.epoch("us") / 1e6).alias("_t"),
            (pl.col("samples") if "samples" in known else pl.lit(None)).cast(pl.Float64).alias("_samples"),
            *(_column(n, known, pl.String) for n in names),
            *(_column(n, known, pl.Float64).alias(f"#{n}") for n in numbers),
        )
        .sort("_key", "_t", "_samples", "boot_id", descending=[False, False, True, False], nulls_last=True)
        .unique(subset=["_key", "_t"], keep="first", maintain_order=True)
        .collect()
    )
    arrays = {n: finite(rows.get_column(f"#{n}")) for n in numbers}
    return View(rows.get_column("_key"), rows.select(names), finite(rows.get_column("_t")), arrays)


def _column(name: str, known: set[str], type_: type[pl.DataType]) -> pl.Expr:
    return (pl.col(name) if name in known else pl.lit(None)).cast(type_).alias(name)


def finite(column: pl.Series) -> Floats:
    """A column as float64; null and non-finite are NaN."""
    values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy().astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def codes(*columns: pl.Series) -> Ints:
    """The same number for the same combination of values; −1 where the first column is null."""
    if not columns or columns[0].is_empty():
        return np.zeros(0, dtype=np.int64)
    frame = pl.DataFrame([c.alias(str(i)) for i, c in enumerate(columns)])
    joined = pl.concat_str([pl.col(c).cast(pl.String).fill_null("\x00") for c in frame.columns], separator="\x1f")
    ranked = frame.select(pl.when(pl.col("0").is_null()).then(None).otherwise(joined).rank("dense"))
    return ranked.to_series().cast(pl.Int64).fill_null(-1).to_numpy().astype(np.int64)


def epoch_s(moment: datetime) -> float:
    """A moment as epoch seconds."""
    return moment.timestamp()


def moment(seconds: float) -> datetime | None:
    """Epoch seconds as a moment; ``None`` for NaN."""
    return None if np.isnan(seconds) else datetime.fromtimestamp(seconds, UTC)
