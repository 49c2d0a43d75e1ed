"""Incidents as they travel: one JSON object per message, schema ``incident.v1``, its keys the table's fields."""

# ruff: noqa: ANN401 (a JSON value is any value until it has been checked)
from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import polars as pl

from graynode.pipeline.codec import Message, Unreadable, check_version
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import TABLES, Field

_MAX_BYTES: Final = 1 << 20
_INTEGERS: Final = {"int32": 2**31, "int64": 2**63}


def decode_json(message: Message) -> tuple[str, pl.DataFrame]:
    """Table and frame of a JSON message; keys the table does not have are left out. ``Unreadable``."""
    name = message.headers.get("table", "")
    if name not in TABLES:
        raise Unreadable(f"unknown table {name[:40]!r}")
    check_version(message.headers.get("v", "1"))
    if len(message.value) > _MAX_BYTES:
        raise Unreadable(f"{len(message.value)} bytes of JSON are more than {_MAX_BYTES}")
    try:
        said = msgspec.json.decode(message.value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error}") from error
    if not isinstance(said, dict):
        raise Unreadable("not one JSON object")
    row = {f.name: _value(f, said.get(f.name)) for f in TABLES[name].fields}
    if any(row[key] is None for key in ("ts", "cluster", "node_id")):
        raise Unreadable("ts, cluster or node_id is missing")
    return name, pl.DataFrame([row], schema=frame_schema(name), orient="row")


def _value(field: Field, value: Any) -> Any:
    if value is None:
        return None
    if field.type == "string":
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if field.type == "timestamp":
        return _instant(field, value)
    if field.type == "bool":
        return _need(field, value, isinstance(value, bool))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if field.type in _INTEGERS:
        limit = _INTEGERS[field.type]
        return _need(field, value, number and isinstance(value, int) and -limit <= value < limit)
    return float(_need(field, value, number))


def _instant(field: Field, value: Any) -> datetime:
    try:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise Unreadable(f"{field.name} is not a time with zone: {str(value)[:60]!r}")
    return instant.astimezone(UTC)


def _need(field: Field, value: Any, fits: bool) -> Any:
    if not fits:
        raise Unreadable(f"{field.name} is not {field.type}: {str(value)[:60]!r}")
    return value
