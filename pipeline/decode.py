"""Messages of a poll as one frame per table; what cannot be read costs only itself.

Messages whose schema is byte for byte the same are joined column by column under it. So are those of another
contract version (missing or unknown columns, another order, narrower numbers), as far as their columns are plain;
the rest is read by name. If a joined read fails, halves are tried until the hostile messages stand alone.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from graynode.pipeline import ipc_frames, ipc_join
from graynode.pipeline.bus import Received
from graynode.pipeline.codec import Unreadable, arrow_schema, unpack
from graynode.pipeline.decode_json import decode_json
from graynode.pipeline.lake_format import conform, frame_schema
from graynode.pipeline.schema import TABLES

SOURCE: Final = "_source"
"""Column added to every frame: index of the row's message in the poll."""
_PLAIN: Final = (
    pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.timestamp("us", tz="UTC"),
)  # fmt: skip
_KEYS: Final = ("ts", "cluster", "node_id")
_OWN_ROWS_ONLY: Final = frozenset({"gpu", "link", "host"})
"""Tables whose rows must be of the machine that the message's key names: their order and windows hang on it."""
_UNREADABLE: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException, OSError, ValueError)


@dataclass(slots=True)
class Decoded:
    """``frames`` have the contract's columns and ``_source``; ``rejects`` say why, by index of the message."""

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    rejects: dict[int, str] = field(default_factory=dict)
    unknown_columns: Counter[str] = field(default_factory=Counter)
    """Messages with a column of a newer minor version, by ``table.column``; the column was dropped."""


@dataclass(frozen=True, slots=True)
class _Part:
    index: int
    received: Received
    raw: bytes
    batches: list[ipc_frames.Batch]
    rows: int


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a schema means for a table; ``schema`` is set where all its columns are plain and can be joined."""

    schema: pa.Schema | None = None
    unknown: tuple[str, ...] = ()
    trouble: str = ""


def decode(received: Sequence[Received], wanted: Sequence[bool] | None = None) -> Decoded:
    """All messages (of those ``wanted``) as frames per table. Rows keep the order of their messages."""
    result = Decoded()
    groups: dict[tuple[str, bytes], list[_Part]] = {}
    found: dict[str, list[pl.DataFrame]] = {}
    for index, message in enumerate(received):
        if wanted is not None and not wanted[index]:
            continue
        try:
            if message.message.headers.get("encoding") == "json":
                table, frame = decode_json(message.message)
                found.setdefault(table, []).append(_placed(frame, [(index, frame.height)]))
            else:
                table, schema, part = _part(index, message)
                groups.setdefault((table, schema), []).append(part)
        except Unreadable as error:
            result.rejects[index] = str(error)
    for (table, schema), parts in groups.items():
        found.setdefault(table, []).extend(_read_group(table, _shape(table, schema), parts, result))
    for table, frames in found.items():
        if frames:
            joined = frames[0] if len(frames) == 1 else pl.concat(frames).sort(SOURCE, maintain_order=True)
            result.frames[table] = joined.rechunk()
    return result


def _part(index: int, received: Received) -> tuple[str, bytes, _Part]:
    message = received.message
    raw = unpack(message)
    try:
        stream = ipc_frames.split(raw)
    except ipc_frames.Malformed as error:
        raise Unreadable(str(error)) from error
    if stream.rows != int(message.headers["rows"]):
        raise Unreadable(f"{stream.rows} rows where the header says {message.headers['rows']}")
    return message.headers["table"], stream.schema, _Part(index, received, raw, stream.batches, stream.rows)


def _read_group(table: str, shape: _Shape, parts: list[_Part], result: Decoded) -> list[pl.DataFrame]:
    if shape.trouble:
        result.rejects.update((part.index, shape.trouble) for part in parts)
        return []
    for column in shape.unknown:
        result.unknown_columns[f"{table}.{column}"] += len(parts)
    return _read(table, shape, [part for part in parts if part.rows], result)


def _read(table: str, shape: _Shape, parts: list[_Part], result: Decoded) -> list[pl.DataFrame]:
    """The parts' rows; a part that spoils the whole is found by halving and rejected."""
    if not parts:
        return []
    try:
        read = _joined(table, shape.schema, parts) if shape.schema is not None else _by_name(table, parts)
        frame = _placed(_checked(table, read, parts), [(part.index, part.rows) for part in parts])
    except _UNREADABLE as error:
        if len(parts) > 1:
            half = len(parts) // 2
            sides = (parts[:half], parts[half:])
            return [frame for side in sides for frame in _read(table, shape, side, result)]
        result.rejects[parts[0].index] = _reason(error)
        return []
    return [frame]


