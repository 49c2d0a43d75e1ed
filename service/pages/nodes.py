"""``/nodes`` and ``/nodes/{node}``: a list, and one node with every GPU against its peers."""

# ruff: noqa: S608 (SQL of this module's own words; names are quoted)

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl
from litestar import Response
from litestar.params import FromPath

from graynode.pipeline.queries import quoted
from graynode.service.api.answers import Row
from graynode.service.api.asked import CallerHere, PageAsked, ServedHere, StateIs, Text
from graynode.service.api.nodes import one_node
from graynode.service.api.paging import Paging, page_frame
from graynode.service.api.spans import sql_time
from graynode.service.api.state import Served
from graynode.service.pages.fleet import NODE_STATES, matching, values
from graynode.service.pages.frame import AnyRequest, address, choices, html, page_at
from graynode.service.pages.node_gpus import MEASURES, compared

_LISTED: Final = 200
_CHOICES: Final = {"model": "gpu_model", "partition": "partition", "rack": "rack"}
_RECENT: Final = timedelta(hours=6)
_LONG: Final = timedelta(days=30)
_WORST: Final = ("quarantined", "in_repair", "unknown", "suspect", "probation", "healthy")


@page_at("/nodes")
def nodes(
    served: ServedHere, caller: CallerHere, request: AnyRequest, paging: PageAsked, state_: StateIs = "",
    model: Text = "",
    partition: Text = "", rack: Text = "", q: Text = "",
) -> Response[bytes]:  # fmt: skip
    """Nodes, worst first."""
    now = served.fleet.now()
    wanted = {"state": state_, "model": model, "partition": partition, "rack": rack, "q": q}
    found, _ = matching(now, wanted)
    rank = pl.col("state").replace_strict(
        {s: str(i) for i, s in enumerate(_WORST)}, default="2", return_dtype=pl.String
    )
    keyed = found.with_columns(pl.concat_str(rank, pl.coalesce("node", "node_id")).alias("order"))
    page = page_frame(keyed, ("order", "node_id"), Paging(min(paging.limit, _LISTED), paging.cursor), now.at)
    return html(
        served, caller, request, "nodes.html", rows=page.rows, total=now.nodes.height, filters=wanted,
        states=NODE_STATES,
        next=address("/nodes", wanted, cursor=page.next) if page.next else None,
        choices=choices({name: values(now.nodes, column) for name, column in _CHOICES.items()}),
    )  # fmt: skip


@page_at("/nodes/{node:path}")
def node(served: ServedHere, caller: CallerHere, request: AnyRequest, node: FromPath[str]) -> Response[bytes]:
    """One node, by name or ``node_id``."""
    it = one_node(served, node.removeprefix("/"))
    now = served.fleet.now()
    until = now.at or served.clock()
    since = until - _RECENT
    mine = f"node_id = {quoted(str(it['node_id']))} AND cluster = {quoted(str(it['cluster']))}"
    incidents = _incidents(served, mine)
    links = _links(served, mine, since, until)
    well = [row for row in links if row["state"] in ("active", "sleep") and not row["downs"] and not row["down_s"]]
    gpus, peers = compared(served, now, it, since, until)
    return html(
        served, caller, request, "node.html", it=it, gpus=gpus, measures=MEASURES, peers_said=peers,
        hours_said="6 hours", hours=None,
        places=[(name, it[name]) for name in ("rack", "domain", "switch") if it[name]],
        open=[row for row in incidents if row["state"] != "resolved"],
        past=[row for row in incidents if row["state"] == "resolved"],
        links=[row for row in links if row not in well] if len(links) > len(gpus) + 16 else links,
        links_well=len(well) if len(links) > len(gpus) + 16 else 0,
        jobs=_jobs(served, mine), events=_events(served, mine, until), states=_states(served, mine),
        muted=_muted(served, mine),
    )  # fmt: skip


def _incidents(served: Served, mine: str) -> list[Row]:
    return served.rows(
        "SELECT incident_id, severity, cause, title, state, since, due_ts, node, node_id "
        f"FROM incident_now WHERE {mine} "
        "ORDER BY since DESC LIMIT 50"
    )


def _links(served: Served, mine: str, since: datetime, until: datetime) -> list[Row]:
    """The node's links with what they did in the span: those that were down first."""
    return served.rows(
        "SELECT link, any_value(link_kind_last) AS link_kind, arg_max(state_last, ts) AS state, "
        "arg_max(rate_gbps_mean, ts) AS rate_gbps, sum(down_s_sum) AS down_s, sum(downs_sum) AS downs "
        f"FROM link_30s({sql_time(since)}, {sql_time(until)}) WHERE {mine} AND link IS NOT NULL "
        "GROUP BY link ORDER BY down_s DESC NULLS LAST, link"
    )


def _jobs(served: Served, mine: str) -> list[Row]:
    return served.rows(
        'SELECT job_id, max("user") AS "user", arg_max(state, ts) AS state, min(allocated_ts) AS allocated_ts, '
        f"max(end_ts) AS end_ts FROM job_placements WHERE {mine} GROUP BY job_id "
        "ORDER BY coalesce(max(end_ts), TIMESTAMPTZ '2100-01-01') DESC, allocated_ts DESC LIMIT 12"
    )


def _events(served: Served, mine: str, until: datetime) -> list[Row]:
    span = f"{sql_time(until - _LONG)}, {sql_time(until + timedelta(days=1))}"
    return served.rows(
        f"SELECT ts, kind, code, message, link, pci_bus_id, gpu_uuid FROM event({span}) WHERE {mine} "
        "ORDER BY ts DESC LIMIT 25"
    )


def _states(served: Served, mine: str) -> list[Row]:
    return served.rows(
        f"SELECT ts, scheduler_state, state, who, reason FROM scheduler_states WHERE {mine} ORDER BY ts DESC LIMIT 12"
    )


def _muted(served: Served, mine: str) -> Row | None:
    found = served.rows(
        f'SELECT ts, "until", who, why FROM mute_now WHERE {mine} '
        f'AND "until" > ts AND "until" > {sql_time(served.clock())}'
    )
    return found[0] if found else None


ROUTES: Final[tuple[Any, ...]] = (nodes, node)
