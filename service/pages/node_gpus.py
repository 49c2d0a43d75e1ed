"""A node's GPUs, each against its peers: now beside the peers' band, and its own last hours as a line."""

# ruff: noqa: S608 (SQL of this module's own words; names are quoted)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from markupsafe import Markup

from graynode.dashboards.pages import svg, words
from graynode.pipeline.queries import quoted
from graynode.service.api.answers import Row
from graynode.service.api.spans import sql_time
from graynode.service.api.state import Served
from graynode.service.fleet_now import FleetNow

LEAST_PEERS: Final = 4
"""Fewer make no band: the middle nine tenths of three values are all three of them."""
_POINTS: Final = 48


@dataclass(frozen=True, slots=True)
class Measure:
    """A column of the picture of now, its name and unit, and the window column that its line is made of."""

    name: str
    unit: str
    now: str
    window: str
    scale: float = 1.0


MEASURES: Final = (
    Measure("Busy", "%", "util_percent", "gpu_util_percent_mean"),
    Measure("SM clock", "MHz", "sm_clock_mhz", "sm_clock_mhz_mean"),
    Measure("Power", "W", "power_w", "power_w_mean"),
    Measure("Core", "°C", "temp_c", "temp_c_mean"),
    Measure("Memory", "GiB", "mem_used_bytes", "mem_used_bytes_mean", 1 / 2**30),
)


def compared(served: Served, now: FleetNow, node: Row, since: datetime, until: datetime) -> tuple[list[Row], str]:
    """The node's GPUs with a value, a strip and a line for each measure; and who the peers are, in words."""
    mine = now.gpus.filter((pl.col("node_id") == node["node_id"]) & (pl.col("cluster") == node["cluster"]))
    rows = mine.sort("gpu_index", "slot", "gpu_uuid", nulls_last=True).to_dicts()
    lines = _lines(served, node, since, until) if rows else {}
    said: dict[str, None] = {}
    for row in rows:
        peers, who = _peers(now.gpus, mine, row)
        said.setdefault(who)
        row["measures"] = [_measured(m, row, peers, lines.get((row["gpu_uuid"], m.window), [])) for m in MEASURES]
    return rows, "; ".join(said) or "none"


def _peers(fleet: pl.DataFrame, node: pl.DataFrame, row: Row) -> tuple[pl.DataFrame, str]:
    """The other GPUs of its job and model; without a job, those of its model on the node."""
    same = (pl.col("gpu_model") == row["gpu_model"]) & (pl.col("gpu_uuid") != row["gpu_uuid"])
    if row["job_id"]:
        of_job = fleet.filter(same & (pl.col("job_id") == row["job_id"]) & (pl.col("cluster") == row["cluster"]))
        if of_job.height >= LEAST_PEERS:
            return of_job, f"the other {of_job.height:,} GPUs of job {row['job_id']}"
    return node.filter(same), "the other GPUs of this node"


def _measured(measure: Measure, row: Row, peers: pl.DataFrame, line: Sequence[float | None]) -> dict[str, Any]:
    value = row[measure.now]
    value = None if value is None else value * measure.scale
    there = peers[measure.now].drop_nulls().to_numpy() * measure.scale
    shown = words.short(value)
    strip = _strip(measure, value, there) if value is not None and len(there) >= LEAST_PEERS else Markup("")
    told = f"{measure.name} over time, now {shown or 'not known'} {measure.unit}"
    return {
        "name": measure.name,
        "shown": shown,
        "strip": strip,
        "spark": svg.spark(line, told) if line else Markup(""),
    }


def _strip(measure: Measure, value: float, peers: npt.NDArray[Any]) -> Markup:
    low, middle, high = (float(q) for q in np.quantile(peers, (0.05, 0.5, 0.95)))
    of_peers = f"peers {words.short(low)} to {words.short(high)}, median {words.short(middle)}"
    told = f"{measure.name} {words.short(value)} {measure.unit}, {of_peers}"
    return svg.strip(value, low, middle, high, told)


def _lines(served: Served, node: Row, since: datetime, until: datetime) -> dict[tuple[str, str], list[float | None]]:
    """Means of equal pieces of the span by GPU and column; none where nothing was measured."""
    step = (until - since).total_seconds() / _POINTS
    columns = ", ".join(f"avg({m.window}) * {m.scale} AS {m.window}" for m in MEASURES)
    frame = served.frame(
        f"SELECT gpu_uuid, floor((epoch(ts) - {since.timestamp()}) / {step})::INT AS piece, {columns} "
        f"FROM gpu_30s({sql_time(since)}, {sql_time(until)}) WHERE node_id = {quoted(str(node['node_id']))} "
        f"AND cluster = {quoted(str(node['cluster']))} AND mig_instance IS NULL GROUP BY ALL"
    )
    found: dict[tuple[str, str], list[float | None]] = {}
    for (uuid,), part in frame.group_by("gpu_uuid"):
        whole = pl.DataFrame({"piece": range(_POINTS)}, schema={"piece": pl.Int32}).join(part, on="piece", how="left")
        for measure in MEASURES:
            found[str(uuid), measure.window] = whole[measure.window].to_list()
    return found
