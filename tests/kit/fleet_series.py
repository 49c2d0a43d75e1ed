"""A simulated fleet's history as a Prometheus would have it: series of dcgm-exporter.

Made from hour windows: gauges stay at the hour's mean with a little noise, counters grow evenly inside the hour.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime

import numpy as np
import polars as pl
from prometheus_server import Labels, Samples

from graynode.collectors.simulated.fleet import Fleet
from graynode.collectors.simulated.windows import history
from graynode.pipeline.schema import CLOCK_EVENT_BITS

GAUGES: Mapping[str, tuple[str, float, float]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz_mean", 1.0, 0.003),
    "DCGM_FI_DEV_MEM_CLOCK": ("mem_clock_mhz_mean", 1.0, 0.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w_mean", 1.0, 0.01),
    "DCGM_FI_DEV_GPU_TEMP": ("temp_c_mean", 1.0, 0.01),
    "DCGM_FI_DEV_MEMORY_TEMP": ("mem_temp_c_mean", 1.0, 0.01),
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util_percent_mean", 1.0, 0.0),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("mem_util_percent_mean", 1.0, 0.0),
    "DCGM_FI_DEV_FB_USED": ("mem_used_bytes_mean", 1.0 / (1 << 20), 0.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active_ratio_mean", 1.0, 0.0),
    "DCGM_FI_DEV_PCIE_LINK_GEN": ("pcie_gen_last", 1.0, 0.0),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": ("pcie_width_last", 1.0, 0.0),
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": ("pcie_width_max_last", 1.0, 0.0),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("row_remap_failed_last", 1.0, 0.0),
}
COUNTERS: Mapping[str, str] = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "energy_mj",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "ecc_sbe_volatile",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_dbe_volatile",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "row_remaps_uncorrectable",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "row_remaps_correctable",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "pcie_replays",
}
REASONS = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
METRICS = (*GAUGES, *COUNTERS, REASONS)
"""Twenty metrics, by the names of dcgm-exporter before DCGM 4.6."""


def gpu_series(
    fleet: Fleet, start: datetime, end: datetime, step_s: int = 300, *, jobs: bool = True
) -> Iterator[tuple[Labels, Samples]]:
    """Series of every GPU and metric between two whole hours. ``jobs``: with the label that names a batch job."""
    frames = [frame for _, frame in history(fleet, start, end, 3600, ("gpu",))]
    hours = pl.concat(frames, how="diagonal").sort("gpu_uuid", "ts")
    for (uuid,), of_gpu in hours.group_by(["gpu_uuid"], maintain_order=True):
        rng = np.random.default_rng(zlib.crc32(str(uuid).encode()))  # a hash would be another in every process
        labels = _labels(fleet, of_gpu.row(-1, named=True))
        for run in _runs(of_gpu, jobs):
            named = labels | ({"hpc_job": str(run["job_id_last"][0])} if jobs and run["job_id_last"][0] else {})
            ts = _times(run, step_s)
            for metric in METRICS:
                values = _values(metric, run, step_s, rng)
                yield {"__name__": metric, **named}, list(zip(ts.tolist(), values.tolist(), strict=True))


def _labels(fleet: Fleet, row: Mapping[str, object]) -> dict[str, str]:
    node, index = str(row["node"]), str(row["gpu_index"])
    return {
        "gpu": index, "UUID": str(row["gpu_uuid"]), "device": f"nvidia{index}", "modelName": str(row["gpu_model_last"]),
        "pci_bus_id": "0000" + str(row["pci_bus_id_last"]).upper(), "Hostname": node, "instance": f"{node}:9400",
        "job": "dcgm-exporter", "DCGM_FI_DRIVER_VERSION": fleet.drivers[fleet.node_names.index(node)],
    }  # fmt: skip


def _runs(of_gpu: pl.DataFrame, jobs: bool) -> Iterator[pl.DataFrame]:
    """Hours of one job in a row: a label that changes begins another series."""
    if not jobs:
        yield of_gpu
        return
    changed = of_gpu.select((pl.col("job_id_last") != pl.col("job_id_last").shift()).fill_null(value=False).cum_sum())
    yield from of_gpu.with_columns(changed.to_series().alias("run")).partition_by("run", maintain_order=True)


def _times(hours: pl.DataFrame, step_s: int) -> np.ndarray:
    start = hours["ts"].dt.timestamp("ms").to_numpy() / 1000.0
    inside = np.arange(step_s, 3601, step_s)
    return (start[:, None] + inside[None, :]).ravel() - 7.0


def _values(metric: str, hours: pl.DataFrame, step_s: int, rng: np.random.Generator) -> np.ndarray:
    each = 3600 // step_s
    if metric == REASONS:
        return np.repeat(_reasons(hours), each)
    if metric in COUNTERS:
        last = hours[f"{COUNTERS[metric]}_last"].to_numpy().astype(np.float64)
        grown = hours[f"{COUNTERS[metric]}_delta"].fill_null(0).to_numpy().astype(np.float64)
        inside = np.arange(1, each + 1) / each
        return np.floor(np.maximum(last[:, None] - grown[:, None] * (1 - inside[None, :]), 0.0)).ravel()
    column, factor, noise = GAUGES[metric]
    values = np.repeat(hours[column].to_numpy().astype(np.float64) * factor, each)
    values = values * (1 + noise * rng.standard_normal(len(values))) if noise else values
    return np.round(values, 3) if metric.startswith("DCGM_FI_PROF") else np.rint(values)


def _reasons(hours: pl.DataFrame) -> np.ndarray:
    """Bits that were set for most of the hour."""
    bits = np.zeros(hours.height)
    for name, bit in CLOCK_EVENT_BITS.items():
        bits += bit * (hours[f"{name}_s"].fill_null(0).to_numpy() > 1800.0)
    return bits
