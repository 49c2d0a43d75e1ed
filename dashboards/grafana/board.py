"""A dashboard of rows of panels: ids, places, variables, annotations, and links to the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from graynode.dashboards.grafana.infinity import Ask, Picked, source
from graynode.dashboards.grafana.links import TAG, UIDS
from graynode.dashboards.grafana.panels import RANGE, Placed
from graynode.dashboards.grafana.sdk import dashboard, model

COLUMNS: Final = 24
ALL: Final = "*"
"""What the API takes for "all of them"."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable whose values the API tells: ``value`` and ``shown`` are fields of its rows."""

    name: str
    label: str
    url: str
    value: str
    shown: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    all_of: bool = False
    about: str = ""

    def build(self) -> dashboard.QueryVariable:
        """Loaded anew with the dashboard's range, for what there is depends on it."""
        columns = [Picked(self.shown or self.value, "__text", "string"), Picked(self.value, "__value", "string")]
        asked = Ask(self.url, columns, self.params, ref_id="variable").build().to_json()
        made = (
            dashboard.QueryVariable(self.name)
            .label(self.label)
            .description(self.about)
            .datasource(source())
            .query({"queryType": "infinity", "query": "", "infinityQuery": asked})
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.DISABLED)
        )
        if self.all_of:
            everything = model.VariableOption(selected=True, text="All", value="$__all")
            made = made.include_all(include_all=True).all_value(ALL).current(everything)
        return made


def words(name: str, label: str, values: Sequence[str], about: str) -> dashboard.CustomVariable:
    """A variable with a fixed choice; the first is taken."""
    options = [model.VariableOption(selected=i == 0, text=value, value=value) for i, value in enumerate(values)]
    made = dashboard.CustomVariable(name).label(label).description(about)
    return made.values(",".join(values)).options(options).current(options[0])


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. ``rows``: a heading and what stands below it."""

    name: str
    title: str
    about: str
    rows: Sequence[tuple[str, Sequence[Placed]]]
    variables: Sequence[Choice | dashboard.CustomVariable] = ()
    since: str = "now-24h"
    until: str = "now"
    refresh: str = "1m"
    marks: Sequence[dashboard.AnnotationQuery] = ()

    def build(self) -> model.Dashboard:
        """The dashboard with all ids set; the same each time."""
        made = (
            dashboard.Dashboard(self.title)
            .uid(UIDS[self.name])
            .description(self.about)
            .tags([TAG])
            .timezone("browser")
            .time(self.since, self.until)
            .refresh(self.refresh)
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .links([_others()])
        )
        for variable in self.variables:
            made = made.with_variable(variable.build() if isinstance(variable, Choice) else variable)
        for mark in self.marks:
            made = made.annotation(mark)
        built = made.build()
        built.panels = list(_placed(self.rows))
        return built


def _placed(rows: Sequence[tuple[str, Sequence[Placed]]]) -> Any:  # noqa: ANN401 (panels and rows, as the model has them)
    """Panels from left to right and top to bottom, numbered from 1."""
    y, number = 0, 0
    for heading, panels in rows:
        number += 1
        yield dashboard.Row(heading).id(number).grid_pos(model.GridPos(h=1, w=COLUMNS, x=0, y=y)).build()
        y, x, tallest = y + 1, 0, 0
        for placed in panels:
            if x + placed.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            panel = placed.panel.build()
            panel.id_val = number
            panel.grid_pos = model.GridPos(h=placed.height, w=placed.width, x=x, y=y)
            x, tallest = x + placed.width, max(tallest, placed.height)
            yield panel
        y += tallest


def _others() -> dashboard.DashboardLink:
    """All dashboards of ours, with the range that is looked at."""
    return (
        dashboard.DashboardLink("graynode")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(as_dropdown=True)
        .keep_time(keep_time=True)
        .include_vars(include_vars=False)
    )


# --- what more than one dashboard has ---------------------------------------------------------------------

CLUSTER: Final = Choice("cluster", "Cluster", "/api/v1/fleet", "cluster", about="as this graynode is configured")
MODEL: Final = Choice(
    "model", "GPU model", "/api/v1/capacity", "gpu_model", all_of=True, about="product name of the GPUs"
)
PARTITION: Final = Choice(
    "partition", "Partition", "/api/v1/capacity", "partition", all_of=True, about="partition or queue of the scheduler"
)
NODE: Final = Choice(
    "node", "Node", "/api/v1/nodes", "node_id", "node", {"limit": "5000"}, about="a machine, by its host name"
)


def incidents_mark(params: Mapping[str, str] | None = None) -> dashboard.AnnotationQuery:
    """Incidents as regions: from when until when, with title and severity."""
    columns = [
        Picked("opened_ts", "time", "timestamp"),
        Picked("resolved_ts", "timeEnd", "timestamp"),
        Picked("title", "text", "string"),
        Picked("severity", "tags", "string"),
        Picked("incident_id", "id", "string"),
    ]
    asked = Ask("/api/v1/incidents", columns, {"state": "all", **(params or {}), **RANGE}, ref_id="incidents")
    return _mark("Incidents", "red", asked)


def actions_mark(params: Mapping[str, str] | None = None) -> dashboard.AnnotationQuery:
    """What was told and done, with who did it."""
    columns = [
        Picked("ts", "time", "timestamp"),
        Picked("kind", "title", "string"),
        Picked("reason", "text", "string"),
        Picked("outcome", "tags", "string"),
        Picked("action_id", "id", "string"),
    ]
    return _mark("Actions", "blue", Ask("/api/v1/actions", columns, {**(params or {}), **RANGE}, ref_id="actions"))


def _mark(name: str, color: str, asked: Ask) -> dashboard.AnnotationQuery:
    made = dashboard.AnnotationQuery().name(name).datasource(source()).enable(enable=True).hide(hide=False)
    return made.icon_color(color).target(asked)
