"""``graynode report``: a week of a cluster in one file, for whoever decides and for whoever wants to check.

Everything is read from the lake; each table names the statement that gives it again. Pictures that cannot be drawn are
replaced by a line that says so: a report without a picture is better than none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TextIO

from graynode.collectors.base import utc_now
from graynode.dashboards import render
from graynode.dashboards.report import as_json, html, markdown
from graynode.dashboards.report.model import Figure, Report, Section
from graynode.pipeline.lake import LakeError, LakeTooNew
from graynode.pipeline.queries import Queries, QueryError
from graynode.service import report_fleet, report_sql, report_told
from graynode.service.config import Config, ConfigError
from graynode.service.report_week import Asked, Week, week_of
from graynode.service.wiring import make_lake

Draw = Callable[[Mapping[str, Any]], str]
FORMATS: Final = {"html": html.write, "md": markdown.write, "json": as_json.write}
_PARTS: Final = (
    report_fleet.availability, report_fleet.failures, report_fleet.times, report_told.mattered, report_told.caught,
    report_told.lost, report_told.sour, report_told.repairs, report_told.precision, report_fleet.blind,
    report_fleet.mix, report_fleet.ahead,
)  # fmt: skip
"""In the order in which they are read."""
_LEAST_WEEKS: Final = 14


def run(
    config: Config, week: str = "", format_: str = "html", out: Path | None = None, *, send: bool = False,
    nodes: int = 0, now: datetime | None = None, sink: TextIO | None = None,
) -> int:  # fmt: skip
    """Write the report of a week. 0 written, 1 there is nothing to tell or the lake cannot be asked; ``ConfigError``
    for what cannot be meant. Of a lake that knows nothing of the cluster nothing is written and nothing sent.
    """
    moment = now or utc_now()
    asked_week = week_of(week, moment)
    if send:
        from graynode.service.report_send import addresses

        addresses(config)  # a wrong address is said before the work, not after it
    queries = Queries(make_lake(config))
    try:
        report = read(queries, config, asked_week, moment, owned=nodes)
    except (QueryError, LakeError, LakeTooNew, OSError) as error:
        print(f"graynode report: the lake {config.lake.path} cannot be asked: {error}", file=sys.stderr)
        return 1
    finally:
        queries.close()
    if report.empty:
        told = f"the lake {config.lake.path} has nothing of cluster {report.cluster!r}: nothing is written or sent"
        print(f"graynode report: {told}", file=sys.stderr)
        return 1
    text = FORMATS[format_](report)
    if out is not None:
        _write(out, text)
    if send:
        from graynode.service.report_send import send as send_it

        return send_it(config, report)
    if out is None:
        print(text, file=sink or sys.stdout)
    return 0


def read(
    queries: Queries, config: Config, week: Week, made: datetime, *, owned: int = 0, draw: Draw | None = None
) -> Report:
    """The whole report. ``owned``: machines there are, where the lake knows only those that had a failure."""
    asked = Asked(queries, config, _cluster(queries, config.cluster), week, owned)
    empty = asked.rows(report_sql.NEWEST)[0]["ts"] is None
    _scale(asked)
    sections = [part(asked) for part in _PARTS]
    _what_else(asked)
    drawn = [_drawn(section, draw or render.svg) for section in sections]
    return Report(
        asked.cluster, week.name, week.since, week.until, made, week.whole, asked.headlines, drawn, asked.unknown,
        version("graynode"), empty,
    )  # fmt: skip


def _cluster(queries: Queries, cluster: str) -> str:
    """The one configured, or the only one there is, where that has nothing."""
    there = [row["cluster"] for row in queries.rows(report_sql.CLUSTERS)]
    return there[0] if cluster not in there and len(there) == 1 else cluster


def _scale(asked: Asked) -> None:
    """Machines that the lake does not know count as owned all the time and never failed."""
    known = asked.period(0).get("nodes") or asked.period(2).get("nodes") or 0
    if asked.owned and not known:
        return
    if asked.owned and asked.owned < known:
        raise ConfigError(f"--nodes {asked.owned}: the lake knows {known} machines; leave it out, or name as many")
    if asked.owned > known:
        asked.scale = asked.owned / known
        asked.unknown.append(
            f"The lake knows {known} of {asked.owned} machines (--nodes); the others are taken as owned all the time, "
            "never out of service and without a failure."
        )


def _what_else(asked: Asked) -> None:
    """What the week itself leaves open."""
    week = asked.week
    newest = asked.rows(report_sql.NEWEST)[0]["ts"]
    if newest is None:
        asked.unknown.insert(0, f"Everything: the lake has nothing of cluster {asked.cluster!r}.")
        return
    if not asked.period(0):
        asked.unknown.insert(
            0, f"This week: the lake has nothing of it; its newest row is of {newest:%Y-%m-%d %H:%M} UTC."
        )
    elif newest < week.until and asked.period(0)["unwatched"] < asked.period(0)["nodes"]:
        asked.unknown.insert(0, f"The week from {newest:%Y-%m-%d %H:%M} UTC on: the lake has nothing newer.")
    if not week.whole:
        asked.unknown.insert(0, f"The rest of the week: it is told up to {week.until:%Y-%m-%d %H:%M} UTC.")
    before = asked.period(2)
    if not before or before["owned_d"] < 0.9 * 91 * before["nodes"]:
        days = before["owned_d"] / before["nodes"] if before else 0.0
        asked.unknown.append(f"The 13 weeks before in full: on average {days:.0f} of 91 days of a machine are known.")


def _drawn(section: Section, draw: Draw) -> Section:
    return replace(section, figures=[_picture(f, draw) for f in section.figures])


def _picture(figure: Figure, draw: Draw) -> Figure:
    try:
        return replace(figure, svg=draw(figure.spec))
    except render.RenderError as error:
        return replace(figure, svg=render.note(str(figure.spec.get("title") or "Chart"), str(error)))


def _write(out: Path, text: str) -> None:
    """All of it or nothing: a reader never sees half a report."""
    beside = out.with_name(out.name + ".part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(out)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error
