"""The statements of the report. Each stands alone: the report names it under its table, and it gives the same again.

``{w0}`` and ``{w1}`` are beginning and end of the week, ``{p0}`` the beginning of the week before, ``{q0}`` of the 13
weeks before, ``{h0}`` of the 26 weeks before; ``{cluster}`` is quoted. A node-day is one that was owned and seen.
"""

# ruff: noqa: S608 (SQL made of this module's own words)
from __future__ import annotations

from typing import Final

_PERIODS: Final = (("this week", "{w0}", "{w1}"), ("week before", "{p0}", "{w0}"), ("13 weeks before", "{q0}", "{w0}"))
_NODE_DAYS: Final = "sum(owned_s - coalesce(blind_s, 0)) / 86400"


def _each(sql: str) -> str:
    """One statement over the three periods, in order."""
    return "\nUNION ALL\n".join(
        sql.replace("{period}", name).replace("{a}", a).replace("{b}", b).replace("{n}", str(i))
        for i, (name, a, b) in enumerate(_PERIODS)
    )


CLUSTERS: Final = """
SELECT DISTINCT cluster FROM (
  SELECT cluster FROM inventory UNION ALL SELECT cluster FROM event UNION ALL SELECT cluster FROM incident
  UNION ALL SELECT cluster FROM host_1h) WHERE cluster IS NOT NULL ORDER BY 1"""
NEWEST: Final = """
SELECT max(ts) AS ts FROM (
  SELECT max(ts) + INTERVAL 1 HOUR AS ts FROM host_1h WHERE cluster = {cluster}
  UNION ALL SELECT max(ts) FROM event WHERE cluster = {cluster}
  UNION ALL SELECT max(ts) FROM incident WHERE cluster = {cluster})"""
GPU_HOURS: Final = """
SELECT coalesce(gpu_model, 'unknown model') AS gpu_model, count(DISTINCT gpu_uuid) AS gpus, sum(hours) AS owned_h,
  coalesce(sum(hours) FILTER (category NOT IN ('out_of_service', 'blind')), 0) AS usable_h,
  coalesce(sum(hours) FILTER (category = 'out_of_service'), 0) AS out_h,
  coalesce(sum(hours) FILTER (category = 'blind'), 0) AS blind_h
FROM gpu_hours({w0}, {w1}) WHERE cluster = {cluster} GROUP BY ALL ORDER BY owned_h DESC, gpu_model"""
GPU_STRETCH: Final = """
SELECT min(ts) AS since, max(ts) + INTERVAL 1 HOUR AS until FROM gpu_hours({w0}, {w1}) WHERE cluster = {cluster}"""
GPU_DAYS: Final = """
SELECT date_trunc('day', ts) AS day, sum(hours) AS owned_h,
  coalesce(sum(hours) FILTER (category NOT IN ('out_of_service', 'blind')), 0) AS usable_h,
  coalesce(sum(hours) FILTER (category = 'blind'), 0) AS blind_h
FROM gpu_hours({w0}, {w1}) WHERE cluster = {cluster} GROUP BY ALL ORDER BY day"""
NODE_TIME: Final = _each(
    "SELECT {n} AS n, '{period}' AS period, count(*) AS nodes, sum(owned_s) / 86400 AS owned_d, "
    "sum(usable_s) / 86400 AS usable_d, sum(out_s) / 86400 AS out_d, sum(planned_s) / 86400 AS planned_d, "
    "sum(blind_s) / 86400 AS blind_d, count(*) FILTER (NOT watched) AS unwatched "
    "FROM node_time({a}, {b}) WHERE cluster = {cluster}"
)
CAUSES: Final = (
    "SELECT n, period, cause, failures, node_days FROM (\n"
    + _each(
        "SELECT {n} AS n, cause, count(*) AS failures FROM failures({a}, {b}) WHERE cluster = {cluster} GROUP BY ALL"
    )
    + "\n) RIGHT JOIN (\n"
    + _each(
        f"SELECT {{n}} AS n, '{{period}}' AS period, {_NODE_DAYS} AS node_days FROM node_time({{a}}, {{b}}) "
        "WHERE cluster = {cluster}"
    )
    + "\n) USING (n) ORDER BY n, failures DESC, cause"
)
LENGTHS: Final = _each(
    "SELECT {n} AS n, '{period}' AS period, count(*) AS failures, count(detected) AS told, "
    "count(*) FILTER (outcome = 'over') AS over, count(*) FILTER (outcome = 'open') AS open "
    "FROM failures({a}, {b}) WHERE cluster = {cluster}"
)
EACH: Final = """
SELECT n, seconds_to_detect, seconds_to_repair, outcome, epoch(until) - epoch(began) AS so_far_s FROM (
  SELECT 0 AS n, {w1} AS until, * FROM failures({w0}, {w1})
  UNION ALL SELECT 1, {w0}, * FROM failures({p0}, {w0})
  UNION ALL SELECT 2, {w0}, * FROM failures({q0}, {w0})) WHERE cluster = {cluster}"""
