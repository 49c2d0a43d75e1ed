"""What one field says against another: paused profilers, energy that does not count, counters at their end."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from landing_kit import at, gpu_row, link_row, ms

from graynode.pipeline.cross_checks import PROFILED, SATURATES, cross_check
from graynode.pipeline.decode import SOURCE
from graynode.pipeline.lake_format import conform
from graynode.pipeline.normalise import Normalised, Normaliser, quality_frame
from graynode.pipeline.schema import TABLES

BUSY = {"gpu_util_percent": 100, "power_w": 310.0}
DEAD = dict.fromkeys(PROFILED, 0.0)


def run(
    rows: list[dict[str, Any]], normaliser: Normaliser | None = None, table: str = "gpu", each: int = 5
) -> Normalised:
    frame = conform(table, pl.DataFrame(rows, infer_schema_length=None))
    frame = frame.with_columns(pl.Series(SOURCE, [i // each for i in range(frame.height)], dtype=pl.Int32))
    return (normaliser or Normaliser()).normalise(table, frame, [ms(i * each) for i in range(-(-len(rows) // each))])


def told(done: Normalised) -> list[tuple[Any, ...]]:
    return sorted({(row["entity"], row["state"], row["ts"]) for row in done.quality})


def test_engines_at_0_while_the_gpu_works_are_paused() -> None:
    """Every profiled field becomes null and says since when; nothing else is touched."""
    done = run([gpu_row(i, **BUSY, **DEAD, temp_c=60) for i in range(30)])
    for name in PROFILED:
        assert done.frame[name].null_count() == 30
    assert done.frame["temp_c"].to_list() == [60] * 30
    assert done.frame["gpu_util_percent"].to_list() == [100] * 30
    assert told(done) == [("GPU-0", "paused", at(0))]
    assert {row["field"] for row in done.quality} == set(PROFILED)


def test_a_contradiction_of_a_moment_is_null_and_told_by_nobody() -> None:
    """At a job's end two readings are of slightly different moments."""
    normaliser = Normaliser()
    well = {**DEAD, "gr_engine_active_ratio": 0.9}
    rows = [gpu_row(i, **BUSY, **(DEAD if i in (7, 8) else well)) for i in range(40)]
    done = run(rows, normaliser)
    assert done.frame["gr_engine_active_ratio"].null_count() == 2
    assert not done.quality
    assert not normaliser._bad
    for hour in (1, 2):  # nor twice in a day, where nothing was said in between
        assert not run([gpu_row(3600 * hour, **BUSY, **DEAD)], normaliser).quality


def test_it_is_measured_again_after_the_profiler_has_gone() -> None:
    """One row per field at each end, in whichever polls they come."""
    normaliser, quality = Normaliser(), []
    rows = [gpu_row(i, **BUSY, **(DEAD if i < 60 else {"sm_active_ratio": 0.8})) for i in range(200)]
    for start in range(0, 200, 20):
        quality += run(rows[start : start + 20], normaliser).quality
    states = [(row["state"], row["ts"]) for row in quality if row["field"] == "sm_active_ratio"]
    assert [state for state, _ in states] == ["paused", "measured"]
    assert states[0][1] == at(0)


@pytest.mark.parametrize(
    "values",
    [
        {"gpu_util_percent": 0, "power_w": 70.0, **DEAD},  # idle
        {"gpu_util_percent": 100, "power_w": 70.0, **DEAD},  # a reading of before the kernel's end
        {"gpu_util_percent": 100, **DEAD},  # no power known: nothing contradicts
        {"power_w": 400.0, **DEAD},
        {**BUSY, **DEAD, "tensor_active_ratio": 0.2},  # something counts
        {**BUSY, "fp64_active_ratio": 0.0, "gr_engine_active_ratio": 0.99, "sm_active_ratio": 0.5},  # no FP64 work
        {**BUSY, "fp64_active_ratio": 0.0},  # the engine itself is not known
        {**BUSY, "sm_active_ratio": 1.04},
    ],
)
def test_zeros_that_may_be_true_stay(values: dict[str, Any]) -> None:
    """Zero is a measurement unless something says otherwise."""
    done = run([gpu_row(i, **values) for i in range(30)])
    assert not done.quality
    for name, value in values.items():
        assert done.frame[name].to_list() == pytest.approx([value] * 30), name


