"""Incidents, their revisions, the findings behind them, and what was done about them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec
from litestar import Response, get
from litestar.params import PathParameter

from graynode.dashboards.explain import plain
from graynode.pipeline.queries import quoted
from graynode.pipeline.schema import CAUSES, SEVERITIES
from graynode.service.api.answers import Page, Row, one, page
from graynode.service.api.asked import ANY, PageAsked, ServedHere, SpanAsked, StateIs, Text
from graynode.service.api.paging import Paging, page_rows, page_sql
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import Span, sql_time
from graynode.service.api.state import Served
from graynode.service.said import said

STATES: Final = ("open", "resolved", "all")
_PREFIX: Final = re.compile(r"[0-9a-f-]{4,36}")
_LISTED: Final = """incident_id, revision, state, severity, cause, subject, cluster, node_id, node, gpu_uuid, link,
  pci_bus_id, title, action, owner, next_step, since, coalesce(opened_ts, since, ts) AS opened_ts,
  coalesce(updated_ts, ts) AS updated_ts, resolved_ts, due_ts, "count", job_id, wait_gpu_h_per_day, wait_cost_per_day,
  currency, grouped_under"""
IncidentId = Annotated[str, PathParameter(max_length=36, description="its id, or the beginning of it")]


def read_incidents(
    served: Served, paging: Paging, span: Span | None = None, *, state: str = "open", severity: str = "",
    cause: str = "", node: str = "",
) -> Page:  # fmt: skip
    """Incidents in their latest revision, newest first; with a ``span``, those that were open within it. ``cause``: one
    or several with commas.
    """
    _one_of("state", state, STATES)
    _one_of("severity", severity, (*ANY, *SEVERITIES))
    causes = [] if cause in ANY else cause.split(",")
    for told in causes:
        _one_of("cause", told, CAUSES)
    where = [f"cluster = {quoted(served.cluster())}"]
    where += [f"severity = {quoted(severity)}"] if severity not in ANY else []
    where += [f"cause IN ({', '.join(map(quoted, causes))})"] if causes else []
    if state != "all":
        where.append("state = 'resolved'" if state == "resolved" else "state <> 'resolved'")
    if node not in ANY:
        where.append(_of_node(served, node))
    if span is not None:
        where.append(f"coalesce(opened_ts, since, ts) < {sql_time(span.until)}")
        where.append(f"(resolved_ts IS NULL OR resolved_ts >= {sql_time(span.since)})")
    sql = f"SELECT {_LISTED}, {_shown(served)} FROM incident_now WHERE {' AND '.join(where)}"  # noqa: S608 (quoted)
    keys = ("opened_ts", "incident_id")
    return page_rows(served.rows(page_sql(sql, keys, "ts", paging, newest_first=True)), keys, paging, served.at())


def _shown(served: Served) -> str:
    """From when until when an incident is worth looking at: as its picture, from six hours before to an hour after."""
    begin = "coalesce(since, opened_ts, ts)"
    end = f"least(coalesce(resolved_ts, {sql_time(served.at())}), {begin} + INTERVAL 3 DAY)"
    return f"{begin} - INTERVAL 6 HOUR AS shown_from_ts, greatest({end}, {begin}) + INTERVAL 1 HOUR AS shown_until_ts"


def _of_node(served: Served, node: str) -> str:
    """By id or name; also of a node that is gone, so the fleet of now is not asked first."""
    return f"(node_id = {quoted(node)} OR node = {quoted(node)})"


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise Problem(400, f"{name}={shown(value)}: one of {', '.join(filter(None, allowed))}")


def revisions_of(served: Served, incident_id: str) -> list[Row]:
    """All revisions of the incident whose id begins so, oldest first, with their JSON read.

    ``Problem`` 404 where there is none, 409 where several begin so.
    """
    prefix = incident_id.strip().lower()
    if not _PREFIX.fullmatch(prefix):
        raise Problem(404, f"no incident {shown(incident_id)}: an id, or at least its first four characters")
    rows = served.rows(
        f"SELECT * EXCLUDE (date) FROM incident WHERE starts_with(incident_id, {quoted(prefix)}) "  # noqa: S608 (checked)
        f"AND cluster = {quoted(served.cluster())} ORDER BY revision LIMIT 5000"
    )
    ids = sorted({row["incident_id"] for row in rows})
    if not ids:
        raise Problem(404, f"no incident begins with {shown(prefix)}")
    if len(ids) > 1:
        raise Problem(409, f"{len(ids)} incidents begin with {prefix}: {', '.join(ids[:5])}")
    return [plain(row) for row in rows]


def read_incident(served: Served, incident_id: str) -> Row:
    """One incident with its evidence; ``said``: what people said of it and who was told, in order of time."""
    revisions = revisions_of(served, incident_id)
    found = revisions[-1]
    id_, node_id = quoted(str(found["incident_id"])), quoted(str(found["node_id"]))
    verdict = served.rows(f"SELECT verdict FROM label_now WHERE incident_id = {id_} ORDER BY ts DESC LIMIT 1")  # noqa: S608
    muted = served.rows(
        f'SELECT ts, "until", who, why FROM mute_now WHERE node_id = {node_id} AND "until" > ts '  # noqa: S608 (quoted)
        f'AND "until" > {sql_time(served.clock())} AND cluster = {quoted(served.cluster())}'
    )
    return {
        **found,
        "revisions": len(revisions),
        "verdict": verdict[0]["verdict"] if verdict else None,
        "said": said(served.rows, found),
        "muted": muted[0] if muted else None,
        "at": served.at(),
    }


def read_revisions(served: Served, incident_id: str) -> Page:
    """How it went: state, severity and how much was behind it, revision by revision."""
    names = ("revision", "ts", "state", "severity", "cause", "title", "count", "owner", "resolved_ts", "job_id")
    rows = [{name: row.get(name) for name in names} for row in revisions_of(served, incident_id)]
    return Page(rows, served.at())


def read_findings(
    served: Served,
    paging: Paging,
    span: Span,
    *,
    node: str = "",
    detector: str = "",
    cause: str = "",
    incident: str = "",
) -> Page:
    """Findings of a range, newest first; those of an incident by its id."""
    where = [f"cluster = {quoted(served.cluster())}", "finding_id IS NOT NULL"]
    where += [f"{column} = {quoted(value)}" for column, value in (("detector", detector), ("cause", cause)) if value]
    if node not in ANY:
        where.append(_of_node(served, node))
    if incident:
        ids = [str(id_) for id_ in revisions_of(served, incident)[-1]["finding_ids"]]
        where.append(f"finding_id IN ({', '.join(map(quoted, ids))})" if ids else "false")
    table = "finding" if incident else f"finding({span.sql})"
    sql = f"SELECT * EXCLUDE (date) FROM {table} WHERE {' AND '.join(where)}"  # noqa: S608 (quoted)
    keys = ("ts", "finding_id")
    return page_rows(served.rows(page_sql(sql, keys, "ts", paging, newest_first=True)), keys, paging, served.at())


def read_actions(served: Served, paging: Paging, span: Span, *, node: str = "", incident: str = "") -> Page:
    """What was done or refused, newest first."""
    where = [f"cluster = {quoted(served.cluster())}", "action_id IS NOT NULL"]
    if node not in ANY:
        where.append(_of_node(served, node))
    if incident:
        where.append(f"incident_id = {quoted(str(revisions_of(served, incident)[-1]['incident_id']))}")
    sql = f"SELECT * EXCLUDE (date, boot_id) FROM action({span.sql}) WHERE {' AND '.join(where)}"  # noqa: S608 (quoted)
    keys = ("ts", "action_id")
    return page_rows(served.rows(page_sql(sql, keys, "ts", paging, newest_first=True)), keys, paging, served.at())


def evidence_of(row: Row) -> list[dict[str, Any]]:
    """Evidence of an incident's row, read or still as text; what cannot be read is none."""
    value = row.get("evidence")
    try:
        told = msgspec.json.decode(value) if isinstance(value, str) else value
    except msgspec.DecodeError:
        return []
    return [entry for entry in told if isinstance(entry, dict)] if isinstance(told, list) else []


