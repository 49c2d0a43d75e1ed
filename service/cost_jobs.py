"""What each job's time went to: waiting, preparing, work, work done twice after a failure; and who owes what was lost.

An attempt is one placement; a requeue begins the next. ``wait`` is queued to allocated, ``preparation`` allocated to
the first step, ``work`` from there to the end (from the allocation where no step is known; until now while it runs).
``repeated`` is work that a later attempt had to do again: measured where table ``step`` shows steps done twice, else
assumed to be ``cost.restart_h`` at most. ``resume`` is the end of a failed attempt to the first step of the next.

Lost GPU-hours of a failed attempt are its repeated work and the preparation of the next attempt, on all of its GPUs.
They are owed to whom table ``attribution`` names for it; without a judgement to nobody, but for a node that failed.
"""

# ruff: noqa: S608 (texts are quoted where they are put in)
from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import polars as pl

from graynode.pipeline.queries import Queries, quoted
from graynode.service import cost
from graynode.service.config import Config
from graynode.service.cost_days import KEPT, Days

FAILED: Final = ("failed", "node_fail", "timeout", "requeued")
"""States whose work since the last checkpoint is lost. What a person cancelled is no failure."""
UNJUDGED: Final = "not judged"

_ATTEMPTS: Final = """
WITH attempt_rows AS (
  SELECT cluster, job_id, coalesce(requeues, 0) AS attempt, max(job_alias) AS job_alias, max("user") AS "user",
    max(account) AS account, max("partition") AS "partition", max(work) AS work,
    arg_max(state, (state IN ('completed', 'failed', 'cancelled', 'timeout', 'node_fail', 'requeued'), ts)) AS state,
    arg_max(reason, ts) AS reason, min(queued_ts) AS queued_ts,
    min(coalesce(allocated_ts, CASE WHEN state IN ('allocated', 'running') THEN ts END)) AS allocated_ts,
    min(first_step_ts) AS first_step_ts, max(end_ts) AS end_ts, max(exit_code) AS exit_code, max(gpus) AS gpus,
    max(nodes) AS nodes, array_to_string(list_sort(list(DISTINCT node) FILTER (bound AND state <> 'queued')), ' ') AS
    machines
  FROM job_placements WHERE job_id IS NOT NULL AND cluster = {cluster} {filter} GROUP BY ALL)
FROM attempt_rows WHERE coalesce(queued_ts, allocated_ts) < TIMESTAMPTZ '{until}'
  AND coalesce(end_ts, TIMESTAMPTZ '{until}') >= TIMESTAMPTZ '{since}'
ORDER BY job_id, attempt
"""
_JUDGED: Final = """
SELECT job_id, coalesce(attempt, 0) AS attempt, arg_max(verdict, ts) AS verdict, arg_max(owner, ts) AS owner,
  arg_max(message, ts) AS message, arg_max(action, ts) AS action, arg_max(confidence, ts) AS confidence
FROM attribution_now WHERE phase = 'ended' AND cluster = {cluster} {filter} GROUP BY ALL
"""
_STEPS: Final = """
SELECT job_id, ts, step, seconds FROM step(TIMESTAMPTZ '{since}', TIMESTAMPTZ '{until}')
WHERE cluster = {cluster} AND job_id IN ({jobs}) AND step IS NOT NULL
QUALIFY rank IS NOT DISTINCT FROM min(rank) OVER (PARTITION BY job_id)
"""
_MOST_JOBS: Final = 500
"""Jobs whose steps are looked at; the rest is assumed."""


def read(
    queries: Queries, config: Config, *, since: datetime | None = None, until: datetime | None = None,
    job_id: str = "", user: str = "", days: Days = KEPT,
) -> dict[str, Any]:  # fmt: skip
    """Attempts that queued or ran in the stretch, by job and attempt.

    ``gpu_hours`` are an attempt's in all; ``job_gpu_hours``, ``job_cost`` and its part ``cost`` are of the stretch.
    """
    since, until = cost.stretch(since, until)
    cluster, rows = cost.hours(queries, config, since, until, days)
    costed = cost.with_money(rows, cost.known_prices(queries, config))
    return of_hours(queries, config, cluster, costed, since, until, job_id=job_id, user=user)


