"""The report for a machine: ``graynode.report.v1`` (``report.schema.json``), every number with its unit.

Times are ISO 8601 in UTC. A column's ``unit`` is that of its numbers: ``s``, ``share`` (0 to 1), ``GPU-h`` and so on;
no unit is a count, a text or a ratio. Null is "could not tell".
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from graynode.dashboards.report.model import SCHEMA, Report, Table


def write(report: Report) -> str:
    """The whole text, indented."""
    return json.dumps(plain(report), indent=1, ensure_ascii=False, default=_iso, allow_nan=False)


def schema() -> dict[str, Any]:
    """The JSON Schema of ``write``'s answer."""
    told: dict[str, Any] = json.loads(files(__package__).joinpath("report.schema.json").read_text(encoding="utf-8"))
    return told


def plain(report: Report) -> dict[str, Any]:
    """The report as lists and objects."""
    return {
        "schema": SCHEMA, "cluster": report.cluster, "week": report.week, "since": report.since, "until": report.until,
        "made": report.made, "whole": report.whole, "version": report.version,
        "headlines": [asdict(line) for line in report.headlines], "unknown": list(report.unknown),
        "sections": [
            {
                "key": s.key, "title": s.title, "says": list(s.says), "tables": [_table(t) for t in s.tables],
                "figures": [{key: str(f.spec.get(key) or "") for key in ("title", "description")} for f in s.figures],
            }
            for s in report.sections
        ],
    }  # fmt: skip


def _table(table: Table) -> dict[str, Any]:
    names = [c.name for c in table.columns]
    rows = [{name: _value(row.get(name)) for name in names} for row in table.rows]
    return {"key": table.key, "title": table.title, "sql": table.sql, "columns": [asdict(c) for c in table.columns],
            "rows": rows}  # fmt: skip


def _value(told: Any) -> Any:  # noqa: ANN401 (a cell)
    return None if isinstance(told, float) and not math.isfinite(told) else told


def _iso(told: object) -> str:
    return told.astimezone(UTC).isoformat() if isinstance(told, datetime) else str(told)
