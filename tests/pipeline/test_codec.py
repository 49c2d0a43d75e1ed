from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graynode.pipeline import codec
from graynode.pipeline.codec import Message, Origin, Unreadable, arrow_schema, decode, encode, to_batch, unpack
from graynode.pipeline.schema import TABLES, VERSION, Table

ORIGIN = Origin("test", "machine-1", 3)
SENT = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=30),
    "timestamp": st.datetimes(
        min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)
    ),
}  # fmt: skip


def _row(table: str) -> st.SearchStrategy[dict[str, Any]]:
    fields = {f.name: st.none() | _VALUES[f.type] for f in TABLES[table].fields}
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def _rows(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    table = draw(st.sampled_from(["gpu", "link", "event", "host", "job", "incident"]))
    return table, draw(st.lists(_row(table), min_size=0, max_size=4))


def _message(**headers: str) -> Message:
    made = encode("host", [{"load1": float(n)} for n in range(3)], ORIGIN, 9, SENT)
    return replace(made, headers={**made.headers, **headers})


@settings(max_examples=60, deadline=None)
@given(_rows())
def test_rows_come_back_as_they_went(given_rows: tuple[str, list[dict[str, Any]]]) -> None:
    """Any value that the contract allows survives the trip; absent and null are both null; columns keep order."""
    table, rows = given_rows
    back = decode(encode(table, rows, ORIGIN, 1, SENT))
    assert back.schema.equals(arrow_schema(table))
    assert back.column_names == list(TABLES[table].names)
    expected = [{name: row.get(name) for name in TABLES[table].names} for row in rows]
    assert back.to_pylist() == expected


def test_headers_say_what_is_inside() -> None:
    """A reader knows version, table, sizes, sender and number before it unpacks anything."""
    message = encode("host", [{"load1": 1.0}, {}], ORIGIN, 42, SENT)
    raw = unpack(message)
    assert message.key == "test/machine-1"
    assert message.headers == {
        "v": f"{VERSION[0]}.{VERSION[1]}", "table": "host", "rows": "2", "raw": str(len(raw)), "cluster": "test",
        "node_id": "machine-1", "epoch": "3", "seq": "42", "sent": "2026-11-30T12:00:00.123456+00:00",
    }  # fmt: skip


def test_message_is_a_plain_arrow_stream_under_zstd() -> None:
    """Other programs read it too, and bodies can be joined: no compression inside the stream."""
    message = _message()
    stream = pa.CompressedInputStream(pa.BufferReader(message.value), "zstd").read()
    assert stream == unpack(message)
    plain = to_batch(TABLES["host"], [{"load1": 7.25}] * 100)
    body = unpack(codec.encode_batch("host", plain, ORIGIN, 1, SENT))
    assert plain.column("load1").buffers()[1].to_pybytes() in body


def test_null_and_zero_are_two_things() -> None:
    """Could not tell is not nothing."""
    rows = decode(encode("gpu", [{"power_w": 0.0, "temp_c": None}, {"temp_c": 0}], ORIGIN, 1, SENT)).to_pylist()
    assert [(r["power_w"], r["temp_c"]) for r in rows] == [(0.0, None), (None, 0)]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda t: t.name)
def test_every_field_takes_its_type(table: Table) -> None:
    """No field of the contract has a type that cannot be sent."""
    values = {
        "int32": -5, "int64": 2**62, "float32": 0.5, "float64": 0.1, "bool": True, "string": "°C ≤ ✓",
        "timestamp": SENT,
    }  # fmt: skip
    row = {f.name: values[f.type] for f in table.fields}
    assert to_batch(table, [row, {}]).to_pylist() == [row, dict.fromkeys(row)]


def test_unknown_field_is_refused_by_name() -> None:
    """A misspelt field is an error that names it, not a silent loss."""
    with pytest.raises(KeyError, match=r"gpu has no field powr_w, zzz"):
        to_batch(TABLES["gpu"], [{"power_w": 1.0}, {"zzz": 1, "powr_w": 1.0}])


@pytest.mark.parametrize(
    ("field", "value"),
    [("sm_clock_mhz", "12"), ("sm_clock_mhz", 2**31), ("sm_clock_mhz", True), ("energy_mj", 2**63),
     ("power_w", "1"), ("gpu_model", 7), ("ts", "2026-11-30"), ("clock_event_reasons", [1])],
)  # fmt: skip
def test_value_of_another_type_is_refused(field: str, value: object) -> None:
    """Wrong types are errors, before anything is sent."""
    with pytest.raises((ValueError, TypeError, OverflowError)):
        to_batch(TABLES["gpu"], [{field: value}])


