"""The rows of a picture of the fleet: windows, facts and what was told, joined into one row a node and one a GPU."""

from __future__ import annotations

from typing import Final

import polars as pl

from graynode.service.fleet_now_facts import NODE, Facts
from graynode.service.fleet_now_told import Told
from graynode.service.fleet_now_windows import Newest
from graynode.service.node_state import SILENT, judge, place

_TIME: Final = pl.Datetime("us", "UTC")
NODES: Final = {
    "cluster": pl.String(), "node_id": pl.String(), "node": pl.String(), "state": pl.String(),
    "out_of_scheduling": pl.Boolean(), "scheduler_state": pl.String(), "since": _TIME, "why": pl.String(),
    "gpu_model": pl.String(), "gpus": pl.Int32(), "gpus_expected": pl.Int32(), "rack": pl.String(),
    "switch": pl.String(), "domain": pl.String(), "partition": pl.String(), "driver_version": pl.String(),
    "last_seen": _TIME, "open_incidents": pl.Int32(), "worst_severity": pl.String(),
}  # fmt: skip
"""``gpus``: of how many there was a window lately, null where the node is silent. ``partition``: of the latest job
placed there. ``out_of_scheduling``: as the scheduler says, null where none does."""
GPUS: Final = {
    "cluster": pl.String(), "node_id": pl.String(), "node": pl.String(), "gpu_uuid": pl.String(), "slot": pl.String(),
    "gpu_index": pl.Int32(), "gpu_model": pl.String(), "state": pl.String(), "why": pl.String(),
    "util_percent": pl.Float64(), "sm_clock_mhz": pl.Float64(), "power_w": pl.Float64(), "temp_c": pl.Float64(),
    "mem_used_bytes": pl.Float64(), "job_id": pl.String(), "user": pl.String(), "last_seen": _TIME,
}  # fmt: skip
"""Values are means of the newest window, null where there was none lately."""
GPU_STATES: Final = ("lost", "unknown", "suspect", "healthy")
"""Worst first. *lost*: an open incident says so; *unknown*: no window lately; *suspect*: an open incident names it."""
_VALUES: Final = ("util_percent", "sm_clock_mhz", "power_w", "temp_c", "mem_used_bytes", "job_id", "user")
_GPU: Final = ["cluster", "gpu_uuid"]


def nodes(facts: Facts, told: Told, newest: Newest) -> pl.DataFrame:
    """A row for every node that is known, the worst first."""
    host = newest.host.rename({"node": "node_seen", "driver_version": "driver_seen"})
    of_gpus = newest.gpu.group_by(NODE).agg(
        pl.col("last_seen").max().alias("gpu_seen"), pl.col("model_seen").drop_nulls().last().alias("gpu_model"),
        pl.col("node").drop_nulls().last().alias("node_of_gpus"),
    )  # fmt: skip
    counted = _lately(newest.gpu, pl.col("last_seen").max().over("cluster")).group_by(NODE).agg(pl.len().alias("gpus"))
    models = facts.gpus.group_by(NODE).agg(pl.col("gpu_model").drop_nulls().last().alias("model_told"))
    ids = [f.select(NODE) for f in (facts.nodes, host, of_gpus, told.written)]
    rows = pl.concat(ids).drop_nulls().unique()
    for part in (
        facts.nodes, host, of_gpus, counted, models, told.written, told.opened, told.incidents, told.scheduler,
    ):  # fmt: skip
        rows = rows.join(part, on=NODE, how="left")
    rows = rows.with_columns(heard=pl.max_horizontal("last_seen", "gpu_seen"))
    rows = judge(rows.with_columns(newest=pl.col("heard").max().over("cluster")))
    silent = pl.col("heard").is_null() | (pl.col("newest") - pl.col("heard") > SILENT)
    return (
        rows.with_columns(
            node=pl.coalesce("node_seen", "node", "node_of_gpus", "node_id"),
            gpu_model=pl.coalesce("gpu_model", "model_told"),
            gpus=pl.when(~silent).then(pl.col("gpus").fill_null(0)),
            gpus_expected=pl.coalesce("gpus_expected", "on_bus"),
            driver_version=pl.coalesce("driver_seen", "driver_version"),
            last_seen=pl.col("heard"),
            open_incidents=pl.col("open_incidents").fill_null(0),
        )
        .sort(place(pl.col("state")), "cluster", "node", "node_id")
        .select(pl.col(name).cast(kind) for name, kind in NODES.items())
    )


def gpus(facts: Facts, told: Told, newest: Newest, machines: pl.DataFrame) -> pl.DataFrame:
    """A row for every GPU that is in the inventory or was seen, by node and slot."""
    seen = newest.gpu.drop("mig_instance").rename({"node_id": "seen_on", "node": "node_seen"})
    rows = facts.gpus.join(
        seen.sort("last_seen").unique(_GPU, keep="last"), on=_GPU, how="full", coalesce=True
    ).with_columns(node_id=pl.coalesce("seen_on", "node_id"))
    of_nodes = machines.select(*NODE, pl.col("node").alias("node_name"), pl.col("last_seen").alias("node_heard"))
    rows = (
        rows.join(of_nodes, on=NODE, how="left").join(told.gpus, on=_GPU, how="left")
        .join(told.users, on=["cluster", "job_id"], how="left")
    )  # fmt: skip
    end = pl.max_horizontal(pl.col("last_seen").max(), pl.col("node_heard").max()).over("cluster")
    silent = pl.col("last_seen").is_null() | (end - pl.col("last_seen") > SILENT)
    node_silent = pl.col("node_heard").is_null() | (end - pl.col("node_heard") > SILENT)
    state = (
        pl.when(pl.col("lost").fill_null(value=False)).then(pl.lit("lost"))
        .when(silent).then(pl.lit("unknown"))
        .when(pl.col("title").is_not_null()).then(pl.lit("suspect"))
        .otherwise(pl.lit("healthy"))
    )  # fmt: skip
    why = (
        pl.when(state == "unknown").then(
            pl.when(node_silent).then(pl.lit("nothing has been heard of its node"))
            .otherwise(pl.lit("its node is heard, but nothing of this GPU"))
        )
        .otherwise(pl.col("title").fill_null(""))
    )  # fmt: skip
    return (
        rows.with_columns(
            state=state, why=why, node=pl.coalesce("node_name", "node_seen", "node", "node_id"),
            slot=pl.coalesce("slot_seen", "slot"), gpu_model=pl.coalesce("model_seen", "gpu_model"),
        )
        .with_columns(pl.when(~silent).then(pl.col(name)).alias(name) for name in _VALUES)
        .sort("cluster", "node", "slot", "gpu_uuid", nulls_last=True)
        .select(pl.col(name).cast(kind) for name, kind in GPUS.items())
    )  # fmt: skip


def _lately(rows: pl.DataFrame, end: pl.Expr) -> pl.DataFrame:
    return rows.filter(end - pl.col("last_seen") <= SILENT)
