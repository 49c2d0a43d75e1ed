"""Nodes, their GPUs, links and events: lists over the fleet as it is now, and one of each with what belongs to it."""

from __future__ import annotations

import difflib
from datetime import timedelta
from typing import Any, Final

import polars as pl
from litestar import Response, get
from litestar.params import FromPath

from graynode.pipeline.queries import quoted
from graynode.service.api.answers import Page, Row, one, page
from graynode.service.api.asked import ANY, PageAsked, ServedHere, SpanAsked, StateIs, Text
from graynode.service.api.paging import Paging, page_frame, page_rows, page_sql
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import Span, sql_time
from graynode.service.api.state import Served

_LINKS: Final = timedelta(minutes=30)
"""A link of which nothing has been heard for so long is not listed as it was."""
_OPEN_SHOWN: Final = 50
_LINK_COLUMNS: Final = """cluster, node_id, node, link, gpu_uuid, ts AS last_seen, link_kind_last AS link_kind,
  state_last AS state, phys_state_last AS phys_state, down_reason_last AS down_reason, rate_gbps_mean AS rate_gbps,
  device_last AS device, down_s_sum AS down_s, downs_sum AS downs, symbol_errors_delta AS symbol_errors,
  rx_errors_delta AS rx_errors, link_downed_delta AS link_downed, integrity_errors_delta AS integrity_errors,
  crc_errors_delta AS crc_errors, crc_flit_errors_delta AS crc_flit_errors, replays_delta AS replays,
  fec_uncorrected_blocks_delta AS fec_uncorrected_blocks, module_temp_c_mean AS module_temp_c,
  module_rx_power_min_mw_mean AS module_rx_power_min_mw"""


# --- lists ----------------------------------------------------------------------------------------------


def read_nodes(
    served: Served,
    paging: Paging,
    *,
    state: str = "",
    model: str = "",
    partition: str = "",
    rack: str = "",
    q: str = "",
) -> Page:
    """Nodes now, by name. ``q`` is part of a name or of an id."""
    now = served.fleet.now()
    wanted = {"state": state, "gpu_model": model, "partition": partition, "rack": rack}
    frame = _matching(now.nodes, wanted)
    if q:
        part = q.lower()
        held = [
            pl.col(c).fill_null("").str.to_lowercase().str.contains(part, literal=True) for c in ("node", "node_id")
        ]
        frame = frame.filter(pl.any_horizontal(held))
    return page_frame(frame, ("node", "node_id"), paging, now.at)


def read_gpus(served: Served, paging: Paging, *, node: str = "", state: str = "", model: str = "") -> Page:
    """GPUs now, by node and UUID; of one node, of one state, of one model."""
    now = served.fleet.now()
    frame = _matching(now.gpus, {"state": state, "gpu_model": model})
    if node not in ANY:
        frame = frame.filter(pl.col("node_id") == one_node(served, node)["node_id"])
    return page_frame(frame, ("node_id", "gpu_uuid"), paging, now.at)


def read_links(served: Served, paging: Paging, *, node: str = "") -> Page:
    """Links as they were in their newest window; of one node, or of all."""
    at = served.at()
    where = f"AND node_id = {quoted(str(one_node(served, node)['node_id']))}" if node not in ANY else ""
    newest = (
        f"SELECT {_LINK_COLUMNS} FROM link_30s({sql_time(at - _LINKS)}, {sql_time(at + _LINKS)}) "  # noqa: S608 (quoted)
        f"WHERE cluster = {quoted(served.cluster())} AND link IS NOT NULL {where} "
        "QUALIFY row_number() OVER (PARTITION BY node_id, link ORDER BY ts DESC) = 1"
    )
    keys = ("node_id", "link")
    return page_rows(served.rows(page_sql(newest, keys, "ss", paging, newest_first=False)), keys, paging, at)


def read_events(served: Served, paging: Paging, span: Span, *, node: str = "", kind: str = "") -> Page:
    """Events, newest first; of one node, of one kind."""
    where = [f"cluster = {quoted(served.cluster())}", "event_id IS NOT NULL"]
    if node not in ANY:
        where.append(f"node_id = {quoted(str(one_node(served, node)['node_id']))}")
    if kind not in ANY:
        where.append(f"kind = {quoted(kind)}")
    sql = f"SELECT * EXCLUDE (date) FROM event({span.sql}) WHERE {' AND '.join(where)}"  # noqa: S608 (quoted)
    keys = ("ts", "event_id")
    rows = served.rows(page_sql(sql, keys, "ts", paging, newest_first=True))
    return page_rows(rows, keys, paging, served.at())


def _matching(frame: pl.DataFrame, wanted: dict[str, str]) -> pl.DataFrame:
    return frame.filter(*[pl.col(name) == value for name, value in wanted.items() if value not in ANY])


# --- one of them ------------------------------------------------------------------------------------------


