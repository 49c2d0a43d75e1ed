"""The frames of an Arrow IPC stream, looked at without reading the data.

Streams of one schema can be joined byte by byte only if each is exactly what it says: a schema, record batches of
the promised number of rows whose bodies end where the stream ends, nothing else. The few flatbuffer fields needed
are read here (Arrow ``Message.fbs``: version, header_type, header, bodyLength; ``RecordBatch``: length, nodes,
buffers, compression).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

CONTINUATION: Final = b"\xff\xff\xff\xff"
END: Final = CONTINUATION + b"\x00\x00\x00\x00"
_PREFIX: Final = struct.Struct("<4sI")
_U8, _U16, _I32, _U32, _I64 = (struct.Struct(f"<{code}") for code in "BHiIq")
_SCHEMA, _RECORD_BATCH = 1, 3


class Malformed(ValueError):
    """Not a plain Arrow stream as the codec writes it."""


class Stream(NamedTuple):
    """Where a stream's parts are: ``schema`` bytes, ``batches`` bytes (no end mark), rows in them."""

    schema: bytes
    batches: bytes
    rows: int


def split(raw: bytes) -> Stream:
    """Schema and batches of a stream. ``Malformed`` where anything is cut, compressed inside or of another kind."""
    try:
        return _split(raw)
    except (struct.error, IndexError) as error:
        raise Malformed(f"cut or damaged Arrow stream: {error}") from error


def _split(raw: bytes) -> Stream:
    at, kind, body, _ = _message(raw, 0)
    if kind != _SCHEMA or body:
        raise Malformed("the stream does not begin with a schema")
    first, rows = at, 0
    while raw[at : at + 8] != END and at < len(raw):
        at, kind, body, length = _message(raw, at)
        if kind != _RECORD_BATCH:
            raise Malformed(f"message of kind {kind} where only record batches may be")
        at += body
        rows += length
    if at > len(raw) or len(raw) - at not in (0, len(END)):
        raise Malformed(f"the stream ends at {len(raw)}, its batches at {at}")
    return Stream(raw[:first], raw[first:at], rows)


def _message(raw: bytes, at: int) -> tuple[int, int, int, int]:
    """Position after the metadata, kind, body length, rows of the message at ``at``."""
    mark, size = _PREFIX.unpack_from(raw, at)
    if mark != CONTINUATION or size <= 0 or at + 8 + size > len(raw):
        raise Malformed(f"no message at byte {at}")
    end = at + 8 + size
    table = _follow(raw, at + 8)
    kind_at, body_at, header_at = (_field(raw, table, slot) for slot in (1, 3, 2))
    kind = _U8.unpack_from(raw, kind_at)[0] if kind_at else 0
    body = _I64.unpack_from(raw, body_at)[0] if body_at else 0
    if body < 0 or end + body > len(raw):
        raise Malformed(f"a body of {body} bytes does not fit into {len(raw)}")
    if kind != _RECORD_BATCH:
        return end, kind, body, 0
    if not header_at:
        raise Malformed("a record batch without header")
    return end, kind, body, _rows(raw, _follow(raw, header_at))


def _rows(raw: bytes, batch: int) -> int:
    if _field(raw, batch, 3):
        raise Malformed("compressed inside the stream, which is not taken")
    length_at = _field(raw, batch, 0)
    length: int = _I64.unpack_from(raw, length_at)[0] if length_at else 0
    if length < 0:
        raise Malformed(f"a record batch of {length} rows")
    return length


def _follow(raw: bytes, at: int) -> int:
    target: int = at + _U32.unpack_from(raw, at)[0]
    return target


def _field(raw: bytes, table: int, slot: int) -> int:
    """Position of a table's field, 0 where it is absent."""
    vtable = table - _I32.unpack_from(raw, table)[0]
    entry = 4 + 2 * slot
    if vtable < 0 or entry >= _U16.unpack_from(raw, vtable)[0]:
        return 0
    offset = _U16.unpack_from(raw, vtable + entry)[0]
    return table + offset if offset else 0
