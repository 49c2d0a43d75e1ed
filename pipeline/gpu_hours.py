"""``gpu_hours(start, end)``: every owned GPU-hour in exactly one category, split inside the hour where it changed.

Text of a DuckDB table macro. Rows: an hour of a GPU (or MIG instance, by its share of the GPU) in one category, with
the job that had it. Hours of one GPU sum to the hours of the stretch it was owned; none is negative, none counts twice.

From the first rule that holds to the last:

1. ``out_of_service``: the scheduler calls the node down, failed, in maintenance or does not know it any more, or it is
   in repair; cordoned, draining or quarantined too, but there what still runs counts as work.
2. ``reserved``: set aside by the scheduler, and no job has the GPU.
3. ``blind``: nothing was measured, or nothing that tells work from waiting (utilisation alone never does: it is 100 %
   on a hang and 1 % of it is a passing probe).
4. ``allocated_idle``: a job has the GPU and nothing works on it, with or without memory held.
5. ``busy_low`` and ``busy_useful``: it works. Low: two of SM activity, tensor activity and power share (or the only one
   measured) are under half of what peers reach: the median over jobs of that model and kind of work in the stretch,
   where there are ``PEER_JOBS`` or more. A half is far beyond what chips (±10 %) and pipeline stages (±5 %) differ.
6. ``held``: no job has it and nothing works, but a process or memory stays.
7. ``stranded``: free, and of no use to anybody who asks: fewer GPUs are free on the node than the smallest shape that
   jobs of its partitions usually have or wait for, its NVLink is broken and nobody takes single GPUs, or nobody asked
   for its model for a week while others are asked for.
8. ``free``.
"""

# ruff: noqa: S608 (SQL made of this module's own words)
from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graynode.pipeline.gpu_hours_sources import HOUR, OWNED, PLACED, SEEN, SPAN, STATES

CATEGORIES: Final = (
    "busy_useful", "busy_low", "allocated_idle", "held", "free", "stranded", "reserved", "out_of_service", "blind",
)  # fmt: skip
WORKING_SM: Final = 0.02
"""SM activity from which a GPU works: under it are 72 s of full work an hour, as probes and diagnostics make them."""
WORKING_POWER: Final = 0.25
"""Share of the power limit from which it works where SM activity is not measured: idle boards with memory held draw 10
to 20 % (H100 75–130 of 700 W, A100 55–80 of 400 W)."""
HELD_BYTES: Final = 2 << 30
"""Memory that is held: more than the driver's reserve and one empty context (together under 1.5 GB on H100)."""
LOW: Final = 0.5
PEER_JOBS: Final = 4
USUAL: Final = 0.05
"""A shape is usual where this share of a partition's jobs in the week before has it."""
_SEEN_WHOLE: Final = 0.95
"""Of an hour that much seen is all of it seen: rounds that come late or twice are no blindness."""

_PIECES: Final = """
edges AS (
  SELECT o, lo AS t FROM owned UNION SELECT o, hi FROM owned
  UNION SELECT o, lo FROM placements UNION SELECT o, hi FROM placements
  UNION SELECT o, greatest(s.lo, w.lo) FROM states s JOIN owned w USING (cluster, node_id) WHERE s.lo < w.hi AND
    s.hi > w.lo
  UNION SELECT o, least(s.hi, w.hi) FROM states s JOIN owned w USING (cluster, node_id) WHERE s.lo < w.hi AND
    s.hi > w.lo),
pieces AS MATERIALIZED (
  SELECT o, t AS lo, hi FROM (SELECT o, t, lead(t) OVER (PARTITION BY o ORDER BY t) AS hi FROM edges)
  WHERE hi IS NOT NULL),
with_jobs AS (
  SELECT DISTINCT p.o, p.lo, p.hi, j.job_id
  FROM pieces p LEFT JOIN placements j ON j.o = p.o AND j.lo <= p.lo AND j.hi >= p.hi),
with_states AS (
  SELECT p.o, p.lo, max(s.out) AS out, bool_or(s.reserved) AS reserved, arg_max(s.why, s.out) AS why
  FROM pieces p JOIN owned w USING (o) JOIN states s ON s.cluster = w.cluster AND s.node_id = w.node_id
    AND s.lo <= p.lo AND s.hi >= p.hi
  GROUP BY ALL),
whole AS (
  SELECT j.o, j.lo, j.hi, j.job_id, 1.0 / count(*) OVER (PARTITION BY j.o, j.lo) AS part, coalesce(s.out, 0) AS out,
    coalesce(s.reserved, false) AS reserved, s.why
  FROM with_jobs j LEFT JOIN with_states s USING (o, lo)),
by_hour AS (
  SELECT * EXCLUDE (lo, hi), unnest(generate_series(date_trunc('hour', lo), hi - INTERVAL 1 MICROSECOND,
    INTERVAL 1 HOUR)) AS ts, lo, hi
  FROM whole),
slots AS MATERIALIZED (
  SELECT o, ts, job_id, out, reserved, why, hours, sum(hours) OVER hour AS owned_h,
    coalesce(sum(hours) FILTER (job_id IS NOT NULL) OVER hour, 0) AS placed_h
  FROM (
    SELECT o, ts, job_id, out, reserved, any_value(why) AS why, sum(part * (epoch(least(hi, ts + INTERVAL 1 HOUR)) -
      epoch(greatest(lo, ts))) / 3600.0) AS hours
    FROM by_hour GROUP BY o, ts, job_id, out, reserved)
  WINDOW hour AS (PARTITION BY o, ts))"""
