"""Reading runs in Longhorn's format: one CSV a workload, one row a run of one GPU (github.com/hal-uw, SC22 and SC24).

Needed are ``uuid``, ``ts`` (epoch seconds) and ``perf`` (ms, lower is faster). Clock is ``mean_freq``, else ``freq``
(MHz); power ``mean_pwr``, else ``pwr`` (W); temperature ``mean_temp``, else ``temp`` (°C). Runs are of the same work
where the columns agree that describe it, and beside each other where time and node agree. Nothing else is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from graynode.benchmarks.detection.baselines import FloatArray
from graynode.benchmarks.detection.intervals import IntArray
from graynode.benchmarks.detection.result import DataError

NEEDED: Final = ("uuid", "ts", "perf")
SIGNALS: Final = {"time": ("perf",), "clock": ("mean_freq", "freq"), "power": ("mean_pwr", "pwr")}
"""The columns of each signal, the preferred one first."""
_TEMPERATURE: Final = ("mean_temp", "temp")
_WORK: Final = ("exp", "input_size", "reps", "kern", "model", "gpu_model")
_PLACE: Final = ("cabinet", "node", "cab-node")
_EARLIEST_S: Final = 946_684_800
_LATEST_S: Final = 4_102_444_800
"""2000 and 2100: what is outside is no time of a run; Longhorn has −1."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The usable runs of one file, in order of GPU and time.

    ``gpu``, ``work`` and ``beside`` are numbers; ``ids`` names the GPUs. ``worse`` holds each signal's log, signed so
    that higher is worse: time up, clock and power down; NaN where it is not known or not positive.
    """

    name: str
    ids: tuple[str, ...]
    gpu: IntArray
    work: IntArray
    beside: IntArray
    time_s: FloatArray
    worse: dict[str, FloatArray]
    temp_c: FloatArray
    rows: int
    duplicates: int
    without_time: int
    unusable: int

    @property
    def history(self) -> IntArray:
        """GPU and work in one number: whose runs have one past."""
        return np.asarray(self.gpu * (int(self.work.max(initial=0)) + 1) + self.work, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Read:
    """What a folder held: ``workloads`` by name, the ``files`` they are of, and those that are of another kind."""

    workloads: tuple[Workload, ...]
    files: tuple[Path, ...]
    others: tuple[str, ...] = field(default=())


def read(folder: Path) -> Read:
    """All CSV files of the format in a folder. ``DataError`` says the file, what is wrong, and what was expected."""
    files = sorted(folder.glob("*.csv"))
    tables = {file: table for file in files if (table := _table(file)) is not None}
    if not tables:
        raise DataError(
            f"{folder}: none of its {len(files)} CSV files has the columns {', '.join(NEEDED)}; expected runs in the "
            "format of Longhorn's aggregated_data_sim_sgemm-longhorn-agg.csv"
        )
    kinds = {file: _kind(file, table) for file, table in tables.items()}
    names = {f: k if list(kinds.values()).count(k) == 1 else f.stem for f, k in kinds.items()}
    workloads = tuple(parse(tables[f], names[f], f.name) for f in tables)
    return Read(workloads, tuple(tables), tuple(f.name for f in files if f not in tables))


def _table(file: Path) -> pl.DataFrame | None:
    """The file's rows as text; none where it has nothing of the format."""
    try:
        table = pl.read_csv(file, infer_schema=False)
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: cannot be read as CSV ({str(error).splitlines()[0]}); expected a header line"
        ) from error
    missing = [c for c in NEEDED if c not in table.columns]
    if len(missing) == len(NEEDED):
        return None
    if missing:
        raise DataError(f"{file}: has no column {', '.join(missing)}; expected at least {', '.join(NEEDED)}")
    return table


def _kind(file: Path, table: pl.DataFrame) -> str:
    named = table.get_column("exp").drop_nulls().unique() if "exp" in table.columns else pl.Series(dtype=pl.String)
    return str(named[0]) if len(named) == 1 else file.stem


def parse(table: pl.DataFrame, name: str, file: str) -> Workload:
    """Runs from the rows as text. A row without possible time, GPU or positive ``perf`` does not count, exact
    repeats count once."""
    rows = table.with_columns(
        _number(table, ("ts",)).alias("_ts"),
        *(_number(table, columns).alias(f"_{signal}") for signal, columns in SIGNALS.items()),
        _number(table, _TEMPERATURE).alias("_temp"),
        _text(table, _WORK).alias("_work"),
        _text(table, _PLACE).alias("_place"),
    )
    timed = rows.filter(pl.col("_ts").is_between(_EARLIEST_S, _LATEST_S).fill_null(value=False))
    once = timed.unique(maintain_order=True)
    usable = once.filter(pl.col("uuid").is_not_null() & (pl.col("_time") > 0) & pl.col("_time").is_finite())
    if usable.is_empty():
        raise DataError(
            f"{file}: none of its {table.height} rows has a uuid, a time in epoch seconds (ts) and a positive perf"
        )
    ordered = usable.sort("uuid", "_ts", "_work", "_time", maintain_order=True)
    ids = ordered.get_column("uuid").unique(maintain_order=True)
    return Workload(
        name=name,
        ids=tuple(ids),
        gpu=_codes(ordered, "uuid"),
        work=_codes(ordered, "_work"),
        beside=_codes(ordered, "_work", "_place", "_ts"),
        time_s=ordered.get_column("_ts").to_numpy(),
        worse={s: _log(ordered.get_column(f"_{s}").to_numpy(), 1.0 if s == "time" else -1.0) for s in SIGNALS},
        temp_c=ordered.get_column("_temp").fill_null(float("nan")).to_numpy(),
        rows=table.height,
        duplicates=timed.height - once.height,
        without_time=rows.height - timed.height,
        unusable=once.height - usable.height,
    )


def _number(table: pl.DataFrame, columns: tuple[str, ...]) -> pl.Expr:
    present = [c for c in columns if c in table.columns]
    return (pl.col(present[0]) if present else pl.lit(None, pl.String)).cast(pl.Float64, strict=False)


def _text(table: pl.DataFrame, columns: tuple[str, ...]) -> pl.Expr:
    present = [pl.col(c).fill_null("") for c in columns if c in table.columns]
    return pl.concat_str(present, separator="\t") if present else pl.lit("")


def _codes(rows: pl.DataFrame, *columns: str) -> IntArray:
    """Numbers of the distinct combinations, in order of first appearance."""
    return rows.select(pl.struct(columns).rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()


def _log(values: npt.NDArray[np.float64], sign: float) -> FloatArray:
    return np.asarray(sign * np.log(np.where(values > 0, values, np.nan)), dtype=np.float64)
