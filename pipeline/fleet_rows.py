"""How hours of GPUs add up to hours of the fleet: one rule from a single GPU to the whole.

``of_gpus`` gives each GPU's hour as a row of ``fleet_1h``; ``merge`` adds rows of the same group. Amounts and counts
add up, means are weighted by the GPU-hours in which they were measured, extremes stay extremes; null is unknown and
changes nothing. So the order and the steps of merging do not matter (up to rounding), and a reader may merge further:
by day, by partition, over everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from graynode.pipeline.lake_format import conform, frame_schema
from graynode.pipeline.schema import FLEET_AMOUNTS, FLEET_GAUGES, FLEET_SECONDS

GROUP: Final = ("ts", "cluster", "partition", "rack", "gpu_model", "job_id")
_COUNTS: Final = ("gpus", "windows")
_AMOUNTS: Final = ("gpu_hours", "blind_s", *FLEET_AMOUNTS.values(), *FLEET_SECONDS)
_OF_COUNTER: Final = {column: f"{name}_delta" for name, column in FLEET_AMOUNTS.items()}
_THROTTLE_NS: Final = {
    "sw_power_cap_s": "throttle_sw_power_cap_ns_delta", "sw_thermal_s": "throttle_sw_thermal_ns_delta",
    "hw_thermal_s": "throttle_hw_thermal_ns_delta", "hw_power_brake_s": "throttle_hw_power_brake_ns_delta",
}  # fmt: skip
"""The driver's own counters of the same events: better than counting samples, where there are any."""
GPU_COLUMNS: Final = (
    "ts", "cluster", "node_id", "node", "gpu_uuid", "mig_instance", "samples", "samples_expected",
    "gpu_model_last", "job_id_last", *(f"{g}_{p}" for g in FLEET_GAUGES for p in ("mean", "min", "max")),
    *_OF_COUNTER.values(), *FLEET_SECONDS, *_THROTTLE_NS.values(),
)  # fmt: skip
"""What of ``gpu_1h`` is read."""


def of_gpus(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of ``gpu_1h`` with ``partition`` and ``rack`` added, each as a row of ``fleet_1h``; not merged.

    A MIG instance counts as a window only: its GPU has a row of its own, and nothing is counted twice.
    """
    whole = pl.col("mig_instance").is_null()
    due = pl.col("samples_expected") > 0
    # Without a schedule nobody knows what was missed: a GPU that has a row was there.
    share = pl.when(due).then((pl.col("samples") / pl.col("samples_expected")).clip(0.0, 1.0)).otherwise(1.0)
    columns: list[pl.Expr] = [
        *(pl.col(name) for name in GROUP if not name.startswith(("gpu_model", "job"))),
        pl.col("gpu_model_last").alias("gpu_model"), pl.col("job_id_last").alias("job_id"),
        whole.cast(pl.Int32).alias("gpus"), pl.lit(1, pl.Int32).alias("windows"),
        _where(whole, share).alias("gpu_hours"),
        _where(whole & due, (1.0 - share) * 3600.0).alias("blind_s"),
    ]  # fmt: skip
    for name in FLEET_GAUGES:
        mean = pl.col(f"{name}_mean")
        columns += [_where(whole, pl.col(f"{name}_{part}")).alias(f"{name}_{part}") for part in ("mean", "min", "max")]
        columns.append(_where(whole & mean.is_not_null(), share).alias(f"{name}_gpu_hours"))
    columns += [_where(whole, pl.col(old)).alias(new) for new, old in _OF_COUNTER.items()]
    columns += [
        _where(whole, pl.coalesce(pl.col(ns) / 1e9, pl.col(name))).alias(name) for name, ns in _THROTTLE_NS.items()
    ]
    return conform("fleet_1h", rows.select(columns))


def merge(rows: pl.DataFrame, group: Sequence[str] = GROUP) -> pl.DataFrame:
    """Rows of ``fleet_1h`` added up by these columns, sorted by them; columns that are neither become null."""
    exact = [
        *(pl.col(name).sum() for name in _COUNTS),
        *(_sum_or_null(pl.col(name)).alias(name) for name in _AMOUNTS),
    ]
    for name in FLEET_GAUGES:
        mean, weight = pl.col(f"{name}_mean").cast(pl.Float64), pl.col(f"{name}_gpu_hours")
        total = (mean * weight).sum()
        exact += [
            pl.when(weight.sum() > 0).then(total / weight.sum()).alias(f"{name}_mean"),
            pl.col(f"{name}_min").min(), pl.col(f"{name}_max").max(),
            _sum_or_null(weight).alias(f"{name}_gpu_hours"),
        ]  # fmt: skip
    merged = rows.group_by(list(group)).agg(exact)
    kinds = frame_schema("fleet_1h")
    whole = merged.with_columns(pl.lit(None, kinds[n]).alias(n) for n in kinds if n not in merged.columns)
    return whole.select(pl.col(n).cast(kind) for n, kind in kinds.items()).sort(list(group), nulls_last=True)


def _where(holds: pl.Expr, value: pl.Expr) -> pl.Expr:
    return pl.when(holds).then(value)


def _sum_or_null(column: pl.Expr) -> pl.Expr:
    return pl.when(column.is_not_null().any()).then(column.sum())
