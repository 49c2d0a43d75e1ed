"""``quality`` as answers: since when and why a value is null, what a model does not give, how long we were blind.

Text of DuckDB views and table macros; ``graynode.pipeline.queries`` makes them. ``quality`` is a log of changes, told
again at every start of an agent, so a state's beginning is the first of equal rows in a row. What the collectors say
of a field and what the pipeline says of it, by its values (``normalise``) and over hours (``still``), are logs of their
own: none ends another's.
"""

# ruff: noqa: S608 (SQL made of this module's own words)
from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from graynode.pipeline.schema import BY_HOURS, BY_VALUES, PLANNED, TABLES

_FORGET: Final = "INTERVAL 14 DAY"
"""A machine that is silent for longer is gone, not unseen: longer than most repairs take."""
_WINDOW: Final = "INTERVAL 30 SECOND"
_OF_FIELD: Final = {
    "field": "name", "type": "type", "kind": "kind", "unit": "unit", "every_s": "every_s", "lo": "lo", "hi": "hi",
    "dcgm": "dcgm", "nvml": "nvml", "resets": "resets", "help": "help",
}  # fmt: skip
_NUMBERS: Final = {"every_s": pa.int32(), "lo": pa.float64(), "hi": pa.float64(), "dcgm": pa.int32()}
_FIELDS: Final = pa.schema([(name, _NUMBERS.get(name, pa.string())) for name in ("table_name", *_OF_FIELD)])


def fields() -> pa.Table:
    """The contract as a table: a row a field, as ``docs/metrics.md`` has it."""
    rows = [
        {"table_name": t.name, **{n: getattr(f, a) for n, a in _OF_FIELD.items()}}
        for t in TABLES.values()
        for f in t.fields
    ]
    return pa.Table.from_pylist(rows, schema=_FIELDS)


_SCHEDULER: Final = "coalesce(regexp_extract(reason, '^(slurm|kubernetes|kubernetes_cluster): ', 1), '')"
"""Who says it, where two collectors speak of one table and machine: neither's word ends what the other said."""
_SPELLS: Final = f"""
WITH told AS (
  SELECT *, (starts_with(reason, '{BY_VALUES}') OR starts_with(reason, '{BY_HOURS}')) || {_SCHEDULER} AS teller,
    starts_with(reason, '{PLANNED}') AS planned
  FROM quality),
turns AS (
  SELECT *, lag(state) OVER log AS state_before, lag(planned) OVER log AS planned_before FROM told
  WINDOW log AS (PARTITION BY cluster, node_id, table_name, entity, field, teller ORDER BY ts, state <> 'measured')),
changes AS (
  SELECT * FROM turns
  WHERE state IS DISTINCT FROM state_before OR (planned IS DISTINCT FROM planned_before AND state <> 'measured')),
spells AS (
  SELECT *, lead(ts) OVER (
    PARTITION BY cluster, node_id, table_name, entity, field, teller ORDER BY ts, state <> 'measured') AS next_ts
  FROM changes),
gone AS (
  SELECT cluster, node_id, gpu_uuid, max(since) AS came, arg_max(until, since) AS until FROM gpu_homes GROUP BY ALL)
SELECT s.date, s.ts, s.cluster, s.node_id, s.node, s.boot_id, s.table_name, s.entity, s.field, s.state, s.reason,
  coalesce(s.planned, false) AS planned, s.ts AS since,
  least(s.next_ts, CASE WHEN s.ts < g.until THEN g.until END) AS until
FROM spells s LEFT JOIN gone g ON s.table_name = 'gpu' AND g.cluster = s.cluster AND g.node_id = s.node_id
  AND g.gpu_uuid = s.entity AND g.until IS NOT NULL
"""

_NOW: Final = f"""
SELECT date, ts, cluster, node_id, node, boot_id, table_name, entity, field, state, reason
FROM quality_spells WHERE until IS NULL
QUALIFY row_number() OVER (
  PARTITION BY cluster, node_id, table_name, entity, field, {_SCHEDULER}
  ORDER BY state <> 'measured' DESC, ts DESC) = 1
"""

_FIELDS_MISSING: Final = """
WITH ours AS (
  SELECT cluster, node_id, entity, model AS gpu_model, driver_version FROM inventory_now
  WHERE kind = 'gpu' AND contains(lower(model), lower(model_part))),
totals AS (SELECT gpu_model, count(*) AS gpus_of_model FROM ours GROUP BY ALL)
SELECT o.gpu_model, q.field, q.state, count(*) AS gpus, any_value(t.gpus_of_model) AS of_gpus, min(q.ts) AS since,
  mode(q.reason) AS reason, list(DISTINCT o.driver_version) AS drivers
FROM ours o
JOIN quality_now q ON q.cluster = o.cluster AND q.node_id = o.node_id AND q.entity = o.entity AND q.table_name = 'gpu'
JOIN totals t ON t.gpu_model = o.gpu_model
WHERE q.state <> 'measured' AND q.field <> '*'
GROUP BY o.gpu_model, q.field, q.state ORDER BY gpus DESC, q.field
"""

