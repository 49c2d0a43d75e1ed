"""Many record batches of one schema as one table, column by column: buffers are joined, not batches.

Reading a batch costs some microseconds per column whatever is in it; with 162 columns and a few dozen rows that is
most of the time. Here a column of all batches is one join of bytes, and columns that are null in all of them are
not touched. Everything that a hostile sender could set is checked: places and lengths of buffers, text offsets,
UTF-8.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from graynode.pipeline.ipc_frames import Batch, Malformed

_MOST_TEXT: Final = 2**31 - 1


class _Column(NamedTuple):
    """Where a column is in a batch: its node, its first buffer, bytes per value (0: text or bits)."""

    name: str
    type: pa.DataType
    node: int
    buffer: int
    width: int


@functools.lru_cache(maxsize=64)
def _layout(schema: pa.Schema) -> tuple[tuple[_Column, ...], int]:
    columns, buffer = [], 0
    for node, field in enumerate(schema):
        text = pa.types.is_string(field.type)
        width = 0 if text or pa.types.is_boolean(field.type) else field.type.bit_width // 8
        columns.append(_Column(field.name, field.type, node, buffer, width))
        buffer += 3 if text else 2
    return tuple(columns), buffer


def join(schema: pa.Schema, batches: Sequence[Batch]) -> pa.Table:
    """The batches' rows in order; columns that hold nothing but nulls are left out. ``Malformed``.

    ``schema`` has the contract's plain types only: numbers, times, booleans and strings.
    """
    columns, buffers = _layout(schema)
    for batch in batches:
        if len(batch.nodes) != len(columns) or len(batch.buffers) != buffers:
            raise Malformed(f"{len(batch.nodes)} columns, {len(batch.buffers)} buffers do not fit the schema")
        lengths, absent = batch.nodes[:, 0], batch.nodes[:, 1]
        if (lengths != batch.rows).any() or (absent < 0).any() or (absent > batch.rows).any():
            raise Malformed(f"a record batch of {batch.rows} rows with columns of another length")
    batches = [batch for batch in batches if batch.rows]
    if not batches:
        return pa.table({})
    rows = np.array([batch.rows for batch in batches], np.int64)
    nulls = np.array([batch.nodes[:, 1] for batch in batches])
    places = np.array([batch.buffers for batch in batches])
    views = [memoryview(batch.raw)[batch.body : batch.body + batch.size] for batch in batches]
    arrays: dict[str, pa.Array] = {}
    for column in columns:
        if (nulls[:, column.node] < rows).any():
            one = _Parts(views, rows, nulls[:, column.node], places[:, column.buffer :])
            arrays[column.name] = one.array(column)
    return pa.table(arrays)


class _Parts:
    """One column in all batches."""

    def __init__(self, views: list[memoryview], rows: NDArray[Any], nulls: NDArray[Any], places: NDArray[Any]) -> None:
        self._views, self._rows, self._nulls, self._places = views, rows, nulls, places

    def array(self, column: _Column) -> pa.Array:
        """The joined column."""
        total = int(self._rows.sum())
        valid = self._validity()
        if column.width:
            data = [valid, pa.py_buffer(b"".join(self._slices(1, self._rows * column.width)))]
        elif pa.types.is_boolean(column.type):
            data = [valid, _packed(self._bits(1, np.ones(len(self._rows), bool)))]
        else:
            data = [valid, *self._texts(total)]
        array = pa.Array.from_buffers(column.type, total, data)
        if not column.width:
            try:
                array.validate(full=True)
            except pa.ArrowException as error:
                raise Malformed(str(error)) from error
        return array

    def _slices(self, buffer: int, sizes: NDArray[Any]) -> list[memoryview]:
        begin, have = self._places[:, buffer, 0], self._places[:, buffer, 1]
        if (have < sizes).any():
            raise Malformed("a column's buffer is shorter than its rows")
        ends = (begin + sizes).tolist()
        return [view[a:b] for view, a, b in zip(self._views, begin.tolist(), ends, strict=True)]

    def _validity(self) -> pa.Buffer | None:
        if not self._nulls.any():
            return None
        mixed = (self._nulls > 0) & (self._nulls < self._rows)
        bits = self._bits(0, mixed)
        if int((~bits).sum()) != int(self._nulls.sum()):
            raise Malformed("more or fewer nulls than the header says")
        return _packed(bits)

    def _bits(self, buffer: int, there: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Bits of the batches that have them; those of others are 1, or 0 where all is null."""
        bits = np.repeat(self._nulls < self._rows, self._rows)
        sizes = np.where(there, (self._rows + 7) // 8, 0)
        slices = self._slices(buffer, sizes)
        starts = np.cumsum(self._rows) - self._rows
        for i in np.flatnonzero(there).tolist():
            count, start = int(self._rows[i]), int(starts[i])
            raw = np.frombuffer(slices[i], np.uint8)
            bits[start : start + count] = np.unpackbits(raw, count=count, bitorder="little")
        return bits

    def _texts(self, total: int) -> list[pa.Buffer]:
        offsets = [np.frombuffer(part, "<i4") for part in self._slices(1, (self._rows + 1) * 4)]
        first = np.array([part[0] for part in offsets], np.int64)
        last = np.array([part[-1] for part in offsets], np.int64)
        lengths = np.concatenate([np.diff(part) for part in offsets])
        if (first < 0).any() or (last < first).any() or (lengths < 0).any() or int((last - first).sum()) > _MOST_TEXT:
            raise Malformed("text offsets that do not ascend")
        begin, have = self._places[:, 2, 0], self._places[:, 2, 1]
        if (last > have).any():
            raise Malformed("a text longer than its buffer")
        bounds = zip(self._views, (begin + first).tolist(), (begin + last).tolist(), strict=True)
        joined = b"".join([view[a:b] for view, a, b in bounds])
        ends = np.zeros(total + 1, np.int32)
        np.cumsum(lengths, out=ends[1:])
        return [pa.py_buffer(ends), pa.py_buffer(joined)]


def _packed(bits: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little"))
