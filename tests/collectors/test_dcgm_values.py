"""Names, units and blanks: what a page's value means for its field."""

from __future__ import annotations

import math

import pytest

from graynode.collectors.dcgm.fields import COLUMNS, Column, Foreign, column, names_of
from graynode.collectors.dcgm.page import number
from graynode.collectors.dcgm.values import Refused, value_of
from graynode.pipeline.schema import TABLES

DEV, PROF = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
RENAMED = {
    "GPU_TEMP": "GPU_TEMP_CELSIUS", "MEMORY_TEMP": "MEMORY_TEMP_CELSIUS", "GPU_TEMP_LIMIT": "GPU_TEMP_MARGIN_CELSIUS",
    "POWER_USAGE": "BOARD_POWER_WATTS", "POWER_USAGE_INSTANT": "BOARD_POWER_RAW_WATTS",
    "POWER_MGMT_LIMIT": "BOARD_POWER_LIMIT_REQUESTED_WATTS", "ENFORCED_POWER_LIMIT": "BOARD_POWER_LIMIT_ENFORCED_WATTS",
    "CLOCK_THROTTLE_REASONS": "CLOCKS_EVENT_REASONS", "PCIE_REPLAY_COUNTER": "PCIE_REPLAY_TOTAL",
    "GPU_UTIL": "GPU_UTIL_RATIO", "RETIRED_SBE": "PAGE_RETIRED_SBE_TOTAL", "ROW_REMAP_FAILURE": "ROW_REMAP_FAILED",
    "UNCORRECTABLE_REMAPPED_ROWS": "ROW_REMAP_UNCORRECTABLE_TOTAL", "THRESHOLD_SRM": "SRAM_EXCEEDED",
    "BANKS_REMAP_ROWS_AVAIL_NONE": "BANK_REMAP_AVAIL_NONE", "GET_GPU_RECOVERY_ACTION": "GPU_RECOVERY_ACTION",
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "NVLINK_CRC_FLIT_ERROR_TOTAL", "PSTATE": "GPU_PSTATE",
    "NVLINK_COUNT_RX_SYMBOL_ERRORS": "NVLINK_RX_SYMBOL_ERROR_TOTAL", "NVLINK_COUNT_TX_BYTES": "NVLINK_TX_BYTES_TOTAL",
    "PCIE_COUNT_CORRECTABLE_ERRORS": "PCIE_CORRECTABLE_ERROR_TOTAL",
}  # fmt: skip


def meant(name: str, text: str) -> int | float | Refused:
    """What a page's text means under a metric's name."""
    metric = column(name)
    assert isinstance(metric, Column)
    given = number(text.encode())
    return value_of(metric, text.encode() if given is None else given)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_and_new_names_are_one_field(old: str, new: str) -> None:
    """DCGM 4.6 renamed fields and kept their ids; a fleet has both."""
    assert COLUMNS[DEV + old] == COLUMNS[DEV + new]


def test_profiling_names_of_three_generations_are_one_field() -> None:
    """1001 to 1008 were ACTIVE, are UTIL_RATIO, and were lower case in the 1.x exporter."""
    assert names_of(1004) == (
        f"{PROF}TENSOR_UTIL_RATIO", f"{PROF}PIPE_TENSOR_ACTIVE", "dcgm_fi_prof_pipe_tensor_active",
    )  # fmt: skip
    assert {COLUMNS[name].field for name in names_of(1004)} == {"tensor_active_ratio"}


def test_every_dcgm_id_of_the_contract_is_read_or_left_out_by_name() -> None:
    """A new field of the contract with a DCGM id must get its names here."""
    read = {c.dcgm for c in COLUMNS.values()}
    ids = {f.dcgm for f in TABLES["gpu"].fields if f.dcgm is not None}
    assert ids - read == {286, 1508}
    for name in (f"{DEV}C2C_LINK_STATUS", f"{DEV}NVLINK_GET_STATE"):
        left_out = column(name)
        assert isinstance(left_out, Foreign)
        assert left_out.reason != "not in the contract"


