"""The last steps of every rank, as one row a rank: what ``stragglers`` remembers, and which jobs are due for judgement.

Only steps with busy seconds are kept. A rank that moves to another node or GPU begins anew; a job that goes back to an
earlier step (a checkpoint) has the steps after it once, as they were done last.
"""

from __future__ import annotations

from typing import Final

import polars as pl

KEPT: Final = 64
"""Latest steps of a rank: its median is sure to a sixth of its spread from step to step (1.25 / 8)."""
LEAST: Final = 32
"""Steps that at least half of the ranks told, under which nothing is judged."""
_FRESH: Final = 16
"""New steps between two judgements: what is said in a row must not be said of the same steps."""
_WAIT_S: Final = 1200.0
"""A job of long steps is judged this often, or its incident would be closed while it lasts (an hour)."""
_GONE_S: Final = 6 * 3600.0
_LIVE_S: Final = 600.0
"""A rank that is silent so much longer than the others of its job is gone: the job was started anew, smaller."""
_FEWEST: Final = 4
"""With fewer than three others nobody can say who is odd."""
_MOST_JOBS: Final = 64
"""Jobs judged in one round, the longest waiting first: at 3 ms each a fifth of a second."""

_KEY: Final = ("job_id", "rank")
_PLACE: Final = ("cluster", "node_id", "node", "boot_id")
_TEXTS: Final = ("job_id", *_PLACE, "gpu_uuid", "role")
_WANTED: Final = {
    **dict.fromkeys(_TEXTS, pl.String()),
    "ts": pl.Datetime("us", "UTC"), "rank": pl.Int32(), "step": pl.Int64(), "busy_s": pl.Float32(),
}  # fmt: skip
COLUMNS: Final = tuple(_WANTED)
"""Columns of table ``step`` that are looked at."""
_SCHEMA: Final = {
    **{c: t for c, t in _WANTED.items() if c not in ("ts", "step", "busy_s")},
    "step": pl.List(pl.Int64), "busy_s": pl.List(pl.Float32),
    "seen_s": pl.Float64(), "judged_s": pl.Float64(), "fresh": pl.Int64(), "row": pl.Int64(), "since_s": pl.Float64(),
}  # fmt: skip


def take(kept: pl.DataFrame | None, rows: pl.DataFrame, now_s: float) -> pl.DataFrame | None:
    """What is remembered with the new ``rows`` of table ``step`` in it; the same frame where there is nothing new.

    One row a rank: its place, its last ``KEPT`` steps in order of arrival, how many of them are ``fresh`` (new since
    the job was judged), and in how many judgements in a ``row`` since when it was slow hardware.
    """
    if kept is not None and bool(((kept["seen_s"] - now_s).abs() > _GONE_S).any()):
        kept = kept.filter((pl.col("seen_s") - now_s).abs() <= _GONE_S)
    new = _by_rank(rows) if rows.height else None
    if new is None or new.is_empty():
        return kept
    return _merged(pl.DataFrame(schema=_SCHEMA) if kept is None else kept, new, now_s)


def _by_rank(rows: pl.DataFrame) -> pl.DataFrame:
    known = set(rows.columns)
    seconds = pl.col("busy_s")
    told = (
        rows.select(
            (pl.col(c) if c in known else pl.lit(None)).cast(t, strict=False).alias(c) for c, t in _WANTED.items()
        )
        .drop_nulls(["job_id", "rank", "step", "node_id", "busy_s"])
        .filter(seconds.is_finite() & (seconds > 0))
        .sort(*_KEY, "ts", "step", "busy_s", *_PLACE, "gpu_uuid", "role", nulls_last=True)
    )
    return (
        told.filter(pl.col("node_id") == pl.col("node_id").last().over(_KEY))
        .group_by(_KEY, maintain_order=True)
        .agg(
            pl.col(_PLACE).last(),
            pl.col("gpu_uuid", "role").drop_nulls().last(),
            pl.col("step", "busy_s").tail(KEPT),
            pl.len().cast(pl.Int64).alias("fresh"),
        )
    )


