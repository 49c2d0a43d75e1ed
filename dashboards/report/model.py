"""What a report is made of. Values are plain (numbers, texts, times, booleans, null); null is "could not tell"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

SCHEMA: Final = "graynode.report.v1"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: ``name`` as in the rows, ``title`` for a person, ``unit``.

    ``reckoned`` says how it was reckoned from the rows of the SQL; empty where the SQL gives it as it is.
    """

    name: str
    title: str
    unit: str = ""
    reckoned: str = ""

    @property
    def head(self) -> str:
        """What stands above it; units that the value itself says are left out."""
        return self.title if self.unit in ("", "s", "share") else f"{self.title} ({self.unit})"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, and the statement among whose rows they are found again on the same lake, but for reckoned columns."""

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    sql: str
    empty: str = "nothing to list"


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture: its Vega-Lite specification with ``title`` and ``description``, and the SVG made of it."""

    spec: Mapping[str, Any]
    svg: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part with its sentences, tables and pictures."""

    key: str
    title: str
    says: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True, slots=True)
class Headline:
    """One figure of the first page: what, the value in words, and what it is held against."""

    title: str
    value: str
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A week of one cluster; ``until`` is when what is told ends, before the week's end where it is not over."""

    cluster: str
    week: str
    since: datetime
    until: datetime
    made: datetime
    whole: bool
    headlines: Sequence[Headline]
    sections: Sequence[Section]
    unknown: Sequence[str]
    version: str = ""
    empty: bool = False
    """The lake has nothing at all of the cluster."""

    @property
    def title(self) -> str:
        """What stands above it."""
        return f"{self.cluster}: week {self.week}"
