"""``graynode user NAME``: what happened to somebody's jobs, in order: when, machine or code, its cost, and what now.

Incidents are theirs where a machine of their job had one while the job was there. What ended a job is as table
``attribution`` judges it; where nothing was judged it is the scheduler's word; ``graynode explain --job`` looks anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import polars as pl

from graynode.pipeline.queries import Queries, quoted
from graynode.service import cost, cost_jobs
from graynode.service.config import Config
from graynode.service.cost_days import KEPT, Days

SIDES: Final = {"infrastructure": "machine", "application": "code", "scheduler": "scheduler", "neither": "nobody"}
_MOST: Final = 2000
"""Entries of a timeline, the newest."""
_INCIDENTS: Final = """
WITH mine AS (
  SELECT job_id, node_id, max(node) AS node, min(coalesce(allocated_ts, ts)) AS lo, max(end_ts) AS hi
  FROM job_placements
  WHERE cluster = {cluster} AND "user" = {user} AND bound AND node IS NOT NULL AND state IS DISTINCT FROM 'queued'
    AND ts < TIMESTAMPTZ '{until}'
  GROUP BY job_id, node_id, coalesce(requeues, 0)),
told AS (
  SELECT incident_id, node_id, node, cause, severity, title, action, state, coalesce(since, opened_ts, ts) AS began,
    CASE WHEN state = 'resolved' THEN coalesce(resolved_ts, ts) END AS ended
  FROM incident_now WHERE cluster = {cluster} AND ts < TIMESTAMPTZ '{until}' AND grouped_under IS NULL)
SELECT i.incident_id, i.cause, i.severity, i.title, i.action, i.state, i.began, i.ended, m.job_id, m.node, m.node_id
FROM told i JOIN mine m ON m.node_id = i.node_id AND i.began < coalesce(m.hi + INTERVAL 2 MINUTE, TIMESTAMPTZ '{until}')
  AND coalesce(i.ended > m.lo, true)