def _merged(kept: pl.DataFrame, new: pl.DataFrame, now_s: float) -> pl.DataFrame:
    both = kept.join(new, on=_KEY, how="full", coalesce=True, suffix="_new")
    arrived = pl.col("node_id_new").is_not_null()
    gpu = (pl.col("gpu_uuid") == pl.col("gpu_uuid_new")).fill_null(value=True)
    stays = arrived & (pl.col("node_id") == pl.col("node_id_new")).fill_null(value=False) & gpu

    def moved(column: str, together: pl.Expr) -> pl.Expr:
        new_one = pl.col(f"{column}_new")
        return pl.when(stays).then(together).when(arrived).then(new_one).otherwise(pl.col(column)).alias(column)

    return both.select(
        *_KEY,
        *(moved(c, pl.col(f"{c}_new")) for c in _PLACE),
        *(moved(c, pl.coalesce(f"{c}_new", c)) for c in ("gpu_uuid", "role")),
        *(moved(c, pl.concat_list(c, f"{c}_new").list.tail(KEPT)) for c in ("step", "busy_s")),
        moved("fresh", pl.col("fresh") + pl.col("fresh_new")),
        pl.when(arrived).then(now_s).otherwise("seen_s").alias("seen_s"),
        pl.when(arrived & ~stays).then(now_s).otherwise("judged_s").alias("judged_s"),
        pl.when(arrived & ~stays).then(0).otherwise("row").alias("row"),
        pl.when(arrived & ~stays).then(None).otherwise("since_s").alias("since_s"),
    ).select(pl.col(c).cast(t) for c, t in _SCHEMA.items()).sort(_KEY)  # fmt: skip


def due(ranks: pl.DataFrame, now_s: float, window_s: int) -> list[str]:
    """Jobs to judge now: half of their ranks have enough new steps, or the last judgement is long ago."""
    fresh, waited = pl.col("fresh").median(), (pl.col("judged_s").max() - now_s).abs()
    enough = (fresh >= _FRESH) | ((fresh >= 1) & (waited >= _WAIT_S))
    jobs = (
        _live(ranks, window_s)
        .group_by("job_id")
        .agg((enough & (pl.len() >= _FEWEST)).alias("due"), waited.alias("waited"))
        .filter("due")
        .sort(-pl.col("waited"), "job_id")
    )
    return jobs.get_column("job_id").head(_MOST_JOBS).to_list()


def steps_of(ranks: pl.DataFrame, jobs: list[str], window_s: int) -> pl.DataFrame:
    """The remembered steps of ``jobs``, one row a rank and step: the last ``KEPT`` that at least half of a job's ranks
    told. A job with fewer than ``LEAST`` of them is left out: it cannot be judged."""
    later = pl.col("step").reverse().cum_min().reverse().shift(-1).over(_KEY)
    done = (
        _live(ranks.filter(pl.col("job_id").is_in(jobs)), window_s)
        .select(*_KEY, "node_id", "role", "step", "busy_s", pl.len().over("job_id").alias("ranks"))
        .explode("step", "busy_s")
        .filter((pl.col("step") < later).fill_null(value=True))
        .filter(2 * pl.len().over("job_id", "step") >= pl.col("ranks"))
        .filter(pl.col("step").rank("dense", descending=True).over("job_id") <= KEPT)
    )
    return done.filter(pl.col("step").n_unique().over("job_id") >= LEAST).drop("ranks")


def judged(
    ranks: pl.DataFrame, asked: list[str], answered: list[str], slow: list[tuple[str, int]], now_s: float
) -> pl.DataFrame:
    """After the judgement of the ``answered`` among the ``asked`` jobs: ``slow`` ranks are so once more in a row, the
    others of these jobs are not."""
    marks = pl.DataFrame(slow, schema={"job_id": pl.String, "rank": pl.Int32}, orient="row")
    both = ranks.join(marks.with_columns(slow=True), on=_KEY, how="left", maintain_order="left")
    mine, told = pl.col("job_id").is_in(asked), pl.col("job_id").is_in(answered)
    again = pl.col("slow").is_not_null()
    return both.with_columns(
        pl.when(mine).then(0).otherwise("fresh").alias("fresh").cast(pl.Int64),
        pl.when(mine).then(now_s).otherwise("judged_s").alias("judged_s"),
        pl.when(again).then(pl.col("row") + 1).when(told).then(0).otherwise("row").alias("row").cast(pl.Int64),
        pl.when(again).then(pl.col("since_s").fill_null(now_s)).when(told).then(None).otherwise("since_s").alias("since_s"),
    ).drop("slow")  # fmt: skip


def _live(ranks: pl.DataFrame, window_s: int) -> pl.DataFrame:
    newest = pl.col("seen_s").max().over("job_id")
    return ranks.filter(pl.col("seen_s") >= newest - max(_LIVE_S, 2.0 * window_s))
