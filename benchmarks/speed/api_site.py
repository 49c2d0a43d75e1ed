"""A large site for measuring the faces: its machines, its jobs, and their windows as frames of the contract.

Values are plausible, not physics: what is measured with them is how long answers take. One seed gives one site.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import polars as pl

from graynode.pipeline.lake_format import conform, frame_schema

CLUSTER: Final = "bench"
MODELS: Final = ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB")
PARTITIONS: Final = ("train", "batch", "interactive", "serve")
SLOTS: Final = np.array([f"0000:{16 * (i + 1):02x}:00.0" for i in range(8)])
_RANGES: Final = {
    "gpu_util_percent": (0, 100),
    "sm_active_ratio": (0.0, 0.95),
    "tensor_active_ratio": (0.0, 0.6),
    "dram_active_ratio": (0.0, 0.7),
    "power_w": (70, 700),
    "temp_c": (28, 78),
    "mem_temp_c": (32, 92),
    "sm_clock_mhz": (345, 1980),
    "mem_used_bytes": (1e9, 78e9),
    "mem_clock_mhz": (1593, 2619),
    "mem_util_percent": (0, 80),
    "gr_engine_active_ratio": (0, 1.0),
    "power_instant_w": (65, 720),
    "pcie_tx_bytes_per_s": (0, 2e9),
    "pcie_rx_bytes_per_s": (0, 2e9),
    "nvlink_tx_bytes_per_s": (0, 3e11),
    "nvlink_rx_bytes_per_s": (0, 3e11),
    "temp_margin_c": (5, 50),
}


@dataclass(frozen=True)
class Site:
    """Size and time of it."""

    nodes: int
    days: int
    end: datetime
    seed: int = 1
    per_node: int = 8

    @property
    def gpus(self) -> int:
        """How many GPUs there are."""
        return self.nodes * self.per_node

    @property
    def since(self) -> datetime:
        """Begin of the first hour."""
        return self.end - timedelta(days=self.days)


def uuids(kind: str, count: int) -> list[str]:
    """Stable ids."""
    space = uuid.UUID("7d3f3b60-1111-5d60-9a0d-9c5b8f7a2e11")
    return [str(uuid.uuid5(space, f"{kind}{i}")) for i in range(count)]


class Fleet:
    """Who there is, and which job runs where at which hour."""

    def __init__(self, site: Site) -> None:
        self.site = site
        rng = np.random.default_rng(site.seed)
        n = site.nodes
        self.node_id = np.array(uuids("node", n))
        self.node = np.array([f"gpu-{i:05}" for i in range(n)])
        self.gpu = np.array([f"GPU-{u}" for u in uuids("gpu", site.gpus)])
        self.rack = np.array([f"rack{i // 4:04}" for i in range(n)])
        self.model = np.array(MODELS)[np.minimum(np.arange(n) * 4 // max(n, 1), 2)]
        self.of_node = np.repeat(np.arange(n), site.per_node)
        self.partition = np.array(PARTITIONS)[np.arange(n) * 4 // max(n, 1)]
        self.jobs = self._jobs(rng)

    def _jobs(self, rng: np.random.Generator) -> pl.DataFrame:
        """Jobs one after the other on blocks of GPUs of a node, or on runs of whole nodes; some gaps."""
        site, rows = self.site, []
        span = site.days * 24.0
        block = 0
        job = 100_000
        while block < site.nodes:
            size = int(rng.choice([1, 1, 1, 2, 4, 16, 64], p=[0.3, 0.2, 0.1, 0.15, 0.1, 0.1, 0.05]))
            size = min(size, site.nodes - block)
            parts = 1 if size > 1 else int(rng.choice([1, 2, 4]))
            for part in range(parts):
                at = float(rng.uniform(-20, 2))
                while at < span:
                    hours = float(min(rng.lognormal(1.6 if size == 1 else 2.8, 1.0), 200))
                    rows.append((job, block, size, part, parts, at, min(at + hours, span + 50), int(rng.integers(60))))
                    job += 1
                    at += hours + float(rng.exponential(1.5))
            block += size
        names = ["job", "first", "nodes", "part", "parts", "start_h", "end_h", "user"]
        return pl.DataFrame(rows, schema=names, orient="row")

    def job_at(self, hour: float) -> np.ndarray[Any, Any]:
        """Job number of each GPU, 0 for none."""
        on = np.zeros(self.site.gpus, dtype=np.int64)
        per = self.site.per_node
        some = self.jobs.filter((pl.col("start_h") <= hour) & (pl.col("end_h") > hour))
        for job, first, nodes, part, parts in some.select("job", "first", "nodes", "part", "parts").iter_rows():
            width = per // parts
            if parts == 1:
                on[first * per : (first + nodes) * per] = job
            else:
                on[first * per + part * width : first * per + (part + 1) * width] = job
        return on


def gpu_windows(
    fleet: Fleet, at: datetime, window_s: int, gpus: slice, rng: np.random.Generator, steps: int = 1
) -> pl.DataFrame:
    """``steps`` windows of each of these GPUs, GPU by GPU."""
    site = fleet.site
    index = np.arange(site.gpus)[gpus]
    rows = np.repeat(index, steps)
    node = fleet.of_node[rows]
    hour = (at - site.since).total_seconds() / 3600
    job = np.repeat(fleet.job_at(hour)[gpus], steps)
    busy = np.where(job > 0, rng.uniform(0.3, 1.0, len(rows)), rng.uniform(0.0, 0.03, len(rows)))
    ts = at.timestamp() * 1e6 + np.tile(np.arange(steps), len(index)) * window_s * 1e6
    columns: dict[str, Any] = {
        "ts": pl.Series(ts.astype(np.int64)).cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
        "cluster": pl.repeat(CLUSTER, len(rows), eager=True),
        "node_id": fleet.node_id[node],
        "node": fleet.node[node],
        "boot_id": fleet.node_id[node],
        "driver_load": pl.repeat(1, len(rows), dtype=pl.Int64, eager=True),
        "gpu_uuid": fleet.gpu[rows],
        "vendor": pl.repeat("NVIDIA", len(rows), eager=True),
        "gpu_index": (rows % site.per_node).astype(np.int32),
        "samples": pl.repeat(window_s, len(rows), dtype=pl.Int32, eager=True),
        "samples_expected": pl.repeat(window_s, len(rows), dtype=pl.Int32, eager=True),
        "resets": pl.repeat(0, len(rows), dtype=pl.Int32, eager=True),
        "gpu_model_last": fleet.model[node],
        "pci_bus_id_last": SLOTS[rows % site.per_node],
        "job_id_last": pl.Series(job).cast(pl.String).set(pl.Series(job == 0), None),
        "pcie_gen_last": pl.repeat(5, len(rows), dtype=pl.Int32, eager=True),
        "pcie_width_last": pl.repeat(16, len(rows), dtype=pl.Int32, eager=True),
        "pstate_last": pl.repeat(0, len(rows), dtype=pl.Int32, eager=True),
        "energy_mj_delta": (busy * 6e5 * window_s).astype(np.int64),
        "ecc_sbe_volatile_delta": (rng.random(len(rows)) < 1e-3).astype(np.int64),
        "ecc_dbe_volatile_delta": np.zeros(len(rows), dtype=np.int64),
        "pcie_replays_delta": (rng.random(len(rows)) < 1e-3).astype(np.int64),
        "throttle_sw_power_cap_ns_delta": (busy * 3e8 * window_s).astype(np.int64),
        "throttle_sw_thermal_ns_delta": np.zeros(len(rows), dtype=np.int64),
        "throttle_hw_thermal_ns_delta": np.zeros(len(rows), dtype=np.int64),
    }
    kinds = frame_schema("gpu_1h")
    for name, (low, high) in _RANGES.items():
        mean = low + (high - low) * busy * rng.uniform(0.85, 1.0, len(rows))
        for part, scale in (("mean", 1.0), ("min", 0.9), ("max", 1.05)):
            column = f"{name}_{part}"
            columns[column] = pl.Series((mean * scale).clip(low, high)).cast(kinds[column])
    return conform("gpu_1h" if window_s == 3600 else "gpu_30s", pl.DataFrame(columns))


def host_windows(fleet: Fleet, at: datetime, window_s: int, steps: int, rng: np.random.Generator) -> pl.DataFrame:
    """``steps`` windows of each node."""
    n = fleet.site.nodes * steps
    node = np.repeat(np.arange(fleet.site.nodes), steps)
    ts = at.timestamp() * 1e6 + np.tile(np.arange(steps), fleet.site.nodes) * window_s * 1e6
    frame = pl.DataFrame(
        {
            "ts": pl.Series(ts.astype(np.int64)).cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
            "cluster": [CLUSTER] * n,
            "node_id": fleet.node_id[node],
            "node": fleet.node[node],
            "boot_id": fleet.node_id[node],
            "samples": np.full(n, window_s, np.int32),
            "samples_expected": np.full(n, window_s, np.int32),
            "cpu_util_percent_mean": rng.uniform(5, 60, n),
            "load1_mean": rng.uniform(1, 90, n),
            "mem_available_bytes_mean": rng.uniform(1e11, 2e12, n),
            "driver_version_last": np.where(node % 7 == 0, "570.133.20", "570.124.06"),
            "gpus_expected_max": np.full(n, fleet.site.per_node, np.int32),
            "gpus_read_min": np.full(n, fleet.site.per_node, np.int32),
            "nvml_up_last": np.ones(n, np.int32),
        }
    )
    return conform("host_1h" if window_s == 3600 else "host_30s", frame)


def link_windows(fleet: Fleet, at: datetime, window_s: int, steps: int, rng: np.random.Generator) -> pl.DataFrame:
    """``steps`` windows of nine ports a node."""
    ports = 9
    n = fleet.site.nodes * ports * steps
    node = np.repeat(np.arange(fleet.site.nodes), ports * steps)
    port = np.tile(np.repeat(np.arange(ports), steps), fleet.site.nodes)
    ts = at.timestamp() * 1e6 + np.tile(np.arange(steps), fleet.site.nodes * ports) * window_s * 1e6
    frame = pl.DataFrame(
        {
            "ts": pl.Series(ts.astype(np.int64)).cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
            "cluster": pl.repeat(CLUSTER, n, eager=True),
            "node_id": fleet.node_id[node],
            "node": fleet.node[node],
            "boot_id": fleet.node_id[node],
            "link": np.array([f"mlx5_{i}/1" for i in range(ports)])[port],
            "samples": np.full(n, window_s, np.int32),
            "samples_expected": np.full(n, window_s, np.int32),
            "link_kind_last": pl.repeat("infiniband", n, eager=True),
            "state_last": pl.repeat("active", n, eager=True),
            "rx_bytes_delta": rng.integers(0, 10**12, n),
            "tx_bytes_delta": rng.integers(0, 10**12, n),
            "symbol_errors_delta": (rng.random(n) < 1e-3).astype(np.int64),
        }
    )
    return conform("link_1h" if window_s == 3600 else "link_30s", frame)