WHERE i.began >= TIMESTAMPTZ '{since}' OR i.ended IS NULL OR i.ended >= TIMESTAMPTZ '{since}'
QUALIFY row_number() OVER (PARTITION BY i.incident_id, m.job_id ORDER BY m.lo DESC) = 1
ORDER BY i.began
"""
_ANY: Final = 'SELECT 1 FROM job WHERE cluster = {cluster} AND "user" = {user} LIMIT 1'
_KNOWN: Final = """
SELECT "user", max(ts) AS ts FROM job WHERE cluster = {cluster} AND "user" IS NOT NULL GROUP BY "user"
ORDER BY jaro_winkler_similarity("user", {user}) DESC, "user" LIMIT 5
"""


def read(
    queries: Queries, config: Config, user: str, *, since: datetime | None = None, until: datetime | None = None,
    days: Days = KEPT,
) -> dict[str, Any]:  # fmt: skip
    """The timeline (``rows``, newest first), jobs and totals of a user; of one who is not known a hint in ``notes``."""
    since, until = cost.stretch(since, until)
    cluster, hours = cost.hours(queries, config, since, until, days)
    costed = cost.with_money(hours, cost.known_prices(queries, config))
    told = cost_jobs.of_hours(queries, config, cluster, costed, since, until, user=user)
    words = {"cluster": quoted(cluster), "user": quoted(user)}
    words |= {"since": since.isoformat(), "until": until.isoformat()}
    incidents = queries.rows(_INCIDENTS.format(**words))
    jobs = told["rows"]
    held = _held(incidents)
    rows = [entry for job in jobs for entry in _of_job(job, held, since, until)]
    rows += [_of_incident(row) for row in incidents]
    rows.sort(key=lambda row: row["ts"], reverse=True)
    notes = [] if jobs else _unknown(queries, user, words)
    if len(rows) > _MOST:
        notes.append(f"the newest {_MOST} of {len(rows)} entries; ask for a shorter time for the others")
    return {
        "user": user, "cluster": cluster, "since": since, "until": until, "rows": rows[:_MOST], "jobs": jobs,
        "totals": _totals(jobs, costed.filter(pl.col("user") == user)), "owed": told["owed"], "notes": notes,
    }  # fmt: skip


def nobody(queries: Queries, cluster: str, user: str, since: datetime, until: datetime) -> dict[str, Any] | None:
    """The timeline of somebody of whom no job is known, without a look at any GPU-hour; ``None`` where one is."""
    words = {"cluster": quoted(cluster), "user": quoted(user)}
    if queries.rows(_ANY.format(**words)):
        return None
    spent = pl.DataFrame(schema={"category": pl.String, "gpu_hours": pl.Float64, "cost": pl.Float64})
    return {
        "user": user, "cluster": cluster, "since": since, "until": until, "rows": [], "jobs": [],
        "totals": _totals([], spent), "owed": [], "notes": _unknown(queries, user, words),
    }  # fmt: skip


def _unknown(queries: Queries, user: str, words: Mapping[str, str]) -> list[str]:
    known = [str(row["user"]) for row in queries.rows(_KNOWN.format(**words))]
    if user in known:
        return ["no job of theirs queued or ran then; they had some at another time"]
    near = f"; there are {', '.join(known)}" if known else "; no job with a user is known at all"
    return [f"no job of a user {user!r} is known in this cluster{near}"]


def _held(incidents: list[dict[str, Any]]) -> dict[str, str]:
    """Machines with an open incident, by name."""
    return {str(row["node"]): str(row["title"] or row["cause"]) for row in incidents if row["state"] != "resolved"}


def _of_job(job: Mapping[str, Any], held: Mapping[str, str], since: datetime, until: datetime) -> list[dict[str, Any]]:
    shape = f"{job['gpus'] or '?'} GPUs on {job['nodes'] or '?'} nodes"
    name = f"job {job['job_id']}" + (f", attempt {job['attempt'] + 1}" if job["retries"] else "")
    base = {"job_id": job["job_id"], "attempt": job["attempt"], "node": job["machines"] or None, "incident_id": None}
    nothing = {"side": None, "lost_gpu_hours": 0.0, "advice": None}
    made = []
    if job["allocated_ts"] is not None:
        waited = f" after {job['wait_s'] / 3600.0:.1f} h of waiting" if job["wait_s"] is not None else ""
        what = f"{name} started on {shape}{waited}"
        made.append({"ts": job["allocated_ts"], "kind": "started", "what": what, **base, **nothing})
    elif job["end_ts"] is None:
        made.append({"ts": job["queued_ts"], "kind": "waits", "what": f"{name} waits for {shape}", **base, **nothing})
    if job["end_ts"] is not None:
        made.append(
            {"ts": job["end_ts"], "kind": "ended", "what": f"{name} {_ending(job)}", **base, **_after(job, held)}
        )
    return [row for row in made if row["ts"] is not None and since <= row["ts"] < until]


def _ending(job: Mapping[str, Any]) -> str:
    """How it ended, in words: the judgement's, else the scheduler's."""
    if job["verdict"] not in (None, "neither") and job["message"]:
        return f"ended ({job['state'] or 'how is not told'}): {job['message']}"
    code = f" with exit code {job['exit_code']}" if job["exit_code"] else ""
    reason = f" ({job['reason']})" if job["reason"] else ""
    words = {"completed": "completed", "cancelled": "was cancelled", "timeout": "ran into its time limit",
             "node_fail": "ended because a node failed", "requeued": "was put back into the queue"}  # fmt: skip
    return words.get(job["state"] or "", f"ended: {job['state'] or 'how is not known'}") + code + reason


def _after(job: Mapping[str, Any], held: Mapping[str, str]) -> dict[str, Any]:
    side = SIDES.get(job["verdict"] or "", "unknown")
    if job["verdict"] is None:
        side = {"node_fail": "machine", "timeout": "scheduler", "completed": "nobody", "cancelled": "nobody"}.get(
            job["state"] or "", "unknown"
        )
    return {"side": side, "lost_gpu_hours": job["lost_gpu_hours"], "advice": _advice(job, side, held)}


def _advice(job: Mapping[str, Any], side: str, held: Mapping[str, str]) -> str | None:
    """What to do next, for the person whose job it was."""
    bad = [name for name in str(job["machines"] or "").split() if name in held]
    if not job["failed"]:
        return None
    if job["resume_s"] is not None:
        return f"it runs again since {job['resume_s'] / 60.0:.0f} min after; nothing to do"
    if side == "machine":
        avoid = f"; leave out {', '.join(bad)}, of which an incident is open" if bad else ""
        return f"start it again as it is, from the last checkpoint{avoid}"
    if side == "code":
        return str(job["action"] or "mend it before it is started again: the same would happen on any machine")
    if side == "scheduler":
        return "ask for more time, or write a checkpoint before the limit"
    return f"look for the cause before it is started again: graynode explain --job {job['job_id']}"


def _of_incident(row: Mapping[str, Any]) -> dict[str, Any]:
    until = f", until {row['ended']:%Y-%m-%d %H:%M} UTC" if row["ended"] else ", still open"
    return {
        "ts": row["began"], "kind": "incident", "what": f"{row['title'] or row['cause']}{until}",
        "job_id": row["job_id"], "attempt": None, "node": row["node"] or row["node_id"],
        "incident_id": row["incident_id"],
        "side": "code" if row["cause"] == "application_error" else "machine", "lost_gpu_hours": 0.0, "advice": None,
    }  # fmt: skip


def _totals(jobs: list[dict[str, Any]], spent: pl.DataFrame) -> dict[str, Any]:
    used = spent.filter(pl.col("category").is_in(["busy_useful", "busy_low"])).get_column("gpu_hours").sum()
    idle = spent.filter(pl.col("category") == "allocated_idle").get_column("gpu_hours").sum()
    known = spent.height and spent.get_column("cost").null_count() == 0
    lost: dict[str, float] = {}
    for job in jobs:
        if job["failed"]:
            side = _after(job, {})["side"]
            lost[side] = lost.get(side, 0.0) + (job["lost_gpu_hours"] or 0.0)
    return {
        "jobs": len({j["job_id"] for j in jobs}), "failures": sum(bool(j["failed"]) for j in jobs),
        "gpu_hours": spent.get_column("gpu_hours").sum(), "working_gpu_hours": used, "idle_gpu_hours": idle,
        "cost": spent.get_column("cost").sum() if known else None, "lost_gpu_hours": sum(lost.values()),
        "lost_by_side": lost,
    }  # fmt: skip