def test_large_whole_numbers_fit_a_float_field() -> None:
    """A byte rate that is read as an int is a legal value of a float32 field, to the field's own precision."""
    batch = to_batch(TABLES["gpu"], [{"pcie_tx_bytes_per_s": 2**24 + 1}, {"pcie_tx_bytes_per_s": 0.5}, {}])
    assert batch.column("pcie_tx_bytes_per_s").to_pylist() == [float(2**24), 0.5, None]


def test_bytes_of_a_log_that_are_no_text_stay_visible() -> None:
    """A kernel line with a stray byte is kept; the byte is shown, not lost with the line."""
    line = b"NVRM: Xid \xff done".decode("utf-8", "surrogateescape")
    assert to_batch(TABLES["event"], [{"raw": line}, {}]).column("raw").to_pylist() == ["NVRM: Xid \\udcff done", None]


def test_times_keep_their_instant() -> None:
    """A time in another zone is the same instant; microseconds stay."""
    zone = SENT.astimezone(tz=None)
    shifted = SENT.astimezone(tz=datetime.strptime("+0530", "%z").tzinfo)
    back = to_batch(TABLES["host"], [{"ts": SENT}, {"ts": zone}, {"ts": shifted}]).column("ts").to_pylist()
    assert back == [SENT] * 3
    assert all(t.utcoffset() == timedelta(0) for t in back)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"v": ""}, "no contract version"),
        ({"v": "x.1"}, "no contract version"),
        ({"v": "²"}, "no contract version"),
        ({"v": f"{VERSION[0] + 1}.0"}, "newer than"),
        ({"v": "9" * 5000}, "no contract version"),
        ({"table": "nothing"}, "unknown table 'nothing'"),
        ({"table": ""}, "unknown table"),
        ({"raw": "-1"}, "raw is not a count"),
        ({"raw": "1e3"}, "raw is not a count"),
        ({"raw": ""}, "raw is not a count"),
        ({"raw": "٣"}, "raw is not a count"),
        ({"raw": "9" * 5000}, "raw is not a count"),
        ({"raw": str(codec.MAX_RAW_BYTES + 1)}, "raw says"),
        ({"rows": str(codec.MAX_ROWS + 1)}, "rows says"),
        ({"rows": "many"}, "rows is not a count"),
        ({"rows": "2"}, "3 rows where the header says 2"),
        ({"raw": "8"}, "not zstd of 8 bytes"),
        ({"raw": "60000"}, "not zstd of 60000 bytes"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_headers_that_lie_are_refused(headers: dict[str, str], reason: str) -> None:
    """Limits and versions are checked from the headers first, with a reason that a person can act on."""
    with pytest.raises(Unreadable, match=reason):
        decode(_message(**headers))


def test_older_and_newer_minor_versions_are_read() -> None:
    """Any older version and a newer minor are readable; only a newer major is not."""
    for version in ("0.9", f"{VERSION[0]}.{VERSION[1] + 7}", str(VERSION[0])):
        assert decode(_message(v=version)).num_rows == 3


def test_compressed_bomb_is_refused_by_its_header() -> None:
    """A few bytes that would unpack to more than the limit are never unpacked; nor to more than they said."""
    bomb = pa.compress(bytes(codec.MAX_RAW_BYTES + 1), codec="zstd", asbytes=True)
    with pytest.raises(Unreadable, match="raw says"):
        unpack(replace(_message(raw=str(codec.MAX_RAW_BYTES + 1)), value=bomb))
    with pytest.raises(Unreadable):
        unpack(replace(_message(raw="100"), value=bomb))


def test_too_many_bytes_are_refused() -> None:
    """More compressed bytes than a message may have are refused unread."""
    with pytest.raises(Unreadable, match="are more than"):
        unpack(replace(_message(), value=bytes(codec.MAX_MESSAGE_BYTES + 1)))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
@example(b"")
@example(b"\x28\xb5\x2f\xfd")
def test_any_bytes_are_unreadable_not_a_crash(value: bytes) -> None:
    """Noise in place of a message is one named error, whatever it is."""
    with pytest.raises(Unreadable):
        decode(replace(_message(), value=value))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_message_is_unreadable_or_whole(data: st.DataObject) -> None:
    """Bytes flipped or cut off under the compression (which has no check sum) never crash a reader: the result is
    the named error, or a table that Arrow itself finds valid."""
    message = _message()
    stream = bytearray(unpack(message))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(stream[: data.draw(st.sampled_from([len(stream), len(stream) // 2, 100, 8]))])
    value = pa.compress(cut, codec="zstd", asbytes=True)
    damaged = replace(message, value=value, headers={**message.headers, "raw": str(len(cut))})
    with contextlib.suppress(Unreadable):
        decode(damaged).validate(full=True)


def test_not_a_number_is_not_null() -> None:
    """The codec changes no value; what NaN means is for the normaliser to say."""
    (back,) = to_batch(TABLES["gpu"], [{"power_w": math.nan}]).column("power_w").to_pylist()
    assert math.isnan(back)
