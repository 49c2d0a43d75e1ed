"""``/incidents`` and ``/incidents/{id}``: what was seen, against what, what to do, who said what."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from litestar import Response
from litestar.params import FromPath

from graynode.pipeline.schema import CAUSES, SEVERITIES
from graynode.service.api.answers import Row
from graynode.service.api.asked import CallerHere, PageAsked, ServedHere, StateIs, Text
from graynode.service.api.band import read_band
from graynode.service.api.incidents import read_incidents, revisions_of
from graynode.service.api.paging import Paging
from graynode.service.api.problems import Problem
from graynode.service.api.state import Served
from graynode.service.pages.fleet import worst_first
from graynode.service.pages.frame import AnyRequest, address, html, page_at
from graynode.service.said import said

_LISTED: Final = 100
_EVIDENCE_SHOWN: Final = 50


@page_at("/incidents")
def incidents(
    served: ServedHere, caller: CallerHere, request: AnyRequest, paging: PageAsked, state_: StateIs = "open",
    severity: Text = "",
    cause: Text = "", node: Text = "",
) -> Response[bytes]:  # fmt: skip
    """Open ones worst first; what is over newest first."""
    wanted = {"state": state_, "severity": severity, "cause": cause, "node": node}
    if state_ == "open":
        rows, following, caption = (
            worst_first(served, severity=severity, cause=cause, node=node),
            None,
            "Open incidents, worst first",
        )
    else:
        kept = Paging(min(paging.limit, _LISTED), paging.cursor)
        found = read_incidents(served, kept, state=state_, severity=severity, cause=cause, node=node)
        rows, following, caption = [dict(row) for row in found.rows], found.next, "Incidents, newest first"
    return html(
        served, caller, request, "incidents.html", rows=rows, caption=caption, filters=wanted, severities=SEVERITIES,
        causes=CAUSES, next=address("/incidents", wanted, cursor=following) if following else None,
    )  # fmt: skip


@page_at("/incidents/{incident_id:str}")
def incident(
    served: ServedHere, caller: CallerHere, request: AnyRequest, incident_id: FromPath[str]
) -> Response[bytes]:
    """One incident by its id or the beginning of it."""
    revisions = revisions_of(served, incident_id)
    it = revisions[-1]
    evidence = [entry(e) for e in it["evidence"][:_EVIDENCE_SHOWN]]
    return html(
        served, caller, request, "incident.html", it=it, evidence=evidence, dissent=list(dissent(it["evidence"])),
        revisions=revisions[::-1], said=said(served.rows, it), place=_place(served, it), sql=_sql(it),
        picture=bool(evidence), picture_said=_curve_said(served, it) or picture_said(evidence),
    )  # fmt: skip


def entry(told: Row) -> dict[str, Any]:
    """One piece of evidence with every field that the table shows; numbers that are none stay none."""
    texts = ("message", "signal", "unit", "raw", "detector")
    numbers = ("value", "baseline", "peer_median", "peers", "effect", "score", "threshold")
    where = (told.get("link"), told.get("pci_bus_id"), told.get("gpu_uuid"))
    return {
        **{name: str(told[name]) if told.get(name) else None for name in texts},
        **{name: number(told.get(name)) for name in numbers},
        "where": " ".join(str(w) for w in where[:2] if w) or (str(where[2]) if where[2] else ""),
        "since": time_of(told.get("since")), "last": time_of(told.get("last")),
        "times": int(number(told.get("count")) or 1), "nodes": [str(n) for n in told.get("nodes") or ()],
    }  # fmt: skip


def dissent(evidence: Iterable[Row]) -> Iterable[str]:
    """Who in the field sees it otherwise, each said once."""
    said_already: set[str] = set()
    for told in evidence:
        if told.get("maintenance"):
            yield f"in maintenance {told['maintenance']}"
        disagree = told.get("disagree")
        for who, what in disagree.items() if isinstance(disagree, dict) else ():
            line = f"{str(told.get('signal') or '').replace('xid_', 'Xid ')}: {who}: {what}"
            if line not in said_already:
                said_already.add(line)
                yield line


def picture_said(evidence: list[dict[str, Any]]) -> str:
    """The picture's words: the first entries that have a number and something to hold it against."""
    parts = []
    for e in evidence:
        normal = e["baseline"] if e["baseline"] is not None else e["peer_median"]
        if e["value"] is not None and normal:
            unit = f" {e['unit']}" if e["unit"] else ""
            parts.append(f"{e['signal'] or 'value'} {e['value']:.4g}{unit} against {normal:.4g}")
    return "; ".join(parts[:4]) or "when each piece of evidence was seen"


def _curve_said(served: Served, it: Row) -> str:
    """The picture's words where it is a curve: its newest value beside its own normal and its peers."""
    try:
        rows = [row for row in read_band(served, str(it["incident_id"])).rows if row["value"] is not None]
    except Problem:
        return ""
    if not rows:
        return ""
    last = rows[-1]
    unit = f" {last['unit']}" if last["unit"] else ""
    parts = [f"{str(last['metric']).replace('_', ' ')} {last['value']:.4g}{unit} at {last['ts']:%Y-%m-%d %H:%M} UTC"]
    if last["baseline"] is not None:
        parts.append(f"own normal {last['baseline']:.4g}")
    if last["median"] is not None:
        parts.append(f"peers' median {last['median']:.4g} (band {last['low']:.4g} to {last['high']:.4g})")
    return ", ".join(parts)


def number(value: Any) -> float | None:  # noqa: ANN401 (JSON)
    """A number of JSON; none for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def time_of(value: Any) -> datetime | None:  # noqa: ANN401 (JSON)
    """A time of JSON; none for anything else."""
    try:
        return msgspec.convert(value, datetime) if value is not None else None
    except msgspec.ValidationError:
        return None


def _place(served: Served, it: Row) -> str:
    nodes = served.fleet.now().nodes
    found = nodes.filter(nodes["node_id"] == it["node_id"])
    if found.is_empty():
        return ""
    row = found.row(0, named=True)
    return ", ".join(f"{name} {row[name]}" for name in ("rack", "domain", "switch", "partition") if row[name])


def _sql(it: Row) -> str:
    node, since = str(it.get("node_id") or "").replace("'", "''"), it.get("since")
    start = f"'{since - timedelta(hours=1):%Y-%m-%d %H:%M}'" if since is not None else "now() - INTERVAL 1 DAY"
    # for a person to copy, not a statement that is run here
    return f"graynode sql -c \"SELECT * FROM event({start}, now()) WHERE node_id = '{node}' ORDER BY ts\""  # noqa: S608


ROUTES: Final[tuple[Any, ...]] = (incidents, incident)
