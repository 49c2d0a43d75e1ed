"""``graynode nodes``: every node of a cluster with its state, since when and why, from the lake.

``graynode.service.node_state`` has the rule.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

import polars as pl

from graynode.pipeline.lake import LakeError, LakeTooNew
from graynode.pipeline.queries import Queries, QueryError, quoted
from graynode.service import lemons
from graynode.service.config import Config, ConfigError
from graynode.service.node_state import OPEN, STATES, WRITTEN, judge, place
from graynode.service.times import past
from graynode.service.wiring import make_lake

_HEARD: Final = """
SELECT node_id, max(ts) AS heard FROM (
  SELECT node_id, ts FROM host_30s(TIMESTAMPTZ '{at}' - INTERVAL 2 DAY, TIMESTAMPTZ '{at}') WHERE cluster = {cluster}
  UNION ALL
  SELECT node_id, ts + INTERVAL 1 HOUR FROM host_1h(TIMESTAMPTZ '{at}' - INTERVAL 14 DAY, TIMESTAMPTZ '{at}')
  WHERE cluster = {cluster})
WHERE node_id IS NOT NULL GROUP BY node_id
"""


def run(config: Config, at: str = "", *, as_json: bool = False, state: str = "", out: TextIO | None = None) -> int:
    """Print the nodes, worst first. 0 listed, 1 no node known or no lake to ask; ``ConfigError`` for a wrong option."""
    sink = out or sys.stdout
    if state not in ("", *STATES):
        raise ConfigError(f"--state {state!r}: there is none such; there are {', '.join(STATES)}")
    moment = past("--at", at)
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
    written, opened = (
        queries.frame(sql.format(**words)).filter(pl.col("cluster") == found.cluster).drop("cluster")
        for sql in (WRITTEN, OPEN)
    )
    heard = queries.frame(_HEARD.format(**words))
    ranked = found.ranking.nodes.select("node_id", "down", "last_fault", "last_kind", "probation_until", "last_return")
    ids = pl.concat([frame.select("node_id") for frame in (ranked, heard, written)]).unique()
    rows = ids.with_columns(newest=pl.lit(heard["heard"].max(), pl.Datetime("us", "UTC")))
    for frame in (written, heard, opened, ranked):
        rows = rows.join(frame, on="node_id", how="left")
    rows = judge(rows).with_columns(node=pl.col("node_id").replace(found.names))
    told = rows.sort(place(pl.col("state")), "node", "node_id").select("node", "node_id", "state", "since", "why")
    return found.cluster, told.to_dicts()


def _print(cluster: str, rows: Sequence[Mapping[str, Any]], chosen: Sequence[Mapping[str, Any]], sink: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table

    from graynode.dashboards.pieces import clean

    console = Console(file=sink, highlight=False, markup=False, width=None if sink.isatty() else 160)
    states = [str(row["state"]) for row in rows]
    counted = ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states), key=_order))
    console.print(f"cluster {cluster}, {len(rows)} nodes: {counted}")
    grid = Table("node", "state", "since", "why", box=None, header_style="bold", pad_edge=False)
    for row in chosen:
        since = f"{row['since']:%Y-%m-%d %H:%M}" if row["since"] else "·"
        grid.add_row(clean(row["node"]), row["state"], since, clean(row["why"]))
    console.print(grid)


def _order(state: str) -> int:
    return STATES.index(state) if state in STATES else -1
