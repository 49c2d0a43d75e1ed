"""``/api/v1/series`` and ``/api/v1/fields``: values over time, and what there is to ask for."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from litestar import Response, get
from litestar.params import Parameter

from graynode.pipeline.schema import TABLES
from graynode.service.api.answers import Page, page
from graynode.service.api.asked import Text
from graynode.service.api.bounded import lake_problems
from graynode.service.api.nodes import one_node
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import POINTS, Span
from graynode.service.api.state import Served

ENTITIES: Final = ("fleet", "node", "gpu", "link")
MOST_IDS: Final = 100
_OF_TABLE: Final = {"gpu": "gpu", "link": "link", "host": "node"}
_POINTS: Final = 1000
"""Points of a series where no step is named: about what a screen has."""


def read_series(served: Served, span: Span, *, metric: str, entity: str = "gpu", ids: tuple[str, ...] = ()) -> Page:
    """Rows ``ts``, ``id``, ``value``, ``low``, ``high``, and with them ``unit`` in ``notes``' place of a name.

    ``ids``: nodes by name or node_id, GPUs by UUID, links as ``node/link``; of the fleet none. ``Problem`` 400 for an
    unknown metric, with what sounds alike.
    """
    from graynode.pipeline.series import series

    if entity not in ENTITIES:
        raise Problem(400, f"entity={shown(entity)}: one of {', '.join(ENTITIES)}")
    if len(ids) > MOST_IDS:
        raise Problem(400, f"{len(ids)} ids: at most {MOST_IDS} at a time")
    named = tuple(str(one_node(served, id_)["node_id"]) for id_ in ids) if entity == "node" else ids
    step_s = span.step_s or max((span.until - span.since) / timedelta(seconds=_POINTS), 1.0)
    with lake_problems():
        try:
            found = series(served.queries, metric, entity, named, span.since, span.until, step_s)
        except ValueError as error:
            raise Problem(400, shown(error)) from error
    told = [*span.notes, *found.notes, f"from table {found.table}, a point every {found.step_s} s"]
    return Page(found.frame.to_dicts(), served.at(), notes=told)


def read_fields(entity: str = "") -> Page:
    """What the contract measures: name, unit, kind, help, of which entity; ``series`` says what can be asked over time."""
    rows = [
        {
            "name": field.name, "entity": _OF_TABLE[table], "table": table, "unit": field.unit, "kind": field.kind,
            "type": field.type, "help": field.help, "series": field.kind in ("gauge", "counter", "amount"),
        }
        for table in _OF_TABLE
        for field in TABLES[table].fields
        if field.kind != "key" and field.window != "none"
    ]  # fmt: skip
    return Page([row for row in rows if entity in ("", row["entity"])])


@get("/api/v1/series", sync_to_thread=True)
def series_(
    served: Served,
    span: Span,
    metric: Text,
    entity: Text = "gpu",
    id_: Annotated[
        list[str] | None, Parameter(query="id", max_items=MOST_IDS, description="repeat it for several")
    ] = None,
) -> Response[bytes]:
    """A metric of /api/v1/fields over time (the last day where no range is named)."""
    return page(read_series(served, span, metric=metric, entity=entity, ids=tuple(id_ or ())))


@get("/api/v1/fields", sync_to_thread=False)
def fields(entity: Text = "") -> Response[bytes]:
    """Fields of the contract with unit, kind and meaning."""
    return page(read_fields(entity))


ROUTES: Final[tuple[Any, ...]] = (series_, fields)
