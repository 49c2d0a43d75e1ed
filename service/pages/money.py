"""``/cost`` and ``/lemons``: where GPU-hours and money went, what could be had back, and which nodes fail again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from litestar import Response
from litestar.params import Parameter

from graynode.dashboards.pages import words
from graynode.service import lemons as ranked
from graynode.service.api.access import Caller
from graynode.service.api.asked import Text
from graynode.service.api.bounded import lake_problems
from graynode.service.api.problems import Problem
from graynode.service.api.spans import span as span_of
from graynode.service.api.state import Served
from graynode.service.config import ConfigError
from graynode.service.pages.frame import AnyRequest, html, page_at

BYS: Final = ("user", "account", "team", "partition", "work", "model")
_USUAL: Final = timedelta(days=7)
_RANKED: Final = 50
_SHOWN: Final = 100
CATEGORIES: Final[Mapping[str, tuple[str, str]]] = {
    "busy_useful": ("busy, useful", "works as peers of its kind of work do"),
    "busy_low": ("busy, low", "works below what peers of its kind of work reach"),
    "allocated_idle": ("given, idle", "a job has it and it does nothing"),
    "held": ("held", "memory or a process is on it, no work"),
    "free": ("free", "could be given to a job"),
    "stranded": ("stranded", "free, but no waiting job's shape fits: partial node, broken domain, wrong model"),
    "reserved": ("reserved", "kept for somebody"),
    "out_of_service": ("out of service", "cordoned or in repair"),
    "blind": ("blind", "nothing was heard of it"),
}
"""Word and meaning of each category of ``gpu_hours``."""


@page_at("/cost")
def cost(
    served: Served, caller: Caller, request: AnyRequest, by: Text = "account",
    from_: Annotated[str, Parameter(query="from", max_length=100)] = "",
    to: Annotated[str, Parameter(query="to", max_length=100)] = "",
) -> Response[bytes]:  # fmt: skip
    """GPU-hours and money by category and by whom; capacity."""
    from graynode.service import cost as costs

    asked = span_of(from_, to, "", served.at(), _USUAL)
    by = by if by in BYS else "account"
    try:
        with lake_problems():
            whole = costs.read(served.queries, served.config, since=asked.since, until=asked.until, by="category")
            told = costs.read(served.queries, served.config, since=asked.since, until=asked.until, by=by)
    except ConfigError as error:
        raise Problem(400, str(error)) from error
    kinds = _categories(whole)
    return html(
        served, caller, request, "cost.html", by=by, bys=BYS, from_=from_, to=to,
        span_said=f"{asked.since:%Y-%m-%d} to {asked.until:%Y-%m-%d}",
        problem="; ".join(told.get("notes") or ()) or None,
        hours=bool(kinds), owned=sum(row["hours"] for row in kinds), categories=kinds,
        parts=[(row["category"], row["hours"]) for row in kinds], whole_said=_said(kinds),
        columns=_COLUMNS, rows=[_row(row, told.get("currency")) for row in told["rows"][:_SHOWN]],
        capacity=_capacity(served),
    )  # fmt: skip


def _categories(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = {str(row["key"]): row for row in told["rows"]}
    return [
        {
            "category": name, "word": word, "meaning": meaning, "hours": float(rows[name]["gpu_hours"] or 0),
            "share": rows[name]["share"], "cost": rows[name]["cost"], "currency": told.get("currency"),
        }
        for name, (word, meaning) in CATEGORIES.items()
        if name in rows
    ]  # fmt: skip


def _said(kinds: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{row['word']} {words.percent(row['share'])}" for row in kinds)


_COLUMNS: Final = tuple(
    {"word": word}
    for word in (
        "GPU-hours", "Share", "Cost", "Busy, useful", "Busy, low", "Given, idle", "Held", "Busy %", "SM active",
        "Tensor active",
    )
)  # fmt: skip


def _row(row: Mapping[str, Any], currency: str | None) -> dict[str, Any]:
    kinds = [words.number(row.get(f"{name}_gpu_h")) for name in ("busy_useful", "busy_low", "allocated_idle", "held")]
    use = [
        words.short(row.get("util_percent")),
        *(words.percent(row.get(f"{n}_active_ratio"), 0) for n in ("sm", "tensor")),
    ]
    return {
        "name": row["key"],
        "cells": [
            words.number(row["gpu_hours"]),
            words.percent(row["share"]),
            words.money(row["cost"], currency),
            *kinds,
            *use,
        ],
    }


def _capacity(served: Served) -> list[dict[str, Any]]:
    from graynode.service import capacity

    try:
        with lake_problems():
            told = capacity.read(served.queries, served.config, at=served.at())
    except ConfigError as error:
        return [{"title": "Capacity", "rows": [], "none": str(error), "said": "", "columns": []}]
    waiting = [
        (row["job_id"], row.get("user"), row.get("shape"), words.span(row.get("waited_s")), row.get("why"))
        for row in told["rows"][:_SHOWN]
    ]
    back = [
        (row["node"], row.get("gpus") or row.get("gpu_uuid"), row.get("user"), words.short(row.get("idle_h")),
         words.money(row.get("cost_per_day")), row.get("evidence"))
        for row in told["reclaim"][:_SHOWN]
    ]  # fmt: skip
    gap = told.get("gap") or {}
    between = words.span(gap.get("median_s")) or "not known"
    return [
        {"title": "Waiting jobs", "said": "Each with the shape it waits for, and why it waits", "rows": waiting,
         "columns": ("Job", "User", "Waits for", "Since", "Why"), "none": "No job waits."},
        {"title": "Could be had back", "said": "GPUs that jobs hold and do not use", "rows": back,
         "columns": ("Node", "GPUs", "User", "Idle h", "Cost a day", "Evidence"),
         "none": f"No GPU is held without use. From release to next use it takes {between} (median)."},
    ]  # fmt: skip


@page_at("/lemons")
def lemons(served: Served, caller: Caller, request: AnyRequest) -> Response[bytes]:
    """Nodes by how likely they are to fault next, and those on probation."""
    found = _rank(served)
    rows = [row for row in found["nodes"] if row["faults"]]
    return html(
        served, caller, request, "lemons.html", nodes=len(found["nodes"]), faults=found["faults"],
        days=found["history_days"], enough=found["enough_history"], rows=rows[:_RANKED],
        probation=[row for row in found["nodes"] if row["probation_until"] is not None],
    )  # fmt: skip


def _rank(served: Served) -> dict[str, Any]:
    at: datetime = served.at()
    with lake_problems():
        return ranked.to_json(ranked.read(served.queries, served.cluster(), at))


ROUTES: Final[tuple[Any, ...]] = (cost, lemons)