"""Stretches in which nothing changes, then by the hour. A GPU that several jobs share is theirs in equal parts."""

_UNITS: Final = """
instances AS (
  SELECT *, coalesce(try_cast(regexp_extract(mig_profile, '([0-9]+)g[.]', 1) AS INTEGER), 1) AS slices,
    CASE WHEN contains(upper(coalesce(gpu_model, '')), 'A30') THEN 4 ELSE 7 END AS of_slices
  FROM seen WHERE mig <> ''),
sliced AS MATERIALIZED (
  SELECT *, greatest(of_slices, sum(slices) OVER (PARTITION BY cluster, node_id, gpu_uuid, ts)) AS all_slices
  FROM instances),
left_over AS (
  SELECT cluster, node_id, gpu_uuid, ts, max(seen_h) AS seen_h, 1.0 - sum(slices / all_slices) AS share
  FROM sliced GROUP BY ALL),
parents AS (SELECT cluster, node_id, gpu_uuid, ts, power_w FROM seen WHERE mig = ''),
units AS MATERIALIZED (
  SELECT i.cluster, i.node_id, i.gpu_uuid, i.ts, i.mig, slices / all_slices AS share, i.job_id, i.seen_h,
    i.util_percent, i.sm_told, i.tensor_told, p.power_w, NULL::DOUBLE AS limit_w, i.mem_used_bytes, i.processes
  FROM sliced i LEFT JOIN parents p USING (cluster, node_id, gpu_uuid, ts)
  UNION ALL
  SELECT l.cluster, l.node_id, l.gpu_uuid, l.ts, 'rest', share, NULL, seen_h, 0, 0, NULL, p.power_w, NULL, 0, 0
  FROM left_over l LEFT JOIN parents p USING (cluster, node_id, gpu_uuid, ts) WHERE share > 1e-9
  UNION ALL
  SELECT cluster, node_id, gpu_uuid, ts, '', 1.0, job_id, seen_h, util_percent, sm_told, tensor_told, power_w, limit_w,
    mem_used_bytes, processes FROM seen s
  WHERE mig = '' AND NOT EXISTS (FROM sliced i WHERE i.cluster = s.cluster AND i.node_id = s.node_id AND
    i.gpu_uuid = s.gpu_uuid AND i.ts = s.ts))"""
"""What an hour's measurements are of: the GPU, or where MIG is on its instances by slices and what none of them has.

An instance's power is its share of the whole board's, so that energy adds up; whether it works power cannot tell."""

