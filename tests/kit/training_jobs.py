"""Made jobs in the formats of the track ``attribution``: operation traces and step times."""

from __future__ import annotations

import numpy as np
import polars as pl


def operations(
    pipelines: int = 4, stages: int = 2, steps: int = 12, microbatches: int = 4, seed: int = 1, slow: float = 0.0
) -> pl.DataFrame:
    """A 1F1B job; worker 0 is slower by ``slow`` in all it computes. Ranks are in steps of four."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        for stage in range(stages):
            for line in range(pipelines):
                rank, at = 4 * (stage * pipelines + line), 100.0 * step
                factor = (1 + slow) if rank == 0 else 1.0
                first = min(stages - stage, microbatches)
                order = "F" * first + "BF" * (microbatches - first) + "B" * first
                done = {"F": 0, "B": 0}
                for letter in order:
                    name = "forward-compute" if letter == "F" else "backward-compute"
                    seconds = (0.2 if letter == "F" else 0.4) * factor * float(np.exp(rng.normal(0, 0.01)))
                    rows.append((line, stage, rank, step, name, at, seconds, done[letter], done[letter]))
                    done[letter] += 1
                    at += seconds
                rows.append((line, stage, rank, step, "optimizer", at, 0.02 * factor, 0, -1))
                other = "forward-send" if stage < stages - 1 else "forward-recv"
                rows.append((line, stage, rank, step, other, at + 0.1, 0.5, 0, -1))
                rows.append((line, stage, rank, step, "grads-reduce-scatter", at + 1, 2.0, 0, -1))
    names = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mb_id"]
    return pl.DataFrame(rows, schema=names, orient="row")


def step_times(workers: int = 5, steps: int = 60) -> pl.DataFrame:
    """Wall seconds of a job; worker 2 is 40 % slower from its step 20 to 39."""
    rng = np.random.default_rng(2)
    worker, step = np.tile(np.arange(workers), steps), np.repeat(np.arange(steps), workers)
    times = 500 * np.exp(rng.normal(0, 0.01, len(worker)))
    times[(worker == 2) & (step >= 20) & (step < 40)] *= 1.4
    table = {"worker": worker, "gpu": 25, "time": 1 + 10 * step, "batch_time_norm": times.round()}
    return pl.DataFrame(table).with_row_index("")
