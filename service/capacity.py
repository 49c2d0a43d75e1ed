"""Who waits for what, whether what is free could serve it, what could be given back, and how fast GPUs find new work.

Advice only: nothing here takes a GPU from anybody. A waiting job's shape is nodes × GPUs on each × model; the model is
that of the nodes which its partition used in the week before, because schedulers' rows do not say what was asked for.
Free is what ``gpu_hours`` calls free or stranded in the last hour that was rolled up.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.collectors.base import utc_now
from graynode.pipeline.queries import Queries, quoted
from graynode.service import cost
from graynode.service.config import Config
from graynode.service.cost_prices import Prices

IDLE_H: Final = 4
"""Whole hours without work, the last ones in a row, after which a GPU is a candidate to be given back."""
_LOOK_BACK: Final = timedelta(hours=24)
_HOUR: Final = timedelta(hours=1)
_FEW: Final = 10

_NEWEST: Final = "SELECT cluster, max(ts) AS ts FROM gpu_1h(TIMESTAMPTZ '{since}', TIMESTAMPTZ '{at}') GROUP BY cluster"
_WAITING: Final = """
WITH attempts AS (
  SELECT job_id, coalesce(requeues, 0) AS attempt, max("user") AS "user", max(account) AS account,
    max("partition") AS "partition", max(work) AS work, max(gpus) AS gpus, max(nodes) AS nodes,
    arg_max(reason, ts) AS reason, min(queued_ts) AS queued_ts, min(allocated_ts) AS allocated_ts,
    min(end_ts) AS end_ts, bool_or(state IN ('allocated', 'running')) AS began
  FROM job WHERE cluster = {cluster} AND ts < TIMESTAMPTZ '{at}' AND job_id IS NOT NULL GROUP BY ALL)
SELECT * EXCLUDE (allocated_ts, end_ts, began) FROM attempts
WHERE queued_ts < TIMESTAMPTZ '{at}' AND allocated_ts IS NULL AND end_ts IS NULL AND NOT coalesce(began, false)
  AND queued_ts > TIMESTAMPTZ '{at}' - INTERVAL 30 DAY
ORDER BY queued_ts
"""
_POOLS: Final = """
SELECT p."partition", m.gpu_model, p.node_id FROM (
  SELECT DISTINCT "partition", node_id FROM job_placements
  WHERE cluster = {cluster} AND ts >= TIMESTAMPTZ '{at}' - INTERVAL 7 DAY AND ts < TIMESTAMPTZ '{at}' AND bound) p
JOIN (SELECT node_id, mode(gpu_model) AS gpu_model FROM gpu_homes WHERE cluster = {cluster} GROUP BY node_id) m
  USING (node_id)
"""
_GAPS: Final = """
WITH attempts AS (
  SELECT node_id, job_id, max(gpu_uuids) AS gpu_uuids, max(end_ts) AS hi,
    min(coalesce(allocated_ts, CASE WHEN state IN ('allocated', 'running') THEN ts END)) AS lo
  FROM job_placements
  WHERE cluster = {cluster} AND ts < TIMESTAMPTZ '{at}' AND ts >= TIMESTAMPTZ '{at}' - INTERVAL 30 DAY
  GROUP BY node_id, job_id, coalesce(requeues, 0)),
on_gpus AS (
  SELECT lo, hi, unnest(from_json(CASE WHEN json_valid(gpu_uuids) THEN gpu_uuids ELSE '[]' END, '["VARCHAR"]')) AS gpu
  FROM attempts WHERE lo IS NOT NULL),
followed AS (
  SELECT hi, lead(lo) OVER (PARTITION BY gpu ORDER BY lo) AS next_lo FROM on_gpus)
SELECT CASE WHEN next_lo IS NOT NULL THEN greatest(epoch(next_lo) - epoch(hi), 0) END AS gap_s
FROM followed WHERE hi >= TIMESTAMPTZ '{since}'
"""
_HOURS: Final = """
SELECT node_id, node, gpu_uuid, gpu_model, ts, category, job_id, "user", account, "partition", work, hours, why,
  util_percent, sm_active_ratio, power_w, mem_used_bytes