def one_node(served: Served, name: str) -> Row:
    """The node of that name or ``node_id``. ``Problem`` 404 with what sounds alike, 409 where two machines have it."""
    nodes = served.fleet.now().nodes
    found = nodes.filter((pl.col("node_id") == name) | (pl.col("node") == name))
    if found.height == 1:
        return found.row(0, named=True)
    if found.height:
        ids = ", ".join(map(str, found["node_id"].head(5)))
        raise Problem(409, f"{found.height} machines are called {shown(name)}; name one by its node_id: {ids}")
    known = [str(node) for node in nodes["node"].drop_nulls().unique().sort()]
    near = difflib.get_close_matches(name[:100], known, 3)
    there = f"; near: {', '.join(near)}" if near else f"; {len(known)} are known"
    raise Problem(404, f"no node {shown(name)}{there}")


def read_node(served: Served, name: str) -> Row:
    """One node: its row, its GPUs, its open incidents."""
    found = one_node(served, name)
    now = served.fleet.now()
    gpus = now.gpus.filter(pl.col("node_id") == found["node_id"])
    order = [column for column in ("gpu_index", "gpu_uuid") if column in gpus.columns]
    return {
        **found,
        "gpus_now": gpus.sort(order).to_dicts(),
        "incidents": _open(served, str(found["node_id"])),
        "at": now.at,
    }


def _open(served: Served, node_id: str) -> list[Row]:
    return served.rows(
        "SELECT incident_id, severity, cause, title, state, since, opened_ts, gpu_uuid, link, owner, due_ts "  # noqa: S608
        f"FROM incident_now WHERE state <> 'resolved' AND node_id = {quoted(node_id)} "
        f"AND cluster = {quoted(served.cluster())} ORDER BY since DESC, incident_id LIMIT {_OPEN_SHOWN}"
    )


def read_gpu(served: Served, gpu_uuid: str) -> Row:
    """One GPU: its row, what the inventory last said of it, and its open incidents."""
    now = served.fleet.now()
    found = now.gpus.filter(pl.col("gpu_uuid") == gpu_uuid)
    if found.is_empty():
        raise Problem(404, f"no GPU {shown(gpu_uuid)}; its whole UUID is wanted, as /api/v1/gpus lists it")
    row = found.row(0, named=True)
    facts = served.rows(
        "SELECT serial, slot, vbios_version, driver_version, mig_profile, domain, attributes, ts FROM inventory "  # noqa: S608
        f"WHERE kind = 'gpu' AND entity = {quoted(gpu_uuid)} ORDER BY ts DESC LIMIT 1"
    )
    incidents = [i for i in _open(served, str(row["node_id"])) if i["gpu_uuid"] == gpu_uuid]
    return {**row, "inventory": facts[0] if facts else None, "incidents": incidents, "at": now.at}


# --- routes -------------------------------------------------------------------------------------------------


@get("/api/v1/nodes", sync_to_thread=True)
def nodes(
    served: ServedHere,
    paging: PageAsked,
    state_: StateIs = "",
    model: Text = "",
    partition: Text = "",
    rack: Text = "",
    q: Text = "",
) -> Response[bytes]:
    """Nodes now, with state, place and open incidents."""
    return page(read_nodes(served, paging, state=state_, model=model, partition=partition, rack=rack, q=q))


@get("/api/v1/nodes/{node:str}", sync_to_thread=True)
def node_(served: ServedHere, node: FromPath[str]) -> Response[bytes]:
    """One node by name or node_id, with its GPUs and open incidents."""
    return one(read_node(served, node))


@get("/api/v1/gpus", sync_to_thread=True)
def gpus(
    served: ServedHere, paging: PageAsked, node: Text = "", state_: StateIs = "", model: Text = ""
) -> Response[bytes]:
    """GPUs now, with state, use and job."""
    return page(read_gpus(served, paging, node=node, state=state_, model=model))


@get("/api/v1/gpus/{gpu_uuid:str}", sync_to_thread=True)
def gpu(served: ServedHere, gpu_uuid: FromPath[str]) -> Response[bytes]:
    """One GPU by its UUID."""
    return one(read_gpu(served, gpu_uuid))


@get("/api/v1/links", sync_to_thread=True)
def links(served: ServedHere, paging: PageAsked, node: Text = "") -> Response[bytes]:
    """NVLinks and network ports in their newest window, with what they counted in it."""
    return page(read_links(served, paging, node=node))


@get("/api/v1/events", sync_to_thread=True)
def events(served: ServedHere, paging: PageAsked, span: SpanAsked, node: Text = "", kind: Text = "") -> Response[bytes]:
    """Events of a range, newest first."""
    return page(read_events(served, paging, span, node=node, kind=kind))


ROUTES: Final[tuple[Any, ...]] = (nodes, node_, gpus, gpu, links, events)
