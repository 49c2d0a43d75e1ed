"""Failures by cause or by week, with node-days and exact intervals."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from litestar import Response, get
from litestar.params import QueryParameter

from graynode.pipeline.queries import quoted
from graynode.service.api.answers import Page, Row, page
from graynode.service.api.asked import ServedHere, SpanAsked
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import Span, whole_hour
from graynode.service.api.state import Served
from graynode.service.report_math import per_1000

BY: Final = ("cause", "week")
_USUAL: Final = timedelta(days=35)
_KEPT_S: Final = 120.0
_STALE_S: Final = 900.0
_KEY: Final = {"cause": "cause", "week": "strftime(began, '%G-W%V')"}


def read_reliability(served: Served, span: Span, by: str = "cause") -> Page:
    """A row a cause (or ISO week): failures, per 1,000 node-days with its 95 % interval, times, hours lost.

    With no range the last five weeks of data. Of a week the node-days are those of the range shared out by its days.
    """
    if by not in BY:
        raise Problem(400, f"by={shown(by)}: one of {', '.join(BY)}")
    until = whole_hour(served.at()) + timedelta(hours=1)
    over = span.in_hours if span.said else Span(until - _USUAL, until, notes=span.notes)

    def make() -> tuple[list[Row], datetime | None]:
        at = served.read_at()
        return _read(served, over, by), at

    rows, at = served.kept.get(
        f"reliability {by} {over.sql}", _KEPT_S, make, stale_s=_STALE_S, stands=lambda old: bool(old[0])
    )
    return Page(rows, at, notes=over.notes)


def _read(served: Served, span: Span, by: str) -> list[Row]:
    cluster = quoted(served.cluster())
    owned = served.reckoned(
        f"SELECT coalesce(sum(owned_s), 0) / 86400 AS d FROM node_time({span.sql}) WHERE cluster = {cluster}"  # noqa: S608
    )[0]["d"]
    rows = served.reckoned(
        f"SELECT {_KEY[by]} AS {by}, count(*) AS failures, count(DISTINCT node_id) AS nodes, "  # noqa: S608 (quoted)
        "avg(seconds_to_detect) / 3600 AS mttd_h, avg(seconds_to_repair) / 3600 AS mttr_h, "
        "median(seconds_to_repair) / 3600 AS median_repair_h, count(seconds_to_repair) AS repaired, "
        "count(*) FILTER (detected IS NOT NULL) AS detected, count(*) FILTER (during_job) AS during_job, "
        f"sum(gpu_hours_lost) AS gpu_hours_lost FROM failures({span.sql}) WHERE cluster = {cluster} "
        f"GROUP BY 1 ORDER BY {'1' if by == 'week' else 'failures DESC, 1'}"
    )
    whole = (span.until - span.since).total_seconds() / 86_400
    for row in rows:
        days = owned if by == "cause" else owned * min(7.0 / whole, 1.0)
        rate = per_1000(int(row["failures"]), days)
        row |= {
            "node_days": days,
            "per_1000_node_days": rate.value,
            "per_1000_low": rate.low,
            "per_1000_high": rate.high,
        }
    return rows


@get("/api/v1/reliability", sync_to_thread=True)
def reliability(
    served: ServedHere,
    span: SpanAsked,
    by: Annotated[str, QueryParameter(max_length=20, description="cause or week")] = "cause",
) -> Response[bytes]:
    """Failures of nodes by cause or week (the last five weeks where no range is named)."""
    return page(read_reliability(served, span, by))


ROUTES: Final[tuple[Any, ...]] = (reliability,)
