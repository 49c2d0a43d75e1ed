"""What was told about nodes and GPUs: open incidents, states that were written, the scheduler's word, who runs where.

Hard events are told within seconds, before any window closes, so all of it counts up to the moment of looking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries
from graynode.service.node_state import OPEN, WRITTEN

OUT_WORDS: Final = (
    "drain", "drained", "draining", "down", "fail", "failing", "maint", "unschedulable", "notready", "cordoned",
    "reboot", "powered_down", "powering_down", "not_responding", "future", "inval", "error",
)  # fmt: skip
"""Words of a scheduler's state with which a node gets no new work: Slurm's node states and flags
(``slurm.schedmd.com/sinfo.html``, NODE STATE CODES), Kubernetes' conditions as ``collectors/kubernetes`` says them."""
_RUNS: Final = timedelta(days=14)
"""A job whose user was told longer ago is looked up nowhere else."""

_INCIDENTS: Final = """
SELECT cluster, node_id, count(*) AS open_incidents,
  arg_min(severity, CASE severity WHEN 'page' THEN 0 WHEN 'ticket' THEN 1 ELSE 2 END) AS worst_severity
FROM (FROM incident QUALIFY row_number() OVER (PARTITION BY incident_id ORDER BY revision DESC) = 1)
WHERE state <> 'resolved' AND node_id IS NOT NULL GROUP BY ALL
"""
_GPUS: Final = """
SELECT cluster, gpu_uuid, bool_or(cause = 'gpu_lost') AS lost,
  arg_min(title, (cause IS DISTINCT FROM 'gpu_lost', severity <> 'page', since)) AS title
FROM (SELECT * EXCLUDE (gpu_uuid) FROM incident
  QUALIFY row_number() OVER (PARTITION BY incident_id ORDER BY revision DESC) = 1)
JOIN (SELECT DISTINCT incident_id, gpu_uuid FROM incident WHERE gpu_uuid IS NOT NULL) USING (incident_id)
WHERE state <> 'resolved' AND severity <> 'digest' AND subject IN ('node', 'gpu', 'link') GROUP BY ALL
"""
"""Any revision's GPU: a later one names none where a finding about the whole node has joined ("NVML reads 7 of 8")."""
_SCHEDULER: Final = """
SELECT cluster, node_id, scheduler_state, reason AS scheduler_reason FROM scheduler_states
WHERE state IS NULL AND who IS DISTINCT FROM 'graynode' AND node_id IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY cluster, node_id ORDER BY ts DESC) = 1
"""
_USERS: Final = """
SELECT cluster, job_id, arg_max("user", ts) AS "user" FROM job(TIMESTAMPTZ '{since}', TIMESTAMPTZ '{at}')
WHERE "user" IS NOT NULL AND job_id IS NOT NULL GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class Told:
    """A row a node each in ``written``, ``opened``, ``incidents``, ``scheduler``; a GPU in ``gpus``; a job in
    ``users``."""

    written: pl.DataFrame
    opened: pl.DataFrame
    incidents: pl.DataFrame
    scheduler: pl.DataFrame
    gpus: pl.DataFrame
    users: pl.DataFrame


@dataclass(slots=True)
class ToldReader:
    """Asks again where a table was committed since."""

    lake: Lake
    queries: Queries
    _made: dict[str, tuple[tuple[int, ...], pl.DataFrame]] = field(default_factory=dict)

    def read(self, now: datetime) -> Told:
        """All that the lake holds before ``now``."""
        words = {"at": (now + timedelta(minutes=1)).isoformat(), "since": (now - _RUNS).isoformat()}

        def ask(sql: str) -> Callable[[], pl.DataFrame]:
            return lambda: self.queries.frame(sql.format(**words))

        scheduler = self._kept("scheduler", ("node_state", "inventory"), ask(_SCHEDULER))
        return Told(
            written=self._kept("written", ("node_state",), ask(WRITTEN)),
            opened=self._kept("opened", ("incident",), ask(OPEN)),
            incidents=self._kept("incidents", ("incident",), ask(_INCIDENTS)),
            scheduler=scheduler.with_columns(_out(pl.col("scheduler_state")).alias("out_of_scheduling")),
            gpus=self._kept("gpus", ("incident",), ask(_GPUS)),
            users=self._kept("users", ("job",), ask(_USERS)),
        )

    def _kept(self, name: str, tables: tuple[str, ...], make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        stamp = tuple(self.lake.version(table) for table in tables)
        held = self._made.get(name)
        if held is None or held[0] != stamp:
            self._made[name] = held = (stamp, make())
        return held[1]


def _out(state: pl.Expr) -> pl.Expr:
    """Whether the scheduler gives the node no new work; null where it says nothing."""
    words = state.str.to_lowercase().str.extract_all(r"[a-z_]+")
    return words.list.eval(pl.element().is_in(OUT_WORDS)).list.any()
