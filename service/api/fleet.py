"""``/api/v1/fleet``: the fleet in one row, over time, and by rack."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl
from litestar import Response, get

from graynode.detectors.exact_bounds import poisson_rate
from graynode.pipeline.queries import quoted
from graynode.service.api.answers import Page, Row, page
from graynode.service.api.asked import ServedHere, SpanAsked
from graynode.service.api.metrics import GPU_STATES, NODE_STATES
from graynode.service.api.spans import POINTS, Span, sql_time, whole_hour
from graynode.service.api.state import Served

_KEPT_S: Final = 60.0
_STALE_S: Final = 900.0
_USUAL: Final = timedelta(days=7)
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400.0
FEW: Final = 5
"""Failures from which a mean time is worth more than its interval."""


def stretch(served: Served, span: Span) -> Span:
    """The range asked for, of a day or more in whole hours; where none was, the last week of data: so that answers can
    be kept.
    """
    if span.said:
        return span.in_hours
    until = whole_hour(served.at()) + timedelta(hours=1)
    return Span(until - _USUAL, until, span.step_s, said=False)


def read_fleet(served: Served, span: Span) -> Row:
    """One flat row: who is how now, and how it went in the range. Null is not known; shares are of 1.

    What is of the range is kept for a minute, and given for up to a quarter of an hour while it is made anew:
    ``reckoned`` is the data's time then.
    """
    now, over = served.fleet.now(), stretch(served, span)
    row: Row = {"cluster": served.cluster(), "at": now.at, "nodes": now.nodes.height, "gpus": now.gpus.height}
    nodes, gpus = _count(now.nodes), _count(now.gpus)
    row |= {f"nodes_{state}": nodes.get(state, 0) for state in NODE_STATES}
    row |= {"nodes_out_of_scheduling": _out(now.nodes)}
    row |= {f"gpus_{state}": gpus.get(state, 0) for state in GPU_STATES}
    kept = served.kept.get(f"fleet {over.sql}", _KEPT_S, lambda: _over(served, over), stale_s=_STALE_S)
    return {**row, **_open(served), **kept, "from": over.since, "to": over.until, "problem": now.problem or None}


def _count(frame: pl.DataFrame) -> dict[str, int]:
    return {str(state): int(n) for state, n in frame["state"].value_counts().iter_rows()} if frame.height else {}


def _out(nodes: pl.DataFrame) -> int | None:
    """Nodes that the scheduler gives no work; null where no scheduler says anything."""
    told = nodes["out_of_scheduling"].drop_nulls()
    return int(told.sum()) if told.len() else None


def _open(served: Served) -> Row:
    def read() -> Row:
        rows = served.rows(
            "SELECT severity, count(*) AS n FROM incident_now WHERE state <> 'resolved' "  # noqa: S608 (quoted)
            f"AND cluster = {quoted(served.cluster())} AND grouped_under IS NULL GROUP BY severity"
        )
        told = {row["severity"]: row["n"] for row in rows}
        return {f"open_{severity}s": told.get(severity, 0) for severity in ("page", "ticket", "digest")}

    found: Row = served.kept.get("open", 5.0, read)
    return found


@dataclass(frozen=True, slots=True)
class _Time:
    """Sums of ``node_time``."""

    owned_s: float
    usable_s: float
    out_s: float
    blind_s: float | None

    @property
    def node_days(self) -> float:
        return self.owned_s / _DAY_S


def _over(served: Served, span: Span) -> Row:
    at = served.read_at()
    cluster = quoted(served.cluster())
    time = served.reckoned(
        "SELECT coalesce(sum(owned_s), 0) AS owned_s, coalesce(sum(usable_s), 0) AS usable_s, "  # noqa: S608 (quoted)
        "coalesce(sum(out_s), 0) AS out_s, sum(blind_s) AS blind_s "
        f"FROM node_time({span.sql}) WHERE cluster = {cluster}"
    )[0]
    failed = served.reckoned(
        "SELECT count(*) AS n, avg(seconds_to_repair) AS repair_s, avg(seconds_to_detect) AS detect_s, "  # noqa: S608
        "count(seconds_to_repair) AS repaired, sum(gpu_hours_lost) AS gpu_hours_lost "
        f"FROM failures({span.sql}) WHERE cluster = {cluster}"
    )[0]
    sums = _Time(**time)
    return {**_availability(sums), **_failures(sums, failed), **_alarms(served, span, sums), "reckoned": at}


def _availability(time: _Time) -> Row:
    owned = time.owned_s or None
    return {
        "availability": time.usable_s / owned if owned else None,
        "out_of_service_ratio": time.out_s / owned if owned else None,
        "blind_ratio": time.blind_s / owned if owned and time.blind_s is not None else None,
        "node_days": time.node_days,
    }


def _failures(time: _Time, failed: Row) -> Row:
    """Mean times in hours. The interval is exact (Garwood); with few failures only the interval says anything."""
    count, hours = int(failed["n"]), time.usable_s / _HOUR_S
    low, high = poisson_rate(count, hours) if hours > 0 else (None, None)
    return {
        "failures": count,
        "mtbf_h": hours / count if count and hours > 0 else None,
        "mtbf_low_h": 1 / high if high else None,
        "mtbf_high_h": 1 / low if low else None,
        "mttr_h": failed["repair_s"] / _HOUR_S if failed["repair_s"] is not None else None,
        "repaired": failed["repaired"],
        "mttd_h": failed["detect_s"] / _HOUR_S if failed["detect_s"] is not None else None,
        "gpu_hours_lost": failed["gpu_hours_lost"],
        "few": count < FEW,
    }


def _alarms(served: Served, span: Span, time: _Time) -> Row:
    """What was told a node-day, and what of it people called false, beside the budget of false findings."""
    told = served.rows(
        "SELECT coalesce(verdict, 'none') AS verdict, count(*) AS n FROM (SELECT incident_id, "  # noqa: S608 (quoted)
        "coalesce(opened_ts, since, ts) AS opened FROM incident_now WHERE severity IN ('page', 'ticket') "
        f"AND cluster = {quoted(served.cluster())}) LEFT JOIN (SELECT incident_id, verdict FROM label_now "
        f"WHERE incident_id IS NOT NULL) USING (incident_id) WHERE opened >= {sql_time(span.since)} "
        f"AND opened < {sql_time(span.until)} GROUP BY ALL"
    )
    counts = {row["verdict"]: int(row["n"]) for row in told}
    days, labelled = time.node_days, counts.get("true", 0) + counts.get("false", 0)
    detect = served.config.detect
    nodes = served.fleet.now().nodes.height
    weekly = detect.budget_per_week / (7 * nodes) if detect.budget_per_week and nodes else 0.0
    return {
        "told": sum(counts.values()),
        "told_per_node_day": sum(counts.values()) / days if days else None,
        "labelled": labelled,
        "called_false": counts.get("false", 0),
        "false_per_node_day": counts.get("false", 0) / days if days and labelled else None,
        "budget_per_node_day": weekly or detect.budget_per_node_day,
    }


# --- over time, by rack -----------------------------------------------------------------------------------


def read_history(served: Served, span: Span) -> Page:
    """The fleet over time: GPUs seen, use, power, and incidents that were open, a row a step of whole hours."""
    over = stretch(served, span)
    hours = max(
        1, round((over.step_s or 0) / _HOUR_S), -(-int((over.until - over.since).total_seconds()) // (_HOUR_S * POINTS))
    )
    words = {"span": over.sql, "cluster": quoted(served.cluster()), "step": f"INTERVAL {hours} HOUR"}
    words |= {"since": sql_time(over.since), "until": sql_time(over.until)}

    def make() -> tuple[list[Row], datetime]:
        at = served.at()
        return served.rows(_HISTORY.format(**words)), at

    rows, at = served.kept.get(f"history {over.sql} {hours}", _KEPT_S, make, stale_s=_STALE_S)
    return Page(rows, at, notes=over.notes)


_HISTORY: Final = """
WITH of_hours AS (
  SELECT time_bucket({step}, ts, TIMESTAMPTZ '2000-01-01 00:00:00+00') AS t, ts, sum(gpus) AS gpus,
    sum(gpu_hours) AS gpu_hours, sum(gpu_hours) FILTER (job_id IS NOT NULL) AS job_gpu_hours,
    sum(gpu_util_percent_mean * gpu_hours) AS util,
    sum(gpu_hours) FILTER (gpu_util_percent_mean IS NOT NULL) AS util_h, sum(energy_mj_sum) AS energy_mj,
    sum(power_w_mean * gpus) AS power_w
  FROM fleet_1h({span}) WHERE cluster = {cluster} GROUP BY ALL),
