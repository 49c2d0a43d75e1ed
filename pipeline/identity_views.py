"""Which machine was called what, and which GPU sat where: validity made of the change log ``inventory``.

Text of DuckDB views and table macros; ``graynode.pipeline.queries`` makes them. A row of ``inventory`` holds until the
next row of the same thing on the same machine, until another machine shows the same GPU or carries the same name, until
another GPU sits in the slot, or until its source ends it (``valid_until``). Records stay apart: a GPU is followed by
its UUID, a slot by machine and PCI address, a machine by ``node_id``; a name is only ever lent.
"""

# ruff: noqa: S608 (SQL made of this module's own words)
from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LATER: Final = "ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING"


def _attribute(name: str) -> str:
    """An attribute; hostile or broken JSON has none."""
    return f"CASE WHEN json_valid(attributes) THEN json_extract_string(attributes, '$.{name}') END"


_UNCONFIRMED: Final = (
    f"coalesce({_attribute('identity')} = 'unconfirmed' "
    f"OR {_attribute('node_id_source')} IN ('exporter', 'agentless'), false)"
)
"""What is only known by the address at which something answers: it takes no machine's host name away."""

_HISTORY: Final = f"""
WITH marked AS (
  SELECT *, kind = 'gpu' AND node_id IS DISTINCT FROM lag(node_id) OVER one AS at_new_home,
    kind = 'gpu' AND slot IS NOT NULL AND entity IS DISTINCT FROM lag(entity) OVER place AS new_in_slot
  FROM inventory WINDOW one AS (PARTITION BY cluster, kind, entity ORDER BY ts, node_id),
    place AS (PARTITION BY cluster, node_id, kind, slot ORDER BY ts, entity)),
seen AS (
  SELECT *, lead(ts) OVER (PARTITION BY cluster, node_id, kind, entity ORDER BY ts) AS next_ts,
    min(ts) FILTER (at_new_home) OVER one AS moved_ts, arg_min(node_id, ts) FILTER (at_new_home) OVER one AS moved_to,
    min(ts) FILTER (new_in_slot) OVER place AS replaced_ts,
    arg_min(entity, ts) FILTER (new_in_slot) OVER place AS replaced_by
  FROM marked WINDOW one AS (PARTITION BY cluster, kind, entity ORDER BY ts, node_id {_LATER}),
    place AS (PARTITION BY cluster, node_id, kind, slot ORDER BY ts, entity {_LATER}))
SELECT * EXCLUDE (at_new_home, new_in_slot, next_ts, moved_ts, moved_to, replaced_ts, replaced_by)
    REPLACE (least(valid_until, next_ts, moved_ts, replaced_ts) AS valid_until),
  CASE least(valid_until, next_ts, moved_ts, replaced_ts)
    WHEN moved_ts THEN 'moved to ' || moved_to
    WHEN replaced_ts THEN 'its slot holds ' || replaced_by
    WHEN next_ts THEN 'said anew'
    WHEN valid_until THEN 'withdrawn' END AS ended_by
FROM seen
"""

_NOW: Final = "SELECT * EXCLUDE (ended_by) FROM inventory_history WHERE valid_until IS NULL OR valid_until > now()"

_GPU_HOMES: Final = """
WITH rows_ AS (
  SELECT *, ended_by IS NOT NULL AND ended_by <> 'said anew' AS ends,
    lag(slot) OVER here IS DISTINCT FROM slot AS other_slot,
    coalesce(lag(ended_by) OVER here, '') <> 'said anew' AS first_here
  FROM inventory_history WHERE kind = 'gpu'
  WINDOW here AS (PARTITION BY cluster, node_id, entity ORDER BY ts)),
stays AS (
  SELECT *, sum((first_here OR other_slot)::INT) OVER (PARTITION BY cluster, node_id, entity ORDER BY ts) AS stay
  FROM rows_)
SELECT cluster, entity AS gpu_uuid, node_id, arg_max(node, ts) AS node, any_value(slot) AS slot,
  arg_max(model, ts) AS gpu_model, arg_max(serial, ts) AS serial, min(ts) AS since,
  CASE WHEN count(valid_until) = count(*) THEN max(valid_until) END AS until,
  CASE WHEN bool_or(ends) THEN arg_max(ended_by, ts)
    WHEN count(valid_until) = count(*) THEN 'sits in another slot' END AS ended_by
FROM stays GROUP BY cluster, entity, node_id, stay
"""

