"""Failures of nodes and what their time went to: text of DuckDB macros; ``graynode.pipeline.queries`` makes them.

A job that was lost is lost once, however many of its nodes failed: its end belongs to the failure of the node that the
judgement of the job names, else to that with the strongest witness (an incident, a hard event, a record, the word of
the scheduler), else to the earliest.

A *failure* is a stretch in which something says that a machine, one of its GPUs or links is broken: incidents of
hardware (tickets and pages), hard events, a scheduler's or our own word that it is out of service (planned maintenance
excepted), imported fault records. Stretches that overlap or follow within ``APART`` are one failure, told by several
witnesses. It *begins* with the first evidence, is *detected* when an incident of it was opened (null: we told
nobody), and is over when the last witness is, or by a logged repair. ``docs/report.md`` has the definitions in full.

``failures(start, end)`` has the failures that began in the span, as they were known at its end: what came later is not
looked at, so a report of a week says the same whenever it is made. Stretches that began more than ``LOOK_BACK`` before
the span are not seen.
"""

# ruff: noqa: S608 (SQL made of this module's own words)
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from graynode.pipeline.gpu_hours_sources import STATES

LOOK_BACK: Final = "INTERVAL 90 DAY"
APART: Final = "INTERVAL 10 MINUTE"
"""As the lemons have it (docs/lemons.md): a return of less than ten minutes was none."""
NOT_HARDWARE: Final = ("application_error", "monitoring_blind", "clock_skew", "fleet_shift", "unusual")
"""Causes of incidents that say nothing against a machine."""
HARD_EVENTS: Final[Mapping[str, str]] = {
    "gpu_off_bus": "gpu_lost", "gpu_lost": "gpu_lost", "gpu_hung": "driver_fault", "edac_ue": "host_fault",
    "nvme_dead": "host_fault",
}  # fmt: skip
"""Events that nobody can take for well, and their cause in the words of incidents."""
_DEAD: Final = "('gpu_lost', 'driver_fault', 'recovery_requested')"
_SLOWER: Final = "('slow_gpu', 'thermal', 'power_brake')"
"""Causes after which a GPU computes nothing, and causes whose effect is that it computes less. What a narrow bus or a
lossy link takes from the work is not known."""
_HIT_BEFORE: Final = "INTERVAL 10 MINUTE"
_HIT_AFTER: Final = "INTERVAL 5 MINUTE"
"""A job's end belongs to a failure from ten minutes before its evidence to five after: Meta's window of attribution
(arXiv 2410.21680, III-E)."""


def words(names: Iterable[str]) -> str:
    """Names as a list of SQL's texts."""
    return ", ".join(f"'{name}'" for name in names)


_CAUSE_OF_EVENT: Final = "CASE kind " + " ".join(f"WHEN '{k}' THEN '{c}'" for k, c in HARD_EVENTS.items()) + " END"

PLANNED: Final = """
planned_windows AS (
  SELECT cluster, maintenance_id, arg_max(scope, ts) AS scope, arg_max(name, ts) AS name, arg_max(since, ts) AS since,
    arg_max("until", ts) AS "until"
  FROM maintenance WHERE ts < {before} GROUP BY ALL HAVING arg_max("until", ts) > arg_max(since, ts)),
planned_places AS (
  SELECT cluster, node_id, 'rack' AS scope, json_extract_string(arg_max(attributes, ts), '$.rack') AS name
  FROM inventory WHERE kind = 'node' AND ts < {before} AND json_valid(attributes) GROUP BY ALL
  UNION ALL SELECT cluster, node_id, 'partition', arg_max("partition", ts) FROM job_placements
  WHERE ts < {before} AND "partition" IS NOT NULL AND state IS DISTINCT FROM 'queued' GROUP BY ALL),
planned AS (
  SELECT cluster, CASE WHEN scope = 'node' THEN name END AS node_id, since, "until" FROM planned_windows
  WHERE scope IN ('node', 'all')
  UNION ALL SELECT cluster, node_id, since, "until"
  FROM planned_windows JOIN planned_places USING (cluster, scope, name))
"""
"""Announced maintenance by node (null: every node), as it was known ``before``: what begins in it is no failure."""
IN_PLANNED: Final = """EXISTS (SELECT 1 FROM planned p
  WHERE p.cluster = {of}.cluster AND (p.node_id IS NULL OR p.node_id = {of}.node_id) AND {at} >= p.since
    AND {at} < p."until")"""

