"""What the schedulers' rows say of machines, and one row a job: text of DuckDB views.

A scheduler names nodes, not machines: its rows carry ``slurm:<ClusterName>/<NodeName>`` or ``kubernetes:<node>`` as
``node_id`` and the name as ``node``. Here they get the machine that bore the name at that time (``machine_names``), if
one said so; ``bound`` is false for those that nobody claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BOUND: Final = """
SELECT t.* REPLACE (coalesce(m.node_id, t.node_id) AS node_id),
  m.node_id IS NOT NULL OR NOT regexp_matches(t.node_id, '^(slurm|kubernetes)(:|$)') AS bound
FROM {table} t LEFT JOIN machine_names m
  ON m.cluster = t.cluster AND m.name = t.node AND starts_with(t.node_id, m.system || ':')
  AND m.system IN ('slurm', 'kubernetes') AND m.since <= t.ts AND coalesce(m.until > t.ts, true)
"""

_JOBS: Final = """
WITH told AS (
  -- a node's own agent sees a job go without knowing how it ended: what a scheduler says goes first
  SELECT *, row_number() OVER (PARTITION BY cluster, job_id ORDER BY coalesce(requeues, 0) DESC,
    state IS NOT NULL AND end_ts IS NOT NULL AND state <> 'requeued' DESC, ts DESC) AS place
  FROM job_placements)
SELECT cluster, job_id, max(job_alias) AS job_alias, max("user") AS "user", max(account) AS account,
  max("partition") AS "partition", max(work) AS work, any_value(state ORDER BY place) AS state,
  any_value(reason ORDER BY place) FILTER (place = 1) AS reason, min(queued_ts) AS queued_ts,
  min(allocated_ts) AS allocated_ts, min(first_step_ts) AS first_step_ts,
  CASE WHEN bool_or(place = 1 AND end_ts IS NOT NULL AND state IS DISTINCT FROM 'requeued')
    THEN max(end_ts) END AS end_ts,
  any_value(exit_code ORDER BY place) AS exit_code, any_value(exit_signal ORDER BY place) AS exit_signal,
  max(requeues) AS requeues, any_value(nodes ORDER BY place) AS nodes, max(gpus) AS gpus, max(ranks) AS ranks,
  list(DISTINCT node_id) FILTER (bound AND node IS NOT NULL) AS machines,
  list(DISTINCT node) FILTER (node IS NOT NULL AND state IS DISTINCT FROM 'queued') AS node_names
FROM told GROUP BY cluster, job_id
"""

VIEWS: Final[Mapping[str, str]] = {
    "job_placements": _BOUND.format(table="job"),
    "scheduler_states": _BOUND.format(table="node_state"),
    "jobs": _JOBS,
}
"""In the order in which they are made, after ``machine_names``."""
