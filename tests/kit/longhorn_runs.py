"""Made runs in Longhorn's format, where it is known which GPU differs by how much."""

from __future__ import annotations

import numpy as np
import polars as pl

START_S = 1_700_000_000


def made(
    gpus: int = 80, runs: int = 24, seed: int = 5, *, own: float = 0.001, between: float = 0.02, per_node: int = 4
) -> pl.DataFrame:
    """Runs of GPUs that differ by ``between`` for ever and by ``own`` from run to run; nodes share 0.2 % a run."""
    rng = np.random.default_rng(seed)
    gpu, run = np.repeat(np.arange(gpus), runs), np.tile(np.arange(runs), gpus)
    node = gpu // per_node
    shared = rng.normal(0, 0.002, (node.max() + 1, runs))
    log_time = rng.normal(0, between, gpus)[gpu] + shared[node, run] + rng.normal(0, own, len(gpu))
    return pl.DataFrame(
        {
            "exp": "sgemm",
            "input_size": 25536,
            "uuid": [f"GPU-{g:04d}" for g in gpu],
            "cabinet": "c001",
            "node": node,
            "ts": START_S + 600 * run,
            "kern": "gemm",
            "perf": 2400 * np.exp(log_time),
            "freq": np.round(1400 * np.exp(-log_time) / 7.5) * 7.5,
            "temp": 65.0,
            "pwr": 297 + rng.normal(0, 0.2, len(gpu)),
        }
    )