_WITNESSES: Final = f"""
{PLANNED.strip().format(before="CAST(to_ts AS TIMESTAMPTZ)")},
revisions AS (
  SELECT *, count(*) FILTER (was = 'resolved') OVER (PARTITION BY cluster, incident_id ORDER BY revision) AS period
  FROM (SELECT *, lag(state) OVER (PARTITION BY cluster, incident_id ORDER BY revision) AS was
    FROM incident(CAST(from_ts AS TIMESTAMPTZ) - {LOOK_BACK}, to_ts))),
told AS (
  SELECT cluster, incident_id, period, arg_max(node_id, revision) AS node_id, arg_max(node, revision) AS node,
    CASE WHEN period = 0 THEN least(min(since), min(coalesce(opened_ts, ts))) ELSE min(ts) END AS lo,
    max(coalesce(resolved_ts, ts)) FILTER (state = 'resolved') AS hi,
    CASE WHEN period = 0 THEN min(coalesce(opened_ts, ts)) ELSE min(ts) END AS told_ts,
    arg_max(cause, revision) AS cause, arg_max(subject, revision) AS subject, arg_max(gpu_uuid, revision) AS gpu_uuid,
    arg_max(severity, revision) AS severity, arg_max(evidence, revision) AS evidence
  FROM revisions GROUP BY cluster, incident_id, period),
records AS (
  SELECT cluster, node_id, node, ts, kind, message,
    lead(ts) OVER (PARTITION BY cluster, node_id, message ORDER BY ts, kind DESC) AS next_ts
  FROM event(CAST(from_ts AS TIMESTAMPTZ) - {LOOK_BACK}, to_ts) WHERE kind IN ('fault_start', 'fault_end')),
witnesses AS (
  SELECT cluster, node_id, node, 1 AS rank, lo, hi, hi IS NULL AS lasts, told_ts, cause, incident_id,
    CASE WHEN subject = 'gpu' THEN gpu_uuid END AS gpu_uuid, subject = 'node' AS whole,
    CASE WHEN cause IN {_DEAD} THEN 1.0 WHEN cause IN {_SLOWER} AND json_valid(evidence) THEN
      list_max(list_filter(from_json(json_extract(evidence, '$[*].effect'), '["DOUBLE"]'), lambda x: x > 0))
      END AS effect
  FROM told WHERE subject IN ('node', 'gpu', 'link') AND severity <> 'digest' AND cause NOT IN ({words(NOT_HARDWARE)})
  UNION ALL
  SELECT cluster, node_id, node, 3, ts, next_ts, next_ts IS NULL, NULL, message, NULL, NULL, true, 1.0
  FROM records WHERE kind = 'fault_start'
  UNION ALL
  SELECT cluster, node_id, node, 2, ts, ts, false, NULL, {_CAUSE_OF_EVENT}, NULL, gpu_uuid, gpu_uuid IS NULL, 1.0
  FROM event(CAST(from_ts AS TIMESTAMPTZ) - {LOOK_BACK}, to_ts) WHERE kind IN ({words(HARD_EVENTS)})
  UNION ALL
  SELECT cluster, node_id, NULL, 4, lo, CASE WHEN hi < b THEN hi END, hi >= b, NULL,
    'out of service: ' || lower(split_part(why, ':', 1)), NULL, NULL, true, 1.0
  FROM states, span WHERE (out = 2 OR (out = 1 AND starts_with(why, 'quarantined'))) AND NOT starts_with(why, 'gone')
    AND NOT why ILIKE '%maint%'),
mended AS (
  SELECT * REPLACE (coalesce(hi, mended_ts) AS hi), lasts AND mended_ts IS NULL AS open FROM (
    SELECT w.*, min(r.ts) AS mended_ts, arg_min(r.what, r.ts) AS repair
    FROM witnesses w LEFT JOIN repair r ON r.cluster = w.cluster AND r.node_id = w.node_id AND r.ts >= w.lo
      AND (w.hi IS NULL OR r.ts <= w.hi) AND r.ts < CAST(to_ts AS TIMESTAMPTZ)
    WHERE w.node_id IS NOT NULL AND w.lo IS NOT NULL AND NOT {IN_PLANNED.format(of="w", at="w.lo")}
    GROUP BY ALL))"""