def test_one_paused_gpu_of_eight_costs_nobody_else_a_value() -> None:
    """And a value that is nonsense by itself keeps its own reason."""
    rows = [
        gpu_row(i, gpu=f"GPU-{g}", **BUSY, **(DEAD if g == 3 else {"sm_active_ratio": 0.7}))
        for i in range(20)
        for g in range(8)
    ]
    rows[4]["sm_active_ratio"] = 1.75  # DCGM #152: above 100 % on MIG
    done = run(rows, each=40)
    assert done.frame.filter(pl.col("gpu_uuid") != "GPU-3")["sm_active_ratio"].null_count() == 1
    assert {(row["entity"], row["state"]) for row in done.quality} == {("GPU-3", "paused"), ("GPU-4", "implausible")}


def test_a_paused_field_that_turns_to_nonsense_is_told_as_that() -> None:
    """The state follows what is worse; what was told is taken back when it is well."""
    normaliser = Normaliser()
    rows = [gpu_row(i, **BUSY, **DEAD) for i in range(30)]
    rows += [gpu_row(i, **BUSY, sm_active_ratio=3.0) for i in range(30, 40)]
    rows += [gpu_row(i, **BUSY, sm_active_ratio=0.5) for i in range(40, 140)]
    states = [row["state"] for row in run(rows, normaliser).quality if row["field"] == "sm_active_ratio"]
    assert states == ["paused", "implausible", "measured"]


def test_a_restart_goes_on_with_what_was_told() -> None:
    """A pause that lasts through a restart of the pipeline is one pause."""
    first = run([gpu_row(i, **BUSY, **DEAD) for i in range(30)])
    normaliser = Normaliser()
    normaliser.restore(quality_frame(first.quality).drop(SOURCE))
    assert not run([gpu_row(i, **BUSY, **DEAD) for i in range(30, 60)], normaliser).quality
    again = run([gpu_row(i, **BUSY, gr_engine_active_ratio=0.9) for i in range(160, 200)], normaliser)
    assert [(r["field"], r["state"]) for r in again.quality] == [("gr_engine_active_ratio", "measured")]


def test_an_energy_counter_at_0_does_not_count() -> None:
    """0 mJ from a GPU that draws power is told; from one of which no power is known it is believed."""
    done = run([gpu_row(i, energy_mj=0, power_w=55.0) for i in range(30)])
    assert done.frame["energy_mj"].null_count() == 30
    assert [(r["field"], r["state"], r["ts"]) for r in done.quality] == [("energy_mj", "implausible", at(0))]
    assert run([gpu_row(i, energy_mj=0) for i in range(30)]).frame["energy_mj"].to_list() == [0] * 30
    after_a_load = [gpu_row(i, energy_mj=55_000 * i, power_w=55.0) for i in range(30)]
    assert not run(after_a_load).quality


@pytest.mark.parametrize(("name", "limit"), SATURATES.items())
def test_a_port_counter_at_its_end_stays_and_is_told(name: str, limit: int) -> None:
    """At least so many, says the value; that no more are counted, says ``quality``."""
    done = run([link_row(i, **{name: limit}) for i in range(20)], table="link")
    assert done.frame[name].to_list() == [limit] * 20
    assert [(r["entity"], r["field"], r["state"]) for r in done.quality] == [("mlx5_0/1", name, "stale")]
    assert not run([link_row(i, **{name: limit - 1}) for i in range(20)], table="link").quality
    wide = [link_row(i, **{name: limit + i - 5}) for i in range(100)]
    assert not run(wide, table="link").quality, "a wider counter only passes through"
    nvlink = [link_row(i, link="GPU-0/3", gpu_uuid="GPU-0", **{name: limit}) for i in range(20)]
    assert not run(nvlink, table="link").quality


def test_checks_name_only_fields_of_the_contract() -> None:
    """A renamed field must not silently end its check."""
    gpu, link = set(TABLES["gpu"].names), set(TABLES["link"].names)
    assert set(PROFILED) <= gpu
    assert set(SATURATES) <= link
    assert cross_check("host", pl.DataFrame()) == {}
