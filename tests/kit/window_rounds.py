"""Synthetic rounds for detectors: a small cluster of healthy GPUs with offsets and correlated noise, and faults put in.

Columns are the contract's window columns; a test changes them by name. Everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from graynode.detectors.base import Round

START = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
Columns = dict[str, np.ndarray]
Change = Callable[[int, Columns], None]
"""Gets the window's number and the columns of a table, and changes them in place."""

EMPTY = pl.DataFrame()


def nothing(_: int, __: Columns) -> None:
    """No fault."""


@dataclass
class Cluster:
    """``nodes`` × ``gpus`` GPUs, ``ports`` ports a node, jobs over ``nodes_per_job`` nodes. Faults by table."""

    nodes: int = 8
    gpus: int = 8
    ports: int = 2
    nodes_per_job: int = 4
    seed: int = 1
    with_jobs: bool = True
    gpu_fault: Change = nothing
    link_fault: Change = nothing
    host_fault: Change = nothing
    sigma: float = 0.005
    correlation: float = 0.6
    steps: int = 0
    """Training steps that each rank (GPU) tells in a window."""
    step_fault: Change = nothing
    """Changes ``busy_s``, GPUs × steps of the window."""

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        n = self.nodes * self.gpus
        self._rng = np.random.default_rng(self.seed + 1)
        self.clock_offset = rng.normal(0, 0.015, n)
        self.temp_offset = rng.normal(0, 2.5, n) + np.tile(np.linspace(-4, 4, self.gpus), self.nodes)
        self.uuids = np.array([f"GPU-{i // self.gpus:03d}-{i % self.gpus}" for i in range(n)])
        self._noise = np.zeros(n)

    @property
    def size(self) -> int:
        return self.nodes * self.gpus

    def rounds(self, count: int, start: datetime = START, window_s: int = 30, first: int = 0) -> Iterator[Round]:
        """Consecutive windows."""
        for w in range(first, first + count):
            yield self.round(w, start + timedelta(seconds=w * window_s), window_s)

    @staticmethod
    def start_of(w: int, window_s: int = 30) -> datetime:
        """Start of window ``w``."""
        return START + timedelta(seconds=w * window_s)

    def round(self, w: int, start: datetime, window_s: int = 30) -> Round:
        """One window."""
        return Round(
            start,
            window_s,
            self._gpu(w, start, window_s),
            self._link(w, start, window_s),
            self._host(w, start, window_s),
            EMPTY,
            EMPTY,
            EMPTY,
            EMPTY,
            steps=self._steps(w, start, window_s),
        )

    def history(self, days: int = 35, before: datetime = START, step_h: int = 6) -> Round:
        """Hour windows of past days, without the faults."""
        calm = Cluster(
            self.nodes, self.gpus, self.ports, self.nodes_per_job, self.seed, self.with_jobs, sigma=self.sigma / 4
        )
        starts = [before - timedelta(days=days) + timedelta(hours=h) for h in range(0, days * 24, step_h)]
        rounds = [calm.round(w, s, 3600) for w, s in enumerate(starts)]
        frames = {t: pl.concat([getattr(r, t) for r in rounds]) for t in ("gpu", "link", "host")}
        return Round(starts[0], 3600, events=EMPTY, probes=EMPTY, inventory=EMPTY, quality=EMPTY, **frames)

    def _gpu(self, w: int, start: datetime, window_s: int) -> pl.DataFrame:
        n, rng = self.size, self._rng
        self._noise = self.correlation * self._noise + np.sqrt(1 - self.correlation**2) * rng.normal(0, self.sigma, n)
        node = np.arange(n) // self.gpus
        clock = 1755.0 * np.exp(self.clock_offset + self._noise)
        power = 640.0 * np.exp(rng.normal(0, 0.01, n))
        temp = 30 + 0.05 * power + self.temp_offset + rng.normal(0, 0.5, n)
        c: Columns = {
            "sm_clock_mhz_mean": clock,
            "mem_clock_mhz_mean": np.full(n, 2619.0),
            "power_w_mean": power,
            "temp_c_mean": temp,
            "mem_temp_c_mean": temp + 8 + rng.normal(0, 0.5, n),
            "temp_margin_c_min": np.full(n, 20.0),
            "gpu_util_percent_mean": np.full(n, 99.0),
            "gpu_idle_s": np.zeros(n),
            "hw_power_brake_s": np.zeros(n),
            "hw_thermal_s": np.zeros(n),
            "sw_thermal_s": np.zeros(n),
            **{f"throttle_{t}_ns_delta": np.zeros(n) for t in ("hw_power_brake", "hw_thermal", "sw_thermal")},
            "power_limit_enforced_w_last": np.full(n, 700.0) if w % 2 == 0 else np.full(n, np.nan),
            "mig_mode_last": np.zeros(n),
            "pcie_width_last": np.full(n, 16.0),
            "pcie_width_max_last": np.full(n, 16.0),
            "pcie_gen_last": np.full(n, 5.0),
            "pcie_gen_max_last": np.full(n, 5.0),
            "pcie_replays_delta": np.zeros(n),
            "ecc_sbe_volatile_delta": np.zeros(n),
            "ecc_sbe_aggregate_delta": np.zeros(n),
            "ecc_sbe_aggregate_last": np.zeros(n),
            "bank_remap_max_last": np.full(n, 640.0),
            "bank_remap_high_last": np.zeros(n),
            "bank_remap_partial_last": np.zeros(n),
            "bank_remap_low_last": np.zeros(n),
            "bank_remap_none_last": np.zeros(n),
            "nvlink_links_active_last": np.full(n, 18.0),
            "nvlink_links_inactive_last": np.zeros(n),
            "nvlink_crc_flit_errors_delta": np.zeros(n),
            "sm_active_ratio_mean": np.full(n, 0.8) + rng.normal(0, 0.01, n),
            "dram_active_ratio_mean": np.full(n, 0.5) + rng.normal(0, 0.01, n),
            "samples": np.full(n, float(window_s)),
            "samples_expected": np.full(n, float(window_s)),
        }
        self.gpu_fault(w, c)
        job = [f"job-{i // self.nodes_per_job}" for i in node] if self.with_jobs else [None] * n
        texts = {
            "gpu_uuid": self.uuids,
            "gpu_model_last": ["NVIDIA H100 80GB HBM3"] * n,
            "job_id_last": job,
            "job_role_last": ["train"] * n,
            "pci_bus_id_last": [f"0000:{17 + i % self.gpus:02x}:00.0" for i in range(n)],
            "mig_instance": [None] * n,
        }
        return _frame(start, node, texts, c)

    def _link(self, w: int, start: datetime, window_s: int) -> pl.DataFrame:
        n = self.nodes * self.ports
        node = np.arange(n) // self.ports
        c: Columns = {
            "state": np.array(["active"] * n, dtype=object),
            "rate_gbps_mean": np.full(n, 400.0),
            "down_s_sum": np.zeros(n),
            "outage_s_max": np.zeros(n),
            "downs_sum": np.zeros(n),
            "symbol_errors_delta": np.zeros(n),
            "link_downed_delta": np.zeros(n),
            "samples": np.full(n, float(window_s)),
            "samples_expected": np.full(n, float(window_s)),
        }
        self.link_fault(w, c)
        state = list(c.pop("state"))
        texts = {
            "link": [f"mlx5_{i % self.ports}/1" for i in range(n)],
            "gpu_uuid": [None] * n,
            "link_kind_last": ["infiniband"] * n,
            "state_last": state,
        }
        return _frame(start, node, texts, c)

    def _host(self, w: int, start: datetime, window_s: int) -> pl.DataFrame:
        n, rng = self.nodes, self._rng
        c: Columns = {
            "samples": np.full(n, float(window_s)),
            "samples_expected": np.full(n, float(window_s)),
            "samples_expected_sum": np.full(n, 4.0 * window_s),
            "samples_taken_sum": np.full(n, 4.0 * window_s),
            "gpus_expected_mean": np.full(n, float(self.gpus)),
            "gpus_read_mean": np.full(n, float(self.gpus)),
            "nvml_up_last": np.ones(n),
            "nvml_call_max_ms_mean": 3.0 * np.exp(rng.normal(0, 0.1, n)),
            **_own_metrics(n, np.random.default_rng((self.seed, w & 0xFFFFFFFF))),
        }
        self.host_fault(w, c)
        return _frame(start, np.arange(n), {"driver_version_last": ["580.65.06"] * n}, c)

    def _steps(self, w: int, start: datetime, window_s: int) -> pl.DataFrame:
        """Every rank's steps, busy for a second, noise of its own; drawn apart, so that nothing else is drawn anew."""
        n, k = self.size, self.steps
        if not k:
            return EMPTY
        rng, own = np.random.default_rng((self.seed, w & 0xFFFFFFFF, 5)), np.random.default_rng((self.seed, 5))
        busy = np.exp(own.normal(0, self.sigma, n)[:, None] + rng.normal(0, 0.02, (n, k)))
        columns: Columns = {"busy_s": busy}
        self.step_fault(w, columns)
        gpu, at = np.repeat(np.arange(n), k), np.tile(np.arange(k), n)
        job = gpu // (self.gpus * self.nodes_per_job)
        texts = {
            "gpu_uuid": self.uuids[gpu],
            "job_id": [f"job-{j}" for j in job],
            "role": ["train"] * len(gpu),
            "at": [start + timedelta(seconds=window_s * (i + 0.5) / k) for i in at.tolist()],
        }
        seconds = {
            "busy_s": columns["busy_s"].ravel(),
            "seconds": np.full(len(gpu), 1.5),
            "wait_s": np.full(len(gpu), 0.4),
        }
        frame = _frame(start, gpu // self.gpus, texts, seconds)
        numbers = {"rank": gpu - job * self.gpus * self.nodes_per_job, "step": w * k + at}
        integers = [pl.Series(c, v).cast(pl.Int32 if c == "rank" else pl.Int64) for c, v in numbers.items()]
        return frame.with_columns(pl.col("at").cast(pl.Datetime("us", "UTC")).alias("ts"), *integers).drop("at")


def _own_metrics(n: int, rng: np.random.Generator) -> Columns:
    """CPU, load and memory of hosts of one kind, moving together; drawn apart, so that nothing else is drawn anew."""
    busy = rng.normal(0, 0.05, n)
    return {
        "cpu_util_percent_mean": 20 * np.exp(busy + rng.normal(0, 0.01, n)),
        "load1_mean": 40 * np.exp(busy + rng.normal(0, 0.01, n)),
        "mem_available_bytes_mean": 1e12 * np.exp(rng.normal(0, 0.01, n)),
    }


def _frame(start: datetime, node: np.ndarray, texts: dict[str, object], numbers: Columns) -> pl.DataFrame:
    n = len(node)
    names = [f"node{i:03d}" for i in node]
    who = {
        "ts": [start] * n,
        "cluster": ["test"] * n,
        "node_id": [f"id-{x}" for x in names],
        "node": names,
        "boot_id": ["b"] * n,
    }
    frame = pl.DataFrame(
        {**who, **texts, **{k: np.asarray(v, dtype=np.float64) for k, v in numbers.items()}}, strict=False
    )
    strings = [k for k in texts if frame.schema[k] == pl.Null]
    return frame.with_columns(
        pl.col("ts").cast(pl.Datetime("us", "UTC")), *(pl.col(k).cast(pl.String) for k in strings)
    ).with_columns(pl.col(k).fill_nan(None) for k in numbers)
