"""Step times of workers: reading them.

Format: the mini-batch times of Alibaba's GPU trace (CSV): ``worker``, ``time`` (which step), ``batch_time_norm`` or
another column that begins with ``batch_time``; and its table of variation (one row a job, one column a step), which
names no worker, so that nothing can be located in it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from graynode.benchmarks.detection.result import DataError
from graynode.detectors.work import Work

_LEAST_STEPS = 20


def is_variation(columns: list[str]) -> bool:
    """Whether a CSV's head is that of the table of variation: an index without name, then steps from 0 on."""
    return len(columns) > 2 and columns[0] == "" and columns[1:] == [str(i) for i in range(len(columns) - 1)]


def parse(rows: pl.DataFrame, name: str) -> Work:
    """One job of step times as wall seconds. ``DataError`` says what is missing, or too little to locate anything."""
    value = next((c for c in rows.columns if c.startswith("batch_time")), None)
    missing = [c for c in ("worker", "time") if c not in rows.columns] + (["batch_time_norm"] if value is None else [])
    if missing or value is None:
        raise DataError(f"{name}: no column {', '.join(missing)}; expected worker, time, batch_time_norm")
    try:
        times = rows.select(pl.col("worker", "time").cast(pl.Int64), pl.col(value).cast(pl.Float64).alias("seconds"))
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{name}: {str(error).splitlines()[0]}; expected numbers as worker, time and {value}"
        ) from error
    usable = times.drop_nulls().filter(pl.col("seconds").is_finite() & (pl.col("seconds") > 0))
    table = usable.pivot(on="worker", index="time", values="seconds", aggregate_function="median").sort("time")
    workers = sorted(int(c) for c in table.columns if c != "time")
    if len(workers) < 3 or table.height < _LEAST_STEPS:
        raise DataError(
            f"{name}: {len(workers)} workers and {table.height} steps; expected 3 or more, and {_LEAST_STEPS} or more"
        )
    seconds = table.select(str(w) for w in workers).to_numpy().T.astype(np.float64)
    rank = np.array(workers, dtype=np.int64)
    return Work(rank=rank, node=np.arange(len(rank), dtype=np.int64), wall=seconds)


def read(file: Path) -> pl.DataFrame:
    """The file's rows. ``DataError`` where it cannot be read."""
    try:
        return pl.read_csv(file, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{file}: cannot be read ({error}); expected step times as CSV") from error
