"""Counters that lie: growth that cannot have been, and counters that stand where their bits end."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from landing_kit import gpu_row, link_row

from graynode.pipeline.cross_checks import SATURATES
from graynode.pipeline.lake_format import conform
from graynode.pipeline.window_counters import no_carry
from graynode.pipeline.window_math import aggregate


def window(rows: list[dict[str, Any]], table: str = "gpu") -> dict[str, Any]:
    made, _ = aggregate(table, conform(table, pl.DataFrame(rows, infer_schema_length=None)), no_carry(table))
    [row] = made.to_dicts()
    return row


def test_energy_that_no_gpu_can_draw_is_no_difference() -> None:
    """A counter that underflows gives terawatts: the step is unknown and counted, the others stay."""
    energy = [1_000_000 + 500_000 * i + (2**50 if i >= 20 else 0) for i in range(30)]
    row = window([gpu_row(i, energy_mj=energy[i]) for i in range(30)])
    assert (row["energy_mj_delta"], row["resets"]) == (28 * 500_000, 1)
    assert row["energy_mj_since_reset"] == energy[-1]


def test_time_throttled_grows_no_faster_than_time() -> None:
    """Microseconds called nanoseconds pass; something else under that id does not."""
    honest = window([gpu_row(10 * i, throttle_hw_thermal_ns=10_400_000_000 * i) for i in range(3)])
    assert honest["throttle_hw_thermal_ns_delta"] == 20_800_000_000
    wrong = window([gpu_row(10 * i, throttle_hw_thermal_ns=90_000_000_000 * i) for i in range(3)])
    assert (wrong["throttle_hw_thermal_ns_delta"], wrong["resets"]) == (None, 2)


def test_a_gap_gives_energy_its_time() -> None:
    """What grew while nobody looked is a difference like any other."""
    row = window([gpu_row(i, energy_mj=700_000 * i) for i in (0, 1, 25)])
    assert (row["energy_mj_delta"], row["resets"]) == (25 * 700_000, 0)


@pytest.mark.parametrize(("name", "limit"), SATURATES.items())
def test_a_counter_at_its_end_says_nothing(name: str, limit: int) -> None:
    """Up to the end it counts; standing there it is neither 0 nor a reset; the same value on its way is nothing."""
    up = window([link_row(i, **{name: min(limit, limit - 5 + i)}) for i in range(0, 30, 3)], "link")
    assert (up[f"{name}_delta"], up["resets"]) == (5, 0)
    full = window([link_row(i, **{name: limit}) for i in range(30)], "link")
    assert (full[f"{name}_delta"], full[f"{name}_last"], full["resets"]) == (None, limit, 0)
    assert full[f"{name}_since_reset"] is None
    wide = window([link_row(i, **{name: limit - 5 + i}) for i in range(30)], "link")
    assert wide[f"{name}_delta"] == 29
    rebooted = window([link_row(i, **{name: limit if i < 20 else 0}) for i in range(30)], "link")
    assert (rebooted[f"{name}_delta"], rebooted["resets"]) == (0, 1)