"""Everything that speaks against a node, each with its end where it has one."""

_FAILURES: Final = f"""
WITH span AS (SELECT CAST(from_ts AS TIMESTAMPTZ) - {LOOK_BACK} AS a, CAST(to_ts AS TIMESTAMPTZ) AS b),
{STATES},
{_WITNESSES},
marked AS (
  SELECT *, lo > max(CASE WHEN open THEN 'infinity'::TIMESTAMPTZ ELSE hi END) OVER (
    PARTITION BY cluster, node_id ORDER BY lo, rank, cause ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    + {APART} AS anew
  FROM mended),
numbered AS (
  SELECT *, count(*) FILTER (anew) OVER (PARTITION BY cluster, node_id ORDER BY lo, rank, cause) AS nth FROM marked),
all_merged AS (
  SELECT cluster, node_id, nth, max(node) AS node, min(lo) AS began, min(told_ts) AS told_ts,
    arg_min(cause, (rank, lo, cause)) AS cause, arg_min(incident_id, (rank, lo)) AS incident_id,
    bool_or(open) AS open, max(rank <> 2) AS has_end, max(hi) AS last_ts, arg_max(repair, hi) AS repair,
    min(rank) AS best, count(*) AS witnesses,
    bool_or(whole) AS whole, count(DISTINCT gpu_uuid) AS gpus_named, max(effect) AS effect
  FROM numbered GROUP BY cluster, node_id, nth),
merged AS (FROM all_merged WHERE began >= CAST(from_ts AS TIMESTAMPTZ)),
placed AS (
  SELECT cluster, node_id, job_id, coalesce(requeues, 0) AS attempt, min(coalesce(allocated_ts, ts)) AS lo,
    max(end_ts) AS hi, bool_or(state = 'node_fail') AS node_fail
  FROM job_placements
  WHERE job_id IS NOT NULL AND state IS DISTINCT FROM 'queued' AND ts < CAST(to_ts AS TIMESTAMPTZ)
    AND ts >= CAST(from_ts AS TIMESTAMPTZ) - {LOOK_BACK}
  GROUP BY ALL),
told_jobs_of AS (SELECT DISTINCT cluster FROM placed),
at_work AS (
  SELECT m.cluster, m.node_id, m.nth, arg_max(p.job_id, p.lo) AS job_id FROM merged m
  JOIN placed p ON p.cluster = m.cluster AND p.node_id = m.node_id AND p.lo <= m.began
    AND coalesce(p.hi >= m.began, true)
  GROUP BY ALL),
ends AS (
  SELECT cluster, node_id, job_id, coalesce(attempt, 0) AS attempt, end_ts, 0 AS word FROM attribution_now
  WHERE verdict = 'infrastructure' AND phase = 'ended' AND end_ts < CAST(to_ts AS TIMESTAMPTZ)
  UNION SELECT cluster, node_id, job_id, attempt, hi, 1 FROM placed WHERE node_fail AND hi IS NOT NULL),
hit_once AS (
  SELECT m.cluster, m.node_id, m.nth, e.job_id, e.end_ts FROM all_merged m
  JOIN ends e ON e.cluster = m.cluster AND e.node_id = m.node_id AND e.end_ts >= m.began - {_HIT_BEFORE}
    AND (m.open OR e.end_ts <= m.last_ts + {_HIT_AFTER})
  QUALIFY row_number() OVER (PARTITION BY e.cluster, e.job_id, e.attempt ORDER BY e.word, m.best, m.began, m.node_id,
    m.nth) = 1),
hits AS (
  SELECT cluster, node_id, nth, min(end_ts) AS hit_ts, arg_min(job_id, end_ts) AS hit_job_id FROM hit_once
  GROUP BY cluster, node_id, nth),
homes AS (
  SELECT m.cluster, m.node_id, m.nth, count(DISTINCT h.gpu_uuid) AS node_gpus, any_value(h.gpu_model) AS gpu_model
  FROM merged m
  JOIN gpu_homes h ON h.cluster = m.cluster AND h.node_id = m.node_id AND h.since <= m.began
    AND coalesce(h.until > m.began, true)
  GROUP BY ALL)
SELECT cluster, node_id, coalesce(m.node, node_id) AS node, coalesce(cause, 'unknown') AS cause, began,
  CASE WHEN told_ts IS NOT NULL THEN greatest(told_ts, began) END AS detected,
  CASE WHEN NOT open AND has_end THEN last_ts END AS repaired,
  greatest(epoch(told_ts) - epoch(began), CASE WHEN told_ts IS NOT NULL THEN 0.0 END) AS seconds_to_detect,
  CASE WHEN NOT open AND has_end THEN epoch(last_ts) - epoch(began) END AS seconds_to_repair,
  CASE WHEN cluster IN (FROM told_jobs_of) THEN w.job_id IS NOT NULL END AS during_job, w.job_id,
  CASE WHEN whole THEN node_gpus WHEN gpus_named > 0 THEN gpus_named END * CASE WHEN effect < 1.0 THEN effect
    WHEN effect >= 1.0 THEN 1.0 END
    * (epoch(CASE WHEN open THEN CAST(to_ts AS TIMESTAMPTZ) ELSE last_ts END) - epoch(began)) / 3600
    AS gpu_hours_lost,
  CASE WHEN open THEN 'open' WHEN has_end THEN 'over' ELSE 'unknown' END AS outcome,
  hit_ts, hit_job_id, incident_id, repair, witnesses, gpu_model
FROM merged m LEFT JOIN at_work w USING (cluster, node_id, nth) LEFT JOIN hits USING (cluster, node_id, nth)
LEFT JOIN homes USING (cluster, node_id, nth)
ORDER BY began, cluster, node_id
"""

