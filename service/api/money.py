"""What GPU-hours went to and cost, what there is of capacity, and which nodes are likeliest to fault next."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

import polars as pl
from litestar import Response, get
from litestar.params import QueryParameter

from graynode.service import capacity, cost, cost_budgets, lemons
from graynode.service.api.answers import Page, Row, one, page
from graynode.service.api.asked import PageAsked, ServedHere, SpanAsked
from graynode.service.api.bounded import lake_problems
from graynode.service.api.paging import Paging
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import Span, whole_hour
from graynode.service.api.state import Served

_KEPT_S: Final = 300.0
_RANKED_S: Final = 60.0
_STALE_S: Final = 900.0
"""An older answer is not given while a new one is made; ``warm`` asks every five minutes, so most are far younger."""
_WEEK: Final = timedelta(days=7)
PARTS: Final = ("models", "waiting", "free", "reclaim", "gap", "budgets")


def _hours(served: Served, span: Span) -> Span:
    """Whole hours of the range, the last week of data where none was named: so answers can be kept."""
    until = whole_hour(span.until if span.said else served.at())
    since = whole_hour(span.since) if span.said else until - _WEEK
    return Span(since, max(until, since + timedelta(hours=1)), span.step_s, span.notes, span.said)


def read_cost(served: Served, span: Span, by: str = "category") -> Row:
    """GPU-hours, money, energy and use by ``by``: ``rows``, and ``total``."""
    over = _hours(served, span)

    def make() -> Row:
        at = served.read_at()
        with lake_problems():
            return {**cost.read(served.reports, served.config, since=over.since, until=over.until, by=by), "at": at}

    if by not in cost.BY:
        make()
    found: Row = served.kept.get(f"cost {by} {over.sql}", _KEPT_S, make, stale_s=_STALE_S)
    return {**found, "next": None}


def read_lemons(served: Served, paging: Paging) -> Page:
    """All nodes, likeliest to fault within a week first, with how much history that rests on."""

    def make() -> Row:
        at = served.read_at()
        with lake_problems():
            return {**lemons.to_json(lemons.read(served.reports, served.config.cluster, at)), "at": at}

    told = served.kept.get("lemons", _RANKED_S, make, stale_s=_STALE_S, stands=lambda old: old["faults"] > 0)
    about = {name: told[name] for name in ("history_days", "faults", "enough_history")}
    notes = () if told["enough_history"] else ("too little history for the order to mean much",)
    return Page([{**row, **about} for row in told["nodes"][: paging.limit]], told["at"], None, notes)


def read_capacity(served: Served, part: str = "models") -> Page:
    """``models``: GPUs now by model and partition. ``waiting``: jobs that wait, with the shape they wait for. ``free``:
    GPUs by node. ``reclaim``: candidates to give back. ``gap``: from release to next use. ``budgets``: used this month.
    """
    if part not in PARTS:
        raise Problem(400, f"part={shown(part)}: one of {', '.join(PARTS)}")
    if part == "models":
        return _models(served)

    def make() -> Row:
        at = served.read_at()
        with lake_problems():
            read = cost_budgets.read if part == "budgets" else capacity.read
            return {**read(served.reports, served.config, at=at), "at": at}

    key = "budgets" if part == "budgets" else "capacity"
    told = served.kept.get(key, _KEPT_S, make, stale_s=_STALE_S)
    rows = told["rows"] if part in ("waiting", "budgets") else told[part]
    return Page([rows] if isinstance(rows, dict) else rows, told["at"], notes=told.get("notes", ()))


def _models(served: Served) -> Page:
    now = served.fleet.now()
    nodes = now.nodes.select(
        "node_id", "cluster", "partition", "out_of_scheduling", pl.col("state").alias("node_state")
    )
    held = now.gpus.drop("cluster").join(nodes, on="node_id", how="left", maintain_order="left")
    out = pl.col("out_of_scheduling").fill_null(False) | pl.col("node_state").is_in(["quarantined", "in_repair"])
    dead = (pl.col("state") == "lost") | (pl.col("node_state") == "unknown")
    used = pl.col("job_id").is_not_null()
    rows = held.group_by("cluster", "gpu_model", "partition").agg(
        pl.len().alias("gpus"),
        (used & ~dead & ~out).sum().alias("with_a_job"),
        (~used & ~dead & ~out).sum().alias("free"),
        (out & ~dead).sum().alias("out_of_service"),
        dead.sum().alias("not_seen"),
        ((pl.col("state") == "suspect") & ~dead & ~out).sum().alias("suspect"),
        pl.col("node_id").n_unique().alias("nodes"),
        pl.col("util_percent").mean(),
    )
    return Page(rows.sort("cluster", "gpu_model", "partition", nulls_last=True).to_dicts(), now.at)


# --- routes -------------------------------------------------------------------------------------------------


@get("/api/v1/cost", sync_to_thread=True)
def cost_(
    served: ServedHere,
    span: SpanAsked,
    by: Annotated[str, QueryParameter(max_length=20, description=", ".join(cost.BY))] = "category",
) -> Response[bytes]:
    """What GPU-hours went to, and what they cost (the last week where no range is named)."""
    return one(read_cost(served, span, by))


@get("/api/v1/capacity", sync_to_thread=True)
def capacity_(
    served: ServedHere, part: Annotated[str, QueryParameter(max_length=20, description=", ".join(PARTS))] = "models"
) -> Response[bytes]:
    """GPUs by model and partition; with part=waiting the jobs that wait, part=reclaim what could be given back, …"""
    return page(read_capacity(served, part))


@get("/api/v1/lemons", sync_to_thread=True)
def lemons_(served: ServedHere, paging: PageAsked) -> Response[bytes]:
    """Nodes by how likely they are to fault within a week, and why."""
    return page(read_lemons(served, paging))


ROUTES: Final[tuple[Any, ...]] = (cost_, capacity_, lemons_)