_WORKING: Final = f"""
read_ AS (
  SELECT w.cluster, w.node_id, w.node, w.gpu_uuid, w.gpu_model, s.ts, s.out, s.reserved, s.why, u.mig, u.seen_h,
    s.hours * coalesce(u.share, 1.0) AS hours, s.owned_h, u.util_percent, u.power_w, u.mem_used_bytes, u.processes,
    CASE WHEN u.mig IS NOT NULL AND u.mig <> '' THEN u.job_id
      WHEN s.placed_h > 0 THEN s.job_id ELSE coalesce(s.job_id, u.job_id) END AS job_id,
    s.placed_h > 0 AND s.job_id IS NULL AND coalesce(u.mig, '') = '' AS between_jobs,
    CASE WHEN s.placed_h > 0 AND coalesce(u.mig, '') = '' THEN s.owned_h / s.placed_h ELSE 1.0 END AS scale,
    u.power_w / nullif(u.limit_w, 0) AS power_share,
    CASE WHEN u.sm_told <= 0 AND u.util_percent >= 50 AND u.power_w >= 0.4 * u.limit_w THEN NULL ELSE u.sm_told END
      AS sm_now,
    CASE WHEN u.sm_told <= 0 AND u.util_percent >= 50 AND u.power_w >= 0.4 * u.limit_w THEN NULL ELSE u.tensor_told END
      AS tensor_now
  FROM slots s JOIN owned w USING (o)
  LEFT JOIN units u ON u.cluster = w.cluster AND u.node_id = w.node_id AND u.gpu_uuid = w.gpu_uuid AND u.ts = s.ts),
known AS MATERIALIZED (
  SELECT r.*, least(1.0, sm_now * scale) AS sm, least(1.0, tensor_now * scale) AS tensor,
    CASE WHEN between_jobs THEN false WHEN sm_now IS NOT NULL THEN sm_now * scale >= {WORKING_SM}
      WHEN power_share IS NOT NULL THEN power_share * scale >= {WORKING_POWER}
        AND coalesce(util_percent, 2) * scale >= 2
      WHEN util_percent < 0.5 AND r.job_id IS NULL THEN false END AS works,
    coalesce(processes >= 0.5, false) OR coalesce(mem_used_bytes > {HELD_BYTES}, false) AS holds,
    j."user", j.account, j."partition", j.work,
    coalesce(j.work, 'partition ' || j."partition") AS kind
  FROM read_ r LEFT JOIN of_job j ON j.cluster = r.cluster AND j.job_id = r.job_id),
by_job AS (
  SELECT cluster, gpu_model, kind, job_id, avg(sm) AS sm, avg(tensor) AS tensor, avg(power_share) AS power_share
  FROM known WHERE works AND kind IS NOT NULL GROUP BY ALL),
peers AS (
  SELECT cluster, gpu_model, kind, median(sm) AS sm_p, median(tensor) AS tensor_p, median(power_share) AS power_p
  FROM by_job GROUP BY ALL HAVING count(*) >= {PEER_JOBS}),
voted AS (
  SELECT k.*, (sm < {LOW} * sm_p)::INT AS low_sm, CASE WHEN tensor_p >= 0.05 THEN (tensor < {LOW} * tensor_p)::INT END
    AS low_tensor, (power_share < {LOW} * power_p)::INT AS low_power
  FROM known k LEFT JOIN peers p USING (cluster, gpu_model, kind)),
named AS (
  SELECT *, CASE
      WHEN out = 2 OR (out = 1 AND job_id IS NULL) THEN 'out_of_service'
      WHEN reserved AND job_id IS NULL THEN 'reserved'
      WHEN works IS NULL THEN 'blind'
      WHEN NOT works AND job_id IS NOT NULL THEN 'allocated_idle'
      WHEN works AND coalesce(low_sm, 0) + coalesce(low_tensor, 0) + coalesce(low_power, 0) >=
        least(2, (low_sm IS NOT NULL)::INT + (low_tensor IS NOT NULL)::INT + (low_power IS NOT NULL)::INT)
        AND coalesce(low_sm, low_tensor, low_power) IS NOT NULL THEN 'busy_low'
      WHEN works THEN 'busy_useful'
      WHEN holds AND NOT between_jobs THEN 'held'
      ELSE 'free' END AS category,
    CASE WHEN seen_h IS NULL THEN 1.0 WHEN seen_h >= {_SEEN_WHOLE} * owned_h THEN 0.0
      ELSE 1.0 - seen_h / owned_h END AS unseen
  FROM voted),
told AS MATERIALIZED (
  SELECT * REPLACE (hours * (1.0 - unseen) AS hours) FROM named
  WHERE category NOT IN ('out_of_service', 'reserved', 'blind') AND unseen < 1.0
  UNION ALL
  SELECT * REPLACE ('blind' AS category, hours * unseen AS hours, 'not measured' AS why) FROM named
  WHERE category NOT IN ('out_of_service', 'reserved', 'blind') AND unseen > 0.0
  UNION ALL
  SELECT * REPLACE (CASE WHEN category <> 'blind' THEN why WHEN seen_h IS NULL THEN 'not measured'
    ELSE 'nothing measured tells work from waiting' END AS why) FROM named
  WHERE category IN ('out_of_service', 'reserved', 'blind'))"""

