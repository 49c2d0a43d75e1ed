"""A small fleet with failures, jobs, repairs, labels and silence, each written by hand: every figure is known."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import frame_schema

WEEK: Final = "2026-W47"
MONDAY: Final = datetime(2026, 11, 16, tzinfo=UTC)
"""Where the week begins; the fleet is watched from 20 weeks before on."""
BEGAN: Final = MONDAY - timedelta(weeks=20)
HOSTILE: Final = '<script>alert(1)</script>|=cmd\x1b[31m"; DROP TABLE x; --'


def at(hours: float) -> datetime:
    """So many hours after Monday 0:00."""
    return MONDAY + timedelta(hours=hours)


def land(lake: Lake, table: str, *rows: dict[str, Any]) -> None:
    """Rows of cluster ``prod``."""
    told = [{"cluster": "prod", "node": row.get("node_id"), **row} for row in rows]
    lake.write(table, pl.DataFrame(told, schema=frame_schema(table), orient="row"))


def machines(lake: Lake, names: list[str], gpus: int = 8, since: datetime = BEGAN) -> None:
    """Machines with their GPUs in the inventory."""
    land(lake, "inventory", *({"ts": since, "node_id": n, "kind": "node", "entity": n, "driver_version": "580.1"}
                              for n in names))  # fmt: skip
    land(
        lake, "inventory",
        *({"ts": since, "node_id": n, "kind": "gpu", "entity": f"GPU-{n}-{i}", "model": "H100", "slot": f"{i}",
           "vbios_version": "96.00"} for n in names for i in range(gpus)),
    )  # fmt: skip


def heard(lake: Lake, names: list[str], since: datetime, hours: int, *, silent: dict[str, range] | None = None) -> None:
    """An hour window of the host and of GPU 0 for every hour, but those in which a machine is silent."""
    frame = pl.DataFrame({"h": range(hours)}).join(pl.DataFrame({"node_id": names}), how="cross")
    gone = [{"node_id": n, "h": h} for n, span in (silent or {}).items() for h in span]
    if gone:
        frame = frame.join(pl.DataFrame(gone), on=["node_id", "h"], how="anti")
    frame = frame.select(
        pl.lit("prod").alias("cluster"), "node_id", pl.col("node_id").alias("node"),
        (pl.lit(since) + pl.duration(hours=pl.col("h"))).dt.cast_time_unit("us").alias("ts"),
        pl.lit(120, pl.Int32).alias("samples"), pl.lit(120, pl.Int32).alias("samples_expected"),
    )  # fmt: skip
    lake.write("host_1h", _whole(frame, "host_1h"))


def _whole(frame: pl.DataFrame, table: str) -> pl.DataFrame:
    schema = frame_schema(table)
    return frame.select(
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind).alias(name)
        for name, kind in schema.items()
    )


def incident(node: str, name: str, since: float, told: float, over: float | None, **other: Any) -> list[dict[str, Any]]:
    """Its revisions: opened at ``told`` for what began at ``since``, resolved at ``over``; hours after Monday."""
    first = {
        "ts": at(told), "node_id": node, "incident_id": name, "revision": 0, "state": "open", "subject": "gpu",
        "cause": "gpu_lost", "severity": "page", "since": at(since), "opened_ts": at(told), "updated_ts": at(told),
        "gpu_uuid": f"GPU-{node}-0", "title": f"{node}: GPU lost", "evidence": json.dumps([{"effect": 0.25}]),
    } | other  # fmt: skip
    if over is None:
        return [first]
    return [first, first | {"ts": at(over), "revision": 1, "state": "resolved", "resolved_ts": at(over)}]


def job(node: str, name: str, start: float, end: float | None, state: str = "completed") -> dict[str, Any]:
    """One placement on all GPUs of a node."""
    return {
        "ts": at(start if end is None else end), "node_id": node, "job_id": name, "allocated_ts": at(start),
        "state": "running" if end is None else state, "end_ts": None if end is None else at(end), "gpus": 8,
        "nodes": 1, "account": "vision",
    }  # fmt: skip