def of_hours(
    queries: Queries, config: Config, cluster: str, costed: pl.DataFrame, since: datetime, until: datetime, *,
    job_id: str = "", user: str = "",
) -> dict[str, Any]:  # fmt: skip
    """The same, of the stretch's hours with their money (``cost.with_money``)."""
    frame = attempts(queries, config, cluster, since, until, job_id=job_id, user=user)
    spent = costed.group_by("job_id").agg(
        pl.col("gpu_hours").sum().alias("job_gpu_hours"),
        pl.when(pl.col("cost").is_not_null().all()).then(pl.col("cost").sum()).alias("job_cost"),
    )  # fmt: skip
    told = frame.join(spent, on="job_id", how="left", maintain_order="left")
    share = pl.col("gpu_hours") / pl.col("gpu_hours").sum().over("job_id")
    told = told.with_columns((pl.col("job_cost") * share).alias("cost"))
    return {"cluster": cluster, "since": since, "until": until, "rows": told.to_dicts(), "owed": owed(told)}


def attempts(
    queries: Queries, config: Config, cluster: str, since: datetime, until: datetime, *, job_id: str = "",
    user: str = "",
) -> pl.DataFrame:  # fmt: skip
    """A row an attempt: its phases in seconds, GPU-hours in all, what was lost and to whom that is owed."""
    job = f"AND job_id = {quoted(job_id)}" if job_id else ""
    words = {"cluster": quoted(cluster), "since": since.isoformat(), "until": until.isoformat()}
    asked = job + (f' AND job_id IN (SELECT job_id FROM job WHERE "user" = {quoted(user)})' if user else "")
    rows = queries.frame(_ATTEMPTS.format(**words, filter=asked))
    judged = queries.frame(_JUDGED.format(**words, filter=job)).with_columns(pl.col("attempt").cast(pl.Int32))
    frame = rows.with_columns(pl.col("attempt").cast(pl.Int32)).join(
        judged, on=["job_id", "attempt"], how="left", maintain_order="left"
    )
    again = _repeated_steps(queries, frame, words)
    return _lost(_phases(frame, until).join(again, on=["job_id", "attempt"], how="left", maintain_order="left"), config)


def _phases(frame: pl.DataFrame, until: datetime) -> pl.DataFrame:
    later = pl.col("queued_ts", "allocated_ts", "first_step_ts").shift(-1).over("job_id").name.prefix("next_")
    end = pl.coalesce("end_ts", pl.lit(until)).alias("_end")
    made = frame.with_columns(later, end, (pl.len().over("job_id") - 1).alias("retries"))
    began = pl.coalesce("first_step_ts", "allocated_ts")
    failed = pl.col("state").is_in(FAILED) | pl.col("next_allocated_ts").is_not_null()
    return made.with_columns(
        _seconds(pl.coalesce("allocated_ts", "_end") - pl.col("queued_ts")).alias("wait_s"),
        _seconds(pl.col("first_step_ts") - pl.col("allocated_ts")).alias("preparation_s"),
        pl.when(pl.col("allocated_ts").is_not_null()).then(_seconds(pl.col("_end") - began)).alias("work_s"),
        (_seconds(pl.col("_end") - pl.col("allocated_ts")) / 3600.0 * pl.col("gpus")).alias("gpu_hours"),
        failed.fill_null(value=False).alias("failed"),
        _seconds(pl.coalesce("next_first_step_ts", "next_allocated_ts") - pl.col("_end")).alias("resume_s"),
        _seconds(pl.col("next_first_step_ts") - pl.col("next_allocated_ts")).alias("_next_preparation_s"),
    ).drop("_end", "next_queued_ts", "next_allocated_ts", "next_first_step_ts")


