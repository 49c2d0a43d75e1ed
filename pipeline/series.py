"""One metric over time, of the fleet, of nodes, GPUs or links: the table is chosen by the step that is wanted.

Raw samples for steps below 30 s, 30-second windows below an hour, hours from there on; of the fleet the table
``fleet_1h`` for what it has. Only files of that time are opened. Where a finer table does not reach back so far the
next coarser one answers, and where that gave too many points the step is enlarged; ``Series.notes`` says so.

Metrics are the contract's columns without window suffix: ``power_w``, ``gpu_util_percent``, ``energy_mj``. A gauge
gives mean (weighted by samples), lowest and highest; a counter or an amount its increase in the step, ``low`` and
``high`` null; a state (``pcie_width``) mean, lowest and highest of its last values. Where nothing was measured there is
no row.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import FLEET_AMOUNTS, FLEET_GAUGES, TABLES, WINDOW_S, Field, window_field_names
from graynode.pipeline.series_sql import CHOSEN, fleet_sql, rows_sql

ENTITIES: Final = ("fleet", "node", "gpu", "link")
MOST_POINTS: Final = 11_000
"""Rows of one answer, over all its series; what Prometheus allows one series of its own."""
_TABLES: Final = {"fleet": ("gpu", "host", "link"), "node": ("host", "gpu", "link"), "gpu": ("gpu",), "link": ("link",)}
_KINDS: Final = ("gauge", "counter", "amount", "state")
_FINE_FLEET: Final = timedelta(hours=6)
"""Over more time than this a fleet is answered from hours, whatever the step: 30 s windows are ten thousand a step."""


class SeriesError(ValueError):
    """The question cannot be answered; the text is for the person who asked."""


@dataclass(frozen=True, slots=True)
class Series:
    """``frame``: ts (start of the step, UTC), id, value, low, high; sorted by id and time. ``table`` gave it."""

    frame: pl.DataFrame
    table: str
    step_s: int
    unit: str
    kind: str
    notes: list[str] = field(default_factory=list)


def series(
    queries: Queries, metric: str, entity: str, ids: Sequence[str], since: datetime, until: datetime, step_s: float
) -> Series:
    """The metric of these entities, ``since <= ts < until``. ``SeriesError`` for what there is not, ``QueryError``.

    Ids: of a node its ``node_id`` or host name, of a GPU its UUID, of a link ``<node>/<link>``; of the fleet none for
    all of it, or ``partition=train``, ``rack=…``, ``gpu_model=…``, ``job_id=…``, ``cluster=…``.
    """
    raw, column = _metric(metric, entity)
    if entity != "fleet" and not ids:
        raise SeriesError(f"entity {entity}: say which, with id")
    if since >= until:
        raise SeriesError(f"from {since.isoformat()} is not before to {until.isoformat()}")
    for id_ in ids if entity == "fleet" else ():
        if id_.partition("=")[0] not in CHOSEN:
            raise SeriesError(f"id {id_!r} of the fleet: one of {', '.join(f'{c}=…' for c in CHOSEN)} is wanted")
    since, until = since.astimezone(UTC), until.astimezone(UTC)
    notes: list[str] = []
    table, window_s = _table(queries, raw, metric, entity, since, until, step_s, notes)
    step = _step(step_s, window_s, (until - since).total_seconds(), max(1, len(ids)), notes)
    if table == "fleet_1h":
        sql = fleet_sql(queries.source(table, since, until), metric, ids, since, until, step)
    else:
        sql = rows_sql(queries.source(table, since, until), raw, column, window_s, entity, ids, since, until, step)
    return Series(queries.frame(sql), table, step, column.unit, column.kind, notes)


def metrics(entity: str) -> list[tuple[str, Field]]:
    """What ``series`` knows of an entity: table and field, in the contract's order."""
    return [(raw, f) for raw in _TABLES[entity] for f in TABLES[raw].fields if _usable(f)]


def _usable(f: Field) -> bool:
    number = f.type in ("int32", "int64", "float32", "float64", "bool")
    return f.kind in _KINDS and number and bool(window_field_names(f))


def _metric(metric: str, entity: str) -> tuple[str, Field]:
    if entity not in ENTITIES:
        raise SeriesError(f"entity {entity!r}: there are {', '.join(ENTITIES)}")
    known = metrics(entity)
    for raw, f in known:
        if f.name == metric:
            return raw, f
    near = difflib.get_close_matches(metric, [f.name for _, f in known], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "docs/metrics.md has them"
    raise SeriesError(f"metric {metric!r} of entity {entity}: there is none such; {hint}")


def _table(
    queries: Queries, raw: str, metric: str, entity: str, since: datetime, until: datetime, step_s: float,
    notes: list[str],
) -> tuple[str, int]:  # fmt: skip
    """The table to ask, and its window in seconds (0: samples)."""
    in_fleet = metric in FLEET_GAUGES or metric in FLEET_AMOUNTS
    hours = "fleet_1h" if entity == "fleet" and raw == "gpu" and in_fleet else f"{raw}_1h"
    ways = [(raw, 0), (f"{raw}_30s", WINDOW_S["30s"]), (hours, WINDOW_S["1h"])]
    first = sum(step_s >= window for _, window in ways[1:])
    if entity == "fleet" and until - since > _FINE_FLEET:
        first = 2
    for i in range(first, len(ways)):
        if _reaches(queries, ways[i][0], since, until):
            if i > first:
                notes.append(f"{ways[first][0]} does not reach back so far; answered from {ways[i][0]}")
            return ways[i]
    # Nothing reaches back: what there is of the finest that has anything.
    for way in ways[first:]:
        if queries.has(way[0], since, until):
            return way
    return ways[-1]


def _reaches(queries: Queries, table: str, since: datetime, until: datetime) -> bool:
    """Whether the table has rows at the beginning of that time: in its first hour, or its first twentieth."""
    begins = since + max(timedelta(hours=1), (until - since) / 20)
    return queries.has(table, since, min(begins, until))


def _step(wanted_s: float, window_s: int, span_s: float, series_: int, notes: list[str]) -> int:
    unit = max(window_s, 1)
    step = max(unit, math.ceil(wanted_s / unit) * unit)
    least = math.ceil(span_s * series_ / MOST_POINTS / unit) * unit
    if least > step:
        notes.append(f"step {least} s: {step} s would give more than {MOST_POINTS:,} points")
        return least
    if step > max(wanted_s, 1):
        notes.append(f"step {step} s: the windows that answer are {unit} s long")
    return step
