"""Which week a report is about, and what every part of it asks with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from graynode.dashboards.report.model import Column, Headline, Table
from graynode.pipeline.queries import Queries, quoted
from graynode.service import report_sql
from graynode.service.audit import checked_week, start_of
from graynode.service.config import Config

Row = dict[str, Any]
_WEEK: Final = timedelta(days=7)
_CALL: Final = re.compile(r"(?:failures|node_time|gpu_hours)\(TIMESTAMPTZ '[^']+', TIMESTAMPTZ '[^']+'\)")


@dataclass(frozen=True, slots=True)
class Week:
    """An ISO week, Monday 0:00 UTC to Monday; ``until`` is earlier where it is not over."""

    name: str
    since: datetime
    until: datetime

    @property
    def whole(self) -> bool:
        """Whether it is over."""
        return self.until - self.since == _WEEK

    def before(self, weeks: int) -> datetime:
        """The beginning of the week so many weeks before."""
        return self.since - weeks * _WEEK


def week_of(text: str, now: datetime) -> Week:
    """The week named, or the last whole one; ``ConfigError`` for one that is none or is still to come."""
    name = checked_week(text, now)
    since = start_of(name)
    return Week(name, since, min(since + _WEEK, now.astimezone(UTC).replace(microsecond=0)))


@dataclass(slots=True)
class Asked:
    """The lake, the week, and what has been found for the first page and for what is not known.

    ``owned`` is how many machines there are where the lake knows only those that had a failure; 0: as the lake says.
    """

    queries: Queries
    config: Config
    cluster: str
    week: Week
    owned: int = 0
    scale: float = 1.0
    headlines: list[Headline] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    def sql(self, template: str) -> str:
        """A statement of ``report_sql`` with the week's times in it."""
        week = self.week
        times = {"w0": week.since, "w1": week.until, "p0": week.before(1), "q0": week.before(13), "h0": week.before(26)}
        text = template.strip().replace("{cluster}", quoted(self.cluster))
        for name, at in times.items():
            text = text.replace(f"{{{name}}}", f"TIMESTAMPTZ '{at:%Y-%m-%d %H:%M:%S}+00'")
        return text

    def rows(self, template: str) -> list[Row]:
        """Its answer. Macros that several statements ask alike are asked once and kept."""
        text = self.sql(template)
        for call in dict.fromkeys(_CALL.findall(text)):
            if call not in self.kept:
                self.kept[call] = f"kept_{len(self.kept)}"
                self.queries.keep(self.kept[call], f"FROM {call}")
            text = text.replace(call, self.kept[call])
        return self.queries.rows(text)

    def table(
        self, key: str, title: str, template: str, columns: tuple[Column, ...], rows: list[Row], empty: str = ""
    ) -> Table:
        """A table of rows that came of a statement, named under it."""
        return Table(key, title, columns, rows, self.sql(template), empty or "nothing to list")

    def period(self, n: int) -> Mapping[str, Any]:
        """Node time of this week (0), the week before (1) and the 13 weeks before (2); empty where nothing is known."""
        told = self.facts.setdefault("node_time", {row["n"]: row for row in self.rows(report_sql.NODE_TIME)})
        row = told.get(n, {})
        return row if row.get("owned_d") else {}

    def node_days(self, n: int) -> float:
        """Node-days owned and seen in that period, machines that the lake does not know included."""
        row = self.period(n)
        return self.scale * (row["owned_d"] - (row["blind_d"] or 0.0)) if row else 0.0
