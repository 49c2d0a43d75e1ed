"""What answers look like, for ``/openapi.json``: made of the contract's tables and of the fleet's frames, by route.

Nothing is listed by hand that a table or a frame lists: a new column is in the description by itself. Rows that a
question reckons (cost, capacity, reliability …) are described as objects, their names by the route's own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from graynode.pipeline.schema import TABLES
from graynode.service.fleet_now_frames import GPUS, NODES

Schema = dict[str, Any]
_TYPES: Final[Mapping[str, Schema]] = {
    "int32": {"type": ["integer", "null"]},
    "int64": {"type": ["integer", "null"]},
    "float32": {"type": ["number", "null"]},
    "float64": {"type": ["number", "null"]},
    "bool": {"type": ["boolean", "null"]},
    "string": {"type": ["string", "null"]},
    "timestamp": {"type": ["string", "null"], "format": "date-time"},
}
_OBJECT: Final[Schema] = {"type": "object"}
_PARSED: Final = ("evidence", "finding_ids")
"""JSON arrays of table ``incident``, which answers carry as arrays."""


def table(name: str, *, without: Iterable[str] = (), parsed: bool = False) -> Schema:
    """A row of a table, every column in it but those ``without``; ``parsed``: JSON arrays as arrays."""
    made: Schema = {}
    for field in TABLES[name].fields:
        if field.name in without:
            continue
        kind = {"type": ["array", "null"]} if parsed and field.name in _PARSED else _TYPES[field.type]
        unit = f" ({field.unit})" if field.unit not in ("", "1", "text", None) else ""
        made[field.name] = {**kind, "description": f"{field.help}{unit}"}
    return {"type": "object", "properties": made, "required": list(made)}


def frame(columns: Mapping[str, pl.DataType]) -> Schema:
    """A row of a frame."""
    return {
        "type": "object",
        "properties": {n: _TYPES[_kind(t)] for n, t in columns.items()},
        "required": list(columns),
    }


def _kind(type_: pl.DataType) -> str:
    if type_.is_temporal():
        return "timestamp"
    if type_.is_float():
        return "float64"
    return "int64" if type_.is_integer() else "bool" if type_ == pl.Boolean() else "string"


def rows(row: Schema) -> Schema:
    """A list: its rows, the cursor of the next page, the data's time."""
    beside: Schema = {
        "rows": {"type": "array", "items": row},
        "next": {"type": ["string", "null"], "description": "cursor of the following page; null at the end"},
        "at": {"type": ["string", "null"], "format": "date-time", "description": "the data's time"},
        "notes": {"type": "array", "items": {"type": "string"}, "description": "what a person should know of it"},
    }
    return {"type": "object", "properties": beside, "required": ["rows", "next"]}


def _with(row: Schema, **more: Schema) -> Schema:
    return {**row, "properties": {**row["properties"], **more}, "required": [*row["required"], *more]}


def _partly(row: Schema) -> Schema:
    """The same names, not all of them there."""
    return {name: value for name, value in row.items() if name != "required"}


_LIST: Final[Schema] = {"type": "array", "items": _OBJECT}
_INCIDENT: Final = table("incident", parsed=True)
_ANSWERS: Final[Mapping[str, Schema]] = {
    "/api/v1/nodes": rows(frame(NODES)),
    "/api/v1/nodes/{node}": _with(frame(NODES), gpus_now={"type": "array", "items": frame(GPUS)}, incidents=_LIST),
    "/api/v1/gpus": rows(frame(GPUS)),
    "/api/v1/gpus/{gpu_uuid}": _with(frame(GPUS), inventory={"type": ["object", "null"]}, incidents=_LIST),
    "/api/v1/events": rows(table("event")),
    "/api/v1/findings": rows(table("finding")),
    "/api/v1/actions": rows(table("action", without=("boot_id",))),
    "/api/v1/incidents": rows(_partly(_INCIDENT)),
    "/api/v1/incidents/{incident_id}": _partly(_INCIDENT),
    "/api/v1/incidents/{incident_id}/revisions": rows(_partly(_INCIDENT)),
    "/api/v1/cost": _OBJECT,
    "/api/v1/jobs/{job_id}": _OBJECT,
    "/api/v1/users/{user}": _OBJECT,
    "/api/v1/sql": rows(_OBJECT),
}
"""By address. Any other whose answer is encoded here (``Response[bytes]``) is a list of objects."""
_PROBLEM: Final[Schema] = {
    "description": "What is wrong, and the way out (RFC 9457)",
    "content": {"application/problem+json": {"schema": {
        "type": "object", "required": ["title", "status", "detail"],
        "properties": {"title": {"type": "string"}, "status": {"type": "integer"}, "detail": {"type": "string"}},
    }}},
}  # fmt: skip


def fill(description: dict[str, Any]) -> dict[str, Any]:
    """The description with the schemas of its answers, in place."""
    for path, item in description["paths"].items():
        for told in item.values():
            answers = told["responses"]
            answers["default"] = _PROBLEM
            if path == "/metrics":
                answers["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
            for media, content in answers.get("200", {}).get("content", {}).items():
                if media == "application/json" and "$ref" not in content.get("schema", {}) and "session" not in path:
                    content["schema"] = _ANSWERS.get(path, rows(_OBJECT))
    return description
