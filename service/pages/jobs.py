"""``/jobs`` and ``/jobs/{id}``: what ran, where its time went, and why it ended."""

# ruff: noqa: S608 (SQL of this module's own words; names are quoted)

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from litestar import Response
from markupsafe import Markup

from graynode.dashboards.explain_job import plain
from graynode.dashboards.pages import svg
from graynode.pipeline.queries import quoted
from graynode.pipeline.schema import JOB_ENDED
from graynode.service.api.access import Caller
from graynode.service.api.answers import Row
from graynode.service.api.asked import StateIs, Text
from graynode.service.api.paging import Paging, page_rows, page_sql
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import sql_time
from graynode.service.api.state import Served
from graynode.service.pages.frame import AnyRequest, address, html, page_at
from graynode.service.pages.incidents import number, time_of
from graynode.service.pages.job_cost import cost_facts

STATES: Final = ("queued", "allocated", "running", "requeued", *sorted(JOB_ENDED))
_LISTED: Final = 100
_ROLES: Final = {"initiating": "began it", "cascade": "followed", "teardown": "clean-up", "context": "beside"}
_ELSEWHERE: Final = {
    "same_image_completed_elsewhere": "The same image ran to its end on other nodes: jobs {}.",
    "same_image_failed_elsewhere": "The same image failed on other nodes too: jobs {}.",
    "other_jobs_failed_here": "Other jobs failed on these nodes in the week before: {}.",
    "stays_on_one_gpu": "It stays on one GPU: {}.",
    "repeats": "It came before: {}.",
}
_LATEST: Final = """
SELECT * EXCLUDE (date) FROM attribution_now WHERE cluster = {cluster} AND phase = 'ended'
QUALIFY row_number() OVER (PARTITION BY job_id ORDER BY attempt DESC, revision DESC) = 1
"""


@page_at("/jobs")
def jobs(
    served: Served, caller: Caller, request: AnyRequest, paging: Paging, user: Text = "", node: Text = "",
    state_: StateIs = ""
) -> Response[bytes]:  # fmt: skip
    """Jobs, newest first."""
    wanted = {"user": user, "node": node, "state": state_}
    where = [f"cluster = {quoted(served.cluster())}"]
    where += [f'"{name}" = {quoted(value)}' for name, value in (("user", user), ("state", state_)) if value]
    if node:
        where.append(f"(list_contains(machines, {quoted(node)}) OR list_contains(node_names, {quoted(node)}))")
    cluster = quoted(served.cluster())
    sql = (
        "SELECT j.*, coalesce(allocated_ts, queued_ts, end_ts, TIMESTAMPTZ '1970-01-01') AS key_ts, a.verdict, a.kind "
        f"FROM (SELECT * FROM jobs WHERE {' AND '.join(where)}) j "
        f"LEFT JOIN (SELECT job_id, verdict, kind FROM ({_LATEST.format(cluster=cluster)})) a USING (job_id)"
    )
    keys, kept = ("key_ts", "job_id"), Paging(min(paging.limit, _LISTED), paging.cursor)
    found = page_rows(served.rows(page_sql(sql, keys, "ts", kept, newest_first=True)), keys, kept, served.at())
    return html(
        served, caller, request, "jobs.html", rows=found.rows, filters=wanted, states=STATES,
        next=address("/jobs", wanted, cursor=found.next) if found.next else None,
    )  # fmt: skip


@page_at("/jobs/{job_id:path}")
def job(served: Served, caller: Caller, request: AnyRequest, job_id: str) -> Response[bytes]:
    """One job by its id or its other name."""
    it = one_job(served, job_id.removeprefix("/"))
    told = _judged(served, it)
    phases = phases_of(it, served.at())
    return html(
        served, caller, request, "job.html", it=it, why=told, roles=_ROLES, phases=phases,
        picture=_picture(it, phases, told),
        remarks=_remarks(told), cost=cost_facts(served, it), nodes=sorted(it["node_names"] or []),
        incidents_of=_incidents(served, it),
    )  # fmt: skip


