"""What ``gpu_hours`` is made of: GPUs owned, nodes out of service, placements on GPUs, and an hour's activity.

Text of common table expressions, put together by ``graynode.pipeline.gpu_hours``. ``span`` holds the stretch asked for.

- *Owned* is what the inventory says, by its validity: a GPU that moved, was replaced or whose node was silent for a
  fortnight ends. How many GPUs a scheduler counts plays no part: a device plugin that counts none takes nothing away.
- A GPU that no inventory knows is owned from its first to its last hour in the stretch.
- A stretch ends with the newest hour that was rolled up: what has not been looked at yet is not blind.
"""

# ruff: noqa: S608 (SQL made of this module's own words)
from __future__ import annotations

from typing import Final

HOUR: Final = "INTERVAL 1 HOUR"
FORGET: Final = "INTERVAL 14 DAY"
"""As ``blind_spells`` has it: a machine that is silent for longer is gone, not unseen."""
_OUT: Final = "(^|[+, ])(down|fail|failing|error|maint|maintenance|notready|unknown)($|[+,*~#!%$@^ -])"
_CORDONED: Final = "(^|[+, ])(drain|drained|draining|schedulingdisabled|unschedulable)($|[+,*~#!%$@^ -])"
_RESERVED: Final = "(^|[+, ])(reserved|resv)($|[+,*~#!%$@^ -])"
"""Slurm's words (``scontrol show node``: flags joined by ``+``, a mark such as ``*`` behind) and Kubernetes'."""

SPAN: Final = "span AS (SELECT CAST(from_ts AS TIMESTAMPTZ) AS a, CAST(to_ts AS TIMESTAMPTZ) AS b)"

SEEN: Final = """
seen AS MATERIALIZED (
  SELECT cluster, node_id, gpu_uuid, ts, coalesce(mig_instance, '') AS mig, max(node) AS node,
    max(gpu_model_last) AS gpu_model, max(mig_profile_last) AS mig_profile, max(job_id_last) AS job_id,
    least(max(samples / greatest(samples_expected, 1)), 1.0) AS seen_h,
    max(gpu_util_percent_mean)::DOUBLE AS util_percent, max(sm_active_ratio_mean)::DOUBLE AS sm_told,
    max(tensor_active_ratio_mean)::DOUBLE AS tensor_told, max(power_w_mean)::DOUBLE AS power_w,
    max(coalesce(power_limit_enforced_w_last, power_limit_default_w_last, power_limit_w_last))::DOUBLE AS limit_w,
    max(mem_used_bytes_mean)::DOUBLE AS mem_used_bytes, max(processes_mean)::DOUBLE AS processes
  FROM gpu_1h(date_trunc('hour', CAST(from_ts AS TIMESTAMPTZ)), to_ts)
  WHERE gpu_uuid IS NOT NULL GROUP BY ALL)"""
"""A row an hour of a GPU or MIG instance, once however often it was written."""

OWNED: Final = f"""
first_seen AS (
  SELECT cluster, node_id, gpu_uuid, max(node) AS node, max(gpu_model) AS gpu_model, min(ts) AS since,
    max(ts) + {HOUR} AS until
  FROM seen GROUP BY ALL),
closed AS (
  SELECT cluster, max(ts) + {HOUR} AS closed_ts FROM (
    SELECT cluster, ts FROM seen
    UNION ALL SELECT cluster, ts FROM host_1h(to_ts, greatest(now(), CAST(to_ts AS TIMESTAMPTZ)))
    UNION ALL SELECT cluster, ts FROM gpu_1h(to_ts, CAST(to_ts AS TIMESTAMPTZ) + INTERVAL 1 DAY))
  GROUP BY ALL),
heard AS (
  SELECT cluster, node_id, max(ts) + {HOUR} AS last_ts FROM (
    SELECT cluster, node_id, ts FROM host_1h(CAST(from_ts AS TIMESTAMPTZ) - {FORGET}, to_ts)
    UNION ALL SELECT cluster, node_id, ts FROM seen
    UNION ALL SELECT cluster, node_id, since FROM gpu_homes WHERE since < CAST(to_ts AS TIMESTAMPTZ))
  GROUP BY ALL),
homes AS (
  SELECT h.cluster, h.node_id, coalesce(f.node, h.node) AS node, h.gpu_uuid, coalesce(h.gpu_model, f.gpu_model) AS
    gpu_model, h.until,
    CASE WHEN row_number() OVER (PARTITION BY h.cluster, h.gpu_uuid ORDER BY h.since, h.node_id) = 1
      THEN least(h.since, f.since) ELSE h.since END AS since
  FROM gpu_homes h LEFT JOIN first_seen f USING (cluster, node_id, gpu_uuid)
  UNION ALL
  SELECT cluster, node_id, node, gpu_uuid, gpu_model, until, since FROM first_seen f
  WHERE NOT EXISTS (FROM gpu_homes h WHERE h.cluster = f.cluster AND h.gpu_uuid = f.gpu_uuid)),
stretches AS (
  SELECT h.cluster, h.node_id, h.node, h.gpu_uuid, h.gpu_model, greatest(h.since, a) AS lo,
    least(h.until, b, c.closed_ts, n.last_ts + {FORGET}) AS hi
  FROM homes h JOIN closed c USING (cluster) JOIN heard n USING (cluster, node_id), span),
owned AS MATERIALIZED (
  SELECT * EXCLUDE (hi), least(hi, lead(lo) OVER (PARTITION BY cluster, gpu_uuid ORDER BY lo, node_id)) AS hi,
    row_number() OVER () AS o
  FROM stretches WHERE hi > lo)"""
