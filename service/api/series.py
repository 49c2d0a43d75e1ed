"""``/api/v1/series`` and ``/api/v1/fields``: values over time, and what there is to ask for."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from litestar import Response, get
from litestar.params import QueryParameter

from graynode.pipeline.series import ENTITIES, SeriesError, metrics, series
from graynode.service.api.answers import Page, page
from graynode.service.api.asked import ServedHere, SpanAsked, Text
from graynode.service.api.bounded import lake_problems
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import Span
from graynode.service.api.state import Served

MOST_IDS: Final = 100
_POINTS: Final = 1000
"""Points of a series where no step is named: about what a screen has."""


def read_series(served: Served, span: Span, *, metric: str, entity: str = "gpu", ids: tuple[str, ...] = ()) -> Page:
    """Rows ``ts``, ``id``, ``value``, ``low``, ``high``; beside them ``unit``, ``kind``, ``step_s`` as used, ``table``.

    ``ids``: nodes by name or node_id, GPUs by UUID, links as ``node/link``; of the fleet none. ``Problem`` 400 for an
    unknown metric, with what sounds alike.
    """
    if len(ids) > MOST_IDS:
        raise Problem(400, f"{len(ids)} ids: at most {MOST_IDS} at a time")
    step_s = span.step_s or max((span.until - span.since) / timedelta(seconds=_POINTS), 1.0)
    with lake_problems():
        try:
            found = series(served.queries, metric, entity, ids, span.since, span.until, step_s)
        except SeriesError as error:
            raise Problem(400, shown(error)) from error
    about = {"metric": metric, "entity": entity, "unit": found.unit, "kind": found.kind, "step_s": found.step_s}
    notes = (*span.notes, *found.notes)
    return Page(found.frame.to_dicts(), served.at(), notes=notes, about={**about, "table": found.table})


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
) -> Response[bytes]:
    """A metric of /api/v1/fields over time (the last day where no range is named)."""
    return page(read_series(served, span, metric=metric, entity=entity, ids=tuple(id_ or ())))


@get("/api/v1/fields", sync_to_thread=False)
def fields(entity: Text = "") -> Response[bytes]:
    """Fields of the contract with unit, kind and meaning."""
    return page(read_fields(entity))


ROUTES: Final[tuple[Any, ...]] = (series_, fields)