_NAMES: Final = f"""
WITH claims AS (
  SELECT cluster, node_id, CASE WHEN {_UNCONFIRMED} THEN 'address' ELSE 'hostname' END AS system, node AS name,
    NULL::VARCHAR AS uid, ts, valid_until
  FROM inventory WHERE kind = 'node' AND node IS NOT NULL
  UNION ALL
  SELECT cluster, node_id, entity, CASE WHEN coalesce(valid_until > ts, true) THEN {_attribute("name")} END,
    {_attribute("uid")}, ts, valid_until
  FROM inventory WHERE kind = 'node_name'),
marked AS (
  SELECT *,
    row_number() OVER mine = 1 OR name IS DISTINCT FROM lag(name) OVER mine OR uid IS DISTINCT FROM lag(uid) OVER mine
      AS other_name,
    node_id IS DISTINCT FROM lag(node_id) OVER held AS other_machine
  FROM claims WINDOW mine AS (PARTITION BY cluster, node_id, system ORDER BY ts),
    held AS (PARTITION BY cluster, system, name ORDER BY ts, node_id)),
ends AS (
  SELECT *, min(ts) FILTER (other_name) OVER mine AS renamed_ts,
    arg_min(coalesce(name, ''), ts) FILTER (other_name) OVER mine AS renamed_to,
    min(ts) FILTER (other_machine) OVER held AS taken_ts,
    arg_min(node_id, ts) FILTER (other_machine) OVER held AS taken_by
  FROM marked WINDOW mine AS (PARTITION BY cluster, node_id, system ORDER BY ts {_LATER}),
    held AS (PARTITION BY cluster, system, name ORDER BY ts, node_id {_LATER}))
SELECT cluster, node_id, system, name, uid, ts AS since, least(valid_until, renamed_ts, taken_ts) AS until,
  CASE least(valid_until, renamed_ts, taken_ts)
    WHEN taken_ts THEN 'taken by ' || taken_by
    WHEN renamed_ts THEN CASE WHEN renamed_to = '' THEN 'withdrawn' ELSE 'renamed to ' || renamed_to END
    WHEN valid_until THEN 'withdrawn' END AS ended_by
FROM ends WHERE name IS NOT NULL AND (other_name OR other_machine)
"""

_MACHINES: Final = f"""
WITH named AS (
  SELECT cluster, node_id, max(name) FILTER (system IN ('hostname', 'address')) AS hostname,
    max(name) FILTER (system = 'slurm') AS slurm_node, max(name) FILTER (system = 'kubernetes') AS kubernetes_node,
    max(uid) FILTER (system = 'kubernetes') AS kubernetes_uid
  FROM machine_names WHERE until IS NULL OR until > now() GROUP BY ALL),
former AS (
  SELECT cluster, node_id, arg_max(name, since) AS last_hostname, arg_max(since, since) AS hostname_since,
    arg_max(ended_by, since) AS ended_by
  FROM machine_names WHERE system IN ('hostname', 'address') GROUP BY ALL),
seen AS (SELECT cluster, node_id, min(ts) AS first_seen, max(ts) AS changed FROM inventory GROUP BY ALL),
facts AS (
  SELECT cluster, node_id, model, serial, driver_version, {_attribute("node_id_source")} AS node_id_source
  FROM inventory_now WHERE kind = 'node')
SELECT s.cluster, s.node_id, n.hostname, n.slurm_node, n.kubernetes_node, n.kubernetes_uid, f.last_hostname,
  f.hostname_since, CASE WHEN starts_with(f.ended_by, 'taken by ') THEN substr(f.ended_by, 10) END AS replaced_by,
  x.node_id_source,
  coalesce(x.node_id_source IN ('configured', 'instance_id', 'smbios', 'machine_id'), false) AS confirmed,
  x.model, x.serial, x.driver_version, s.first_seen, s.changed
FROM seen s LEFT JOIN named n USING (cluster, node_id) LEFT JOIN former f USING (cluster, node_id)
LEFT JOIN facts x USING (cluster, node_id)
"""

_NAMES_AT: Final = """
FROM machine_names WHERE since <= CAST(moment AS TIMESTAMPTZ) AND coalesce(until > CAST(moment AS TIMESTAMPTZ), true)
"""

_CONFLICTS: Final = """
WITH shared AS (
  SELECT cluster, node, ts, list(DISTINCT node_id ORDER BY node_id) AS machines FROM host_30s(start_ts, end_ts)
  WHERE node IS NOT NULL GROUP BY cluster, node, ts HAVING count(DISTINCT node_id) > 1)
SELECT cluster, node AS name, machines, min(ts) AS since, max(ts) + INTERVAL 30 SECOND AS until, count(*) AS windows
FROM shared GROUP BY ALL ORDER BY since
"""

VIEWS: Final[Mapping[str, str]] = {
    "inventory_history": _HISTORY,
    "inventory_now": _NOW,
    "gpu_homes": _GPU_HOMES,
    "machine_names": _NAMES,
    "machines": _MACHINES,
}
"""In the order in which they are made."""

MACROS: Final[Mapping[str, str]] = {
    "machine_names(moment)": _NAMES_AT,
    "name_conflicts(start_ts, end_ts)": _CONFLICTS,
}
"""Table macros by name and parameters."""
