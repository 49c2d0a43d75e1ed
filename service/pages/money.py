"""``/cost`` and ``/lemons``: where GPU-hours and money went, what could be had back, and which nodes fail again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from litestar import Response
from litestar.params import QueryParameter

from graynode.dashboards.pages import words
from graynode.service.api.asked import CallerHere, ServedHere, SpanAsked, Text
from graynode.service.api.money import read_capacity, read_cost, read_lemons
from graynode.service.api.paging import MOST, Paging
from graynode.service.api.state import Served
from graynode.service.pages.frame import AnyRequest, html, page_at

BYS: Final = ("user", "account", "team", "partition", "work", "model")
_RANKED: Final = 50
_SHOWN: Final = 100
_WAITING_SHOWN: Final = 15
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
_COLUMNS: Final = tuple(
    {"word": word}
    for word in (
        "GPU-hours", "Share", "Cost", "Busy, useful", "Busy, low", "Given, idle", "Held", "Busy %", "SM active",
        "Tensor active",
    )
)  # fmt: skip


@page_at("/cost")
def cost(
    served: ServedHere, caller: CallerHere, request: AnyRequest, span: SpanAsked, by: Text = "account",
    from_: Annotated[str, QueryParameter(name="from", max_length=100)] = "",
    to: Annotated[str, QueryParameter(name="to", max_length=100)] = "",
) -> Response[bytes]:  # fmt: skip
    """GPU-hours and money by category and by whom; capacity."""
    by = by if by in BYS else "account"
    whole, told = read_cost(served, span, "category"), read_cost(served, span, by)
    kinds, currency = _categories(whole), told.get("currency")
    return html(
        served, caller, request, "cost.html", by=by, bys=BYS, from_=from_, to=to,
        span_said=f"{told['since']:%Y-%m-%d %H:%M} to {told['until']:%Y-%m-%d %H:%M}",
        problem="; ".join(told.get("notes") or ()) or None,
        hours=bool(kinds), owned=sum(row["hours"] for row in kinds), categories=kinds,
        parts=[(row["category"], row["hours"]) for row in kinds], whole_said=_said(kinds), columns=_COLUMNS,
        rows=[_row(row, currency) for row in told["rows"][:_SHOWN]], capacity=_capacity(served, currency),
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


def _row(row: Mapping[str, Any], currency: str | None) -> dict[str, Any]:
    kinds = [words.number(row.get(f"{name}_gpu_h")) for name in ("busy_useful", "busy_low", "allocated_idle", "held")]
    active = [words.percent(row.get(f"{name}_active_ratio"), 0) for name in ("sm", "tensor")]
    sums = [words.number(row["gpu_hours"]), words.percent(row["share"]), words.money(row["cost"], currency)]
    return {"name": row["key"], "cells": [*sums, *kinds, words.short(row.get("util_percent")), *active]}


def _capacity(served: Served, currency: str | None) -> list[dict[str, Any]]:
    waiting, reclaim = read_capacity(served, "waiting").rows, read_capacity(served, "reclaim").rows
    gap = next(iter(read_capacity(served, "gap").rows), {})
    budgets = read_capacity(served, "budgets").rows
    more = f"; {len(waiting) - _WAITING_SHOWN} more wait" if len(waiting) > _WAITING_SHOWN else ""
    parts: list[dict[str, Any]] = [
        {"title": "Waiting jobs", "said": f"Each with the shape it waits for, longest first{more}",
         "columns": ("Job", "User", "Waits for", "Since", "Why"), "none": "No job waits.",
         "rows": [(r["job_id"], r.get("user"), r.get("shape"), words.span(r.get("waited_s")), r.get("why"))
                  for r in waiting[:_WAITING_SHOWN]]},
        {"title": "Could be had back", "said": "GPUs that jobs hold and do not use",
         "columns": ("Node", "GPU", "User", "Idle h", "Cost a day", "Evidence"),
         "none": f"No GPU is held without use. {_gap(gap)}",
         "rows": [(r["node"], r.get("gpu_uuid"), r.get("user"), words.short(r.get("idle_h")),
                   words.money(r.get("cost_per_day"), currency), r.get("evidence")) for r in reclaim[:_SHOWN]]},
    ]  # fmt: skip
    if budgets:
        parts.append(
            {"title": "Budgets", "said": "This month, by account", "columns": ("Account", "Budget", "Used", "Share"),
             "none": "", "rows": [(r["account"], f"{words.short(r['budget'])} {r.get('unit') or ''}",
                                   words.short(r["used"]), words.percent(r["share"])) for r in budgets]}
        )  # fmt: skip
    return parts


def _gap(gap: Mapping[str, Any]) -> str:
    between = words.span(gap.get("median_s"))
    return f"From release to next use it takes {between} (median)." if between else ""


@page_at("/lemons")
def lemons(served: ServedHere, caller: CallerHere, request: AnyRequest) -> Response[bytes]:
    """Nodes by how likely they are to fault next, and those on probation."""
    told = read_lemons(served, Paging(MOST))
    found = told.rows
    about = found[0] if found else {"faults": 0, "history_days": 0.0, "enough_history": False}
    return html(
        served, caller, request, "lemons.html", nodes=len(found), reckoned=told.at, days=about["history_days"],
        faults=about["faults"], enough=about["enough_history"],
        rows=[row for row in found if row["last_fault"] is not None][:_RANKED],
        probation=[row for row in found if row["probation_until"] is not None],
    )  # fmt: skip


ROUTES: Final[tuple[Any, ...]] = (cost, lemons)
