"""``/api/v1/series`` and ``/api/v1/fields``: values over time, and what there is to ask for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
import polars as pl
from litestar import Response, get
from litestar.params import QueryParameter

from graynode.pipeline.series import ENTITIES, Series, SeriesError, metrics, series
from graynode.service.api.answers import Page, page
from graynode.service.api.asked import ANY, ServedHere, SpanAsked, Text
from graynode.service.api.bounded import lake_problems
from graynode.service.api.nodes import one_node, read_links
from graynode.service.api.paging import Paging
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import WHOLE_FROM, Span
from graynode.service.api.state import Served

MOST_IDS: Final = 100
_HOUR_S: Final = 3600
_KEPT_S: Final = 60.0
_STALE_S: Final = 300.0
_POINTS: Final = 1000
"""Points of a series where no step is named: about what a screen has."""


def read_series(
    served: Served, span: Span, *, metric: str, entity: str = "gpu", ids: tuple[str, ...] = (), node: str | None = None
) -> Page:
    """Rows ``ts``, ``id``, ``value``, ``low``, ``high``; beside them ``unit``, ``kind``, ``step_s`` as used, ``table``.

    ``ids``: nodes by name or node_id, GPUs by UUID, links as ``node/link``; of the fleet none. ``Problem`` 400 for an
    unknown metric, with what sounds alike. With ``node`` those of its GPUs or links (all, where ``ids`` names none),
    and each row has a ``name`` that a person knows it by. A node that is named as empty has nothing: so asks a
    dashboard whose reader has chosen none.
    """
    if node == "":
        return Page([], served.at(), notes=("no node is chosen",))
    ids = tuple(id_ for id_ in ids if id_ not in ANY)
    names = _names(served, entity, node) if node is not None and node not in ANY else {}
    if node is not None and node not in ANY and not names:
        return Page([], served.at(), notes=(f"no {entity} of {shown(node)} is known now",))
    if names:
        ids = tuple(id_ for id_ in ids if id_ in names) or tuple(names)
    if len(ids) > MOST_IDS:
        raise Problem(400, f"{len(ids)} ids: at most {MOST_IDS} at a time")
    found, at = _found(served, span, metric, entity, ids)
    rows = found.frame.to_dicts()
    if names:
        rows = [{**row, "name": names.get(row["id"], row["id"])} for row in rows]
    about = {"metric": metric, "entity": entity, "unit": found.unit, "kind": found.kind, "step_s": found.step_s}
    notes = (*span.notes, *found.notes)
    return Page(rows, at, notes=notes, about={**about, "table": found.table})


def _found(served: Served, span: Span, metric: str, entity: str, ids: tuple[str, ...]) -> tuple[Series, datetime]:
    """The series, and the data's time as of which it is: hours over days change once an hour, and are kept a minute."""
    step_s = span.step_s or max((span.until - span.since) / timedelta(seconds=_POINTS), 1.0)
    over = span.in_hours if step_s >= _HOUR_S else span

    def make() -> tuple[Series, datetime]:
        at = served.at()
        with lake_problems():
            try:
                return series(served.queries, metric, entity, ids, over.since, over.until, step_s), at
            except SeriesError as error:
                raise Problem(400, shown(error)) from error

    if step_s < _HOUR_S or span.until - span.since < WHOLE_FROM:
        return make()
    key = f"series {msgspec.json.encode((metric, entity, ids)).decode()} {over.sql} {step_s}"
    return served.kept.get(key, _KEPT_S, make, stale_s=_STALE_S)


def _names(served: Served, entity: str, node: str) -> dict[str, str]:
    """What there is of a node by id, and what a person calls it: a GPU by its index, a link by its name."""
    found = one_node(served, node)
    if entity == "link":
        links = read_links(served, Paging(MOST_IDS), node=str(found["node_id"])).rows
        return {f"{row['node_id']}/{row['link']}": str(row["link"]) for row in links}
    if entity != "gpu":
        return {str(found["node_id"]): str(found["node"] or found["node_id"])}
    gpus = served.fleet.now().gpus.filter(pl.col("node_id") == found["node_id"]).sort("gpu_index", "gpu_uuid")
    return {row["gpu_uuid"]: _called(row) for row in gpus.head(MOST_IDS).iter_rows(named=True)}


def _called(gpu: dict[str, Any]) -> str:
    short = str(gpu["gpu_uuid"])[:12]
    return short if gpu["gpu_index"] is None else f"GPU {gpu['gpu_index']} ({short})"


def read_fields(entity: str = "") -> Page:
    """What can be asked over time: name, unit, kind, help, by entity. Of a node or the fleet its GPUs' too."""
    if entity not in ("", *ENTITIES):
        raise Problem(400, f"entity={shown(entity)}: one of {', '.join(ENTITIES)}")
    rows = [
        {"name": field.name, "entity": of, "table": table, "unit": field.unit, "kind": field.kind, "help": field.help}
        for of in ENTITIES
        if entity in ("", of)
        for table, field in metrics(of)
    ]
    return Page(rows)


@get("/api/v1/series", sync_to_thread=True)
def series_(
    served: ServedHere,
    span: SpanAsked,
    metric: Text,
    entity: Text = "gpu",
    id_: Annotated[
        list[str] | None, QueryParameter(name="id", max_items=MOST_IDS, description="repeat it for several")
    ] = None,
    node: Annotated[str | None, QueryParameter(max_length=500, description="all of this node")] = None,
) -> Response[bytes]:
    """A metric of /api/v1/fields over time (the last day where no range is named)."""
    return page(read_series(served, span, metric=metric, entity=entity, ids=tuple(id_ or ()), node=node))


@get("/api/v1/fields", sync_to_thread=False)
def fields(entity: Text = "") -> Response[bytes]:
    """Fields of the contract with unit, kind and meaning."""
    return page(read_fields(entity))


ROUTES: Final[tuple[Any, ...]] = (series_, fields)
