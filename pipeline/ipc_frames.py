"""The frames of an Arrow IPC stream, looked at without reading the data.

Record batches of one schema can be joined only if each is exactly what it says: batches of the promised number of
rows, whose buffers lie inside a body that ends where the stream ends, nothing else. The few flatbuffer fields
needed are read here (Arrow ``Message.fbs``: header_type, header, bodyLength; ``RecordBatch``: length, nodes,
buffers, compression).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

CONTINUATION: Final = b"\xff\xff\xff\xff"
END: Final = CONTINUATION + b"\x00\x00\x00\x00"
_PREFIX: Final = struct.Struct("<4sI")
_U8: Final = struct.Struct("<B")
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_SCHEMA: Final = 1
_RECORD_BATCH: Final = 3


class Malformed(ValueError):
    """Not a plain Arrow stream as the codec writes it."""


class Batch(NamedTuple):
    """One record batch: the stream it lies in, where its body begins and how long it is, what the header lists.

    ``nodes`` are (length, nulls) per column, ``buffers`` (offset in the body, length) per buffer.
    """

    raw: bytes
    body: int
    size: int
    rows: int
    nodes: NDArray[np.int64]
    buffers: NDArray[np.int64]


class Stream(NamedTuple):
    """A stream's parts: ``schema`` bytes, its record batches, rows in them."""

    schema: bytes
    batches: list[Batch]
    rows: int


def split(raw: bytes) -> Stream:
    """Schema and batches of a stream. ``Malformed`` where anything is cut, compressed inside or of another kind."""
    try:
        return _split(raw)
    except (struct.error, IndexError, ValueError) as error:
        raise Malformed(f"cut or damaged Arrow stream: {error}") from error


def _split(raw: bytes) -> Stream:
    at, kind, size, _ = _message(raw, 0)
    if kind != _SCHEMA or size:
        raise Malformed("the stream does not begin with a schema")
    first, batches = at, []
    while at < len(raw) and raw[at : at + 8] != END:
        at, kind, size, header = _message(raw, at)
        if kind != _RECORD_BATCH:
            raise Malformed(f"message of kind {kind} where only record batches may be")
        batches.append(_batch(raw, at, size, header))
        at += size
    if at > len(raw) or len(raw) - at not in (0, len(END)):
        raise Malformed(f"the stream ends at {len(raw)}, its batches at {at}")
    return Stream(raw[:first], batches, sum(batch.rows for batch in batches))


def _message(raw: bytes, at: int) -> tuple[int, int, int, int]:
    """Position of the body, kind, body length, position of the header table of the message at ``at``."""
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
    if not header_at:
        raise Malformed("a message without header")
    return end, kind, body, _follow(raw, header_at)


def _batch(raw: bytes, body: int, size: int, header: int) -> Batch:
    if _field(raw, header, 3):
        raise Malformed("compressed inside the stream, which is not taken")
    length_at = _field(raw, header, 0)
    rows: int = _I64.unpack_from(raw, length_at)[0] if length_at else 0
    nodes, buffers = (_pairs(raw, _field(raw, header, slot)) for slot in (1, 2))
    if rows < 0 or (buffers < 0).any() or ((buffers[:, 0] + buffers[:, 1]) > size).any() or (buffers > size).any():
        raise Malformed(f"a record batch of {rows} rows with buffers outside its body")
    return Batch(raw, body, size, rows, nodes, buffers)


def _pairs(raw: bytes, at: int) -> NDArray[np.int64]:
    """A vector of structs of two 64-bit numbers."""
    if not at:
        return np.empty((0, 2), np.int64)
    start = _follow(raw, at)
    count: int = _U32.unpack_from(raw, start)[0]
    if count > len(raw) // 16:
        raise Malformed(f"{count} entries do not fit into {len(raw)} bytes")
    return np.frombuffer(raw, "<i8", 2 * count, start + 4).reshape(count, 2)


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
