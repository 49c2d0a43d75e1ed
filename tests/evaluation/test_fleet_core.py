"""The core at fleet size does to one signal what the product does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.benchmarks.detection.fleet_core import HALF_HOUR, Fleet, Limits, Size, others_median
from graynode.benchmarks.detection.noise import Noise
from graynode.detectors import accumulate, in_job, residual
from graynode.detectors.accumulate import TAU
from graynode.detectors.base import Round
from graynode.detectors.residual import Peers
from graynode.detectors.slow import Slow
from graynode.detectors.thresholds import shipped

NOISE = Noise(0.3, "t4", 0.003)
SIZE = Size(jobs=3, gpus=16)
START = datetime(2026, 11, 2, tzinfo=UTC)


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(seed))


@given(st.integers(4, 33), st.integers(0, 10_000))
def test_others_median_is_the_products(count: int, seed: int) -> None:
    """Rows of any length, ties included: the leave-one-out median of ``residual``."""
    values = np.round(generator(seed).normal(size=(3, count)), 1).astype(np.float32)
    groups = np.repeat(np.arange(3), count)
    theirs, _ = residual.leave_one_out_median(values.ravel().astype(np.float64), groups)
    assert others_median(values).ravel() == pytest.approx(theirs, abs=1e-6)


def test_both_sums_are_the_products_functions_on_the_same_values() -> None:
    """400 windows with a slow GPU: residual, in_job and accumulate give the core's sums, window by window.

    At a noise at which some beginnings are firm after half an hour, others later, and windows are told beyond a zone.
    """
    fleet = Fleet(Noise(0.8, "t4", 0.003), SIZE, generator())
    fleet.limits = Limits(0.5, 0.5)
    count, groups = SIZE.jobs * SIZE.gpus, np.repeat(np.arange(SIZE.jobs), SIZE.gpus)
    peers = Peers(groups, np.full(count, -1))
    held = {name: np.full(count, np.nan) for name in ("a.sum", "a.since", "a.total", "a.windows")}
    held |= {name: np.full(count, np.nan) for name in ("b.sum", "b.since", "b.total", "b.windows")}
    held |= {f"b.begun_{part}": np.zeros(count) for part in ("windows", "block", "means", "squares")}
    base = fleet.base.ravel().astype(np.float64)
    unsure: list[int] = []
    for window in range(400):
        x = fleet.window()
        x[1, 3] += 0.08 if window >= 300 else 0.0
        flat = x.ravel().astype(np.float64)
        across, _ = residual.against_own_and_peers(flat, base, peers)
        well = ~(held["b.sum"] >= 0.25)
        within, _, firm = in_job.score(held, "b", flat, peers, 30, well)
        told = residual.widened(within, TAU / 2, firm.astype(np.float64))
        unsure.append(int((~firm).sum()))
        now = np.full(count, 30.0 * window)
        a = accumulate.advance(held, "a", across.excess, now, limit=0.5)
        b = accumulate.advance(held, "b", told, now, limit=0.5)
        fleet.score(x)
        assert fleet.across.ravel() == pytest.approx(a.sum, abs=2e-5)
        assert fleet.in_job.ravel() == pytest.approx(np.nan_to_num(b.sum), abs=2e-5)
    assert fleet.in_job[1, 3] == pytest.approx(1.0, abs=0.2)
    assert 0 < unsure[HALF_HOUR] < count
    assert unsure[-1] < unsure[HALF_HOUR]


def windows(x: np.ndarray, start: datetime, job: str | None) -> pl.DataFrame:
    """Frames of clocks that measure ``x`` exactly: GPUs of two nodes in one job."""
    count = len(x)
    return pl.DataFrame(
        {
            "ts": [start] * count,
            "cluster": ["c"] * count,
            "node_id": [f"n{i // 8}" for i in range(count)],
            "gpu_uuid": [f"GPU-{i:02d}" for i in range(count)],
            "gpu_model_last": ["H100"] * count,
            "job_id_last": pl.Series([job] * count, dtype=pl.String),
            "samples": [30] * count,
            "samples_expected": [30] * count,
            "gpu_util_percent_mean": [99.0] * count,
            "gpu_idle_s": [0.0] * count,
            "sm_clock_mhz_mean": 1500.0 * np.exp(-x.astype(np.float64)),
        }
    )


def round_of(frame: pl.DataFrame, start: datetime, window_s: int) -> Round:
    none = pl.DataFrame()
    return Round(start, window_s, frame, none, none, none, none, none, none)


def test_core_and_whole_detector_agree_on_one_signal() -> None:
    """Slow over frames, primed with days of the same levels, tells the slow GPU at the core's sum and no other."""
    size = Size(jobs=1, gpus=16)
    limits = Limits(shipped().value("slow", "clock", 30), shipped().value("slow", "clock_in_job", 30))
    fleet, slow = Fleet(NOISE, size, generator(2)), Slow()
    fleet.limits = limits
    levels = fleet.base[0].astype(np.float64)
    state = {}
    for day in range(20, 8, -1):
        past = START - timedelta(days=day)
        hours = [windows(levels, past + timedelta(hours=h), "old") for h in range(12)]
        state = slow.learn(round_of(pl.concat(hours), past, 3600), state)
    told: list[int] = []
    crossed: list[int] = []
    for window in range(HALF_HOUR + 60):
        x = fleet.window()
        x[0, 5] += 0.06 if window >= HALF_HOUR + 5 else 0.0
        start = START + timedelta(seconds=30 * window)
        scored = slow.score(round_of(windows(x[0], start, "job"), start, 30), state)
        state = scored.state
        fleet.score(x)
        # The learned levels are relative to the job's centre; so are the core's residuals against the others
        for row in scored.findings.iter_rows(named=True):
            if row["score"] >= row["threshold"]:
                assert row["gpu_uuid"] == "GPU-05"
                told.append(window)
                sums = {"clock": fleet.across[0, 5], "clock_in_job": fleet.in_job[0, 5]}
                assert row["score"] == pytest.approx(float(sums[row["signal"]]), abs=0.01)
        if limits.told(fleet.across, fleet.in_job)[0, 5]:
            crossed.append(window)
    assert told
    assert told == crossed


def test_a_faulty_gpu_teaches_nothing() -> None:
    """While its sum is above half the threshold, the day's centre takes none of its windows."""
    fleet = Fleet(NOISE, SIZE, generator(3))
    fleet.limits = Limits(0.2, 0.2)
    effect = np.zeros((SIZE.jobs, SIZE.gpus), dtype=np.float32)
    effect[0, 0] = 0.1
    for _ in range(300):
        fleet.step(effect)
    taught = fleet._windows
    assert taught[0, 0] < 10
    assert (taught[1] > 250).all()


def test_a_new_job_begins_its_own_reference() -> None:
    """The sum in the job ends with the job; the one across jobs goes on."""
    fleet = Fleet(NOISE, SIZE, generator(4), job_windows=(100, 101))
    effect = np.full((SIZE.jobs, SIZE.gpus), 0.0, dtype=np.float32)
    effect[:, 0] = 0.1
    for _ in range(400):
        fleet.step(effect)
        began = fleet.age <= HALF_HOUR
        assert (fleet.in_job[began] == 0).all()
    assert (fleet.across[:, 0] > 5).all()