_WHY_NULL: Final = f"""
WITH about AS (
  SELECT DISTINCT cluster, node_id, node, entity AS gpu_uuid FROM quality_now
  WHERE table_name = 'gpu' AND starts_with(entity, gpu) AND entity NOT IN ('*', node_id)
  UNION
  SELECT DISTINCT cluster, node_id, node, gpu_uuid FROM gpu_homes WHERE until IS NULL AND starts_with(gpu_uuid, gpu)),
here AS (SELECT cluster, node_id, gpu_uuid, any_value(node) AS node FROM about GROUP BY ALL),
lately AS (
  SELECT cluster, node_id, max(ts) + {_WINDOW} AS ts FROM host_30s(now() - INTERVAL 1 DAY, now()) GROUP BY ALL),
earlier AS (
  SELECT cluster, node_id, max(ts) + INTERVAL 1 HOUR AS ts FROM host_1h(now() - {_FORGET}, now()) GROUP BY ALL),
heard AS (
  SELECT cluster, node_id, coalesce(l.ts, e.ts) AS ts FROM lately l FULL JOIN earlier e USING (cluster, node_id)),
newest AS (SELECT cluster, max(ts) AS ts FROM lately GROUP BY ALL),
reasons AS (
  SELECT h.*, 1 AS rank, 'node' AS scope, 'lost' AS state, e.ts AS since,
    'nothing has been heard of this machine since' AS reason
  FROM here h JOIN heard e USING (cluster, node_id) JOIN newest n USING (cluster)
  WHERE n.ts - e.ts > INTERVAL 2 MINUTE
  UNION ALL
  SELECT h.*, CASE WHEN q.table_name = 'host' THEN 1 WHEN q.field = '*' THEN 2 ELSE 3 END,
    CASE WHEN q.table_name = 'host' THEN 'node' WHEN q.field = '*' THEN 'gpu' ELSE 'field' END, q.state, q.ts, q.reason
  FROM here h JOIN quality_now q ON q.cluster = h.cluster AND q.node_id = h.node_id AND q.state <> 'measured' AND (
    (q.table_name = 'gpu' AND q.entity IN (h.gpu_uuid, h.node_id, '*') AND q.field IN (field_name, '*'))
    OR (q.table_name = 'host' AND q.field = '*'))
  UNION ALL
  SELECT h.*, 4, 'class', 'measured', NULL, 'read every ' || f.every_s || ' s: rows of other rounds hold null'
  FROM here h JOIN fields f ON f.table_name = 'gpu' AND f.field = field_name AND f.every_s > 1
  UNION ALL
  SELECT h.*, 5, 'field', 'unknown', NULL, 'table gpu has no such field; FROM fields lists them'
  FROM here h WHERE field_name NOT IN (SELECT field FROM fields WHERE table_name = 'gpu')),
said AS (
  SELECT * FROM reasons
  UNION ALL
  SELECT h.*, 6, 'field', 'measured', q.ts, 'nothing is against it: it is measured'
  FROM here h LEFT JOIN quality_now q ON q.cluster = h.cluster AND q.node_id = h.node_id AND q.entity = h.gpu_uuid
    AND q.table_name = 'gpu' AND q.field = field_name
  WHERE NOT EXISTS (FROM reasons r WHERE r.cluster = h.cluster AND r.node_id = h.node_id AND r.gpu_uuid = h.gpu_uuid))
SELECT cluster, node_id, node, gpu_uuid, field_name AS field, scope, state, since, reason
FROM said ORDER BY gpu_uuid, node_id, rank, since
"""

