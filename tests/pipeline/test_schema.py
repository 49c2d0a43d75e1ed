from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.pipeline import schema
from graynode.pipeline.schema import TABLES, Field, Table, stable_id, window_field_names

RAW = ("gpu", "link", "host")
RAW_FIELDS = [(TABLES[name], f) for name in RAW for f in TABLES[name].fields]

NAME_ENDS = {
    "MHz": "_mhz", "W": "_w", "°C": "_c", "%": "_percent", "bytes": "_bytes", "bytes/s": "_bytes_per_s",
    "KB/s": "_kb_per_s", "MB/s": "_mb_per_s", "mJ": "_mj", "ns": "_ns", "ms": "_ms", "s": "_s", "Gb/s": "_gbps",
    "ticks": "_ticks", "µs": "_us", "V": "_v", "mW": "_mw", "mA": "_ma",
}  # fmt: skip

ANNOUNCED = {
    "gpu", "link", "host", "event", "probe", "step", "job", "job_log", "inventory", "quality", "finding", "incident",
    "attribution", "action", "canary", "label", "ack", "mute", "maintenance", "repair", "node_state", "service",
    "round", "state", "baseline", "threshold", "node_day",
    "price", "fleet_1h", "owned_hours", *(f"{raw}_{window}" for raw in RAW for window in ("30s", "1h")),
}  # fmt: skip


def _id(value: object) -> str:
    return value.name if isinstance(value, Table | Field) else str(value)


def test_every_table_is_there_under_its_name() -> None:
    """The lake has the tables that the design promises, and a table's key is its name."""
    assert TABLES.keys() == ANNOUNCED
    assert all(name == table.name for name, table in TABLES.items())


@pytest.mark.parametrize("table", TABLES.values(), ids=_id)
def test_table_is_well_formed(table: Table) -> None:
    """Columns are unique; every row says when, where and whose it is; the entity's columns exist; a topic is one of
    the bus's or empty for what the pipeline derives."""
    names = table.names
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert names[:3] == ("ts", "cluster", "node_id")
    assert set(table.entity) <= set(names)
    assert table.topic in (*schema.TOPICS, "")
    assert table.help
    assert table.field("ts").type == "timestamp"
    with pytest.raises(KeyError, match=f"{table.name}.nothing is not in the contract"):
        table.field("nothing")


@pytest.mark.parametrize("table", TABLES.values(), ids=_id)
def test_fields_are_well_formed(table: Table) -> None:
    """Lower-case names that SQL takes unquoted, help for a person, a legal range the right way round."""
    for field in table.fields:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", field.name)
        assert field.help, field.name
        assert not field.help.endswith("."), field.name
        if field.lo is not None and field.hi is not None:
            assert field.lo < field.hi, field.name
        if field.kind in ("gauge", "counter", "amount"):
            assert field.type in ("int32", "int64", "float32", "float64"), field.name
        if field.kind == "bits":  # seconds per bit in windows
            assert field.type == ("float32" if field.name.endswith("_s") else "int64"), field.name


@pytest.mark.parametrize("name", RAW)
def test_units_end_names_and_endings_are_units(name: str) -> None:
    """Nobody has to guess whether it is milliwatts: the unit ends the name, and an ending that reads as a unit is
    one."""
    for field in TABLES[name].fields:
        if field.unit in NAME_ENDS:
            assert field.name.endswith(NAME_ENDS[field.unit]), field.name
        ends = [(len(end), unit) for unit, end in NAME_ENDS.items() if field.name.endswith(end)]
        assert not ends or field.unit == max(ends)[1], field.name


@pytest.mark.parametrize("name", RAW)
def test_counters_say_when_they_fall(name: str) -> None:
    """A counter that falls for no named reason could not be told from a reset; none is too narrow for bytes."""
    for field in TABLES[name].fields:
        assert field.kind != "counter" or (field.resets and field.type == "int64"), field.name


def test_dcgm_ids_are_met_once() -> None:
    """Two fields with one DCGM id would be the same signal twice, or one of them is wrong."""
    ids = Counter(f.dcgm for t, f in RAW_FIELDS if f.dcgm is not None)
    assert [dcgm for dcgm, count in ids.items() if count > 1] == []
    assert len(ids) > 100


@pytest.mark.parametrize(
    ("name", "dcgm"),
    [("sm_clock_mhz", 100), ("power_w", 155), ("energy_mj", 156), ("temp_c", 150), ("mem_temp_c", 140),
     ("clock_event_reasons", 112), ("ecc_sbe_volatile", 310), ("ecc_dbe_aggregate", 313), ("row_remap_failed", 395),
     ("throttle_hw_power_brake_ns", 1424), ("pcie_replays", 202), ("recovery_action", 1523), ("sm_active_ratio", 1002),
     ("tensor_active_ratio", 1004), ("dram_active_ratio", 1005), ("nvlink5_symbol_errors", 1214),
     ("nvlink_ecc_errors", 1220), ("ecc_sbe_volatile_l1", 314), ("ecc_dbe_aggregate_sram", 345),
     ("violation_base_clocks_ns", 247)],
)  # fmt: skip
def test_dcgm_ids_are_those_of_the_header(name: str, dcgm: int) -> None:
    """Spot checks against DCGM 4.6 ``dcgm_fields.h``, at both ends of every generated range."""
    assert TABLES["gpu"].field(name).dcgm == dcgm


