"""``graynode lemons``: nodes by how likely they are to fault next, with the reasons, from the lake.

A node's faults are its hardware incidents, hard events, times out of service (ours and the scheduler's) and imported
fault records; those that overlap are one. A logged repair ends what is still open. What begins in an announced
maintenance window is no fault.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

import polars as pl

from graynode.pipeline.gpu_hours_sources import TELLER
from graynode.pipeline.lake import LakeError, LakeTooNew
from graynode.pipeline.queries import Queries, QueryError, quoted
from graynode.pipeline.reliability_views import HARD_EVENTS, IN_PLANNED, NOT_HARDWARE, PLANNED, words
from graynode.service.config import Config
from graynode.service.times import past
from graynode.service.wiring import make_lake

if TYPE_CHECKING:
    from rich.table import Table

    from graynode.detectors.lemons import Ranking

_FAULTS: Final = f"""
WITH span AS (SELECT TIMESTAMPTZ '{{at}}' AS until_ts, {{cluster}} AS cluster),
{PLANNED.strip().format(before="TIMESTAMPTZ '{at}'")},
told AS (
  SELECT incident_id, node_id, coalesce(since, opened_ts, ts) AS start,
    CASE WHEN state = 'resolved' THEN coalesce(resolved_ts, ts) END AS "end", cause AS kind, subject, severity
  FROM incident JOIN span USING (cluster) WHERE ts < until_ts
  QUALIFY row_number() OVER (PARTITION BY incident_id ORDER BY revision DESC) = 1),
records AS (
  SELECT node_id, ts, kind, message, lead(ts) OVER log AS next_ts FROM event JOIN span USING (cluster)
  WHERE kind IN ('fault_start', 'fault_end') AND ts < until_ts
  WINDOW log AS (PARTITION BY node_id, message ORDER BY ts, kind DESC)),
out_of_service AS (
  SELECT node_id, ts, lead(ts) OVER (PARTITION BY node_id, {TELLER} ORDER BY ts) AS next_ts,
    CASE WHEN state IN ('quarantined', 'in_repair') THEN state
      WHEN regexp_matches(scheduler_state, '^(down|fail|notready)', 'i') AND NOT coalesce(reason ILIKE '%maint%', false)
        THEN 'scheduler: ' || scheduler_state END AS kind
  FROM scheduler_states JOIN span USING (cluster) WHERE ts < until_ts),
faults AS (
SELECT node_id, start, "end", kind FROM told
WHERE subject IN ('node', 'gpu', 'link') AND severity <> 'digest' AND kind NOT IN ({words(NOT_HARDWARE)})
UNION ALL SELECT node_id, ts, next_ts, message FROM records WHERE kind = 'fault_start'
UNION ALL SELECT node_id, ts, ts, kind FROM event JOIN span USING (cluster)
WHERE kind IN ({words(HARD_EVENTS)}) AND ts < until_ts
UNION ALL SELECT node_id, ts, next_ts, kind FROM out_of_service WHERE kind IS NOT NULL)
SELECT f.* EXCLUDE cluster FROM (SELECT faults.*, cluster FROM faults, span) f
WHERE NOT {IN_PLANNED.format(of="f", at="f.start")}
"""  # noqa: S608 (this module's own words; time and cluster are quoted where they are put in)
_REPAIRS: Final = "SELECT node_id, ts, what FROM repair WHERE cluster = {cluster} AND ts < TIMESTAMPTZ '{at}'"
_NAMES: Final = """
SELECT node_id, arg_max(node, ts) AS node, min(ts) AS first_ts, bool_or(machine) AS machine FROM (
  SELECT node_id, node, ts, true AS machine FROM inventory WHERE cluster = {cluster} AND kind = 'node'
  UNION ALL SELECT node_id, node, ts, false FROM node_state WHERE cluster = {cluster}
  UNION ALL SELECT node_id, node, ts, false FROM incident WHERE cluster = {cluster}
  UNION ALL SELECT node_id, node, ts, false FROM event WHERE cluster = {cluster})
WHERE ts < TIMESTAMPTZ '{at}' AND node_id IS NOT NULL GROUP BY node_id
"""
_CLUSTERS: Final = """
SELECT DISTINCT cluster FROM (
  SELECT cluster FROM inventory UNION ALL SELECT cluster FROM event UNION ALL SELECT cluster FROM incident
  UNION ALL SELECT cluster FROM node_state) WHERE cluster IS NOT NULL ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Lemons:
    """The rank of one cluster, with the names of its nodes and their last logged repair (time, what was done)."""

    cluster: str
    at: datetime
    ranking: Ranking
    names: dict[str, str]
    repairs: dict[str, tuple[datetime, str]]