_BLIND_SPELLS: Final = f"""
WITH span AS (SELECT CAST(start_ts AS TIMESTAMPTZ) AS a, CAST(end_ts AS TIMESTAMPTZ) AS b),
hostless AS MATERIALIZED (  -- machines that only an exporter speaks for
  SELECT node_id FROM (SELECT DISTINCT node_id FROM gpu_30s(CAST(start_ts AS TIMESTAMPTZ) - INTERVAL 1 HOUR, end_ts))
  ANTI JOIN (SELECT node_id FROM host_1h UNION SELECT node_id FROM host_30s) USING (node_id)),
windows AS NOT MATERIALIZED (
  SELECT cluster, node_id, node, ts FROM host_30s(CAST(start_ts AS TIMESTAMPTZ) - INTERVAL 1 HOUR, end_ts)
  UNION ALL
  SELECT DISTINCT cluster, node_id, node, ts FROM gpu_30s(CAST(start_ts AS TIMESTAMPTZ) - INTERVAL 1 HOUR, end_ts)
  SEMI JOIN hostless USING (node_id)),
by_hour AS MATERIALIZED (
  SELECT cluster, node_id, date_trunc('hour', ts) AS hour, max(node) AS node, min(ts) AS first_ts, max(ts) AS last_ts,
    bit_or(1::HUGEINT << ((epoch(ts)::BIGINT % 3600) // 30)::INT) = (1::HUGEINT << 120) - 1 AS whole
  FROM windows GROUP BY cluster, node_id, date_trunc('hour', ts)),
whole_hours AS MATERIALIZED (
  SELECT cluster, node_id, hour AS starts, epoch(hour)::BIGINT // 86400 AS day FROM by_hour WHERE whole
  UNION ALL
  SELECT cluster, node_id, ts, epoch(ts)::BIGINT // 86400
  FROM host_1h(CAST(start_ts AS TIMESTAMPTZ) - INTERVAL 1 HOUR, end_ts)
  WHERE (cluster, node_id, ts) NOT IN (SELECT (cluster, node_id, hour) FROM by_hour)),
by_day AS MATERIALIZED (  -- nearly all days are whole: one row each instead of 24
  SELECT cluster, node_id, day, bit_or(1 << ((epoch(starts)::BIGINT % 86400) // 3600)::INT) = (1 << 24) - 1 AS whole
  FROM whole_hours GROUP BY ALL),
heard AS (
  SELECT cluster, node_id, to_timestamp(day * 86400) AS starts, to_timestamp((day + 1) * 86400) AS ends
  FROM by_day WHERE whole
  UNION ALL
  SELECT cluster, node_id, starts, starts + INTERVAL 1 HOUR
  FROM whole_hours SEMI JOIN (FROM by_day WHERE NOT whole) USING (cluster, node_id, day)
  UNION ALL
  SELECT cluster, node_id, ts, ts + {_WINDOW} FROM windows w
  WHERE (cluster, node_id, date_trunc('hour', ts)) IN (SELECT (cluster, node_id, hour) FROM by_hour WHERE NOT whole)),
known AS (
  SELECT cluster, node_id, node, ts AS first_ts, ts AS last_ts
  FROM host_1h(CAST(start_ts AS TIMESTAMPTZ) - {_FORGET}, end_ts)
  UNION ALL SELECT cluster, node_id, node, first_ts, last_ts FROM by_hour),
ended AS (
  SELECT cluster, node_id, max(until) AS taken FROM machine_names
  WHERE system = 'hostname' AND starts_with(ended_by, 'taken') GROUP BY ALL),
closed AS (
  SELECT cluster, max(ts) + {_WINDOW} AS ts FROM (
    SELECT cluster, ts FROM host_30s(end_ts, greatest(now(), CAST(end_ts AS TIMESTAMPTZ)))
    UNION ALL SELECT cluster, last_ts FROM by_hour
    UNION ALL SELECT cluster, ts + INTERVAL 1 HOUR - {_WINDOW}
    FROM host_1h(CAST(start_ts AS TIMESTAMPTZ) - INTERVAL 1 HOUR, end_ts)
    WHERE cluster NOT IN (SELECT cluster FROM by_hour))  -- an import, or older than 30 s windows are kept
  GROUP BY ALL),
machines_due AS (
  SELECT k.cluster, k.node_id, arg_max(k.node, k.last_ts) AS node, greatest(any_value(a), min(k.first_ts)) AS first_due,
    least(any_value(b), any_value(c.ts), max(k.last_ts) + {_FORGET},
      CASE WHEN max(k.last_ts) < max(e.taken) THEN max(e.taken) END) AS last_due
  FROM known k JOIN closed c USING (cluster) LEFT JOIN ended e USING (cluster, node_id), span GROUP BY 1, 2),
covered AS (
  SELECT m.cluster, m.node_id, m.node, m.first_due, m.last_due, h.starts,
    coalesce(lag(h.ends) OVER (PARTITION BY m.cluster, m.node_id ORDER BY h.starts), m.first_due) AS free_from
  FROM machines_due m JOIN heard h USING (cluster, node_id)),
silent AS (
  SELECT cluster, node_id, node, greatest(free_from, first_due) AS since, least(starts, last_due) AS until FROM covered
  UNION ALL
  SELECT m.cluster, m.node_id, m.node, greatest(coalesce(max(h.ends), m.first_due), m.first_due), m.last_due
  FROM machines_due m LEFT JOIN heard h USING (cluster, node_id)
  GROUP BY m.cluster, m.node_id, m.node, m.first_due, m.last_due),
said AS (
  SELECT q.cluster, q.node_id, coalesce(m.node, q.node) AS node,
    CASE WHEN q.table_name = 'gpu' AND q.entity NOT IN ('*', q.node_id) THEN 'gpu'
      WHEN q.table_name = 'link' THEN 'link' ELSE 'node' END AS scope,
    q.entity, q.state, q.planned, q.reason, greatest(q.since, a) AS since,
    least(coalesce(q.until, b), b, coalesce(m.last_due, b)) AS until
  FROM quality_spells q LEFT JOIN machines_due m USING (cluster, node_id), span
  WHERE q.field = '*' AND q.state <> 'measured')
SELECT cluster, node_id, node, 'node' AS scope, node_id AS entity, 'lost' AS state, false AS planned,
  'nothing was heard of this machine' AS reason, since, until, epoch(until) - epoch(since) AS seconds
FROM silent WHERE until > since
UNION ALL
SELECT cluster, node_id, node, scope, entity, state, planned, reason, since, until, epoch(until) - epoch(since)
FROM said WHERE until > since
"""