_NODE_TIME: Final = f"""
WITH span AS (SELECT CAST(from_ts AS TIMESTAMPTZ) AS a, CAST(to_ts AS TIMESTAMPTZ) AS b),
{STATES},
{_WITNESSES},
heard AS (
  SELECT cluster, node_id, max(node) AS node, min(ts) AS since, max(ts) + INTERVAL 1 HOUR AS until
  FROM host_1h(CAST(from_ts AS TIMESTAMPTZ) - INTERVAL 14 DAY, to_ts) GROUP BY ALL
  UNION ALL
  SELECT cluster, node_id, max(node), min(ts), max(ts) + INTERVAL 30 SECOND FROM host_30s(from_ts, to_ts)
  GROUP BY ALL),
first_told AS (
  SELECT cluster, node_id, max(node) AS node, min(ts) AS since, max(ts) AS until FROM inventory WHERE kind = 'node'
  GROUP BY ALL
  UNION ALL
  SELECT cluster, node_id, max(node), min(ts), max(ts) FROM event
  WHERE kind IN ('fault_start', 'fault_end') GROUP BY ALL
  UNION ALL SELECT cluster, node_id, max(node), min(ts), max(ts) FROM scheduler_states WHERE bound GROUP BY ALL),
known AS (
  SELECT *, true AS watched FROM heard UNION ALL SELECT *, false FROM first_told),
of_cluster AS (
  SELECT cluster, min(since) AS since, max(until) AS until, bool_or(watched) AS watched FROM known GROUP BY ALL),
taken AS (
  SELECT cluster, node_id, max(until) AS ts FROM machine_names
  WHERE system = 'hostname' AND starts_with(ended_by, 'taken') GROUP BY ALL),
machines_known AS (
  SELECT k.cluster, k.node_id, max(k.node) AS node, bool_or(k.watched) AS watched,
    greatest(any_value(a), CASE WHEN any_value(c.watched) THEN min(k.since) ELSE any_value(c.since) END) AS lo,
    least(any_value(b), any_value(c.until), CASE WHEN any_value(c.watched) THEN max(k.until) + INTERVAL 14 DAY END,
      CASE WHEN max(k.until) <= max(t.ts) THEN max(t.ts) END) AS hi
  FROM known k JOIN of_cluster c USING (cluster) LEFT JOIN taken t USING (cluster, node_id), span
  WHERE k.node_id IS NOT NULL GROUP BY k.cluster, k.node_id),
owned AS (FROM machines_known WHERE hi > lo),
stretches AS (
  SELECT cluster, node_id, lo, hi, 1 AS o, (why ILIKE '%maint%')::INT AS p, 0 AS u FROM states
  WHERE out = 2 OR (out = 1 AND NOT regexp_matches(lower(why), 'draining|alloc|mixed|compl'))
  UNION ALL SELECT cluster, node_id, lo, CASE WHEN open THEN b ELSE hi END, 1, 0, 0 FROM mended, span WHERE rank = 3
  UNION ALL SELECT cluster, node_id, since, until, 0, 0, 1 FROM blind_spells(from_ts, to_ts) WHERE scope = 'node'),
inside AS (
  SELECT s.cluster, s.node_id, greatest(s.lo, w.lo) AS lo, least(s.hi, w.hi) AS hi, o, p, u
  FROM stretches s JOIN owned w USING (cluster, node_id)),
edges AS (
  SELECT cluster, node_id, edge, sum(o) AS o, sum(p) AS p, sum(u) AS u FROM (
    SELECT cluster, node_id, lo AS edge, o, p, u FROM inside WHERE hi > lo
    UNION ALL SELECT cluster, node_id, hi, -o, -p, -u FROM inside WHERE hi > lo)
  GROUP BY ALL),
swept AS (
  SELECT cluster, node_id, epoch(lead(edge) OVER one) - epoch(edge) AS s, sum(o) OVER one AS o, sum(p) OVER one AS p,
    sum(u) OVER one AS u
  FROM edges WINDOW one AS (PARTITION BY cluster, node_id ORDER BY edge)),
lost AS (
  SELECT cluster, node_id, sum(s) FILTER (o > 0) AS out_s, sum(s) FILTER (o > 0 AND p > 0) AS planned_s,
    sum(s) FILTER (o = 0 AND u > 0) AS blind_s
  FROM swept GROUP BY ALL),
homes AS (
  SELECT cluster, node_id, count(DISTINCT gpu_uuid) AS gpus FROM gpu_homes, span
  WHERE since < b AND coalesce(until > a, true) GROUP BY ALL)
SELECT cluster, node_id, coalesce(w.node, node_id) AS node, epoch(hi) - epoch(lo) AS owned_s,
  epoch(hi) - epoch(lo) - coalesce(out_s, 0) - coalesce(blind_s, 0) AS usable_s, coalesce(out_s, 0) AS out_s,
  CASE WHEN watched THEN coalesce(blind_s, 0) END AS blind_s, coalesce(planned_s, 0) AS planned_s, gpus, watched,
  lo AS owned_from, hi AS owned_until
FROM owned w LEFT JOIN lost USING (cluster, node_id) LEFT JOIN homes USING (cluster, node_id)
ORDER BY cluster, node_id
"""

MACROS: Final[Mapping[str, str]] = {
    "failures(from_ts, to_ts)": _FAILURES,
    "node_time(from_ts, to_ts)": _NODE_TIME,
}
"""Table macros by name and parameters; they need ``gpu_homes``, ``machine_names``, ``scheduler_states`` and
``blind_spells``."""