def test_every_name_is_of_one_field() -> None:
    """No name twice, and each leads to a field of its own id."""
    by_id = {f.dcgm: f.name for f in TABLES["gpu"].fields if f.dcgm is not None}
    assert all(c.dcgm == 0 or by_id[c.dcgm] == c.field for c in COLUMNS.values())
    assert len({name for dcgm in by_id if dcgm for name in names_of(dcgm)}) == len(COLUMNS) - 3  # 66 and 67: no id


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        (f"{DEV}FB_USED", "58541", 58541 << 20),  # MiB
        (f"{DEV}TOTAL_ENERGY_CONSUMPTION", "5551899580", 5551899580),  # mJ already
        (f"{PROF}PCIE_TX_BYTES", "112603", 112603),  # bytes a second, whatever its name and TYPE say
        (f"{DEV}PCIE_TX_THROUGHPUT", "400", 400),  # KB a second, although exported as a counter of bytes
        (f"{DEV}GPU_UTIL_RATIO", "99", 99),  # 0 to 100, although 4.6 calls it a ratio
        (f"{PROF}GR_ENGINE_ACTIVE", "0.987654", 0.987654),
        (f"{DEV}POWER_USAGE", "113.611000", 113.611),
        (f"{DEV}POWER_VIOLATION", "17000000000", 17_000_000_000),  # ns, whatever the help says
        (f"{DEV}GPU_TEMP_LIMIT", "-3", -3),  # a negative margin is legal
        (f"{DEV}CLOCK_THROTTLE_REASONS", "132", 0x84),  # bits combine
        (f"{DEV}SM_CLOCK", "1980.0", 1980),  # what went through a time series database
        (f"{DEV}SM_CLOCK", "1.98e+03", 1980),
        (f"{DEV}RETIRED_PENDING", "3", 1),  # pages pending; the contract asks whether any
        (f"{DEV}GPU_RECOVERY_ACTION", "7", 7),  # an open enumeration
    ],
)
def test_value_in_the_fields_own_unit(name: str, text: str, value: float) -> None:
    """Units are converted as the field needs it, never by what the page says of itself."""
    got = meant(name, text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("blank", range(4))
def test_all_blanks_of_all_types(blank: int) -> None:
    """int32, int64 and fp64 blanks, each with its meaning, before any arithmetic."""
    state = ("stale", "error", "unsupported", "not_permitted")[blank]
    for name, text in (
        (f"{DEV}SM_CLOCK", str(0x7FFFFFF0 + blank)),
        (f"{DEV}GPU_TEMP", str(9223372036854775792 + blank)),
        (f"{DEV}FB_USED", str(9223372036854775792 + blank)),
        (f"{DEV}TOTAL_ENERGY_CONSUMPTION", str(9223372036854775792 + blank)),
        (f"{PROF}SM_ACTIVE", f"{140737488355328 + blank}.0"),
        (f"{DEV}POWER_USAGE", f"{140737488355328 + blank}.000000"),
        (f"{DEV}GPU_TEMP", f"{140737488355328 + blank:.14e}"),
    ):
        got = meant(name, text)
        assert isinstance(got, Refused), name
        assert got.state == state, name
    texts = ("<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>")
    word = meant(f"{DEV}GPU_TEMP", texts[blank])
    assert isinstance(word, Refused)
    assert word.state == state


@pytest.mark.parametrize("text", ["9.223372036854776e+18", "9223372036854776000", "9.223372036854775807e18"])
def test_int64_blank_after_a_float(text: str) -> None:
    """What Prometheus makes of it: known as a blank, though not which."""
    for name in (f"{DEV}GPU_UTIL", f"{DEV}FB_USED", f"{DEV}TOTAL_ENERGY_CONSUMPTION", f"{PROF}DRAM_ACTIVE"):
        got = meant(name, text)
        assert isinstance(got, Refused), name
        assert got.state == "unsupported", name


def test_int32_blank_is_a_legal_value_of_a_64_bit_counter() -> None:
    """2147483634 mJ is an hour of an idle GPU; 140737488355328 bytes are a day of NVLink."""
    assert meant(f"{DEV}TOTAL_ENERGY_CONSUMPTION", "2147483634") == 2147483634
    assert meant(f"{DEV}NVLINK_COUNT_TX_BYTES", "140737488355328") == 140737488355328
    assert meant(f"{DEV}TOTAL_ENERGY_CONSUMPTION", "140737488355330") == 140737488355330


@pytest.mark.parametrize(
    ("name", "text", "state"),
    [
        (f"{DEV}GPU_TEMP", "NaN", "implausible"),
        (f"{DEV}POWER_USAGE", "+Inf", "implausible"),
        (f"{DEV}POWER_USAGE", "-Inf", "implausible"),
        (f"{DEV}SM_CLOCK", "1980.5", "implausible"),
        (f"{DEV}GPU_UTIL", "101", "implausible"),
        (f"{DEV}FB_USED", "-1", "implausible"),
        (f"{DEV}FB_USED", "8796093022208", "implausible"),  # in bytes it is no int64 any more
        (f"{DEV}PCIE_REPLAY_COUNTER", "-5", "implausible"),
        (f"{DEV}MEMORY_TEMP", "0", "implausible"),  # as L4 and L40S say it, which have no HBM
        (f"{DEV}GPU_TEMP", "N/A", "unsupported"),
        (f"{DEV}GPU_TEMP", "[Insufficient Permissions]", "not_permitted"),
        (f"{DEV}GPU_TEMP", "FAILED TO CONVERT", "error"),
        (f"{DEV}GPU_TEMP", "", "error"),
    ],
)
def test_what_is_no_measurement_is_refused_with_its_reason(name: str, text: str, state: str) -> None:
    """Null and a reason, never a number that could be taken for one."""
    got = meant(name, text)
    assert isinstance(got, Refused)
    assert got.state == state
    assert got.reason


def test_every_column_refuses_every_blank_of_its_own_type() -> None:
    """Also of fields that are added later: a column's bounds leave its own blanks out."""
    for name, metric in COLUMNS.items():
        field = TABLES["gpu"].field(metric.field)
        own = {"int32": 0x7FFFFFF0, "int64": 9223372036854775792}.get(field.type, 140737488355328.0)
        for blank in (own, own + 2, 9223372036854775794, 9.223372036854776e18, math.nan, math.inf):
            assert isinstance(value_of(metric, blank), Refused), (name, blank)
