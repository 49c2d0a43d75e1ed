"""Messages of a poll become frames; what cannot be read costs only itself."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import landing_kit
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from landing_kit import Log, at, gpu_row, message
from polars.testing import assert_frame_equal

from graynode.pipeline import codec, ipc_frames, ipc_join
from graynode.pipeline.codec import Message, Origin, arrow_schema
from graynode.pipeline.decode import SOURCE, decode
from graynode.pipeline.lake_format import conform
from graynode.pipeline.schema import TABLES


def received(*messages: Message) -> list[Any]:
    log = Log()
    return [log.add(one, 0) for one in messages]


def altered(original: Message, table: pa.Table, **headers: str) -> Message:
    """The message with other content, headers to fit."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    raw = sink.getvalue().to_pybytes()
    value = pa.Codec("zstd").compress(raw, asbytes=True)
    return replace(original, value=value, headers={**original.headers, "raw": str(len(raw)), **headers})


def whole(original: Message) -> pa.Table:
    return codec.decode(original)


def test_rows_keep_the_order_of_their_messages_whatever_the_tables() -> None:
    """Each table is one frame; its rows say which message they came in."""
    host = message([landing_kit.host_row(0)], table="host")
    found = decode(received(message([gpu_row(0), gpu_row(1)]), host, message([gpu_row(2)])))
    assert found.frames["gpu"][SOURCE].to_list() == [0, 0, 2]
    assert found.frames["gpu"]["ts"].to_list() == [at(0), at(1), at(2)]
    assert found.frames["host"][SOURCE].to_list() == [1]
    assert not found.rejects


def test_messages_not_wanted_are_not_even_unpacked() -> None:
    """A replay passes over what every table has."""
    broken = replace(message([gpu_row(0)]), value=b"nonsense")
    found = decode(received(broken, message([gpu_row(1)])), [False, True])
    assert not found.rejects
    assert found.frames["gpu"].height == 1


NUMBERS = {"int32": st.integers(-(2**31), 2**31 - 1), "int64": st.integers(-(2**63), 2**63 - 1)}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **NUMBERS, "float32": st.floats(width=32), "float64": st.floats(), "bool": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "timestamp": st.datetimes(min_value=at(0).replace(tzinfo=None), max_value=at(9e6).replace(tzinfo=None)).map(
        lambda naive: naive.replace(tzinfo=at(0).tzinfo)
    ),
}  # fmt: skip
FEW = [
    f
    for f in TABLES["finding"].fields
    if f.name in ("ts", "finding_id", "version", "value", "since", "live", "message")
]
ROW = st.fixed_dictionaries({}, optional={f.name: st.none() | VALUES[f.type] for f in FEW})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ROW, min_size=0, max_size=11), min_size=1, max_size=6))
def test_joining_by_column_is_the_same_as_reading_one_by_one(groups: list[list[dict[str, Any]]]) -> None:
    """Whatever is null where, and however many rows a message has."""
    schema = arrow_schema("finding")
    messages = [codec.encode("finding", rows, Origin("c", "n", 1), i, at(0)) for i, rows in enumerate(groups)]
    batches = [batch for one in messages for batch in ipc_frames.split(codec.unpack(one)).batches]
    joined = ipc_join.join(schema, batches)
    joined.validate(full=True)
    expected = pa.concat_tables([codec.decode(one) for one in messages])
    read = (
        pl.DataFrame(joined)
        if joined.num_columns
        else pl.DataFrame({"ts": []}, schema={"ts": pl.Datetime("us", "UTC")})
    )
    if expected.num_rows and joined.num_columns:
        assert_frame_equal(conform("finding", read), conform("finding", pl.DataFrame(expected)))
    else:
        assert all(column.null_count == len(column) for column in expected.columns)


def test_hostile_bytes_cost_only_their_own_message() -> None:
    """A thousand damaged messages among good ones: none harms another, each is told or reads as something."""
    random_ = random.Random(7)
    good = message([gpu_row(i, gpu_model="H100", sm_clock_mhz=i) for i in range(8)])
    raw = codec.unpack(good)
    for _ in range(40):
        some = []
        for _ in range(25):
            bad = bytearray(raw)
            for _ in range(random_.choice([1, 3])):
                bad[random_.randrange(len(bad))] = random_.choice([0, 255, 127, random_.randrange(256)])
            cut = bytes(bad[: random_.randrange(len(bad))] if random_.random() < 0.2 else bad)
            some.append(
                replace(
                    good,
                    value=pa.Codec("zstd").compress(cut, asbytes=True),
                    headers={**good.headers, "raw": str(len(cut))},
                )
            )
        found = decode(received(good, *some, good))
        frame = found.frames["gpu"]
        for index in (0, len(some) + 1):
            assert frame.filter(pl.col(SOURCE) == index)["sm_clock_mhz"].to_list() == list(range(8))
        assert set(frame[SOURCE]) | set(found.rejects) == set(range(len(some) + 2))
        assert all(found.rejects.values())


