"""Track ``attribution`` on jobs unlike the recorded one: other columns, several slow workers, one name twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from training_jobs import operations, step_times

from graynode.benchmarks.detection import attribution, attribution_trace
from graynode.benchmarks.detection import attribution_faults as faults
from graynode.benchmarks.detection import attribution_hardware as hardware
from graynode.benchmarks.detection.attribution_job import Trace
from graynode.benchmarks.detection.attribution_made import Sizes, make
from graynode.benchmarks.detection.result import DataError, Result
from graynode.detectors.straggler import Limits


def slower(table: pl.DataFrame, ranks: list[int], by: float) -> pl.DataFrame:
    """All compute of some workers takes longer."""
    longer = pl.col("rank").is_in(ranks) & pl.col("optype").str.contains("compute|optimizer")
    return table.with_columns(pl.when(longer).then(pl.col("duration") * by).otherwise("duration").alias("duration"))


def flags(trace: Trace) -> float | None:
    """Hardware flags on the application causes of a job."""
    result = Result(track="attribution", seed=1, n=len(trace.rank), figures={})
    hardware.evaluate(trace, Limits(), (1, 0), result, Sizes(victims=2, jobs=3))
    return result.figures[f"{trace.name}.application.hardware_flags"].value


def test_every_slow_worker_is_made_well_before_application_causes_are_made() -> None:
    """A whole slow node: its second worker stayed slow in the base, and naming it, rightly, counted as a false flag."""
    trace = attribution_trace.parse(slower(operations(stages=4), [16, 20], 1.6), "two")
    well, profile = faults.healthy(trace)
    assert set(profile.well) == {16, 20}
    assert faults.healthy(well)[1].worker is None
    assert any("made well too: 20" in note for note in make(trace, (1, 0), Sizes(2, 1)).notes)
    assert flags(trace) == 0


def test_a_worker_that_is_a_little_slow_is_made_well_and_makes_no_profile() -> None:
    """12 % where the others differ by less than 1 %: slow in truth; its excess is too near the noise for a profile."""
    trace = attribution_trace.parse(slower(operations(stages=4), [20], 1.12), "little")
    well, profile = faults.healthy(trace)
    assert profile.well == (20,)
    assert profile.worker is None
    assert faults.healthy(well)[1].well == ()


def test_a_longer_pipeline_is_no_slow_worker() -> None:
    """Pipeline 1 gets longer sequences in all its stages: its workers stay as they were recorded."""
    table = operations(stages=4)
    longer = (pl.col("dp_rank") == 1) & pl.col("optype").str.contains("compute")
    table = table.with_columns(pl.when(longer).then(pl.col("duration") * 1.2).otherwise("duration").alias("duration"))
    assert faults.healthy(attribution_trace.parse(table, "long"))[1].well == ()


def test_without_stages_the_slow_worker_is_made_well_too() -> None:
    """Nobody tells stages: those who run the same operations are each other's measure."""
    table = slower(operations(stages=4), [20], 1.6)
    trace = attribution_trace.parse(table.drop("stage", "dp_rank"), "bare")
    assert faults.healthy(trace)[1].worker == 20
    assert flags(trace) == 0


def test_jobs_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """A folder a job, each with its ``job.csv``: both are in the result, told apart by folder; hashes as well."""
    for folder, workers in (("one", 5), ("two", 4)):
        (tmp_path / folder).mkdir()
        step_times(workers=workers).write_csv(tmp_path / folder / "job.csv")
    result = attribution.run(tmp_path, 1)
    assert result.n == 9
    assert result.figures["one/job.csv.hardware_flags"].n == 5
    assert result.figures["two/job.csv.hardware_flags"].n == 4
    assert set(result.data_sha256) == {"one/job.csv", "two/job.csv"}


@pytest.mark.parametrize("column", ["mb_id", "mc", "seq_id", "start_ts"])
def test_words_where_numbers_are_expected_are_refused(column: str) -> None:
    """The file, the column and what was expected, no traceback of the reader."""
    table = operations()
    if column not in table.columns:
        table = table.with_columns(pl.lit(0).alias(column))
    with pytest.raises(DataError, match=rf"words: .*\n?.*{column}") as refused:
        attribution_trace.parse(table.with_columns(pl.lit("x").alias(column)), "words")
    assert "expected" in str(refused.value)


def test_starts_as_dates_are_seconds() -> None:
    """A trace whose starts are timestamps gives the same steps as one with seconds."""
    table = operations()
    dated = table.with_columns(pl.from_epoch((pl.col("start_ts") * 1e6).cast(pl.Int64) + 10**15, time_unit="us"))
    plain = attribution_trace.parse(table, "t")
    told = attribution_trace.parse(dated, "t")
    assert np.allclose(plain.wall, told.wall, atol=1e-3, equal_nan=True)
