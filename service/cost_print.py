"""Answers about cost, capacity and users as text, JSON or CSV; none of them does what a name in it says.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-``, ``@`` (or their wide forms), a tab or a carriage return
as a formula: such a text gets an apostrophe in front. A terminal is moved by control characters: they are taken out.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from graynode.dashboards.pieces import clean

_STARTS: Final = "=+-@\t\r\n＝＋－＠"
Row = Mapping[str, Any]


def cell(value: object) -> object:
    """A value as a spreadsheet may have it: numbers as they are, null empty, texts that cannot be run."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, bool | int | float):
        return value
    text = str(value)
    return f"'{text}" if text.lstrip(" \u00a0")[:1] in tuple(_STARTS) else text


def as_csv(rows: Sequence[Row], sink: TextIO) -> None:
    """A line a row, under the names of their columns; nothing at all where there is no row."""
    if not rows:
        return
    names = list(rows[0])
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([cell(row.get(name)) for name in names] for row in rows)


def as_json(answer: Row, sink: TextIO) -> None:
    """The whole answer; times in ISO 8601, UTC."""
    print(json.dumps(answer, indent=2, default=_plain, allow_nan=False), file=sink)


def _plain(value: object) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


def number(value: float | None, unit: str = "", digits: int = 0) -> str:
    """A number for a person; a dot where it is not known."""
    return "·" if value is None else f"{value:,.{digits}f}{unit}"


def span(seconds: float | None) -> str:
    """Seconds in the largest unit of which there is one: 45 s, 12 min, 3.4 h, 2.5 d."""
    if seconds is None:
        return "·"
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}" if unit != "min" else f"{seconds / size:.0f} min"
    return f"{seconds:.0f} s"


def grid(names: Sequence[str], rows: Sequence[Sequence[str]], sink: TextIO, right: int = 1) -> None:
    """A table: the first ``right`` columns are words, the others numbers at the right edge."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sink, highlight=False, markup=False, width=None if sink.isatty() else 160)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i < right else "right", overflow="fold")
    for row in rows:
        table.add_row(*(clean(text) for text in row))
    console.print(table)
