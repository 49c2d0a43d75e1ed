"""Faults as changes of what is measured: in windows as in the samples those are made of."""

from __future__ import annotations

import ast
import inspect
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from graynode.benchmarks.detection import faults, window_faults
from graynode.benchmarks.detection.window_faults import KINDS, Measured, Place
from graynode.pipeline.codec import to_batch
from graynode.pipeline.schema import TABLES
from graynode.pipeline.window_counters import no_carry
from graynode.pipeline.window_math import aggregate

START = datetime(2026, 11, 2, tzinfo=UTC)


@pytest.mark.parametrize("family", faults.FAMILIES, ids=lambda f: f.name)
def test_nothing_is_wrong_before_the_onset(family: faults.Family) -> None:
    """Zero before, the whole loss of speed at its worst, never more."""
    seconds = np.arange(-3600.0, 4 * 3600.0, 30.0)
    effect = family.course(seconds, 0.10)
    assert (effect[seconds < 0] == 0).all()
    assert effect.max() == pytest.approx(-np.log(0.9))


def test_an_intermittent_fault_is_there_a_tenth_of_the_time() -> None:
    """10 % duty."""
    effect = faults.intermittent(np.arange(0.0, 36_000.0, 1.0), 0.2)
    assert (effect > 0).mean() == pytest.approx(0.1, abs=0.002)


def test_the_window_of_the_onset_is_weakened_in_part() -> None:
    """A fault 12 s before the end of a window of 30 s shows two fifths of itself there."""
    effect = faults.windows(faults.constant, 0.05, 12.0, 3)
    assert effect == pytest.approx(-np.log(0.95) * np.array([0.4, 1.0, 1.0]))


@pytest.mark.parametrize("module", [faults, window_faults], ids=["faults", "window_faults"])
def test_faults_know_no_detector(module: object) -> None:
    """Nothing of ``graynode.detectors`` is imported (import-linter holds it for what they import too)."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    names = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    assert not [n for n in names if "detectors" in n]


def samples(slowed: float) -> pl.DataFrame:
    """Thirty seconds of two GPUs of one job, the second ``slowed`` from sample to sample."""
    noise = np.random.default_rng(3).normal(0, 5, (30, 2))
    rows = [
        {
            "ts": START + timedelta(seconds=s),
            "cluster": "c",
            "node_id": "n",
            "node": "n",
            "boot_id": "b",
            "gpu_uuid": f"GPU-{g}",
            "job_id": "7",
            "sm_clock_mhz": round((1500 + noise[s, g]) * (1.0 - slowed if g else 1.0)),
            "temp_c": 60,
        }
        for s in range(30)
        for g in range(2)
    ]
    frame = pl.from_arrow(to_batch(TABLES["gpu"], rows))
    assert isinstance(frame, pl.DataFrame)
    return aggregate("gpu", frame, no_carry("gpu"))[0]


def test_a_fault_in_samples_is_the_fault_in_windows() -> None:
    """Slower samples through the pipeline's windows, and healthy windows made slower: the same row, to a MHz."""
    healthy, ill = samples(0.0), samples(0.05)
    measured = Measured({"gpu": healthy})
    kind = next(k for k in KINDS if k.name == "slow.5pct")
    kind.change(measured, Place("n", "GPU-1", None), 0.0, kind.size, np.random.default_rng(1))
    made = measured.frames()["gpu"]
    assert made["sm_clock_mhz_mean"].to_list() == pytest.approx(ill["sm_clock_mhz_mean"].to_list(), abs=0.5)
    assert (made["sm_clock_mhz_min"] - ill["sm_clock_mhz_min"]).abs().max() <= 1
    others = [c for c in healthy.columns if not c.startswith("sm_clock")]
    assert made.select(others).equals(ill.select(others))


def test_rows_vanish_and_nulls_stay_null() -> None:
    """A silent node has no rows; what was unknown is unknown after a change."""
    frame = pl.DataFrame(
        {
            "node_id": ["a", "a", "b"],
            "gpu_uuid": ["1", "2", "3"],
            "temp_c_mean": pl.Series([50.0, None, 60.0], dtype=pl.Float32),
            "pcie_width_last": pl.Series([16, 16, None], dtype=pl.Int32),
        }
    )
    measured = Measured({"gpu": frame, "link": pl.DataFrame(schema={"node_id": pl.String, "link": pl.String}),
                         "host": pl.DataFrame({"node_id": ["a", "b"]})})  # fmt: skip
    measured.scale("gpu", "temp_c", measured.every("gpu"), 1.0, 5.0)
    measured.put("gpu", "pcie_width_last", measured.rows("gpu", "a", "2"), 8.0)
    measured.put("gpu", "no_such_column", measured.every("gpu"), 8.0)
    window_faults.silent(measured, Place("b"), 0.0, 1.0, np.random.default_rng(1))
    after = measured.frames()
    assert after["gpu"]["temp_c_mean"].to_list() == [55.0, None]
    assert after["gpu"]["pcie_width_last"].to_list() == [16, 8]
    assert after["gpu"].schema == frame.schema
    assert after["host"]["node_id"].to_list() == ["a"]
    assert measured.rows("gpu", "a", "9").size == 0