def one_job(served: Served, name: str) -> Row:
    """The job of that id or alias. ``Problem`` 404 where there is none."""
    word = quoted(name)
    rows = served.rows(
        f"SELECT * FROM jobs WHERE (job_id = {word} OR job_alias = {word}) "
        f"AND cluster = {quoted(served.cluster())} LIMIT 1"
    )
    if not rows:
        raise Problem(404, f"no job {shown(name)}: its id is the scheduler's own, of an array's task its own number")
    return rows[0]


def _judged(served: Served, it: Row) -> dict[str, Any] | None:
    sql = _LATEST.format(cluster=quoted(served.cluster())).replace(
        "WHERE ", f"WHERE job_id = {quoted(it['job_id'])} AND ", 1
    )
    rows = served.rows(sql)
    if not rows:
        return None
    told = plain(rows[0])
    told["evidence"] = [_entry(e) for e in told["evidence"] if isinstance(e, dict)]
    return told


def _entry(told: Mapping[str, Any]) -> dict[str, Any]:
    where = told.get("link") or told.get("pci_bus_id") or told.get("gpu_uuid")
    return {
        **{name: str(told[name]) if told.get(name) else None for name in ("role", "message", "raw", "node")},
        "at": time_of(told.get("at")), "times": int(number(told.get("count")) or 1),
        "where": str(where) if where else "",
    }  # fmt: skip


def phases_of(it: Row, now: datetime) -> list[dict[str, Any]]:
    """Waiting, preparing, working: each from when to when. A job that has not ended is seen until ``now``."""
    queued, given, stepped = (it[f"{name}_ts"] for name in ("queued", "allocated", "first_step"))
    end = it["end_ts"]
    spans = [
        ("waiting", "waited in the queue", queued, given or end),
        ("preparing", "prepared: given, no step yet", given, stepped) if stepped else None,
        ("working", "worked: from the first step on", stepped, end) if stepped else ("running", "ran", given, end),
    ]
    return [
        {"name": name, "word": word, "begin": begin, "end": until, "length": (until or max(now, begin)) - begin}
        for name, word, begin, until in filter(None, spans)
        if begin is not None
    ]


def _picture(it: Row, phases: list[dict[str, Any]], told: Mapping[str, Any] | None) -> Markup:
    if not phases:
        return Markup("")
    since = min(p["begin"] for p in phases)
    until = max([p["begin"] + p["length"] for p in phases])
    marks = [("cause", told["since"])] if told and told.get("since") else []
    said = "; ".join(f"{p['word']} {round(p['length'].total_seconds() / 60):,} min" for p in phases)
    spans = [(p["name"], p["begin"], p["begin"] + p["length"]) for p in phases]
    return svg.timeline(spans, marks, since, until, f"job {it['job_id']}: {said}")


def _remarks(told: Mapping[str, Any] | None) -> list[tuple[str, list[str]]]:
    """What weighs on the judgement, in the order of ``graynode explain-job``."""
    if told is None:
        return []
    elsewhere = told["elsewhere"] if isinstance(told["elsewhere"], dict) else {}
    said = [text.format(_listed(elsewhere[key])) for key, text in _ELSEWHERE.items() if elsewhere.get(key)]
    return [
        ("What weighs on this", [str(line) for line in told["notes"]]),
        ("Machines in doubt", [str(line) for line in told["suspects"]]),
        ("Elsewhere", said),
        ("What could not be asked", [str(line) for line in told["missing"]]),
    ]


def _listed(value: Any) -> str:  # noqa: ANN401 (JSON)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _incidents(served: Served, it: Row) -> list[Row]:
    """Incidents of its machines that were open while it ran."""
    begin, machines = it["allocated_ts"], it["machines"]
    if begin is None or not machines:
        return []
    ids = ", ".join(quoted(str(m)) for m in machines)
    end = it["end_ts"] or served.at()
    return served.rows(
        "SELECT incident_id, severity, cause, title, state, since, due_ts, node, node_id FROM incident_now "
        f"WHERE node_id IN ({ids}) AND cluster = {quoted(served.cluster())} AND since < {sql_time(end)} "
        f"AND (resolved_ts IS NULL OR resolved_ts > {sql_time(begin)}) ORDER BY since LIMIT 50"
    )


ROUTES: Final[tuple[Any, ...]] = (jobs, job)