def run(config: Config, at: str = "", *, as_json: bool = False, most: int = 20, out: TextIO | None = None) -> int:
    """Print the rank. 0 ranked, 1 nothing to rank or the lake cannot be asked; ``ConfigError`` for a wrong time."""
    sink = out or sys.stdout
    until = past("--at", at)
    queries = Queries(make_lake(config))
    try:
        found = read(queries, config.cluster, until)
    except (QueryError, LakeError, LakeTooNew, OSError) as error:
        print(f"graynode lemons: the lake {config.lake.path} cannot be asked: {error}", file=sys.stderr)
        return 1
    finally:
        queries.close()
    if as_json:
        print(json.dumps(to_json(found), indent=2, default=iso), file=sink)
    else:
        _print(found, config.lake.path, most, sink)
    return 0 if found.ranking.faults else 1


def read(queries: Queries, cluster: str, at: datetime) -> Lemons:
    """Faults, repairs and fleet of a cluster before ``at``, ranked; of the only cluster, where that one has nothing."""
    from graynode.detectors.lemons import rank

    there = clusters(queries)
    if cluster not in there and len(there) == 1:
        cluster = there[0]
    said = {"cluster": quoted(cluster), "at": at.isoformat()}
    names = queries.rows(_NAMES.format(**said))
    repairs = queries.frame(_REPAIRS.format(**said))
    history = _ended_by_repair(queries.frame(_FAULTS.format(**said)), repairs)
    since = min((row["first_ts"] for row in names), default=None)
    fleet = [row["node_id"] for row in names if row["machine"]]
    last = {row["node_id"]: (row["ts"], row["what"] or "repair") for row in repairs.sort("ts").to_dicts()}
    labels = {row["node_id"]: row["node"] or row["node_id"] for row in names}
    return Lemons(cluster, at, rank(history, fleet, at, since), labels, last)


def clusters(queries: Queries) -> list[str]:
    """Clusters that anything of is known."""
    return [row["cluster"] for row in queries.rows(_CLUSTERS)]


def _ended_by_repair(history: pl.DataFrame, repairs: pl.DataFrame) -> pl.DataFrame:
    """Each open fault ended by the node's first repair after its start."""
    if history.is_empty() or repairs.is_empty():
        return history
    mends = repairs.select("node_id", pl.col("ts").alias("mended")).drop_nulls().sort("mended")
    rows = history.drop_nulls(["node_id", "start"]).sort("start")
    both = rows.join_asof(
        mends, left_on="start", right_on="mended", by="node_id", strategy="forward", check_sortedness=False
    )
    return both.with_columns(pl.coalesce("end", "mended").alias("end")).drop("mended")


def iso(value: object) -> str:
    """How JSON tells a time."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def to_json(found: Lemons) -> dict[str, Any]:
    """All nodes, likeliest to fault first, with how much history the order rests on."""
    ranking = found.ranking
    nodes = [
        {
            **row,
            "node": found.names.get(row["node_id"], row["node_id"]),
            "last_repair": found.repairs.get(row["node_id"], (None,))[0],
        }
        for row in ranking.nodes.to_dicts()
    ]
    return {
        "cluster": found.cluster,
        "at": found.at,
        "history_days": round(ranking.days, 3),
        "faults": ranking.faults,
        "enough_history": ranking.enough,
        "nodes": nodes,
    }


def _print(found: Lemons, lake: str, most: int, sink: TextIO) -> None:
    from rich.console import Console

    from graynode.detectors.lemons import LEAST_DAYS, LEAST_FAULTS

    console = Console(file=sink, highlight=False, markup=False, width=None if sink.isatty() else 160)
    ranking, before = found.ranking, f"before {found.at:%Y-%m-%d %H:%M} UTC"
    if not ranking.faults:
        console.print(f"No fault of cluster {found.cluster!r} is known in the lake {lake} {before}: nothing to rank.")
        return
    facts = f"{ranking.nodes.height} nodes, {ranking.faults} faults in {ranking.days:.0f} days"
    console.print(f"cluster {found.cluster}, {facts} {before}")
    if not ranking.enough:
        console.print(
            f"Too little history for the order to mean much: it takes {LEAST_DAYS:.0f} days and {LEAST_FAULTS} faults. "
            "Until then this is a list of what has failed."
        )
    console.print(_table(found, most))
    held = ranking.nodes.filter(pl.col("probation_until").is_not_null()).height
    console.print(f"{held} on probation: back from repair for less than a week, when a third of all faults come.")


def _table(found: Lemons, most: int) -> Table:
    from rich.table import Table as Grid

    from graynode.dashboards.pieces import clean

    grid = Grid("rank", "node", "p 7 d", "× fleet", "repair", "why", box=None, header_style="bold", pad_edge=False)
    for row in found.ranking.nodes.filter(pl.col("faults") > 0).head(most).to_dicts():
        mended = found.repairs.get(row["node_id"], (None, ""))[0] or row["last_return"]
        grid.add_row(
            str(row["rank"]),
            clean(found.names.get(row["node_id"], row["node_id"])),
            f"{100 * row['p_fault_7d']:.0f} %",
            f"{row['times_fleet']:.1f}",
            f"{mended:%Y-%m-%d}" if mended else "·",
            clean(row["reason"]),
        )
    return grid