def _joined(table: str, schema: pa.Schema, parts: list[_Part]) -> pl.DataFrame:
    return _ours(table, ipc_join.join(schema, [batch for part in parts for batch in part.batches]))


def _by_name(table: str, parts: list[_Part]) -> pl.DataFrame:
    """Known columns only, message by message: columns of other types are never even built."""
    known, read = arrow_schema(table), []
    for part in parts:
        names = pa.ipc.open_stream(part.raw).schema.names
        included = [i for i, name in enumerate(names) if name in known.names]
        one = pa.ipc.open_stream(part.raw, options=pa.ipc.IpcReadOptions(included_fields=included)).read_all()
        one.validate(full=True)
        read.append(one)
    return _ours(table, pa.concat_tables(read))


def _ours(table: str, read: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(read.select([name for name in read.column_names if name in frame_schema(table)]))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 (a table gives a frame; narrows the type)
    return conform(table, frame)


def _checked(table: str, frame: pl.DataFrame, parts: list[_Part]) -> pl.DataFrame:
    if frame.height != sum(part.rows for part in parts):
        raise Unreadable(f"{frame.height} rows where the headers say {sum(part.rows for part in parts)}")
    if frame.schema != frame_schema(table):
        raise Unreadable(f"columns of {table} came out in other types than the contract's")
    if table in _OWN_ROWS_ONLY:
        for name in ("cluster", "node_id"):
            _check_own(table, frame, parts, name)
    return frame


def _check_own(table: str, frame: pl.DataFrame, parts: list[_Part], name: str) -> None:
    claimed = pl.Series([part.received.message.headers.get(name, "") for part in parts])
    said = claimed.gather(np.repeat(np.arange(len(parts)), [part.rows for part in parts]))
    if not (frame[name].eq_missing(said)).all():
        raise Unreadable(f"{table} rows of another {name} than the message's own")
    for part in parts:
        headers = part.received.message.headers
        if part.received.message.key != f"{headers.get('cluster')}/{headers.get('node_id')}":
            raise Unreadable(f"key {part.received.message.key[:80]!r} is not the cluster and node_id of the headers")


def _placed(frame: pl.DataFrame, rows: list[tuple[int, int]]) -> pl.DataFrame:
    source = np.repeat(np.array([i for i, _ in rows], np.int32), [n for _, n in rows])
    return frame.with_columns(pl.Series(SOURCE, source))


@functools.lru_cache(maxsize=256)
def _shape(table: str, schema: bytes) -> _Shape:
    try:
        return _shape_of(table, pa.ipc.read_schema(pa.py_buffer(schema)))
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names that are no UTF-8
        return _Shape(trouble=f"not an Arrow schema: {_reason(error)}")


def _shape_of(table: str, seen: pa.Schema) -> _Shape:
    ours = arrow_schema(table)
    if len(set(seen.names)) != len(seen.names):
        return _Shape(trouble=f"{table}: a column name twice")
    missing = [name for name in _KEYS if name not in seen.names]
    if missing:
        return _Shape(trouble=f"{table}: no column {', '.join(missing)}")
    types: Mapping[str, pa.DataType] = {f.name: f.type for f in seen}
    for name, kind in types.items():
        if name in ours.names and not _fits(kind, ours.field(name).type):
            return _Shape(trouble=f"{table}.{name} is {kind} where the contract says {ours.field(name).type}")
    plain = all(kind in _PLAIN for kind in types.values())
    unknown = tuple(name for name in seen.names if name not in ours.names)
    return _Shape(schema=seen.remove_metadata() if plain else None, unknown=unknown)


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    if found == wanted:
        return True
    narrower = {pa.int64(): (pa.int32(),), pa.float64(): (pa.float32(), pa.int32()), pa.float32(): (pa.int32(),)}
    return found in narrower.get(wanted, ())


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:300] if isinstance(error, Unreadable) else f"not a readable Arrow stream: {text[:250]}"


def tables_of(topic: str) -> tuple[str, ...]:
    """Contract tables that travel on a topic."""
    return tuple(name for name, table in TABLES.items() if table.topic == topic)
