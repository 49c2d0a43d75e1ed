"""``/jobs`` and ``/jobs/{id}``: what ran, where its time went, why it ended, and what that cost."""

# ruff: noqa: S608 (SQL of this module's own words; names are quoted)

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from litestar import Response
from litestar.params import FromPath, FromQuery
from markupsafe import Markup

from graynode.dashboards.pages import svg, words
from graynode.pipeline.queries import quoted
from graynode.service.api.answers import Row
from graynode.service.api.asked import CallerHere, PageAsked, ServedHere, StateIs, Text
from graynode.service.api.jobs import STATES, read_job, read_jobs
from graynode.service.api.paging import Paging
from graynode.service.api.spans import Span, sql_time
from graynode.service.api.state import Served
from graynode.service.pages.frame import AnyRequest, address, html, page_at
from graynode.service.pages.incidents import number, time_of

_LISTED: Final = 100
_MONTH: Final = timedelta(days=30)
_ROLES: Final = {"initiating": "began it", "cascade": "followed", "teardown": "clean-up", "context": "beside"}
_ELSEWHERE: Final = {
    "same_image_completed_elsewhere": "The same image ran to its end on other nodes: jobs {}.",
    "same_image_failed_elsewhere": "The same image failed on other nodes too: jobs {}.",
    "other_jobs_failed_here": "Other jobs failed on these nodes in the week before: {}.",
    "stays_on_one_gpu": "It stays on one GPU: {}.",
    "repeats": "It came before: {}.",
}


@page_at("/jobs")
def jobs(
    served: ServedHere, caller: CallerHere, request: AnyRequest, paging: PageAsked, user: Text = "", node: Text = "",
    state_: StateIs = "",
) -> Response[bytes]:  # fmt: skip
    """Jobs of the last month, newest first."""
    at = served.at()
    wanted = {"user": user, "node": node, "state": state_}
    kept, over = Paging(min(paging.limit, _LISTED), paging.cursor), Span(at - _MONTH, at + timedelta(days=1), said=True)
    found = read_jobs(served, kept, over, user=user, node=node, state=state_ or "all")
    return html(
        served, caller, request, "jobs.html", rows=found.rows, filters=wanted, states=STATES[1:],
        next=address("/jobs", wanted, cursor=found.next) if found.next else None,
    )  # fmt: skip


@page_at("/jobs/{job_id:path}")
def job(
    served: ServedHere, caller: CallerHere, request: AnyRequest, job_id: FromPath[str], whole: FromQuery[bool] = False
) -> Response[bytes]:  # fmt: skip
    """One job by its id or its other name; with ``whole`` also what it took: the page asks for that by itself."""
    it = read_job(served, job_id.removeprefix("/"), spent=whole)
    told = _judged(it)
    phases = phases_of(it, served.at())
    return html(
        served, caller, request, "job.html", it=it, why=told, roles=_ROLES, phases=phases,
        picture=_picture(it, phases, told), remarks=_remarks(told), cost=cost_facts(it) if whole else None,
        nodes=str(it.get("node_names") or "").split(), incidents_of=_incidents(served, it),
    )  # fmt: skip


def _judged(it: Row) -> dict[str, Any] | None:
    """What its end is put down to; none while it runs and does not hang."""
    told = it["attribution"]
    if it.get("end_ts") is None and told.get("phase") != "hung":
        return None
    return {**told, "evidence": [_entry(e) for e in told["evidence"] if isinstance(e, dict)]}


def _entry(told: Mapping[str, Any]) -> dict[str, Any]:
    where = told.get("link") or told.get("pci_bus_id") or told.get("gpu_uuid")
    return {
        **{name: str(told[name]) if told.get(name) else None for name in ("role", "message", "raw", "node")},
        "at": time_of(told.get("at")), "times": int(number(told.get("count")) or 1),
        "where": str(where) if where else "",
    }  # fmt: skip


def phases_of(it: Row, now: datetime) -> list[dict[str, Any]]:
    """Waiting, preparing, working: each from when to when. A job that has not ended is seen until ``now``."""
    queued, given, stepped = (it.get(f"{name}_ts") for name in ("queued", "allocated", "first_step"))
    end = it.get("end_ts")
    spans = [("waiting", "waited in the queue", queued, given or end)]
    if stepped:
        spans += [("preparing", "prepared: given, no step yet", given, stepped)]
        spans += [("working", "worked: from the first step on", stepped, end)]
    else:
        spans += [("running", "ran", given, end)]
    return [
        {"name": name, "word": word, "begin": begin, "end": until, "length": (until or max(now, begin)) - begin}
        for name, word, begin, until in spans
        if begin is not None
    ]


def _picture(it: Row, phases: list[dict[str, Any]], told: Mapping[str, Any] | None) -> Markup:
    if not phases:
        return Markup("")
    since = min(p["begin"] for p in phases)
    until = max(p["begin"] + p["length"] for p in phases)
    marks = [("cause", time_of(told["since"]))] if told and told.get("since") else []
    said = "; ".join(f"{p['word']} {words.span(p['length'])}" for p in phases)
    spans = [(p["name"], p["begin"], p["begin"] + p["length"]) for p in phases]
    return svg.timeline(spans, marks, since, until, f"job {it['job_id']}: {said}")


def cost_facts(it: Row) -> list[tuple[str, str]]:
    """What its attempts took and lost, in sum, and to whom that is owed; only what is known."""
    attempts = it["timeline"]
    sums = {name: _sum(attempts, name) for name in ("gpu_hours", "lost_gpu_hours", "repeated_s", "resume_s", "cost")}
    owed = sorted({str(words.spaced(row["owed_to"])) for row in attempts if row.get("owed_to")})
    told = [
        ("GPU-hours", words.short(sums["gpu_hours"])), ("GPU-hours lost", words.short(sums["lost_gpu_hours"])),
        ("Repeated work", words.span(sums["repeated_s"])), ("Time to resume", words.span(sums["resume_s"])),
        ("Cost", words.money(sums["cost"])), ("Lost to", ", ".join(owed) or None),
    ]  # fmt: skip
    return [(name, value) for name, value in told if value is not None]


def _sum(rows: list[Row], name: str) -> float | None:
    known = [float(row[name]) for row in rows if row.get(name) is not None]
    return sum(known) if known else None


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
        ("Its speed", [str(row.get("message")) for row in told.get("slow") or ()]),
        ("What could not be asked", [str(line) for line in told["missing"]]),
    ]


def _listed(value: Any) -> str:  # noqa: ANN401 (JSON)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _incidents(served: Served, it: Row) -> list[Row]:
    """Incidents of its machines that were open while it ran."""
    begin, nodes = it.get("allocated_ts"), str(it.get("node_names") or "").split()
    if begin is None or not nodes:
        return []
    names = ", ".join(map(quoted, nodes))
    end = it.get("end_ts") or served.at()
    return served.rows(
        "SELECT incident_id, severity, cause, title, state, since, due_ts, node, node_id FROM incident_now "
        f"WHERE node IN ({names}) AND cluster = {quoted(served.cluster())} AND since < {sql_time(end)} "
        f"AND (resolved_ts IS NULL OR resolved_ts > {sql_time(begin)}) ORDER BY since LIMIT 50"
    )


ROUTES: Final[tuple[Any, ...]] = (jobs, job)