_STRANDED: Final = f"""
model_of AS (SELECT cluster, node_id, any_value(gpu_model) AS gpu_model FROM owned GROUP BY ALL),
asked AS (
  SELECT a.cluster, a."partition", ceil(a.gpus / a.nodes)::INT AS shape, count(*) AS jobs
  FROM (SELECT DISTINCT cluster, job_id, attempt, "partition", gpus, nodes FROM recent) a
  WHERE a.gpus > 0 GROUP BY ALL),
usual AS (
  SELECT cluster, "partition", min(shape) AS shape FROM (
    SELECT *, jobs / sum(jobs) OVER (PARTITION BY cluster, "partition") AS share FROM asked)
  WHERE share >= {USUAL} GROUP BY ALL),
takes AS (SELECT DISTINCT cluster, node_id, "partition" FROM recent),
of_node AS (
  SELECT t.cluster, t.node_id, min(u.shape) AS shape FROM takes t JOIN usual u ON u.cluster = t.cluster
    AND u."partition" IS NOT DISTINCT FROM t."partition" GROUP BY ALL),
asked_models AS (SELECT DISTINCT cluster, gpu_model FROM takes JOIN model_of USING (cluster, node_id)),
queue AS (
  SELECT cluster, "partition", ceil(gpus / coalesce(nodes, 1))::INT AS shape, unnest(generate_series(
    date_trunc('hour', greatest(queued_ts, a)), least(coalesce(begun_ts, end_ts, b), b) - INTERVAL 1 MICROSECOND,
    {HOUR})) AS ts
  FROM attempts, span
  WHERE gpus > 0 AND queued_ts < b AND least(coalesce(begun_ts, end_ts, b), b) > greatest(queued_ts, a)),
wanted AS (
  SELECT t.cluster, t.node_id, q.ts, min(q.shape) AS shape FROM takes t JOIN (
    SELECT cluster, "partition", ts, min(shape) AS shape FROM queue GROUP BY ALL) q
    ON q.cluster = t.cluster AND q."partition" IS NOT DISTINCT FROM t."partition" GROUP BY ALL),
broken AS (
  SELECT cluster, node_id, coalesce(since, opened_ts, ts) AS lo, CASE WHEN state = 'resolved' THEN
    coalesce(resolved_ts, ts) END AS hi
  FROM incident_now WHERE cause = 'nvlink_fault' AND severity <> 'digest'),
broken_hours AS (
  SELECT DISTINCT n.cluster, n.node_id, n.ts FROM (SELECT DISTINCT cluster, node_id, ts FROM told
    WHERE category = 'free') n
  JOIN broken x USING (cluster, node_id) WHERE x.lo < n.ts + {HOUR} AND coalesce(x.hi > n.ts, true)),
empty_gpus AS (
  SELECT cluster, node_id, ts, count(*) FILTER (h >= 0.5) AS gpus FROM (
    SELECT cluster, node_id, gpu_uuid, ts, sum(hours) AS h FROM told WHERE category = 'free' GROUP BY ALL)
  GROUP BY ALL),
useless AS (
  SELECT e.cluster, e.node_id, e.ts, CASE
    WHEN n.shape IS NULL AND w.shape IS NULL THEN CASE WHEN (e.cluster, m.gpu_model) NOT IN (SELECT (cluster, gpu_model)
      FROM asked_models) AND e.cluster IN (SELECT cluster FROM asked_models)
      THEN 'no job asked for this model in a week' END
    WHEN x.ts IS NOT NULL AND least(n.shape, w.shape) > 1 THEN 'NVLink is broken and nobody takes single GPUs'
    WHEN e.gpus < least(n.shape, w.shape) THEN e.gpus || ' free together, the smallest shape asked for is ' ||
      least(n.shape, w.shape) END AS reason
  FROM empty_gpus e JOIN model_of m USING (cluster, node_id) LEFT JOIN of_node n USING (cluster, node_id)
  LEFT JOIN wanted w ON w.cluster = e.cluster AND w.node_id = e.node_id AND w.ts = e.ts
  LEFT JOIN broken_hours x ON x.cluster = e.cluster AND x.node_id = e.node_id AND x.ts = e.ts)
SELECT t.cluster, t.node_id, t.node, t.gpu_uuid, t.gpu_model, nullif(nullif(t.mig, ''), 'rest') AS mig_instance, t.ts,
  CASE WHEN t.category = 'free' AND s.reason IS NOT NULL THEN 'stranded' ELSE t.category END AS category, t.hours,
  t.job_id, t."user", t.account, t."partition", t.work, CASE WHEN t.category = 'free' THEN s.reason ELSE t.why END AS
  why, CASE WHEN NOT t.between_jobs THEN t.util_percent END AS util_percent, CASE WHEN NOT t.between_jobs THEN t.sm END
  AS sm_active_ratio, CASE WHEN NOT t.between_jobs THEN t.tensor END AS tensor_active_ratio, t.power_w, t.mem_used_bytes
FROM told t LEFT JOIN useless s ON s.cluster = t.cluster AND s.node_id = t.node_id AND s.ts = t.ts
WHERE t.hours > 0
"""

_GPU_HOURS: Final = "WITH " + ",".join((SPAN, SEEN, OWNED, STATES, PLACED, _PIECES, _UNITS, _WORKING, _STRANDED))

MACROS: Final[Mapping[str, str]] = {"gpu_hours(from_ts, to_ts)": _GPU_HOURS}
"""Table macros by name and parameters."""