# --- routes -------------------------------------------------------------------------------------------------


@get("/api/v1/incidents", sync_to_thread=True)
def incidents(
    served: ServedHere,
    paging: PageAsked,
    span: SpanAsked,
    state_: StateIs = "open",
    severity: Text = "",
    cause: Text = "",
    node: Text = "",
) -> Response[bytes]:
    """Incidents, newest first: open ones, or with state=resolved|all. from and to: those open within that range."""
    said = span if span.said else None
    return page(read_incidents(served, paging, said, state=state_, severity=severity, cause=cause, node=node))


@get("/api/v1/incidents/{incident_id:str}", sync_to_thread=True)
def incident(served: ServedHere, incident_id: IncidentId) -> Response[bytes]:
    """One incident with evidence, verdicts, acknowledgements and actions."""
    return one(read_incident(served, incident_id))


@get("/api/v1/incidents/{incident_id:str}/revisions", sync_to_thread=True)
def revisions(served: ServedHere, incident_id: IncidentId) -> Response[bytes]:
    """Its revisions, oldest first."""
    return page(read_revisions(served, incident_id))


@get("/api/v1/findings", sync_to_thread=True)
def findings(
    served: ServedHere,
    paging: PageAsked,
    span: SpanAsked,
    node: Text = "",
    detector: Text = "",
    cause: Text = "",
    incident: Text = "",
) -> Response[bytes]:
    """Findings of detectors, newest first."""
    return page(read_findings(served, paging, span, node=node, detector=detector, cause=cause, incident=incident))


@get("/api/v1/actions", sync_to_thread=True)
def actions(
    served: ServedHere, paging: PageAsked, span: SpanAsked, node: Text = "", incident: Text = ""
) -> Response[bytes]:
    """What was told and done, newest first."""
    return page(read_actions(served, paging, span, node=node, incident=incident))


ROUTES: Final[tuple[Any, ...]] = (incidents, incident, revisions, findings, actions)