used AS (
  SELECT t, max(gpus)::INTEGER AS gpus, sum(gpu_hours) AS gpu_hours, sum(job_gpu_hours) AS job_gpu_hours,
    sum(util) / nullif(sum(util_h), 0) AS gpu_util_percent, avg(power_w) AS power_w,
    sum(energy_mj) / 3.6e9 AS energy_kwh
  FROM of_hours GROUP BY t),
told AS (
  SELECT severity, coalesce(opened_ts, since, ts) AS opened, resolved_ts FROM incident_now
  WHERE cluster = {cluster} AND severity IN ('page', 'ticket')),
steps AS (
  SELECT unnest(generate_series(time_bucket({step}, {since}, TIMESTAMPTZ '2000-01-01 00:00:00+00'), {until},
    {step})) AS t),
open AS (
  SELECT t, count(severity) FILTER (severity = 'page') AS pages_open,
    count(severity) FILTER (severity = 'ticket') AS tickets_open
  FROM steps LEFT JOIN told ON opened < t + {step} AND coalesce(resolved_ts > t, true) GROUP BY t)
SELECT t AS ts, gpus, gpu_hours, job_gpu_hours, gpu_util_percent, power_w, energy_kwh, pages_open, tickets_open
FROM open LEFT JOIN used USING (t) ORDER BY t
"""


def read_racks(served: Served) -> Page:
    """A row a rack and NVLink domain: how many nodes are how."""
    now = served.fleet.now()
    if now.nodes.is_empty():
        return Page([], now.at)
    states = [(pl.col("state") == state).sum().alias(f"nodes_{state}") for state in NODE_STATES]
    by_rack = now.nodes.group_by("cluster", "rack", "domain").agg(
        pl.len().alias("nodes"),
        *states,
        pl.col("gpus").sum(),
        pl.col("open_incidents").sum(),
    )
    return Page(by_rack.sort("cluster", "rack", "domain", nulls_last=True).to_dicts(), now.at)


# --- routes -------------------------------------------------------------------------------------------------


@get("/api/v1/fleet", sync_to_thread=True)
def fleet(served: ServedHere, span: SpanAsked) -> Response[bytes]:
    """The fleet in one row: now, and over a range (the last week where none is named)."""
    row = read_fleet(served, span)
    return page(Page([row], row["at"]))


@get("/api/v1/fleet/history", sync_to_thread=True)
def history(served: ServedHere, span: SpanAsked) -> Response[bytes]:
    """The fleet over time."""
    return page(read_history(served, span))


@get("/api/v1/fleet/racks", sync_to_thread=True)
def racks(served: ServedHere) -> Response[bytes]:
    """The fleet by rack and NVLink domain."""
    return page(read_racks(served))


ROUTES: Final[tuple[Any, ...]] = (fleet, history, racks)