def test_fields_with_a_dcgm_id_name_their_nvml_call() -> None:
    """What DCGM knows, NVML gives: the collector has a call to make."""
    assert [f.name for _, f in RAW_FIELDS if f.dcgm and not f.nvml] == []


@pytest.mark.parametrize("suffix", schema.WINDOW_S)
@pytest.mark.parametrize("raw", RAW)
def test_windows_are_derived_field_by_field(raw: str, suffix: str) -> None:
    """A window has the raw table's keys, its counts, and for every field what its kind says; nothing else."""
    table, window = TABLES[raw], TABLES[f"{raw}_{suffix}"]
    keys = [f.name for f in table.fields if f.kind == "key"]
    derived = [column for f in table.fields for column in window_field_names(f)]
    assert list(window.names) == [*keys, "samples", "samples_expected", "resets", *derived]
    assert (window.entity, window.topic) == (table.entity, "")
    assert window.retention_d is not None
    assert table.retention_d is not None
    assert window.retention_d > table.retention_d


@pytest.mark.parametrize(
    ("field", "columns"),
    [
        ("power_w", ("power_w_mean", "power_w_min", "power_w_max")),
        ("energy_mj", ("energy_mj_delta", "energy_mj_since_reset", "energy_mj_last")),
        ("pstate", ("pstate_last",)),
        ("power_limit_w", ("power_limit_w_last",)),
        ("gpu_model", ("gpu_model_last",)),
        ("gpu_uuid", ()),
    ],
)
def test_window_columns_by_kind(field: str, columns: tuple[str, ...]) -> None:
    """Gauges become mean, min and max; counters a difference; states and texts their last value; keys themselves."""
    assert window_field_names(TABLES["gpu"].field(field)) == columns


def test_bits_become_seconds_per_bit() -> None:
    """Every clock event reason has its seconds, and an unknown bit has some too."""
    columns = window_field_names(TABLES["gpu"].field("clock_event_reasons"))
    assert columns == (*(f"{bit}_s" for bit in schema.CLOCK_EVENT_BITS), "other_clock_event_s")
    assert sorted(schema.CLOCK_EVENT_BITS.values()) == [1 << n for n in range(9)]
    assert all(TABLES["gpu_30s"].field(c).type == "float32" for c in columns)


def test_mean_of_a_large_counter_like_gauge_keeps_its_digits() -> None:
    """Bytes of memory do not fit a float32 to the byte, so their mean is a float64."""
    window = TABLES["gpu_30s"]
    assert window.field("mem_used_bytes_mean").type == "float64"
    assert window.field("mem_used_bytes_max").type == "int64"
    assert window.field("power_w_mean").type == "float32"
    assert TABLES["link_30s"].field("down_s_sum").type == "float32"


def test_blanks_of_one_type_are_legal_values_of_another() -> None:
    """An int32 blank is a plain number of bytes; so blanks are told by the field's own type."""
    assert all(b < 2**31 for b in schema.INT32_BLANK)
    assert all(2**31 < b < 2**63 for b in schema.INT64_BLANK)
    assert len(schema.INT32_BLANK) == len(schema.INT64_BLANK) == len(schema.FLOAT64_BLANK) == 4


def test_closed_lists_hold_no_doubles() -> None:
    """Causes, states, severities and owners are what they say, once each."""
    for values in (
        schema.CAUSES,
        schema.SEVERITIES,
        schema.OWNERS,
        schema.LINK_STATES,
        schema.QUALITY_STATES,
        schema.TOPICS,
    ):
        assert len(set(values)) == len(values)


def test_ids_are_the_same_everywhere_and_always() -> None:
    """A changed recipe would tell old events anew: the id of known parts is pinned."""
    assert stable_id("prod", "machine-1", "kernel_log", "boot", 4711) == "36c0f63f-aad8-5d3b-9f26-8ac4b0cb7571"
    assert uuid.UUID(stable_id("x")).version == 5


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_ids_differ_where_the_parts_differ(one: list[str], other: list[str]) -> None:
    """Parts are joined without ambiguity: ("a", "bc") is not ("ab", "c")."""
    assert (stable_id(*one) == stable_id(*other)) == (one == other)


def test_contract_needs_no_library() -> None:
    """The declaration is read by agent, server and tools alike: importing it loads nothing but Python's own."""
    code = (
        "import sys\nimport graynode.pipeline.schema\n"
        "own = {n.partition('.')[0] for n in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(n for n in own if not n.startswith(('_', 'graynode', 'sitecustomize'))))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