FROM gpu_hours(TIMESTAMPTZ '{since}', TIMESTAMPTZ '{at}') WHERE cluster = {cluster}
"""


def read(queries: Queries, config: Config, *, at: datetime | None = None) -> dict[str, Any]:
    """Waiting jobs (``rows``), free GPUs by node, candidates to give back, and the gap from release to next use."""
    moment = at or utc_now()
    cluster, end = _newest(queries, config, moment)
    empty: dict[str, Any] = {
        "cluster": cluster,
        "at": end,
        "rows": [],
        "free": [],
        "reclaim": [],
        "gap": _gap(pl.DataFrame(schema={"gap_s": pl.Float64})),
    }
    if end is None:
        return empty | {"notes": ["gpu_1h has no rows of the last two days before then: nothing to tell"]}
    words = {"cluster": quoted(cluster), "at": end.isoformat(), "since": (end - _LOOK_BACK).isoformat()}
    rows = queries.frame(_HOURS.format(**words))
    free = _free(rows, end)
    words["at"] = min(moment, end + _HOUR * 2).isoformat()
    waiting = queries.frame(_WAITING.format(**words))
    pools = queries.frame(_POOLS.format(**words))
    prices = cost.known_prices(queries, config)
    return empty | {
        "rows": _shapes(waiting, pools, free, end),
        "free": free.drop("gpu_uuids").to_dicts(),
        "reclaim": _reclaim(rows, end, prices),
        "gap": _gap(queries.frame(_GAPS.format(**words))),
        "notes": [],
    }


def _newest(queries: Queries, config: Config, moment: datetime) -> tuple[str, datetime | None]:
    """The cluster asked, or the only one, and the end of its newest hour."""
    sql = _NEWEST.format(since=(moment - timedelta(days=2)).isoformat(), at=moment.isoformat())
    found = {row["cluster"]: row["ts"].astimezone(UTC) + _HOUR for row in queries.rows(sql)}
    if config.cluster not in found and len(found) == 1:
        return next(iter(found.items()))
    return config.cluster, found.get(config.cluster)


def _free(rows: pl.DataFrame, end: datetime) -> pl.DataFrame:
    """A row a node: GPUs that were free or stranded for at least half of the last hour."""
    last = rows.filter(pl.col("ts") == end - _HOUR, pl.col("category").is_in(["free", "stranded"]))
    gpus = last.group_by("node_id", "node", "gpu_model", "gpu_uuid").agg(pl.col("hours").sum(), pl.col("why").max())
    there = gpus.filter(pl.col("hours") >= 0.5)
    return (
        there.group_by("node_id", "node", "gpu_model")
        .agg(pl.len().alias("gpus"), pl.col("why").max(), pl.col("gpu_uuid").alias("gpu_uuids"))
        .sort("gpus", "node", descending=[True, False])
    )


def _shapes(waiting: pl.DataFrame, pools: pl.DataFrame, free: pl.DataFrame, end: datetime) -> list[dict[str, Any]]:
    """Each waiting job with its shape, and whether what is free now would do."""
    by_node = dict(free.select("node_id", "gpus").iter_rows())
    grouped = pools.group_by("partition").agg(pl.col("node_id"), pl.col("gpu_model").unique().sort())
    pool = {p: (nodes, models) for p, nodes, models in grouped.iter_rows()}
    made = []
    for row in waiting.to_dicts():
        nodes, gpus = max(row["nodes"] or 1, 1), row["gpus"]
        each = -(-gpus // nodes) if gpus else None
        machines, models = pool.get(row["partition"], (list(by_node), []))
        model = ", ".join(str(m) for m in models if m) or None
        served, why = _served(nodes, each, [by_node[n] for n in machines if n in by_node])
        shape = f"{nodes} × {each} × {model or 'any model'}" if each else "not told"
        told = {"shape": shape, "gpus_per_node": each, "gpu_model": model, "could_be_served": served, "why": why}
        waited = max((end - row["queued_ts"]).total_seconds(), 0.0)
        made.append({**row, "nodes": nodes, **told, "waited_s": waited})
    return made


def _served(nodes: int, each: int | None, free: Sequence[int]) -> tuple[bool | None, str]:
    """Whether nodes with so many free GPUs each can take a job of that shape, and why not."""
    if each is None:
        return None, "how many GPUs it asks for is not told"
    fit = sum(1 for n in free if n >= each)
    if fit >= nodes:
        return True, f"{fit} nodes of its partition have {each} or more free: ask the scheduler why it waits"
    total = sum(free)
    if total >= nodes * each:
        return False, f"{total} GPUs are free, but {each} together on {fit} nodes of {nodes} only: fragmented"
    return False, f"{total} GPUs are free in its partition, it needs {nodes * each}"


def _reclaim(rows: pl.DataFrame, end: datetime, prices: Prices) -> list[dict[str, Any]]:
    """Allocated or held GPUs without work for the last hours in a row, the longest first, with the evidence."""
    idle = rows.with_columns(pl.col("category").is_in(["allocated_idle", "held"]).alias("idle"))
    hourly = idle.group_by("node_id", "node", "gpu_uuid", "gpu_model", "ts").agg(
        pl.col("idle").all(), pl.col("job_id", "user", "account", "partition", "work", "category").last(),
        pl.col("util_percent", "sm_active_ratio", "power_w", "mem_used_bytes").max(),
    )  # fmt: skip
    ended = hourly.group_by("gpu_uuid").agg(pl.col("ts").filter(~pl.col("idle")).max().alias("last_work"))
    ours = hourly.join(ended, on="gpu_uuid").filter(pl.col("idle"))
    ours = ours.filter(pl.col("last_work").is_null() | (pl.col("ts") > pl.col("last_work"))).sort("ts")
    found = ours.group_by("node_id", "node", "gpu_uuid", "gpu_model").agg(
        pl.col("job_id", "user", "account", "partition", "work", "category").last(), pl.len().alias("idle_h"),
        pl.col("ts").max().alias("_to"), pl.col("last_work").first().is_null().alias("at_least"),
        pl.col("util_percent", "sm_active_ratio", "power_w", "mem_used_bytes").max(),
    )  # fmt: skip
    chosen = found.filter(pl.col("idle_h") >= IDLE_H, pl.col("_to") == end - _HOUR).drop("_to")
    return [_told(row, prices, end) for row in chosen.sort("idle_h", "node", "gpu_uuid", descending=True).to_dicts()]


def _told(row: dict[str, Any], prices: Prices, end: datetime) -> dict[str, Any]:
    gib = (row["mem_used_bytes"] or 0) / (1 << 30)
    who = f"job {row['job_id']} of {row['user'] or 'a user who is not told'}" if row["job_id"] else "no job; a process"
    said = [f"{who} has it", f"no work for {'at least ' if row['at_least'] else ''}{row['idle_h']} h"]
    if row["sm_active_ratio"] is not None:
        said.append(f"SM activity at most {row['sm_active_ratio']:.1%}")
    said.append(f"{gib:.0f} GiB of memory held")
    price = prices.of(row["gpu_model"], end)
    return {**row, "evidence": ", ".join(said), "cost_per_day": price.fixed * 24.0 if price else None}


def _gap(rows: pl.DataFrame) -> dict[str, Any]:
    """Median and ninth decile in seconds of gaps that ended, and how many are still open; no figure of too few."""
    gaps = rows.get_column("gap_s")
    ended = gaps.drop_nulls()
    told: dict[str, Any] = {"gaps": len(ended), "open": gaps.null_count(), "median_s": None, "p90_s": None}
    if len(ended) < _FEW:
        return told | {"note": f"too few: under {_FEW}"}
    return told | {"median_s": ended.median(), "p90_s": ended.quantile(0.9), "note": ""}
