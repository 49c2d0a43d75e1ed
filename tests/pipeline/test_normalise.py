"""What is no measurement becomes null, and ``quality`` says so when it changes."""

from __future__ import annotations

from typing import Any

import landing_kit
import polars as pl
import pytest
from landing_kit import at, gpu_row, host_row, link_row, ms

from graynode.pipeline.decode import SOURCE
from graynode.pipeline.lake_format import conform
from graynode.pipeline.normalise import Normalised, Normaliser, quality_frame
from graynode.pipeline.schema import INT32_BLANK, INT64_BLANK, QUALITY_STATES, TABLES
from graynode.pipeline.values import bad_mask, judge, suspect


def run(
    rows: list[dict[str, Any]], normaliser: Normaliser | None = None, table: str = "gpu", each: int = 5
) -> Normalised:
    """Rows through the normaliser, so many to a message."""
    frame = conform(table, pl.DataFrame(rows, infer_schema_length=None))
    frame = frame.with_columns(pl.Series(SOURCE, [i // each for i in range(frame.height)], dtype=pl.Int32))
    return (normaliser or Normaliser()).normalise(table, frame, [ms(i * each) for i in range(-(-len(rows) // each))])


NOT_MEASURED = {
    "temp_c": [*INT32_BLANK, -1, 151],
    "energy_mj": [*INT64_BLANK, -5],
    "power_w": [float("nan"), float("inf"), float("-inf"), 140737488355328.0, -0.1, 4001.0, 9.223372036854776e18],
    "nvlink5_symbol_ber_ratio": [140737488355328.0, 140737488355331.0, 1.5],
    "mem_used_bytes": [*INT64_BLANK, -1],
    "sm_active_ratio": [1.2, 9.2e18],
    "gpu_model": ["<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>"],
}
MEASURED = {
    "temp_c": [0, 150], "energy_mj": [INT32_BLANK[0], 0, 4294967295], "power_w": [0.0, 4000.0],
    "temp_margin_c": [-20], "mem_used_bytes": list(INT32_BLANK), "clock_event_reasons": [0x7FFFFFF0, 1 << 40],
    "nvlink_tx_bytes": [140737488355328, *INT32_BLANK], "sm_active_ratio": [1.04], "gpu_model": ["", "H100"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in NOT_MEASURED.items() for v in values])
def test_what_is_no_measurement_becomes_null_with_a_reason(name: str, value: Any) -> None:
    """Blanks by the field's own type, NaN, infinities and what lies outside the legal range."""
    done = run([gpu_row(0, **{name: value}, pstate=0)])
    assert done.frame[name].to_list() == [None]
    assert done.frame["pstate"].to_list() == [0]
    [row] = done.quality
    assert row["state"] in QUALITY_STATES
    assert row["state"] != "measured"
    assert (row["table_name"], row["entity"], row["field"], row["ts"]) == ("gpu", "GPU-0", name, at(0))
    assert row["reason"]


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in MEASURED.items() for v in values])
def test_a_legal_value_stays_even_if_another_type_would_call_it_blank(name: str, value: Any) -> None:
    """An int32 blank is a legal value of a 64-bit counter; negative margins and unknown bits are legal."""
    done = run([gpu_row(0, **{name: value})])
    assert done.frame[name].to_list() == [pytest.approx(value)]
    assert not done.quality


def test_the_quick_look_and_the_mask_agree() -> None:
    """A column that is not suspect has no bad value, for every field of every sample table."""
    for table in ("gpu", "link", "host"):
        for f in TABLES[table].fields:
            if f.kind == "key" or f.type in ("bool", "timestamp", "string"):
                continue
            kind = conform(table, pl.DataFrame({"ts": [at(0)]}))[f.name].dtype
            for value in (f.lo, f.hi, 0, 1, (f.lo or 0) - 1, (f.hi if f.hi is not None else 1e8) + 1):
                if value is not None and abs(value) < 2**31:
                    column = pl.Series([value]).cast(kind)
                    assert suspect(f, column) == bad_mask(f, column).any(), (f.name, value)
                    if suspect(f, column):
                        assert judge(f, column[0]).reason


def test_a_change_is_told_once_and_a_field_that_recovers_is_measured_again() -> None:
    """One row when it goes bad, none while it stays bad, one when it has been well for a minute."""
    normaliser = Normaliser()
    done = run([gpu_row(i, temp_c=200 if 10 <= i < 40 else 50) for i in range(200)], normaliser)
    told = [(row["state"], row["ts"]) for row in done.quality]
    assert told[0] == ("implausible", at(10))
    assert told[1][0] == "measured"
    assert at(95) <= told[1][1] <= at(105)  # by message, and a message holds five seconds
    assert len(told) == 2


def test_a_flapping_field_does_not_flood_quality() -> None:
    """Bad every second sample for ten minutes: one row."""
    assert len(run([gpu_row(i, temp_c=200 if i % 2 else 50) for i in range(600)]).quality) == 1


def test_polls_of_any_size_tell_the_same() -> None:
    """What is remembered between polls is all that is needed."""
    rows = [gpu_row(i, gpu=f"GPU-{i % 2}", temp_c=200 if (i // 40) % 3 == 1 else 50) for i in range(600)]
    whole = run(rows).quality
    normaliser, parts = Normaliser(), []
    for start in range(0, 600, 50):
        parts += run(rows[start : start + 50], normaliser).quality
    names = ("ts", "entity", "field", "state", "reason")
    told = [[tuple(row[n] for n in names) for row in some] for some in (whole, parts)]
    assert sorted(told[0]) == sorted(told[1])


def test_a_restart_does_not_tell_again() -> None:
    """The table ``quality`` is the memory; rows of the agent's own do not disturb it."""
    first = run([gpu_row(0, temp_c=200)]).quality
    table = quality_frame(first).drop(SOURCE)
    agents = table.with_columns(pl.lit("temp_c").alias("field"), pl.lit("measured").alias("state"), reason=pl.lit("x"))
    normaliser = Normaliser()
    normaliser.restore(pl.concat([table, agents.with_columns(pl.col("ts") + pl.duration(seconds=1))]))
    assert not run([gpu_row(10, temp_c=200)], normaliser).quality
    assert [row["state"] for row in run([gpu_row(100, temp_c=50)], normaliser).quality] == ["measured"]


def test_a_row_without_a_usable_time_costs_itself_only() -> None:
    """Null, 1970 and a year ahead would each make a wrong partition."""
    times = [None, at(-2e9), at(3e7)]
    rows = [gpu_row(0), *({**gpu_row(1), "ts": ts} for ts in times), gpu_row(2)]
    done = run(rows)
    assert done.frame["ts"].to_list() == [at(0), at(2)]
    assert done.dropped["unplaced"] == 3


def test_the_same_entity_and_time_twice_is_one_row() -> None:
    """The first stays; another GPU or instance of the same time is no repeat."""
    rows = [gpu_row(0, temp_c=1), gpu_row(0, temp_c=2), gpu_row(0, gpu="GPU-1"), gpu_row(0, mig_instance="1")]
    done = run(rows)
    assert done.frame["temp_c"].to_list() == [1, None, None]
    assert done.dropped["duplicate"] == 1


def test_other_tables_are_cleaned_too() -> None:
    """Links and hosts tell by their own entity."""
    link = run([link_row(0, rate_gbps=-1.0)], table="link")
    host = run([host_row(0, cpu_util_percent=101.0)], table="host")
    assert [row["entity"] for row in link.quality + host.quality] == ["mlx5_0/1", "n1"]
    assert link.frame["rate_gbps"].to_list() == host.frame["cpu_util_percent"].to_list() == [None]


def test_time_is_never_rewritten() -> None:
    """Whatever else is wrong."""
    rows = [gpu_row(i + 0.123456, temp_c=999) for i in range(10)]
    assert run(rows).frame["ts"].to_list() == [row["ts"] for row in rows]
    assert landing_kit.T0.tzinfo is not None