"""A row a stretch of one GPU on one machine inside the span; no two of one GPU overlap. ``o`` numbers them."""

TELLER: Final = "CASE WHEN state IS NOT NULL THEN 'ours' WHEN who = 'kubernetes' THEN who ELSE 'slurm' END"
"""Whose word a row of ``node_state`` is: the same teller's next one ends it. Slurm's ``who`` is whoever gave the
reason, and nobody once it is gone."""

STATES: Final = f"""
told_states AS (
  SELECT cluster, node_id, ts, {TELLER} AS teller,
    CASE WHEN state IS NOT NULL THEN CASE state WHEN 'in_repair' THEN 2 WHEN 'quarantined' THEN 1 ELSE 0 END
      WHEN scheduler_state IS NULL OR regexp_matches(lower(scheduler_state), '{_OUT}') THEN 2
      WHEN regexp_matches(lower(scheduler_state), '{_CORDONED}') THEN 1 ELSE 0 END AS out,
    state IS NULL AND coalesce(regexp_matches(lower(scheduler_state), '{_RESERVED}'), false) AS reserved,
    coalesce(state, scheduler_state, 'gone') || coalesce(': ' || nullif(reason, ''), '') AS why
  FROM scheduler_states),
states AS MATERIALIZED (
  SELECT cluster, node_id, greatest(ts, a) AS lo, least(coalesce(next_ts, b), b) AS hi, out, reserved, why FROM (
    SELECT *, lead(ts) OVER (PARTITION BY cluster, node_id, teller ORDER BY ts, out) AS next_ts FROM told_states), span
  WHERE (out > 0 OR reserved) AND ts < b AND coalesce(next_ts > a, true))"""
"""Stretches in which a node takes no work: ``out`` 2 is out of service, 1 cordoned (what runs goes on), or reserved."""