def _seconds(span: pl.Expr) -> pl.Expr:
    """Seconds of a stretch; clocks of two sources may disagree by a moment: never negative."""
    return (span.dt.total_microseconds() / 1e6).clip(lower_bound=0.0)


def _repeated_steps(queries: Queries, frame: pl.DataFrame, words: dict[str, str]) -> pl.DataFrame:
    """Seconds of work by attempt that the next attempt did again, by the numbers of its steps."""
    schema = {"job_id": pl.String, "attempt": pl.Int32, "measured_s": pl.Float64}
    retried = frame.filter(pl.len().over("job_id") > 1)
    jobs = retried.get_column("job_id").unique().sort().head(_MOST_JOBS).to_list()
    if not jobs:
        return pl.DataFrame(schema=schema)
    first = retried.get_column("allocated_ts").min()
    asked = words | {"since": first.isoformat() if isinstance(first, datetime) else words["since"]}
    steps = queries.frame(_STEPS.format(**asked, jobs=", ".join(map(quoted, jobs))))
    starts = retried.select("job_id", "attempt", "allocated_ts").drop_nulls().sort("allocated_ts")
    placed = steps.sort("ts").join_asof(
        starts, left_on="ts", right_on="allocated_ts", by="job_id", strategy="backward", check_sortedness=False
    )
    by_attempt = (
        placed.drop_nulls("attempt")
        .group_by("job_id", "attempt")
        .agg(
            pl.col("step").max().alias("last"),
            pl.col("step").min().alias("first"),
            pl.col("seconds").median().alias("s"),
        )
        .sort("job_id", "attempt")
    )
    again = (pl.col("last") - pl.col("first").shift(-1).over("job_id") + 1).clip(lower_bound=0)
    return (
        by_attempt.with_columns((again * pl.col("s")).cast(pl.Float64).alias("measured_s"))
        .drop_nulls("measured_s")
        .select(pl.col(n).cast(t) for n, t in schema.items())
    )


def _lost(frame: pl.DataFrame, config: Config) -> pl.DataFrame:
    assumed = pl.min_horizontal(pl.col("work_s"), pl.lit(config.cost.restart_h * 3600.0))
    measured = pl.col("measured_s").is_not_null()
    repeated = pl.when(pl.col("failed")).then(pl.coalesce("measured_s", assumed)).otherwise(0.0)
    basis = (
        pl.when(~pl.col("failed")).then(None).when(measured).then(pl.lit("steps done twice"))
        .otherwise(pl.lit(f"assumed: at most {config.cost.restart_h:g} h since the last checkpoint (cost.restart_h)"))
    )  # fmt: skip
    out = frame.with_columns(repeated.alias("repeated_s"), basis.alias("lost_basis"))
    lost = (pl.col("repeated_s") + pl.col("_next_preparation_s").fill_null(0.0)) * pl.col("gpus") / 3600.0
    to = (
        pl.when(~pl.col("failed")).then(None)
        .when(pl.col("verdict").is_in(["infrastructure", "application"])).then(pl.col("owner"))
        .when(pl.col("verdict").is_not_null()).then(pl.col("verdict"))
        .when(pl.col("state") == "node_fail").then(pl.lit("platform")).otherwise(pl.lit(UNJUDGED))
    )  # fmt: skip
    told = pl.when(pl.col("failed")).then(lost).otherwise(0.0)
    return out.with_columns(told.alias("lost_gpu_hours"), to.alias("owed_to")).drop("_next_preparation_s", "measured_s")


def owed(told: pl.DataFrame) -> list[dict[str, Any]]:
    """GPU-hours lost to failures by whom they are owed, most first: the attribution of lost goodput."""
    lost = told.filter(pl.col("owed_to").is_not_null())
    sums = pl.col("lost_gpu_hours").sum(), pl.len().alias("failures"), pl.col("job_id").n_unique().alias("jobs")
    return lost.group_by("owed_to").agg(*sums).sort("lost_gpu_hours", descending=True).to_dicts()