WEEKS: Final = """
WITH weeks AS (
  SELECT ts AS week, ts + INTERVAL 7 DAY AS ends FROM (
    SELECT unnest(generate_series({h0}, {w1} - INTERVAL 1 SECOND, INTERVAL 7 DAY)) AS ts)),
days AS (
  SELECT week,
    sum(greatest(epoch(least(owned_until, ends)) - epoch(greatest(owned_from, week)), 0)) / 86400 AS node_days
  FROM weeks, node_time({h0}, {w1}) WHERE cluster = {cluster} GROUP BY ALL),
told AS (
  SELECT {h0} + INTERVAL 7 DAY * floor((epoch(began) - epoch({h0})) / 604800)::INT AS week, count(*) AS failures
  FROM failures({h0}, {w1}) WHERE cluster = {cluster} GROUP BY ALL)
SELECT week, node_days, coalesce(failures, 0) AS failures FROM days LEFT JOIN told USING (week)
WHERE node_days > 0 ORDER BY week"""
MATTERED: Final = """
SELECT f.began, f.node, f.cause, coalesce(i.title, f.cause) AS title, i.severity, f.outcome, f.gpu_hours_lost,
  f.hit_job_id, f.seconds_to_detect, f.seconds_to_repair, f.incident_id
FROM failures({w0}, {w1}) f LEFT JOIN incident_now i USING (cluster, incident_id)
WHERE cluster = {cluster}
ORDER BY f.hit_job_id IS NULL, f.gpu_hours_lost DESC NULLS LAST, i.severity = 'page' DESC NULLS LAST, f.began
LIMIT 12"""
CAUGHT: Final = """
SELECT CASE
    WHEN hit_ts IS NULL AND detected IS NOT NULL THEN 'told, and no job ended by it'
    WHEN detected < hit_ts THEN 'told before the first job ended by it'
    WHEN detected IS NOT NULL THEN 'told only after a job had ended by it'
    WHEN hit_ts IS NOT NULL THEN 'not told, and a job ended by it'
    ELSE 'not told, and no job ended by it' END AS what,
  count(*) AS failures, count(*) FILTER (during_job) AS job_there, count(*) FILTER (NOT during_job) AS no_job_there
FROM failures({w0}, {w1}) WHERE cluster = {cluster} GROUP BY ALL ORDER BY failures DESC, what"""
JUDGED: Final = """
SELECT count(*) AS ends FROM attribution_now
WHERE cluster = {cluster} AND phase = 'ended' AND end_ts >= {w0} AND end_ts < {w1}"""
LOST: Final = """
SELECT cause, coalesce(gpu_model, '') AS gpu_model, count(*) AS failures, count(gpu_hours_lost) AS known,
  sum(gpu_hours_lost) AS gpu_hours_lost
FROM failures({w0}, {w1}) WHERE cluster = {cluster} GROUP BY ALL
ORDER BY gpu_hours_lost DESC NULLS LAST, failures DESC, cause, gpu_model"""
JOBS_LOST: Final = """
SELECT coalesce(account, 'no account') AS account, kind, count(DISTINCT job_id) AS jobs,
  sum(gpus * (epoch(a.end_ts) - epoch(a.start_ts)) / 3600) AS gpu_hours_at_most
FROM attribution_now a LEFT JOIN (SELECT cluster, job_id, max(gpus) AS gpus FROM jobs GROUP BY ALL) j
  USING (cluster, job_id)
WHERE cluster = {cluster} AND verdict = 'infrastructure' AND phase = 'ended' AND a.end_ts >= {w0} AND a.end_ts < {w1}
GROUP BY ALL ORDER BY gpu_hours_at_most DESC NULLS LAST, account, kind"""
LEMONS: Final = """
SELECT node_id, any_value(node) AS node, count(*) FILTER (began >= {q0}) AS failures_14w,
  count(*) FILTER (began >= {w1} - INTERVAL 28 DAY) AS failures_28d
FROM failures({h0}, {w1}) WHERE cluster = {cluster} GROUP BY node_id ORDER BY node_id"""
REPAIRS: Final = """
WITH history AS (FROM failures({h0}, {w1}) WHERE cluster = {cluster} AND began >= {q0}),
done AS (
  SELECT 'logged repair' AS kind, cluster, node_id, ts, what FROM repair WHERE ts >= {q0} AND ts < {w1}
    AND cluster = {cluster}
  UNION ALL
  SELECT 'return to service', cluster, node_id, repaired, cause FROM history WHERE repaired IS NOT NULL),
after AS (
  SELECT d.kind, d.node_id, d.ts, any_value(d.what) AS what, min(h.began) AS again FROM done d
  LEFT JOIN history h ON h.node_id = d.node_id AND h.began > d.ts GROUP BY ALL)
SELECT kind, count(*) AS repairs,
  count(*) FILTER (ts <= {w1} - INTERVAL 7 DAY) AS old_7d,
  count(*) FILTER (ts <= {w1} - INTERVAL 7 DAY AND again <= ts + INTERVAL 7 DAY) AS again_7d,
  count(*) FILTER (ts <= {w1} - INTERVAL 28 DAY) AS old_28d,
  count(*) FILTER (ts <= {w1} - INTERVAL 28 DAY AND again <= ts + INTERVAL 28 DAY) AS again_28d
FROM after GROUP BY kind ORDER BY kind"""
CAME_BACK: Final = """
WITH history AS (FROM failures({h0}, {w1}) WHERE cluster = {cluster} AND began >= {q0})
SELECT r.ts, coalesce(max(r.node), r.node_id) AS node, max(r.what) AS what, max(r.who) AS who, min(h.began) AS again,
  arg_min(h.cause, h.began) AS cause, (epoch(min(h.began)) - epoch(r.ts)) / 86400 AS after_d
FROM repair r LEFT JOIN history h ON h.node_id = r.node_id AND h.began > r.ts AND h.began <= r.ts + INTERVAL 28 DAY
WHERE r.cluster = {cluster} AND r.ts < {w1}
GROUP BY r.node_id, r.ts HAVING r.ts >= {w0} OR min(h.began) >= {w0} ORDER BY r.ts, node LIMIT 20"""
PRECISION: Final = """
SELECT cause, count(*) AS told, count(*) FILTER (verdict = 'true') AS right_,
  count(*) FILTER (verdict = 'false') AS wrong,
  count(*) FILTER (verdict = 'unsure') AS unsure, count(*) FILTER (verdict IS NULL) AS unjudged
FROM (
  SELECT incident_id, arg_max(cause, revision) AS cause, min(opened_ts) AS opened_ts FROM incident
  WHERE cluster = {cluster} AND severity IN ('page', 'ticket') AND ts < {w1} GROUP BY incident_id)
LEFT JOIN (SELECT incident_id, verdict FROM label_now WHERE incident_id IS NOT NULL) USING (incident_id)
WHERE opened_ts >= {q0} AND opened_ts < {w1} GROUP BY cause ORDER BY told DESC, cause"""
ALARMS: Final = f"""
SELECT severity, count(*) AS told, count(*) FILTER (verdict = 'false') AS wrong,
  count(*) FILTER (verdict IS NULL OR verdict = 'unsure') AS undecided,
  (SELECT {_NODE_DAYS} FROM node_time({{w0}}, {{w1}}) WHERE cluster = {{cluster}}) AS node_days
FROM (
  SELECT incident_id, CASE WHEN bool_or(severity = 'page') THEN 'page' ELSE 'ticket' END AS severity,
    min(opened_ts) AS opened_ts
  FROM incident WHERE cluster = {{cluster}} AND severity IN ('page', 'ticket') AND ts < {{w1}} GROUP BY incident_id)
LEFT JOIN (SELECT incident_id, verdict FROM label_now WHERE incident_id IS NOT NULL) USING (incident_id)
WHERE opened_ts >= {{w0}} AND opened_ts < {{w1}} GROUP BY severity ORDER BY severity"""
BLIND: Final = """
SELECT coalesce(node, node_id) AS node, blind_s / 3600 AS blind_h, planned_s / 3600 AS planned_h, spells,
  longest_s / 3600 AS longest_h
FROM blind({w0}, {w1}) WHERE cluster = {cluster} AND node_id IS NOT NULL AND blind_s + planned_s > 0
ORDER BY blind_s DESC, node LIMIT 10"""
MIX: Final = """
WITH there AS (
  SELECT node_id, entity, kind, arg_max(model, ts) AS model, arg_max(driver_version, ts) AS driver,
    arg_max(vbios_version, ts) AS vbios
  FROM inventory WHERE cluster = {cluster} AND kind IN ('gpu', 'node') AND ts < {w1}
    AND coalesce(valid_until > {w1}, true)
  GROUP BY ALL),
bad AS (SELECT DISTINCT node_id FROM failures({h0}, {w1}) WHERE cluster = {cluster} AND began >= {q0})
SELECT coalesce(g.model, 'unknown') AS gpu_model, coalesce(g.driver, n.driver, 'unknown') AS driver_version,
  coalesce(g.vbios, 'unknown') AS vbios_version, count(DISTINCT g.node_id) AS nodes, count(DISTINCT g.entity) AS gpus,
  count(DISTINCT bad.node_id) AS nodes_failed
FROM there g LEFT JOIN there n ON n.kind = 'node' AND n.node_id = g.node_id LEFT JOIN bad ON bad.node_id = g.node_id
WHERE g.kind = 'gpu' GROUP BY ALL
ORDER BY gpus DESC, gpu_model, driver_version, vbios_version LIMIT 20"""
