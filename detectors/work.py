"""What the ranks of one job did, step by step: the arrays by which a straggler is judged.

Wall seconds of a synchronous job are equal on all ranks, so they tell nothing about who is slow: busy seconds do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from graynode.detectors.frames import Floats, Ints

WHOLE = "busy"
"""The one part of work that rows of table ``step`` know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One job. Arrays are ranks × steps in seconds, NaN where it could not be told; an absent array is ``None``.

    ``busy`` holds seconds of compute without waits by part of the step's work (forward, backward), ``optimizer`` those
    of work that does not depend on data, ``steady`` a low quantile over microbatches, ``input`` those of reading data.
    ``node``, ``role`` and ``pipeline`` number what each rank belongs to, −1 for not known; ranks of one pipeline work
    on the same data, ranks of one role do the same work. ``traits`` are facts about a rank's operations that are no
    durations (which operations, in which order): what roles may be learned from.
    """

    rank: Ints
    node: Ints
    busy: Mapping[str, Floats] = field(default_factory=dict)
    optimizer: Floats | None = None
    steady: Floats | None = None
    input: Floats | None = None
    wait: Floats | None = None
    wall: Floats | None = None
    role: Ints | None = None
    pipeline: Ints | None = None
    traits: Mapping[str, Ints] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def total(self) -> Floats | None:
        """Busy seconds of all parts together, or ``None`` where busy time is not known."""
        return None if not self.busy else np.sum(list(self.busy.values()), axis=0)


def from_steps(rows: pl.DataFrame) -> dict[str, Work]:
    """Rows of table ``step`` as one ``Work`` per job; rows without job, rank or step are left out, repeats count once.

    ``busy`` is empty for a job none of whose rows tells ``busy_s``. A node that is not told is a node of its own.
    """
    needed = {"job_id": pl.String, "rank": pl.Int64, "step": pl.Int64, "node_id": pl.String, "role": pl.String}
    seconds = {"seconds": pl.Float64, "busy_s": pl.Float64, "wait_s": pl.Float64}
    known = set(rows.columns)
    frame = rows.select(
        (pl.col(c) if c in known else pl.lit(None)).cast(t).alias(c) for c, t in (needed | seconds).items()
    ).drop_nulls(["job_id", "rank", "step"])
    jobs = frame.sort("job_id", "rank", "step").partition_by("job_id", as_dict=True, maintain_order=True)
    return {str(job): _of_job(group) for (job,), group in jobs.items()}


def _of_job(rows: pl.DataFrame) -> Work:
    ranks = rows.get_column("rank").unique().sort()
    last = rows.group_by("rank").agg(pl.col("node_id", "role").drop_nulls().last()).sort("rank")
    tables = {c: _table(rows, c) for c in ("seconds", "busy_s", "wait_s")}
    busy = tables["busy_s"]
    role = last.get_column("role")
    return Work(
        rank=ranks.to_numpy().astype(np.int64),
        node=numbered(last.get_column("node_id"), alone=True),
        busy={} if busy is None else {WHOLE: busy},
        wait=tables["wait_s"],
        wall=tables["seconds"],
        role=None if role.null_count() == len(role) else numbered(role),
    )


def numbered(names: pl.Series, *, alone: bool = False) -> Ints:
    """Names as numbers in the order of names; null is −1, or with ``alone`` a number of its own."""
    codes = names.rank("dense").cast(pl.Int64).fill_null(-1).to_numpy().copy()
    if alone:
        unknown = np.flatnonzero(codes < 0)
        codes[unknown] = codes.max(initial=0) + 1 + np.arange(len(unknown))
    return np.asarray(codes, dtype=np.int64)


def _table(rows: pl.DataFrame, column: str) -> Floats | None:
    """Ranks × steps, both in order; the last of repeated rows counts. ``None`` where nothing is known."""
    if rows.get_column(column).null_count() == rows.height:
        return None
    rank = rows.get_column("rank").rank("dense").to_numpy() - 1
    step = rows.get_column("step").rank("dense").to_numpy() - 1
    table = np.full((int(rank.max()) + 1, int(step.max()) + 1), np.nan)
    values = rows.get_column(column).to_numpy().astype(np.float64)
    table[rank, step] = np.where(np.isfinite(values) & (values >= 0), values, np.nan)
    return table
