"""Operation traces of training jobs: reading, checking, and the arrays that a case is made from.

Format: the op traces of an OSDI'25 study of stragglers (parquet or CSV), one row an operation: ``rank``, ``step``,
``optype``, ``duration`` (seconds); optional ``stage`` (role), ``dp_rank`` (which data), ``start_ts``, ``seq_id``,
``mb_id`` (−1: none), ``mc`` (model chunk), ``node``. Without ``node`` two neighbouring workers are one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from graynode.benchmarks.detection.attribution_job import Trace
from graynode.benchmarks.detection.intervals import FloatArray, IntArray
from graynode.benchmarks.detection.result import DataError
from graynode.detectors.operations import kind_of, part_of

NEEDED: Final = ("rank", "step", "optype", "duration")
_OPTIONAL: Final = ("stage", "dp_rank", "start_ts", "seq_id", "mb_id", "mc", "node")
_LEAST_STEPS: Final = 5
_LEAST_RANKS: Final = 4
_MOST_CELLS: Final = 1_500_000
"""Ranks × steps × microbatches that are kept: beyond it, evenly spaced steps, so that any job's run takes minutes."""


def read(file: Path) -> pl.DataFrame:
    """The file's rows. ``DataError`` where it cannot be read."""
    try:
        return pl.read_parquet(file) if file.suffix == ".parquet" else pl.read_csv(file, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{file}: cannot be read ({error}); expected an operation trace as parquet or CSV") from error


def parse(rows: pl.DataFrame, name: str) -> Trace:
    """The job of one file. ``DataError`` says what is missing or too little."""
    missing = [c for c in NEEDED if c not in rows.columns]
    if missing:
        raise DataError(f"{name}: no column {', '.join(missing)}; expected {', '.join(NEEDED)} of an operation trace")
    ops, notes = _clean(rows, name)
    ops, more = _thinned(ops)
    who = ops.group_by("rank").agg(pl.col("stage", "dp_rank", "node").drop_nulls().first()).sort("rank")
    if who.height < _LEAST_RANKS:
        raise DataError(f"{name}: {who.height} workers; expected {_LEAST_RANKS} or more to tell who is slow")
    steps = ops.get_column("step").n_unique()
    if steps < _LEAST_STEPS:
        raise DataError(f"{name}: {steps} steps; expected {_LEAST_STEPS} or more")
    micro = _micro(ops)
    if not micro:
        seen = ", ".join(sorted(ops.get_column("optype").unique())[:12])
        raise DataError(f"{name}: no compute among its operations ({seen}); expected forward and backward work")
    return Trace(
        name=name,
        rank=who.get_column("rank").to_numpy().astype(np.int64),
        node=_nodes(who),
        role=_codes(who, "stage"),
        pipeline=_codes(who, "dp_rank"),
        micro=micro,
        optimizer=_sum_of(ops, "optimizer"),
        input=_sum_of(ops, "input"),
        wait=_filled(_sum_of(ops, "wait"), who.height, steps),
        wall=_wall(ops, who.height, steps),
        traits=_traits(ops),
        notes=(*notes, *more),
    )


def _clean(rows: pl.DataFrame, name: str) -> tuple[pl.DataFrame, list[str]]:
    present = [c for c in (*NEEDED, *_OPTIONAL) if c in rows.columns]
    absent = [c for c in _OPTIONAL if c not in rows.columns]
    try:
        ops = rows.select(present).with_columns(
            pl.col("rank", "step").cast(pl.Int64),
            pl.col("duration").cast(pl.Float64),
            pl.col("optype").cast(pl.String),
            *(pl.col(c).cast(pl.Int64) for c in ("seq_id", "mb_id", "mc") if c in present),
            *(_seconds(rows.schema[c]).alias(c) for c in ("start_ts",) if c in present),
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{name}: {str(error).splitlines()[0]}; expected whole numbers as rank, step, seq_id, mb_id and mc, "
            "seconds as duration and start_ts"
        ) from error
    once = ops.unique(maintain_order=True)
    usable = once.drop_nulls(["rank", "step", "optype"]).filter(
        pl.col("duration").is_finite() & (pl.col("duration") >= 0)
    )
    notes = []
    if once.height < ops.height:
        notes.append(f"{name}: {ops.height - once.height} exact repeats of rows dropped")
    if usable.height < once.height:
        notes.append(f"{name}: {once.height - usable.height} rows without worker, step, operation or duration dropped")
    if usable.is_empty():
        raise DataError(f"{name}: no usable row; expected one an operation, with {', '.join(NEEDED)}")
    usable = usable.with_columns(pl.lit(None, dtype=pl.Int64).alias(c) for c in absent)
    return _classified(usable), notes


def _seconds(kind: pl.DataType) -> pl.Expr:
    started = pl.col("start_ts")
    return started.dt.epoch("us") / 1e6 if kind == pl.Datetime else started.cast(pl.Float64)


def _classified(ops: pl.DataFrame) -> pl.DataFrame:
    """With ``kind`` and ``part`` of every operation; ``mb_id`` of −1 is null."""
    ops = ops.with_columns(pl.when(pl.col("mb_id") >= 0).then(pl.col("mb_id")).alias("mb_id"))
    names = ops.group_by("optype").agg(pl.col("mb_id").is_not_null().any().alias("micro"))
    table = [(n, kind_of(n, microbatch=m), part_of(n)) for n, m in names.iter_rows()]
    kinds = pl.DataFrame(table, schema={"optype": pl.String, "kind": pl.String, "part": pl.String}, orient="row")
    return ops.join(kinds, on="optype", how="left").sort("rank", "step", "start_ts", "seq_id", maintain_order=True)


def _thinned(ops: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    steps = ops.get_column("step").unique().sort()
    work = ops.filter(pl.col("kind") == "work").height
    most = max(_LEAST_STEPS, int(len(steps) * _MOST_CELLS / max(work, 1)))
    if len(steps) <= most:
        return ops, []
    kept = steps.gather(np.linspace(0, len(steps) - 1, most).astype(int).tolist())
    return ops.filter(pl.col("step").is_in(kept.implode())), [f"{most} of {len(steps)} steps, evenly spaced, are used"]


def _codes(who: pl.DataFrame, column: str) -> IntArray | None:
    names = who.get_column(column)
    if names.null_count() == len(names):
        return None
    return names.rank("dense").cast(pl.Int64).fill_null(0).to_numpy().astype(np.int64) - 1


def _nodes(who: pl.DataFrame) -> IntArray:
    told = _codes(who, "node")
    return np.arange(who.height, dtype=np.int64) // 2 if told is None else told


def _place(ops: pl.DataFrame, column: str) -> IntArray:
    return ops.get_column(column).rank("dense").cast(pl.Int64).to_numpy().astype(np.int64) - 1


def _numbered(ops: pl.DataFrame, column: str, of: pl.Series) -> IntArray:
    return np.searchsorted(of.to_numpy(), ops.get_column(column).to_numpy()).astype(np.int64)


def _micro(ops: pl.DataFrame) -> dict[str, FloatArray]:
    ranks, steps = (ops.get_column(c).unique().sort() for c in ("rank", "step"))
    found: dict[str, FloatArray] = {}
    for (part,), group in ops.filter(pl.col("kind") == "work").partition_by("part", as_dict=True).items():
        # Without microbatch numbers, the n-th operation of a rank's step is compared with the others' n-th
        order = pl.int_range(pl.len()).over("rank", "step")
        slot = group.with_columns(
            pl.struct(pl.coalesce("mb_id", order).alias("mb"), pl.col("mc").fill_null(0)).alias("slot")
        )
        place = _place(slot, "slot")
        table = np.zeros((len(ranks), len(steps), int(place.max()) + 1))
        seen = np.zeros(table.shape, dtype=np.bool_)
        where = (_numbered(slot, "rank", ranks), _numbered(slot, "step", steps), place)
        np.add.at(table, where, slot.get_column("duration").to_numpy())
        seen[where] = True
        if table.any():
            found[str(part)] = np.where(seen, table, np.nan)
    return found


def _sum_of(ops: pl.DataFrame, kind: str) -> FloatArray | None:
    group = ops.filter(pl.col("kind") == kind)
    if group.is_empty():
        return None
    ranks, steps = (ops.get_column(c).unique().sort() for c in ("rank", "step"))
    table = np.zeros((len(ranks), len(steps)))
    seen = np.zeros(table.shape, dtype=np.bool_)
    where = (_numbered(group, "rank", ranks), _numbered(group, "step", steps))
    np.add.at(table, where, group.get_column("duration").to_numpy())
    seen[where] = True
    return np.where(seen, table, np.nan)


def _filled(table: FloatArray | None, ranks: int, steps: int) -> FloatArray:
    return np.full((ranks, steps), np.nan) if table is None else table


def _wall(ops: pl.DataFrame, ranks: int, steps: int) -> FloatArray:
    """From the first start to the last end of a rank's step; NaN where starts are not told."""
    if ops.get_column("start_ts").null_count() == ops.height:
        return np.full((ranks, steps), np.nan)
    start = pl.col("start_ts").cast(pl.Float64)
    span = ops.group_by("rank", "step").agg(((start + pl.col("duration")).max() - start.min()).alias("wall"))
    table = np.full((ranks, steps), np.nan)
    known = (ops.get_column(c).unique().sort() for c in ("rank", "step"))
    where = tuple(_numbered(span, c, of) for c, of in zip(("rank", "step"), known, strict=True))
    table[where] = span.get_column("wall").to_numpy()
    return table


def _traits(ops: pl.DataFrame) -> dict[str, IntArray]:
    """Which communication and compute a rank runs in most of its steps, and how many forwards precede a backward.

    The latter tells stages of a 1F1B schedule apart. Names of other kinds (a log, a checkpoint) make no role.
    """
    ranks = ops.get_column("rank").unique().sort()
    steps = ops.group_by("rank").agg(pl.col("step").n_unique().alias("of"))
    telling = ops.filter(pl.col("kind").is_in(["work", "wait"]))
    runs = telling.group_by("rank", "optype").agg(pl.col("step").n_unique().alias("in")).join(steps, on="rank")
    found: dict[str, IntArray] = {}
    for (name,), group in runs.filter(pl.col("in") * 2 >= pl.col("of")).partition_by("optype", as_dict=True).items():
        runs_it = np.zeros(len(ranks), dtype=np.int64)
        runs_it[_numbered(group, "rank", ranks)] = 1
        if not runs_it.all():
            found[f"runs {name}"] = runs_it
    found |= _warm_up(ops, ranks)
    return found


def _warm_up(ops: pl.DataFrame, ranks: pl.Series) -> dict[str, IntArray]:
    """How many operations of the part that comes first in a step precede any other part."""
    work = ops.filter(pl.col("kind") == "work")
    if work.get_column("start_ts").null_count() or work.get_column("part").n_unique() < 2:
        return {}
    other = pl.col("part") != pl.col("part").first()
    leading = work.group_by("rank", "step", maintain_order=True).agg(other.arg_max().alias("before"))
    usual = leading.group_by("rank").agg(pl.col("before").cast(pl.Float64).median().round()).sort("rank")
    before = np.full(len(ranks), -1, dtype=np.int64)
    before[_numbered(usual, "rank", ranks)] = usual.get_column("before").to_numpy().astype(np.int64)
    return {"forwards before a backward": before} if len(np.unique(before)) > 1 else {}