LIMITS = {
    "a newer major version": ({"v": "2.0"}, "newer"),
    "an unknown table": ({"table": "gpus"}, "unknown table"),
    "more rows than promised": ({"rows": "7"}, "rows where the header says 7"),
    "too many rows": ({"rows": "99999999"}, "more than"),
    "a bomb": ({"raw": str(1 << 30)}, "more than"),
    "rows of another machine": ({"node_id": "n2"}, "node_id"),
}


@pytest.mark.parametrize("case", LIMITS)
def test_limits_are_checked_before_anything_is_read(case: str) -> None:
    """Each refusal says what was wrong."""
    headers, reason = LIMITS[case]
    good = message([gpu_row(0)])
    found = decode(received(replace(good, headers={**good.headers, **headers}), good))
    assert reason in found.rejects[0]
    assert found.frames["gpu"].height == 1


def test_compression_inside_the_stream_is_refused() -> None:
    """Else the unpacked size in the header would promise nothing."""
    good = message([gpu_row(i) for i in range(50)])
    sink = pa.BufferOutputStream()
    table = whole(good)
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    raw = sink.getvalue().to_pybytes()
    packed = replace(
        good, value=pa.Codec("zstd").compress(raw, asbytes=True), headers={**good.headers, "raw": str(len(raw))}
    )
    assert "compressed inside" in decode(received(packed)).rejects[0]


def test_a_newer_minor_versions_columns_are_dropped_and_counted() -> None:
    """Known columns are read, plain or not the unknown ones are left out, beside messages of this version."""
    good = message([gpu_row(0, sm_clock_mhz=1)])
    plain = whole(good).append_column("warp_ratio", pa.array([0.5], pa.float32()))
    nested = whole(good).append_column("lanes", pa.array([[1, 2]], pa.list_(pa.int32())))
    found = decode(received(altered(good, plain, v="1.9"), good, altered(good, nested, v="1.9")))
    assert found.frames["gpu"]["sm_clock_mhz"].to_list() == [1, 1, 1]
    assert found.unknown_columns == {"gpu.warp_ratio": 1, "gpu.lanes": 1}
    assert not found.rejects


def test_an_older_versions_columns_are_found_by_name() -> None:
    """Missing columns are null, another order and narrower numbers are taken."""
    good = message([gpu_row(0, sm_clock_mhz=1, power_w=2.0)])
    table = whole(good).drop_columns(["temp_c"])
    table = table.select(list(reversed(table.column_names)))
    index = table.column_names.index("driver_load")
    table = table.set_column(index, "driver_load", table["driver_load"].cast(pa.int32()))
    found = decode(received(altered(good, table)))
    assert found.frames["gpu"]["power_w"].to_list() == [2.0]
    assert found.frames["gpu"]["driver_load"].to_list() == [1]
    assert found.frames["gpu"]["temp_c"].to_list() == [None]


@pytest.mark.parametrize("wrong", ["type", "key", "twice"])
def test_a_schema_that_is_not_the_contracts_is_told(wrong: str) -> None:
    """The reason names the column."""
    good = message([gpu_row(0, sm_clock_mhz=1)])
    table = whole(good)
    if wrong == "type":
        index = table.column_names.index("sm_clock_mhz")
        table = table.set_column(index, "sm_clock_mhz", pa.array(["1980"]))
    elif wrong == "key":
        table = table.drop_columns(["node_id"])
    else:
        table = table.append_column("ts", table["ts"])
    reason = decode(received(altered(good, table))).rejects[0]
    assert {"type": "sm_clock_mhz", "key": "node_id", "twice": "twice"}[wrong] in reason


# --- incidents as JSON ---------------------------------------------------------------------------------


def incident(**fields: Any) -> Message:
    said = {
        "ts": "2026-11-02T10:00:00+00:00", "cluster": "test", "node_id": "n1", "incident_id": "i", "revision": 1,
        "state": "open", "cause": "slow_gpu", "count": 2, "evidence": [{"value": 1}], **fields,
    }  # fmt: skip
    headers = {"v": "1.0", "table": "incident", "encoding": "json"}
    return Message("test/n1", json.dumps(said).encode(), headers)


def test_an_incident_is_a_row() -> None:
    """Keys are fields; lists become text; keys the table lacks are left out."""
    row = decode(received(incident(unheard_of=1))).frames["incident"].row(0, named=True)
    assert row["ts"] == at(0)
    assert (row["incident_id"], row["revision"], row["cause"]) == ("i", 1, "slow_gpu")
    assert json.loads(row["evidence"]) == [{"value": 1}]
    assert row["title"] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ts": "yesterday"}, "ts"),
        ({"revision": "one"}, "revision"),
        ({"node_id": None}, "node_id"),
        ({"count": 2**40}, "count"),
    ],
)
def test_an_incident_that_does_not_fit_is_told(change: dict[str, Any], reason: str) -> None:
    """One wrong field costs one message."""
    found = decode(received(incident(**change), incident()))
    assert reason in found.rejects[0]
    assert found.frames["incident"].height == 1


@pytest.mark.parametrize("value", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_json_that_is_none_is_told(value: bytes) -> None:
    """No depth and no byte harms the reader."""
    assert decode(received(replace(incident(), value=value))).rejects[0]
