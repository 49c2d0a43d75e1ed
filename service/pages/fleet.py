"""``/``: the fleet at a glance. Counts, what is open, and the grid; filters are in the address."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Annotated, Any, Final

import polars as pl
from litestar import Response
from litestar.params import QueryParameter

from graynode.dashboards.pages import grid
from graynode.service.api.asked import CallerHere, ServedHere, StateIs, Text
from graynode.service.api.incidents import read_incidents
from graynode.service.api.paging import MOST, Paging
from graynode.service.api.state import Served
from graynode.service.fleet_now import FleetNow
from graynode.service.pages.fleet_numbers import numbers
from graynode.service.pages.frame import AnyRequest, address, choices, html, page_at

NODE_STATES: Final = ("healthy", "suspect", "quarantined", "in_repair", "probation", "unknown")
GPU_STATES: Final = ("healthy", "suspect", "lost", "unknown")
STALE: Final = timedelta(minutes=5)
"""Ten windows and more: whoever reads a page of data this old has to know it before anything else."""
_OPEN_SHOWN: Final = 10
_SEVERITY: Final = {"page": 0, "ticket": 1, "digest": 2}
_FILTERS: Final = {
    "state": "state",
    "model": "gpu_model",
    "partition": "partition",
    "rack": "rack",
    "domain": "domain",
    "switch": "switch",
}
"""Parameter of the address and column of the frame."""


@page_at("/")
def fleet(
    served: ServedHere, caller: CallerHere, request: AnyRequest, state_: StateIs = "", model: Text = "",
    partition: Text = "",
    rack: Text = "", domain: Text = "", switch: Text = "", q: Text = "",
    by: Annotated[str, QueryParameter(max_length=20)] = "",
) -> Response[bytes]:  # fmt: skip
    """The fleet, or those of its nodes that are as the address says."""
    now = served.fleet.now()
    wanted = {
        "state": state_,
        "model": model,
        "partition": partition,
        "rack": rack,
        "domain": domain,
        "switch": switch,
        "q": q,
    }
    nodes, gpus = matching(now, wanted)
    by = by if by in grid.GROUPS else usual_place(now.nodes)
    open_ = worst_first(served)
    told = [row for row in open_ if row["severity"] != "digest"]
    age = None if now.at is None else served.clock() - now.at
    return html(
        served, caller, request, "fleet.html",
        headline=headline(now.nodes, told),
        stale=age is not None and age > STALE,
        node_total=now.nodes.height, gpu_total=now.gpus.height,
        node_states=counts(now.nodes, NODE_STATES), gpu_states=counts(now.gpus, GPU_STATES),
        pages=sum(row["severity"] == "page" for row in open_),
        tickets=sum(row["severity"] == "ticket" for row in open_),
        out_of_scheduling=out_of_scheduling(now.nodes), numbers=numbers(served),
        open=told[:_OPEN_SHOWN], open_more=max(len(told) - _OPEN_SHOWN, 0),
        lake=str(served.config.lake.path), filtered=any(wanted.values()), shown=nodes.height, filters=wanted, by=by,
        choices=choices({name: values(now.nodes, _FILTERS[name]) for name in ("model", "partition")}),
        group_names=list(grid.GROUPS.items()), dense=gpus.height > grid.DETAILED_GPUS,
        places=_grid(now, tuple(wanted.items()), by), link=functools.partial(address, "/", {**wanted, "by": by}),
    )  # fmt: skip


def matching(now: FleetNow, wanted: dict[str, str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Nodes that are as wanted, and their GPUs."""
    conditions = [pl.col(_FILTERS[name]) == value for name, value in wanted.items() if value and name != "q"]
    if wanted.get("q"):
        part = wanted["q"].lower()
        names = [
            pl.col(c).fill_null("").str.to_lowercase().str.contains(part, literal=True) for c in ("node", "node_id")
        ]
        conditions.append(pl.any_horizontal(names))
    if not conditions:
        return now.nodes, now.gpus
    nodes = now.nodes.filter(*conditions)
    return nodes, now.gpus.join(nodes.select("cluster", "node_id"), on=["cluster", "node_id"], how="semi")


@functools.lru_cache(maxsize=16)
def _made(_version: str, wanted: tuple[tuple[str, str], ...], by: str, box: _Box) -> list[grid.Group]:
    return grid.groups(*matching(box.now, dict(wanted)), by)


class _Box:
    """A picture as an argument that does not count: its version is the key."""

    def __init__(self, now: FleetNow) -> None:
        self.now = now

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Box)

    def __hash__(self) -> int:
        return 0


def _grid(now: FleetNow, wanted: tuple[tuple[str, str], ...], by: str) -> list[grid.Group]:
    """The grid's HTML, made once for each picture: many people look at the same one."""
    return _made(now.version, wanted, by, _Box(now))


def counts(frame: pl.DataFrame, states: tuple[str, ...]) -> list[tuple[str, int]]:
    """How many are in each state."""
    found = {str(row[0]): int(row[1]) for row in frame["state"].value_counts().iter_rows()}
    return [(state, found.get(state, 0)) for state in states]


def values(frame: pl.DataFrame, column: str) -> list[str]:
    """What a filter can choose from."""
    return [str(v) for v in frame[column].drop_nulls().unique().sort().head(200)]


def out_of_scheduling(nodes: pl.DataFrame) -> int | None:
    """How many the scheduler gives no work; none where it says of nobody."""
    said = nodes["out_of_scheduling"].drop_nulls()
    return int(said.sum()) if said.len() else None


def usual_place(nodes: pl.DataFrame) -> str:
    """What the nodes are put together by where nobody says: the first that is known of any."""
    return next((name for name in grid.GROUPS if nodes[name].drop_nulls().len()), "rack")


def worst_first(served: Served, *, severity: str = "", cause: str = "", node: str = "") -> list[dict[str, Any]]:
    """Open incidents, pages first, and of equals the oldest first."""
    rows = [dict(row) for row in read_incidents(served, Paging(MOST), severity=severity, cause=cause, node=node).rows]
    last = served.clock()
    return sorted(rows, key=lambda row: (_SEVERITY.get(str(row["severity"]), 3), row["since"] or last))


def headline(nodes: pl.DataFrame, told: list[dict[str, Any]]) -> str:
    """The state of the fleet in one sentence."""
    if nodes.is_empty():
        return "No node yet"
    pages = sum(row["severity"] == "page" for row in told)
    bad = nodes.filter(pl.col("state") != "healthy").height
    of = f"{nodes.height:,} node{'' if nodes.height == 1 else 's'}"
    first = f"{pages} page{'' if pages == 1 else 's'} open; " if pages else ""
    return f"{first}{bad:,} of {of} not healthy" if bad else f"{first}all {of} healthy"


ROUTES: Final[tuple[Any, ...]] = (fleet,)