def _union_of(source: str, key: str) -> str:
    """Seconds per key that intervals of ``source`` cover, none twice; what was planned is not unplanned as well."""
    return f"""
  SELECT {key}, coalesce(sum(epoch(later) - epoch(edge)) FILTER (p > 0), 0) AS planned_s,
    coalesce(sum(epoch(later) - epoch(edge)) FILTER (p = 0 AND u > 0), 0) AS blind_s
  FROM (
    SELECT {key}, edge, lead(edge) OVER w AS later, sum(dp) OVER w AS p, sum(du) OVER w AS u
    FROM (
      SELECT {key}, edge, sum(dp) AS dp, sum(du) AS du FROM (
        SELECT {key}, since AS edge, planned::INT AS dp, (NOT planned)::INT AS du FROM {source}
        UNION ALL SELECT {key}, until, -planned::INT, -(NOT planned)::INT FROM {source})
      GROUP BY ALL)
    WINDOW w AS (PARTITION BY {key} ORDER BY edge))
  GROUP BY ALL"""


_BLIND: Final = f"""
WITH spells AS (FROM blind_spells(start_ts, end_ts) WHERE scope <> 'link'),
of_gpus AS (
  SELECT cluster, node_id, entity AS gpu_uuid, since, until, planned FROM spells WHERE scope = 'gpu'
  UNION ALL
  SELECT s.cluster, s.node_id, h.gpu_uuid, greatest(s.since, h.since), least(s.until, coalesce(h.until, s.until)),
    planned
  FROM spells s JOIN gpu_homes h ON h.cluster = s.cluster AND h.node_id = s.node_id AND h.since < s.until
    AND coalesce(h.until, s.until) > s.since
  WHERE s.scope = 'node'),
by_gpu AS ({_union_of("of_gpus", "cluster, node_id, gpu_uuid")}),
by_node AS ({_union_of("spells", "cluster, node_id")}),
gpus AS (
  SELECT cluster, node_id, sum(blind_s) AS gpu_blind_s, sum(planned_s) AS gpu_planned_s FROM by_gpu GROUP BY ALL),
named AS (
  SELECT cluster, node_id, any_value(node) AS node, count(*) AS spells, max(seconds) FILTER (NOT planned) AS longest_s
  FROM spells GROUP BY ALL)
SELECT cluster, node_id, CASE WHEN grouping(node_id) = 0 THEN any_value(node) END AS node,
  sum(blind_s) AS blind_s, sum(planned_s) AS planned_s,
  coalesce(sum(gpu_blind_s), 0) AS gpu_blind_s, coalesce(sum(gpu_planned_s), 0) AS gpu_planned_s,
  sum(spells)::BIGINT AS spells, coalesce(max(longest_s), 0) AS longest_s
FROM by_node JOIN named USING (cluster, node_id) LEFT JOIN gpus USING (cluster, node_id)
GROUP BY GROUPING SETS ((cluster, node_id), (cluster))
ORDER BY node_id IS NOT NULL, blind_s DESC
"""

VIEWS: Final[Mapping[str, str]] = {"quality_spells": _SPELLS, "quality_now": _NOW}
"""In the order in which they are made. ``quality_spells`` needs ``gpu_homes`` of ``identity_views``."""

MACROS: Final[Mapping[str, str]] = {
    "fields_missing(model_part)": _FIELDS_MISSING,
    "why_null(gpu, field_name)": _WHY_NULL,
    "blind_spells(start_ts, end_ts)": _BLIND_SPELLS,
    "blind(start_ts, end_ts)": _BLIND,
}
"""Table macros by name and parameters."""
