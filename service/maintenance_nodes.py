"""Which nodes are in a maintenance window, for ``detect``: what its statistics then leave out.

Statistics do not look at a node while it is in a window: nothing of it is scored or learned, it is nobody's peer, and
what was remembered of it stands still, so that a burn-in, a driver's trial or a pulled cable teaches nothing. Rules and
hard events see it as ever: what they find is stored, opens incidents that say the window, and waits for its end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from graynode.detectors.base import Round
from graynode.pipeline.lake import Lake
from graynode.service.quiet_windows import SCOPES

SEE_ALL: Final = ("rules", "blind")
"""Detectors that look at nodes in maintenance too: what they say is so, whoever works there."""
_ROW: Final = ("ts", "cluster", "maintenance_id", "scope", "name", "node", "since", "until", "who")
_PLACED_WITHIN: Final = timedelta(days=7)
_TIME: Final = pl.Datetime("us", "UTC")
_WINDOWS: Final = pl.Schema({"node_id": pl.String(), "since": _TIME, "until": _TIME, "said": pl.String()})


@dataclass(frozen=True, slots=True)
class Planned:
    """``windows``: a row for each node and window; a null ``node_id`` is every node."""

    windows: pl.DataFrame

    def without(self, round_: Round) -> Round:
        """The round without the rows and events of nodes in maintenance; the same one where there are none.

        Probes stay: a test that somebody runs on a node in repair is a measurement and no accident.
        """
        end = round_.start + timedelta(seconds=round_.window_s)
        if self.windows.filter((pl.col("until") > round_.start) & (pl.col("since") < end)).is_empty():
            return round_
        gpu, link, host, events = (
            self.cut(frame, round_.window_s) for frame in (round_.gpu, round_.link, round_.host, round_.events)
        )
        return replace(round_, gpu=gpu, link=link, host=host, events=events)

    def cut(self, rows: pl.DataFrame, window_s: int) -> pl.DataFrame:
        """Rows of windows of that length which no maintenance touches."""
        if self.windows.is_empty() or not {"ts", "node_id"} <= set(rows.columns):
            return rows
        out = pl.lit(value=False)
        for (since, until), of in self.windows.group_by("since", "until"):
            nodes = of.get_column("node_id")
            there = pl.lit(value=True) if nodes.null_count() else pl.col("node_id").is_in(nodes.implode())
            touched = (pl.col("ts") + timedelta(seconds=window_s) > since) & (pl.col("ts") < until)
            out = out | (there & touched)
        return rows.filter(~out)

    def said(self, node_id: str, at: datetime) -> str:
        """The window that a node is in then, in words; empty: none."""
        whose = pl.col("node_id").is_null() | (pl.col("node_id") == node_id)
        now = self.windows.filter(whose & (pl.col("since") <= at) & (pl.col("until") > at))
        return str(now.sort("until").get_column("said")[-1]) if now.height else ""


NONE: Final = Planned(pl.DataFrame(schema=_WINDOWS))


def read(lake: Lake, cluster: str, inventory: pl.DataFrame, now: datetime) -> Planned:
    """The windows of a cluster, each as said last, and the nodes that they are of; racks as ``inventory`` has them."""
    rows = lake.read("maintenance", None, None, list(_ROW)).filter(pl.col("cluster") == cluster)
    latest = rows.sort("ts").unique("maintenance_id", keep="last", maintain_order=True)
    lasting = latest.filter(pl.col("scope").is_in(SCOPES) & (pl.col("until") > pl.col("since")))
    if lasting.is_empty():
        return NONE
    told = lasting.select("scope", "name", "since", "until", said=_words())
    named = {"rack": _racks(inventory, cluster), "partition": pl.DataFrame(schema=_PLACES)}
    if (told.get_column("scope") == "partition").any():
        named["partition"] = _partitions(lake, cluster, now)
    parts = [
        told.filter(pl.col("scope") == "node").with_columns(node_id=pl.col("name")),
        told.filter(pl.col("scope") == "all").with_columns(node_id=pl.lit(None, dtype=pl.String)),
        *(told.filter(pl.col("scope") == scope).join(nodes, on="name") for scope, nodes in named.items()),
    ]
    return Planned(pl.concat([p.select(list(_WINDOWS)) for p in parts]).match_to_schema(_WINDOWS))


_PLACES: Final = pl.Schema({"node_id": pl.String, "name": pl.String})


def _words() -> pl.Expr:
    of = (
        pl.when(pl.col("scope") == "all")
        .then(pl.lit("all"))
        .otherwise(pl.format("{} {}", "scope", pl.coalesce("node", "name")))
    )
    until = pl.col("until").dt.convert_time_zone("UTC").dt.strftime("%Y-%m-%d %H:%M")
    return pl.format(
        "of {} until {} UTC, says {}: nobody is told before", of, until, pl.col("who").fill_null("somebody")
    )


def _racks(inventory: pl.DataFrame, cluster: str) -> pl.DataFrame:
    if not {"attributes", "kind", "node_id", "ts"} <= set(inventory.columns):
        return pl.DataFrame(schema=_PLACES)
    nodes = inventory.filter((pl.col("cluster") == cluster) & (pl.col("kind") == "node")).sort("ts")
    rack = pl.col("attributes").str.json_path_match("$.rack")
    return nodes.select("node_id", name=rack).drop_nulls().unique("node_id", keep="last", maintain_order=True)


def _partitions(lake: Lake, cluster: str, now: datetime) -> pl.DataFrame:
    rows = lake.read("job", now - _PLACED_WITHIN, now, ["ts", "cluster", "node_id", "partition"])
    ours = rows.filter(pl.col("cluster") == cluster).drop_nulls(["node_id", "partition"]).sort("ts")
    return ours.unique("node_id", keep="last", maintain_order=True).select("node_id", name="partition")
