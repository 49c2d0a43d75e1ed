"""``graynode nodes``: every node of a cluster with its state, since when and why, from the lake.

The state is what was written last of ours (table ``node_state``); where nothing was, it follows from what is known:
silent is *unknown*, an open hardware incident is *suspect*, a return within the week is *probation*, else *healthy*.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TextIO

from graynode.collectors.base import utc_now
from graynode.pipeline.lake import LakeError, LakeTooNew
from graynode.pipeline.queries import Queries, QueryError, quoted
from graynode.service import lemons
from graynode.service.config import Config, ConfigError
from graynode.service.times import instant
from graynode.service.wiring import make_lake

STATES: Final = ("quarantined", "in_repair", "unknown", "suspect", "probation", "healthy")
"""Worst first: the order in which nodes are listed."""
SILENT: Final = timedelta(minutes=10)
"""A machine whose newest window is older than this beside the cluster's newest is silent."""
_WRITTEN: Final = """
SELECT node_id, state, ts, reason FROM node_state
WHERE cluster = {cluster} AND state IS NOT NULL AND ts < TIMESTAMPTZ '{at}'
QUALIFY row_number() OVER (PARTITION BY node_id ORDER BY ts DESC) = 1
"""
_HEARD: Final = """
SELECT node_id, max(ts) AS ts FROM (
  SELECT node_id, ts FROM host_30s(TIMESTAMPTZ '{at}' - INTERVAL 2 DAY, TIMESTAMPTZ '{at}') WHERE cluster = {cluster}
  UNION ALL
  SELECT node_id, ts + INTERVAL 1 HOUR FROM host_1h(TIMESTAMPTZ '{at}' - INTERVAL 14 DAY, TIMESTAMPTZ '{at}')
  WHERE cluster = {cluster})
GROUP BY node_id
"""
_OPEN: Final = """
SELECT node_id, arg_min(title, (severity <> 'page', since)) AS title, min(since) AS since FROM (
  FROM incident WHERE cluster = {cluster} AND ts < TIMESTAMPTZ '{at}'
  QUALIFY row_number() OVER (PARTITION BY incident_id ORDER BY revision DESC) = 1)
WHERE state <> 'resolved' AND severity <> 'digest' AND subject IN ('node', 'gpu', 'link')
GROUP BY node_id
"""


def run(config: Config, at: str = "", *, as_json: bool = False, state: str = "", out: TextIO | None = None) -> int:
    """Print the nodes, worst first. 0 listed, 1 no node known or no lake to ask; ``ConfigError`` for a wrong option."""
    sink = out or sys.stdout
    if state not in ("", *STATES):
        raise ConfigError(f"--state {state!r}: there is none such; there are {', '.join(STATES)}")
    moment = instant("--at", at) if at else utc_now()
    queries = Queries(make_lake(config))
    try:
        cluster, rows = read(queries, config.cluster, moment)
    except (QueryError, LakeError, LakeTooNew, OSError) as error:
        print(f"graynode nodes: the lake {config.lake.path} cannot be asked: {error}", file=sys.stderr)
        return 1
    finally:
        queries.close()
    chosen = [row for row in rows if state in ("", row["state"])]
    if as_json:
        print(json.dumps({"cluster": cluster, "at": moment, "nodes": chosen}, indent=2, default=lemons.iso), file=sink)
    elif not rows:
        print(
            f"No node of cluster {cluster!r} is known in the lake {config.lake.path} before {at or 'now'}.", file=sink
        )
    else:
        _print(cluster, rows, chosen, sink)
    return 0 if rows else 1


def read(queries: Queries, cluster: str, at: datetime) -> tuple[str, list[dict[str, Any]]]:
    """The cluster that was asked (the only one there is, where that has nothing) and its nodes, worst first."""
    found = lemons.read(queries, cluster, at)
    words = {"cluster": quoted(found.cluster), "at": at.isoformat()}
    told = {name: _by_node(queries, sql.format(**words)) for name, sql in _SOURCES.items()}
    newest = max((row["ts"] for row in told["heard"].values()), default=None)
    ranked = {row["node_id"]: row for row in found.ranking.nodes.to_dicts()}
    rows = []
    for node_id in sorted({*ranked, *told["heard"], *told["written"]}):
        mine = {name: rows_.get(node_id) for name, rows_ in told.items()}
        state, since, why = state_of(mine, ranked.get(node_id), newest)
        name = found.names.get(node_id, node_id)
        rows.append({"node": name, "node_id": node_id, "state": state, "since": since, "why": why})
    return found.cluster, sorted(rows, key=lambda row: (_place(row["state"]), row["node"]))


_SOURCES: Final = {"written": _WRITTEN, "heard": _HEARD, "open": _OPEN}

Told = Mapping[str, Mapping[str, Any] | None]
"""Of one node the row that was written, the newest window, and its open incident."""


def state_of(told: Told, ranked: Mapping[str, Any] | None, newest: datetime | None) -> tuple[str, datetime | None, str]:
    """State, since when, and why. ``newest`` is the cluster's newest window; without windows nobody is silent."""
    written, heard, incident = (told.get(name) for name in ("written", "heard", "open"))
    if written is not None:
        return str(written["state"]), written["ts"], str(written["reason"] or "")
    if newest is not None and (heard is None or newest - heard["ts"] > SILENT):
        return "unknown", None if heard is None else heard["ts"], "nothing has been heard of it since"
    if incident is not None:
        return "suspect", incident["since"], str(incident["title"] or "an incident is open")
    if ranked is not None and ranked["down"]:
        return "suspect", ranked["last_fault"], f"down: {ranked['last_kind'] or 'a fault that has not ended'}"
    if ranked is not None and ranked["probation_until"] is not None:
        return "probation", ranked["last_return"], f"until {ranked['probation_until']:%Y-%m-%d %H:%M} UTC"
    return "healthy", None, ""


def _by_node(queries: Queries, sql: str) -> dict[str, dict[str, Any]]:
    return {row["node_id"]: row for row in queries.rows(sql) if row["node_id"] is not None}


def _place(state: str) -> int:
    return STATES.index(state) if state in STATES else -1


def _print(cluster: str, rows: Sequence[Mapping[str, Any]], chosen: Sequence[Mapping[str, Any]], sink: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table

    from graynode.dashboards.pieces import clean

    console = Console(file=sink, highlight=False, markup=False, width=None if sink.isatty() else 160)
    states = [str(row["state"]) for row in rows]
    counted = ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states), key=_place))
    console.print(f"cluster {cluster}, {len(rows)} nodes: {counted}")
    grid = Table("node", "state", "since", "why", box=None, header_style="bold", pad_edge=False)
    for row in chosen:
        since = f"{row['since']:%Y-%m-%d %H:%M}" if row["since"] else "·"
        grid.add_row(clean(row["node"]), row["state"], since, clean(row["why"]))
    console.print(grid)
