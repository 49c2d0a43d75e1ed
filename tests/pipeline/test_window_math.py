"""Samples of a window as one row, against an oracle that goes sample by sample."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from landing_kit import at, gpu_row, host_row, link_row
from polars.testing import assert_frame_equal

from graynode.pipeline.hours import merge
from graynode.pipeline.lake_format import conform
from graynode.pipeline.schema import CLOCK_EVENT_BITS, TABLES, window_field_names
from graynode.pipeline.window_counters import carry_of_windows, no_carry
from graynode.pipeline.window_math import aggregate


def frame(rows: list[dict[str, Any]], table: str = "gpu") -> pl.DataFrame:
    return conform(table, pl.DataFrame(rows, infer_schema_length=None))


def windows(rows: list[dict[str, Any]], table: str = "gpu", window_s: int = 30) -> list[dict[str, Any]]:
    made, _ = aggregate(table, frame(rows, table), no_carry(table), window_s)
    return made.to_dicts()


def test_every_declared_column_is_made_by_its_kind() -> None:
    """A field of each kind, with a gap; names come from the contract alone."""
    rows = [
        gpu_row(
            i,
            power_w=100.0 + i,
            energy_mj=1000 + 10 * i,
            pstate=i % 3,
            gpu_model="H100",
            clock_event_reasons=0x4 | (i % 2),
        )
        for i in range(30)
        if i not in (7, 8)
    ]
    [row] = windows(rows)
    assert row["ts"] == at(0)
    assert (row["samples"], row["samples_expected"], row["resets"]) == (28, 30, 0)
    assert row["power_w_mean"] == pytest.approx(sum(100 + i for i in range(30) if i not in (7, 8)) / 28)
    assert (row["power_w_min"], row["power_w_max"]) == (100, 129)
    assert (row["energy_mj_delta"], row["energy_mj_since_reset"], row["energy_mj_last"]) == (290, None, 1290)
    assert (row["pstate_last"], row["gpu_model_last"]) == (29 % 3, "H100")
    assert (row["sw_power_cap_s"], row["gpu_idle_s"], row["hw_thermal_s"], row["other_clock_event_s"]) == (28, 14, 0, 0)
    assert row["temp_c_mean"] is row["nvlink_tx_bytes_delta"] is row["fabric_health_mask_last"] is None
    assert set(row) == set(TABLES["gpu_30s"].names)


def test_unknown_bits_are_not_lost() -> None:
    """Two bits that newer drivers add count as other; the sign bit too."""
    rows = [gpu_row(i, clock_event_reasons=(1 << 40) if i < 10 else -(2**63) if i < 12 else 0) for i in range(30)]
    assert windows(rows)[0]["other_clock_event_s"] == 12


def test_a_slower_schedule_does_not_lose_seconds() -> None:
    """A sample stands for its own spacing, never for a gap."""
    rows = [gpu_row(i, clock_event_reasons=0x4) for i in (0, 10, 20)]
    assert windows(rows)[0]["sw_power_cap_s"] == 30
    assert windows([gpu_row(i, clock_event_reasons=0x4) for i in (0, 1, 25)])[0]["sw_power_cap_s"] == 3


def test_amounts_add_up_and_state_and_text_keep_the_last() -> None:
    """Port samples: seconds down are already differences."""
    rows = [link_row(i, down_s=0.25, outage_s=float(i), state="down" if i > 20 else "active") for i in range(30)]
    [row] = windows(rows, "link")
    assert (row["down_s_sum"], row["outage_s_max"], row["state_last"]) == (7.5, 29, "down")


def test_a_reboot_in_mid_window_makes_the_difference_unknown_and_is_counted() -> None:
    """Differences inside each boot are kept; what lies between is unknown; the value since then has its column."""
    rows = [gpu_row(i, energy_mj=1000 + i) for i in range(10)]
    rows += [gpu_row(20 + i, boot_id="boot-2", energy_mj=500 + i) for i in range(10)]
    [row] = windows(rows)
    assert (row["energy_mj_delta"], row["energy_mj_since_reset"], row["energy_mj_last"], row["resets"]) == (
        18,
        509,
        509,
        1,
    )
    assert row["boot_id"] == "boot-2"


def test_a_fall_inside_one_boot_is_a_reset_never_a_difference() -> None:
    """9 after 1000 is not −991 and not 991."""
    rows = [gpu_row(i, energy_mj=1000 if i < 15 else i - 6) for i in range(30)]
    [row] = windows(rows)
    assert (row["energy_mj_delta"], row["energy_mj_since_reset"], row["resets"]) == (14, 23, 1)


def test_a_driver_reload_matters_to_the_gpu_and_not_to_a_port() -> None:
    """Ports count on through it; an NVLink does not; lifetime counters go on through anything but a fall."""
    gpu = [gpu_row(i, driver_load=1 + i // 15, ecc_sbe_aggregate=100 + i, ecc_sbe_volatile=100 + i) for i in range(30)]
    [row] = windows(gpu)
    assert (row["ecc_sbe_aggregate_delta"], row["ecc_sbe_aggregate_since_reset"]) == (29, None)
    assert (row["ecc_sbe_volatile_delta"], row["ecc_sbe_volatile_since_reset"], row["resets"]) == (28, 129, 1)
    port = [link_row(i, driver_load=1 + i // 15, rx_errors=i) for i in range(30)]
    nvlink = [link_row(i, gpu_uuid="G", link="G/3", driver_load=1 + i // 15, rx_errors=i) for i in range(30)]
    assert windows(port, "link")[0]["rx_errors_delta"] == 29
    assert windows(nvlink, "link")[0]["rx_errors_delta"] == 28
    host = [host_row(i, driver_load=1 + i // 15, oom_kills=i) for i in range(30)]
    assert windows(host, "host")[0]["oom_kills_delta"] == 29


def test_a_32_bit_wrap_of_replays_is_a_difference() -> None:
    """From just below 2**32 to just above zero inside one boot and driver load."""
    rows = [gpu_row(i, pcie_replays=(2**32 - 15 + i) % 2**32) for i in range(30)]
    [row] = windows(rows)
    assert (row["pcie_replays_delta"], row["resets"]) == (29, 0)
    fell = [gpu_row(i, pcie_replays=2**31 if i < 15 else 0) for i in range(30)]
    assert (windows(fell)[0]["pcie_replays_delta"], windows(fell)[0]["resets"]) == (0, 1)


def test_a_difference_across_the_border_belongs_to_the_later_window() -> None:
    """No count is lost between windows, and none is counted twice."""
    rows = [gpu_row(i, energy_mj=7 * i, ecc_sbe_volatile_sram=i // 60 if i % 60 == 0 else None) for i in range(180)]
    made = windows(rows)
    assert [row["energy_mj_delta"] for row in made] == [203, 210, 210, 210, 210, 210]
    assert [row["ecc_sbe_volatile_sram_delta"] for row in made] == [None, None, 1, None, 1, None]


def test_a_slow_counter_after_a_reboot_is_compared_with_nothing() -> None:
    """Read once a minute: its last value of the old boot is remembered, and says that a reset lies between."""
    rows = [
        gpu_row(i, ecc_sbe_volatile_sram=50 if i == 5 else 2 if i == 65 else None, boot_id="b1" if i < 40 else "b2")
        for i in range(90)
    ]
    first, second, third = windows(rows)
    assert (first["ecc_sbe_volatile_sram_last"], second["ecc_sbe_volatile_sram_last"]) == (50, None)
    assert (third["ecc_sbe_volatile_sram_delta"], third["ecc_sbe_volatile_sram_since_reset"]) == (None, 2)
    assert (first["resets"], second["resets"], third["resets"]) == (0, 1, 0)


def with_reboot(samples: list[dict[str, Any]], reboot: int, reload: int) -> list[dict[str, Any]]:
    """A boot and a driver load do not come back: one reboot and one reload at these seconds."""
    return [
        {**s, "boot_id": "b2" if s["second"] >= reboot else "b1", "driver_load": 2 if s["second"] >= reload else 1}
        for s in samples
    ]


# --- properties ------------------------------------------------------------------------------------------

SAMPLE = st.fixed_dictionaries(
    {"second": st.integers(0, 200), "gpu": st.sampled_from(["G0", "G1"])},
    optional={
        "energy_mj": st.integers(0, 50), "ecc_sbe_aggregate": st.integers(0, 9),
        "pcie_replays": st.sampled_from([0, 5, 2**32 - 1]), "ecc_sbe_volatile_sram": st.integers(0, 9),
        "power_w": st.integers(0, 700).map(float), "temp_c": st.integers(0, 99),
        "clock_event_reasons": st.integers(0, 1023), "gpu_model": st.sampled_from(["A", "B"]),
    },
)  # fmt: skip
SAMPLES = st.tuples(
    st.lists(SAMPLE, min_size=1, max_size=30, unique_by=lambda s: (s["second"], s["gpu"])),
    st.integers(0, 200),
    st.integers(0, 200),
).map(lambda drawn: with_reboot(*drawn))
COUNTERS = {"energy_mj": "load", "ecc_sbe_aggregate": "life", "pcie_replays": "load", "ecc_sbe_volatile_sram": "load"}


def as_rows(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        gpu_row(s["second"], "n1", s["gpu"], **{k: v for k, v in s.items() if k not in ("second", "gpu")})
        for s in samples
    ]


def oracle(rows: list[dict[str, Any]], name: str, scope: str) -> dict[tuple[str, Any], tuple[Any, Any, Any]]:
    """Delta, since_reset and last of one counter, one sample after the other."""
    found: dict[tuple[str, Any], list[Any]] = {}
    last: dict[str, tuple[int, Any]] = {}
    final: dict[tuple[str, Any], Any] = {}
    for row in sorted(rows, key=lambda r: (r["gpu_uuid"], r["ts"])):
        gpu, start = row["gpu_uuid"], at((row["ts"] - at(0)).total_seconds() // 30 * 30)
        segment = (row["boot_id"], row["driver_load"]) if scope == "load" else None
        held = found.setdefault((gpu, start), [None, None, None, None])
        final[gpu, start] = segment
        value = row.get(name)
        if value is None:
            continue
        if gpu in last:
            before, then = last[gpu]
            step = value - before + (2**32 if name == "pcie_replays" and before > 2**31 and value < 2**24 else 0)
            if then == segment and step >= 0:
                held[0] = (held[0] or 0) + step
            else:
                held[1] = True
        last[gpu], held[2], held[3] = (value, segment), value, segment
    return {
        key: (h[0], h[2] if h[1] and h[3] == final[key] else None, h[2] if h[3] == final[key] else None)
        for key, h in found.items()
    }


@settings(max_examples=12, deadline=None)
@given(SAMPLES, st.randoms(use_true_random=False))
def test_counters_agree_with_the_oracle_in_any_order(samples: list[dict[str, Any]], random: Any) -> None:
    """Reboots, reloads, falls, wraps and nulls at random."""
    rows = as_rows(samples)
    random.shuffle(rows)
    made = {(row["gpu_uuid"], row["ts"]): row for row in windows(rows)}
    for name, scope in COUNTERS.items():
        expected = oracle(rows, name, scope)
        found = {
            key: tuple(row.get(f"{name}_{part}") for part in ("delta", "since_reset", "last"))
            for key, row in made.items()
        }
        assert found == expected, name


@settings(max_examples=10, deadline=None)
@given(SAMPLES, st.integers(1, 5), st.booleans())
def test_window_by_window_is_the_same_as_all_at_once(samples: list[dict[str, Any]], cut: int, from_lake: bool) -> None:
    """The carry is enough, whether it stayed in memory or was made again from the window table."""
    rows = frame(as_rows(samples))
    whole, _ = aggregate("gpu", rows, no_carry("gpu"))
    border = at(30 * cut)
    first, carry = aggregate("gpu", rows.filter(pl.col("ts") < border), no_carry("gpu"))
    if from_lake:
        carry = carry_of_windows("gpu", first)
    second, _ = aggregate("gpu", rows.filter(pl.col("ts") >= border), carry)
    order = ["gpu_uuid", "ts"]
    # A value that was last read before a reset in that same window is not in the lake: that there was one is forgotten.
    unsure = [name for name in whole.columns if from_lake and name.endswith("_since_reset")]
    assert_frame_equal(pl.concat([first, second]).sort(order).drop(unsure), whole.sort(order).drop(unsure))


@settings(max_examples=10, deadline=None)
@given(SAMPLES)
def test_windows_merged_are_the_whole_hour(samples: list[dict[str, Any]]) -> None:
    """An hour from 30 s windows says what the hour's samples say."""
    rows = frame(as_rows(samples))
    thirty, _ = aggregate("gpu", rows, no_carry("gpu"))
    hour, _ = aggregate("gpu", rows, no_carry("gpu"), 3600)
    merged = merge("gpu", thirty)
    alone = [c for c in hour.columns if c.endswith("_mean")] + list(
        window_field_names(TABLES["gpu"].field("clock_event_reasons"))
    )
    assert_frame_equal(merged.drop(alone), hour.sort("gpu_uuid", "ts").drop(alone))
    assert set(CLOCK_EVENT_BITS) <= {name.removesuffix("_s") for name in alone}


def test_means_are_weighted_by_samples() -> None:
    """A window with one sample does not weigh as much as a full one."""
    rows = [gpu_row(i, power_w=100.0) for i in range(30)] + [gpu_row(30, power_w=410.0)]
    thirty, _ = aggregate("gpu", frame(rows), no_carry("gpu"))
    assert merge("gpu", thirty)["power_w_mean"].to_list() == pytest.approx([(30 * 100 + 410) / 31])
