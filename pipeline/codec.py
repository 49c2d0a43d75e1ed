"""Rows of one table of one machine as one message, and back.

A message is a plain Arrow IPC stream of all columns of its contract version, zstd over the whole of it, and
headers that say what is inside before anything is unpacked. Compression is outside the stream so that many
messages can be joined byte by byte under one schema (``graynode.pipeline.decode``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from graynode.pipeline.schema import TABLES, VERSION, Table, Type

MAX_MESSAGE_BYTES: Final = 8 << 20
"""Compressed; below the 10 MiB that the brokers are configured for."""
MAX_RAW_BYTES: Final = 64 << 20
"""Unpacked; a header that promises more is refused before a byte is unpacked."""
MAX_ROWS: Final = 200_000
_ZSTD_LEVEL: Final = 1
_ARROW: Final[Mapping[Type, pa.DataType]] = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


class Unreadable(ValueError):
    """A message that cannot be read; the text is the reason that the dead letters keep."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a bus carries. ``key`` orders (``cluster/node_id``); ``headers`` are short ASCII texts."""

    key: str
    value: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Origin:
    """Who sends: the agent's ``epoch`` counts its starts, so (node_id, epoch, sequence) is met once."""

    cluster: str
    node_id: str
    epoch: int

    @property
    def key(self) -> str:
        """What orders its messages: those of one machine keep their order."""
        return f"{self.cluster}/{self.node_id}"


@functools.cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of a table, columns in contract order, all nullable."""
    return pa.schema([pa.field(f.name, _ARROW[f.type]) for f in TABLES[table].fields])


@functools.cache
def _codec() -> pa.Codec:
    return pa.Codec("zstd", _ZSTD_LEVEL)


@functools.cache
def _columns(table: str) -> tuple[tuple[str, pa.DataType], ...]:
    return tuple((f.name, f.type) for f in arrow_schema(table))


@functools.lru_cache(maxsize=64)
def _nulls(rows: int, type_: pa.DataType) -> pa.Array:
    return pa.nulls(rows, type_)


def to_batch(table: Table, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows as one record batch of all columns; absent keys are null, unknown keys a ``KeyError``.

    A value of another type is a ``ValueError``, ``TypeError`` or ``OverflowError``, as Arrow has it.
    """
    columns = _columns(table.name)
    present = set().union(*rows)
    if unknown := present.difference(name for name, _ in columns):
        raise KeyError(f"{table.name} has no field {', '.join(sorted(unknown))}")
    arrays = [
        _array([row.get(name) for row in rows], type_) if name in present else _nulls(len(rows), type_)
        for name, type_ in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(table.name))


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type_)
    except pa.ArrowInvalid:
        # Arrow refuses an int that a float cannot hold to the last digit; the field's precision is wanted
        if not pa.types.is_floating(type_) or not all(isinstance(v, int | float | None) for v in values):
            raise
        return pa.array([None if v is None else float(v) for v in values], type_)
    except UnicodeEncodeError:
        # bytes of a log line that are no UTF-8 arrive as lone surrogates; they are kept visible
        texts = [v if v is None else v.encode("utf-8", "backslashreplace").decode() for v in values]
        return pa.array(texts, type_)


def encode(table: str, rows: Sequence[Mapping[str, Any]], origin: Origin, sequence: int, sent: datetime) -> Message:
    """One message of these rows. Errors of ``to_batch`` where they do not fit the contract."""
    return encode_batch(table, to_batch(TABLES[table], rows), origin, sequence, sent)


def encode_batch(table: str, batch: pa.RecordBatch, origin: Origin, sequence: int, sent: datetime) -> Message:
    """One message of a record batch that has the table's schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    raw = sink.getvalue()
    return Message(
        key=origin.key,
        value=_codec().compress(raw, asbytes=True),
        headers=headers_of(table, batch.num_rows, raw.size, origin, sequence, sent),
    )


def headers_of(table: str, rows: int, raw: int, origin: Origin, sequence: int, sent: datetime) -> dict[str, str]:
    """What a message says of itself before it is unpacked; ``raw`` is its size unpacked, in bytes."""
    return {
        "v": f"{VERSION[0]}.{VERSION[1]}",
        "table": table,
        "rows": str(rows),
        "raw": str(raw),
        "cluster": origin.cluster,
        "node_id": origin.node_id,
        "epoch": str(origin.epoch),
        "seq": str(sequence),
        "sent": sent.isoformat(),
    }


def check_version(version: str) -> None:
    """``Unreadable`` where a message's contract version is none, or of a newer major than this one."""
    major = version.partition(".")[0]
    if not is_count(major):
        raise Unreadable(f"no contract version in headers: {version[:40]!r}")
    if int(major) > VERSION[0]:
        raise Unreadable(f"contract version {version[:40]} is newer than {VERSION[0]}.{VERSION[1]}")


def unpack(message: Message) -> bytes:
    """The plain Arrow IPC stream of a message, limits checked first. ``Unreadable`` says what is wrong."""
    headers = message.headers
    check_version(headers.get("v", ""))
    if headers.get("table") not in TABLES:
        raise Unreadable(f"unknown table {headers.get('table', '')[:40]!r}")
    raw, rows = _size(headers, "raw", MAX_RAW_BYTES), _size(headers, "rows", MAX_ROWS)
    if len(message.value) > MAX_MESSAGE_BYTES:
        raise Unreadable(f"{len(message.value)} bytes are more than {MAX_MESSAGE_BYTES}")
    try:
        stream = _codec().decompress(message.value, decompressed_size=raw, asbytes=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Unreadable(f"not zstd of {raw} bytes ({rows} rows): {error}") from error
    if len(stream) != raw:
        raise Unreadable(f"unpacked to {len(stream)} bytes where the header says {raw}")
    return bytes(stream)


def decode(message: Message) -> pa.Table:
    """One message as an Arrow table with its own columns; for tools and tests, not the fast path."""
    stream = unpack(message)
    try:
        table = pa.ipc.open_stream(stream).read_all()
        table.validate(full=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Unreadable(f"not an Arrow stream: {error}") from error
    if table.num_rows != int(message.headers["rows"]):
        raise Unreadable(f"{table.num_rows} rows where the header says {message.headers['rows']}")
    return table


def _size(headers: Mapping[str, str], name: str, most: int) -> int:
    text = headers.get(name, "")
    if not is_count(text):
        raise Unreadable(f"header {name} is not a count: {text[:40]!r}")
    if int(text) > most:
        raise Unreadable(f"header {name} says {text}, more than {most}")
    return int(text)


def is_count(text: str) -> bool:
    """Whether a header is a count that may be read: ``isdigit`` alone takes "²" too, and Python refuses to read
    thousands of digits.
    """
    return text.isascii() and text.isdigit() and len(text) <= 12
