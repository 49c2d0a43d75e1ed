"""Jobs with their end and what it is put down to, and one user's view of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import polars as pl
from litestar import Response, get
from litestar.params import FromPath

from graynode.dashboards.explain_job import as_json
from graynode.pipeline.queries import quoted
from graynode.pipeline.schema import JOB_ENDED
from graynode.service import cost_jobs, user_view
from graynode.service.api import timeline
from graynode.service.api.answers import Page, Row, one, page
from graynode.service.api.asked import ANY, PageAsked, ServedHere, SpanAsked, StateIs, Text
from graynode.service.api.bounded import lake_problems
from graynode.service.api.paging import Paging, page_newest
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import Span, whole_hour
from graynode.service.api.state import Served
from graynode.service.explain_job import told_of

STATES: Final = ("all", "running", "ended", "queued", *sorted(JOB_ENDED))
_WEEK: Final = timedelta(days=7)
_KEPT_S: Final = 60.0
_STALE_S: Final = 300.0
_LIST_S: Final = 10.0
_LIST_STALE_S: Final = 30.0
"""Together less than a scheduler is asked anew in, so nobody sees a job later for it."""
_LONGEST: Final = 300
_LISTED: Final = """cluster, job_id, job_alias, "user", account, "partition", work, state, reason, queued_ts,
  allocated_ts, first_step_ts, end_ts, exit_code, exit_signal, requeues, nodes, gpus, ranks, node_names, machines,
  coalesce(allocated_ts, queued_ts, end_ts) AS began_ts, epoch(allocated_ts) - epoch(queued_ts) AS wait_s,
  epoch(end_ts) - epoch(allocated_ts) AS run_s"""
_JUDGED: Final = """SELECT cluster, job_id, arg_max(verdict, ts) AS verdict, arg_max(kind, ts) AS verdict_kind,
  arg_max(message, ts) AS verdict_message, arg_max(owner, ts) AS verdict_owner,
  arg_max(confidence, ts) AS verdict_confidence FROM attribution_now GROUP BY ALL"""


def read_jobs(
    served: Served, paging: Paging, span: Span | None = None, *, user: str = "", node: str = "", state: str = "all",
    partition: str = "",
) -> Page:  # fmt: skip
    """Jobs that ran or waited in the range (the last week of data), newest first, with their verdict. The list is made
    of the lake every ten seconds at most, and is at most forty seconds old: ``at`` is the data's time then.
    """
    over = span if span is not None and span.said else None
    named = {"user": user, "partition": partition}
    chosen = [*_in_state(state), *(pl.col(name) == value for name, value in named.items() if value not in ANY)]
    if node not in ANY:
        chosen.append(pl.col("node_names").list.contains(node) | pl.col("machines").list.contains(node))
    listed, at = served.kept.get(f"jobs {served.cluster()}", _LIST_S, lambda: _listed(served), stale_s=_LIST_STALE_S)
    over = over or Span(at - _WEEK, at + timedelta(days=1))
    within = (pl.col("began_ts") < over.until) & (pl.col("end_ts").is_null() | (pl.col("end_ts") >= over.since))
    found = page_newest(listed.filter(within, *chosen), ("began_ts", "job_id"), paging, at)
    return replace(found, rows=[_flat(row) for row in found.rows])


def _listed(served: Served) -> tuple[pl.DataFrame, datetime]:
    at = served.at()
    sql = (
        f"SELECT * FROM (SELECT {_LISTED} FROM jobs) LEFT JOIN ({_JUDGED}) USING (cluster, job_id) "  # noqa: S608
        f"WHERE cluster = {quoted(served.cluster())} AND job_id IS NOT NULL AND began_ts IS NOT NULL"
    )
    return served.frame(sql), at


def _flat(row: Mapping[str, Any]) -> Row:
    """Names of nodes as one text; their ids are for asking only."""
    told = {**row, "node_names": " ".join(sorted(row["node_names"] or ()))}
    del told["machines"]
    return told


def _in_state(state: str) -> list[pl.Expr]:
    if state not in STATES:
        raise Problem(400, f"state={shown(state)}: one of {', '.join(STATES)}")
    if state == "running":
        return [pl.col("end_ts").is_null(), pl.col("allocated_ts").is_not_null()]
    if state == "ended":
        return [pl.col("end_ts").is_not_null()]
    return [] if state == "all" else [pl.col("state") == state]


def read_job(served: Served, job_id: str, *, spent: bool = True) -> Row:
    """One job: its placements (``timeline``), and why it ended or that it hangs (``attribution``), judged anew."""
    told = served.kept.get(f"job {job_id}", _KEPT_S, lambda: _judged(served, job_id))
    cluster, id_ = told["cluster"], told["job_id"]
    rows = served.rows(f"SELECT {_LISTED} FROM jobs WHERE cluster = {quoted(cluster)} AND job_id = {quoted(id_)}")  # noqa: S608
    found = _flat(rows[0]) if rows else {"cluster": cluster, "job_id": id_}
    if not spent:  # what its placements took can need days of the whole fleet to be reckoned first
        return {**found, "attribution": told, "timeline": [], "owed": [], "at": served.at()}
    since, until = _stretch(served, found)
    with lake_problems():
        took = cost_jobs.read(served.reports, served.config, since=since, until=until, job_id=id_)
    return {**found, "attribution": told, "timeline": took["rows"], "owed": took["owed"], "at": served.at()}


def _judged(served: Served, job_id: str) -> Row:
    if not 0 < len(job_id) <= _LONGEST:
        raise Problem(404, "no job: its id is wanted, as /api/v1/jobs lists it")
    with lake_problems():
        told = told_of(served.config, job_id, served.clock())
    if isinstance(told, str):
        raise Problem(404, shown(told.partition("\n")[0].removeprefix("graynode explain: ")))
    made: Row = msgspec.json.decode(as_json(told.row, then=told.then, slow=told.slow, attempts=told.attempts))
    return made


def _stretch(served: Served, found: Row) -> tuple[Any, Any]:
    """From before it queued until after its end, in whole hours."""
    at = served.at()
    begin = found.get("queued_ts") or found.get("allocated_ts") or found.get("end_ts") or at
    end = found.get("end_ts") or at
    hour = timedelta(hours=1)
    return whole_hour(begin) - hour, whole_hour(max(end, begin)) + hour


def read_user(served: Served, user: str, span: Span) -> Row:
    """One user's timeline: incidents and jobs of their own, what they cost, what was lost and who owes it."""
    at = served.at()
    until = whole_hour(at) + timedelta(hours=1)
    over = span.in_hours if span.said else Span(until - _WEEK, until)

    def make() -> Row:
        with lake_problems():
            told = user_view.nobody(served.queries, served.cluster(), user, over.since, over.until)
            if told is None:
                told = user_view.read(served.reports, served.config, user, since=over.since, until=over.until)
        return {**told, "at": at}

    found: Row = served.kept.get(f"user {user} {over.sql}", _KEPT_S, make, stale_s=_STALE_S)
    return {**found, "next": None}


# --- routes -------------------------------------------------------------------------------------------------


@get("/api/v1/jobs", sync_to_thread=True)
def jobs(
    served: ServedHere,
    paging: PageAsked,
    span: SpanAsked,
    user: Text = "",
    node: Text = "",
    state_: StateIs = "all",
    partition: Text = "",
) -> Response[bytes]:
    """Jobs of a range (the last week where none is named), newest first."""
    return page(read_jobs(served, paging, span, user=user, node=node, state=state_, partition=partition))


@get("/api/v1/jobs/{job_id:path}", sync_to_thread=True)
def job(served: ServedHere, job_id: FromPath[str]) -> Response[bytes]:
    """One job with its timeline, and why it ended. Kubernetes' ids have slashes; they stand as they are."""
    return one(read_job(served, job_id.removeprefix("/")))


@get("/api/v1/users/{user:path}", sync_to_thread=True)
def user_(served: ServedHere, span: SpanAsked, paging: PageAsked, user: FromPath[str]) -> Response[bytes]:
    """One user's own incidents and jobs as a timeline."""
    return one(timeline.part(read_user(served, user.removeprefix("/"), span), paging))


ROUTES: Final[tuple[Any, ...]] = (jobs, job, user_)