PLACED: Final = """
told_jobs AS MATERIALIZED (
  SELECT cluster, node_id, job_id, coalesce(requeues, 0) AS attempt, min(allocated_ts) AS allocated_ts,
    min(ts) FILTER (state IN ('allocated', 'running')) AS told_ts, max(end_ts) AS end_ts, min(queued_ts) AS queued_ts,
    bool_and(state = 'queued') IS TRUE AS waits, max(gpu_uuids) AS gpu_uuids, max(gpus) AS gpus,
    greatest(max(nodes), 1) AS nodes, max("user") AS "user", max(account) AS account, max("partition") AS "partition",
    max(work) AS work
  FROM job_placements WHERE job_id IS NOT NULL GROUP BY ALL),
of_job AS MATERIALIZED (
  SELECT cluster, job_id, max("user") AS "user", max(account) AS account, max("partition") AS "partition",
    max(work) AS work
  FROM told_jobs GROUP BY ALL),
attempts AS MATERIALIZED (
  SELECT cluster, job_id, attempt, min(queued_ts) AS queued_ts, min(coalesce(allocated_ts, told_ts)) AS begun_ts,
    max(end_ts) AS end_ts, max("partition") AS "partition", max(gpus) AS gpus, max(nodes) AS nodes
  FROM told_jobs GROUP BY ALL),
placed AS (
  SELECT t.*, coalesce(t.allocated_ts, t.told_ts) AS lo, coalesce(t.end_ts, s.end_ts, n.begun_ts) AS hi
  FROM told_jobs t LEFT JOIN attempts s USING (cluster, job_id, attempt)
  LEFT JOIN attempts n ON n.cluster = t.cluster AND n.job_id = t.job_id AND n.attempt = t.attempt + 1
  WHERE NOT t.waits AND coalesce(t.allocated_ts, t.told_ts) IS NOT NULL),
recent AS MATERIALIZED (SELECT placed.* FROM placed, span WHERE lo < b AND coalesce(hi > a - INTERVAL 7 DAY, true)),
counted AS (SELECT cluster, node_id, count(DISTINCT gpu_uuid) AS node_gpus FROM owned GROUP BY ALL),
on_gpus AS (
  SELECT cluster, node_id, job_id, lo, hi,
    unnest(from_json(CASE WHEN json_valid(gpu_uuids) THEN gpu_uuids ELSE '[]' END, '["VARCHAR"]')) AS gpu_uuid
  FROM recent, span WHERE coalesce(hi > a, true) AND gpu_uuids IS NOT NULL
  UNION ALL
  SELECT r.cluster, r.node_id, r.job_id, r.lo, r.hi, w.gpu_uuid
  FROM recent r JOIN counted c USING (cluster, node_id) JOIN (SELECT DISTINCT cluster, node_id, gpu_uuid FROM owned) w
    USING (cluster, node_id), span
  WHERE coalesce(r.hi > a, true) AND r.gpu_uuids IS NULL AND r.gpus / r.nodes >= c.node_gpus),
placements AS MATERIALIZED (
  SELECT w.o, p.job_id, greatest(p.lo, w.lo) AS lo, least(coalesce(p.hi, p.next_lo, w.hi), w.hi) AS hi
  FROM (SELECT *, lead(lo) OVER (PARTITION BY cluster, node_id, gpu_uuid ORDER BY lo, job_id) AS next_lo
    FROM on_gpus) p
  JOIN owned w USING (cluster, node_id, gpu_uuid)
  WHERE p.lo < w.hi AND coalesce(p.hi, p.next_lo, w.hi) > greatest(p.lo, w.lo))"""
"""Jobs on GPUs by ``o``. One whose end nobody told gives way to the next on the same GPU."""

_TOLD_JOBS: Final = PLACED.partition("\nrecent AS")[0].rstrip(",")
FACTS: Final = f"""
WITH span AS (SELECT TIMESTAMPTZ '{{since}}' AS a, TIMESTAMPTZ '{{until}}' AS b), {STATES}, {_TOLD_JOBS},
facts AS (
  SELECT hash(cluster, node_id, job_id, attempt, gpu_uuids, gpus, nodes, "user", account, "partition", work) AS what,
    lo, hi FROM placed
  UNION ALL
  SELECT hash(cluster, job_id, attempt, gpus, nodes, "partition"), queued_ts, coalesce(begun_ts, end_ts) FROM attempts
  UNION ALL
  SELECT hash(cluster, node_id, out, reserved, why), lo, hi FROM states
  UNION ALL
  SELECT hash(cluster, node_id, gpu_uuid, gpu_model), since, until FROM gpu_homes
  UNION ALL
  SELECT hash(cluster, node_id, cause, severity), coalesce(since, opened_ts, ts),
    CASE WHEN state = 'resolved' THEN coalesce(resolved_ts, ts) END
  FROM incident_now WHERE cause = 'nvlink_fault'),
inside AS (
  SELECT what, greatest(lo, a) AS lo, least(coalesce(hi, b), b) AS hi FROM facts, span
  WHERE lo < b AND coalesce(hi > a, true)),
by_day AS (
  SELECT what, lo, hi, unnest(generate_series(date_trunc('day', lo), greatest(lo, hi - INTERVAL 1 MICROSECOND),
    INTERVAL 1 DAY)) AS day
  FROM inside WHERE lo <= hi)
SELECT CAST(day AS DATE) AS day, bit_xor(hash(what, greatest(lo, day), least(hi, day + INTERVAL 1 DAY)) >> 2) AS told,
  count(*) AS facts
FROM by_day GROUP BY ALL
"""
"""One number a day over everything but measurements that ``gpu_hours`` reads, clipped to the day: it stays the same for
as long as nothing else is said of that day, however the files lie. Of what goes on, only that it does."""
