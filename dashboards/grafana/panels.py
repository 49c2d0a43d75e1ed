"""Panels: numbers, tables, lines. Units follow from the names of fields, colours from words that stand beside them.

Colours are Grafana's named ones, which fit its dark and its light theme. No panel tells anything by colour alone: a
state is a word, a number has its name. ``empty`` of each says what to do where there is nothing to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graynode.dashboards.grafana.infinity import Ask, Kind, Picked, source
from graynode.dashboards.grafana.links import url_of
from graynode.dashboards.grafana.sdk import builder, common, common_model, dashboard, model, stat, table, timeseries
from graynode.dashboards.grafana.units import field_of, grafana_unit, unit_of

Levels = Sequence[tuple[float | None, str]]
SOME_IS_BAD: Final[Levels] = ((None, "green"), (1, "orange"))
ANY_IS_BAD: Final[Levels] = ((None, "green"), (1, "red"))
SHARE_IS_GOOD: Final[Levels] = ((None, "red"), (0.95, "orange"), (0.99, "green"))
WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "healthy": ("healthy", "green"),
    "suspect": ("suspect", "orange"),
    "quarantined": ("quarantined", "purple"),
    "in_repair": ("in repair", "purple"),
    "probation": ("on probation", "yellow"),
    "lost": ("lost", "red"),
    "unknown": ("unknown", "blue"),
    "true": ("yes", "orange"),
    "false": ("no", "green"),
    "page": ("page", "red"),
    "ticket": ("ticket", "orange"),
    "digest": ("digest", "blue"),
    "open": ("open", "red"),
    "updated": ("open, updated", "red"),
    "resolved": ("resolved", "green"),
    "ok": ("ok", "green"),
    "late": ("late", "orange"),
    "failing": ("failing", "red"),
    "active": ("active", "green"),
    "down": ("down", "red"),
    "init": ("init", "orange"),
    "armed": ("armed", "orange"),
    "inactive": ("inactive", "orange"),
    "sleep": ("asleep", "blue"),
    "disabled": ("disabled", "blue"),
}
"""States of nodes, GPUs, links, incidents and parts, as a person reads them, and their colour."""
NOTHING: Final = "nothing in this range: choose a longer one above"


@dataclass(frozen=True, slots=True)
class Col:
    """A field of an answer: ``selector`` there, ``text`` as a person reads it.

    ``link``: dashboard and variables that its cells lead to, by columns of the row (``links.url_of``). ``state``: its
    words have a colour. ``levels``: from which value which colour. ``hidden``: only for links.
    """

    selector: str
    text: str = ""
    kind: Kind | None = None
    unit: str | None = None
    state: bool = False
    link: tuple[str, Mapping[str, str]] | None = None
    levels: Levels = ()
    hidden: bool = False
    width: int = 0
    decimals: int | None = None
    empty: str = ""

    @property
    def name(self) -> str:
        """The field's name in Grafana."""
        return self.text or self.selector

    @property
    def picked(self) -> Picked:
        """As the query picks it; times are known by their names."""
        time = self.selector.endswith("_ts") or self.selector in ("ts", "since", "last", "last_seen", "last_fault")
        return Picked(self.selector, self.name, self.kind or ("timestamp" if time else "string"))

    @property
    def grafana_unit(self) -> str:
        """Of a number its unit."""
        return grafana_unit(unit_of(self.selector) if self.unit is None else self.unit, self.selector)

    def properties(self) -> list[model.DynamicConfigValue]:
        """What the panel says of this field."""
        made: dict[str, Any] = {}
        if self.picked.kind == "number":
            made["unit"] = self.grafana_unit
        if self.decimals is not None:
            made["decimals"] = self.decimals
        if self.state:
            made |= {"mappings": [_words()], "custom.cellOptions": {"type": "color-text"}}
        if self.levels:
            made |= {"thresholds": steps(self.levels), "color": {"mode": "thresholds"}}
            made["custom.cellOptions"] = {"type": "color-text"}
        if self.empty:
            made["noValue"] = self.empty
        if self.hidden:
            made["custom.hidden"] = True
        if self.width:
            made["custom.width"] = self.width
        if self.link:
            made["links"] = [{"title": f"Open {self.link[0]}", "url": url_of(*self.link)}]
        return [model.DynamicConfigValue(id_, value) for id_, value in made.items()]


def num(selector: str, text: str = "", **other: Any) -> Col:  # noqa: ANN401 (fields of Col)
    """A number."""
    return Col(selector, text, "number", **other)


def state(selector: str = "state", text: str = "", **other: Any) -> Col:  # noqa: ANN401 (fields of Col)
    """A word that has a colour."""
    return Col(selector, text, state=True, **other)


def hidden(*selectors: str) -> list[Col]:
    """Columns that only links need, under the names they have in the answer."""
    return [Col(selector, hidden=True) for selector in selectors]


def steps(levels: Levels) -> dict[str, Any]:
    """Thresholds as Grafana writes them."""
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in levels]}


def plain() -> dashboard.FieldColor:
    """The theme's own colour of text; without it Grafana shows every number of 80 and more in red."""
    return dashboard.FieldColor().mode(model.FieldColorModeId.FIXED).fixed_color("text")


def _words() -> dict[str, Any]:
    options = {word: {"text": text, "color": color} for word, (text, color) in WORDS.items()}
    return {"type": "value", "options": options}


@dataclass(frozen=True, slots=True)
class Placed:
    """A panel and the room that it takes, of 24 columns."""

    panel: builder.Builder[model.Panel]
    width: int
    height: int


def numbers(
    title: str, about: str, url: str, columns: Sequence[Col], params: Mapping[str, str] | None = None, *,
    empty: str = NOTHING, width: int = 12, height: int = 4, root: str = "rows",
) -> Placed:  # fmt: skip
    """One row of numbers, each under its name."""
    made = (
        stat.Panel()
        .text_mode(common_model.BigValueTextMode.VALUE_AND_NAME)
        .color_mode(common_model.BigValueColorMode.VALUE)
        .graph_mode(common_model.BigValueGraphMode.NONE)
        .color_scheme(plain())
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields(""))
    )
    return _filled(made, title, about, url, columns, params, empty, root, width, height)


def rows(
    title: str, about: str, url: str, columns: Sequence[Col], params: Mapping[str, str] | None = None, *,
    empty: str = NOTHING, width: int = 24, height: int = 8, root: str = "rows",
) -> Placed:  # fmt: skip
    """A table."""
    made = table.Panel().filterable(filterable=True).cell_height(common_model.TableCellHeight.SM)
    return _filled(made, title, about, url, columns, params, empty, root, width, height)


def _filled(
    made: Any, title: str, about: str, url: str, columns: Sequence[Col], params: Mapping[str, str] | None,  # noqa: ANN401
    empty: str, root: str, width: int, height: int,
) -> Placed:  # fmt: skip
    made = made.title(title).description(about).datasource(source()).no_value(empty)
    made = made.with_target(Ask(url, [c.picked for c in columns], params or {}, root))
    for column in columns:
        properties = column.properties()
        if properties:
            made = made.override_by_name(column.name, properties)
    return Placed(made, width, height)


def _lines() -> timeseries.Panel:
    return (
        timeseries.Panel()
        .line_width(1)
        .show_points(common_model.VisibilityMode.AUTO)
        .tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI))
        .legend(
            common.VizLegendOptions()
            .display_mode(common_model.LegendDisplayMode.LIST)
            .placement(common_model.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
    )


def over_time(
    title: str, about: str, url: str, columns: Sequence[Col], params: Mapping[str, str] | None = None, *,
    empty: str = NOTHING, width: int = 12, height: int = 8, unit: str | None = None, levels: Levels = (),
) -> Placed:  # fmt: skip
    """Columns of an answer as lines over its ``ts``; all have the unit of the first, unless one is named."""
    made = _lines().title(title).description(about).datasource(source()).no_value(empty)
    made = made.unit(columns[0].grafana_unit if unit is None else unit)
    if levels:
        told = dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE)
        made = made.thresholds(told.steps([model.Threshold(value, color) for value, color in levels]))
    made = made.with_target(Ask(url, [Picked("ts", "Time", "timestamp"), *(c.picked for c in columns)], params or {}))
    return Placed(made, width, height)


@dataclass(frozen=True, slots=True)
class Series:
    """A metric of ``/api/v1/series``: ``entity`` gpu or link of a node (a line each), node, or the fleet (one line)."""

    metric: str
    title: str
    entity: str = "gpu"
    node: str = ""
    ids: str = ""

    @property
    def params(self) -> dict[str, str]:
        """As the API is asked: the dashboard's range, with the step that fits the panel's width."""
        told = {"metric": self.metric, "entity": self.entity, "node": self.node, "id": self.ids}
        return {**{k: v for k, v in told.items() if v}, **RANGE, "step": "${__interval}"}


RANGE: Final[Mapping[str, str]] = {"from": "${__from}", "to": "${__to}"}
"""The dashboard's time range, as every question over time names it."""
_OF_KIND: Final = {
    "gauge": "Mean of each step.",
    "counter": "Increase in each step.",
    "amount": "Sum of each step.",
    "state": "Mean of the last values of each step.",
}


def metric(told: Series, *, empty: str = "", width: int = 12, height: int = 8) -> Placed:
    """A metric over time; title's unit, meaning and kind are the contract's."""
    known = field_of(told.entity, told.metric)
    several = bool(told.node)
    name = {"gpu": "GPU", "link": "Link", "node": "Node"}.get(told.entity, "")
    made = _lines().title(told.title).datasource(source()).unit(grafana_unit(known.unit, known.name))
    made = made.description(f"{known.help[:1].upper()}{known.help[1:]}. {_OF_KIND[known.kind]} Field {known.name}.")
    made = made.no_value(empty or f"no {known.name} in this range: choose a longer one, or see graynode doctor")
    value = Picked("value", told.title, "number")
    columns = [Picked("ts", "Time", "timestamp"), *([Picked("name", name, "string")] if several else []), value]
    made = made.with_target(Ask("/api/v1/series", columns, told.params))
    if several:
        # A row a line and moment: the text column becomes a label of each line, and the label its name.
        made = made.with_transformation(model.DataTransformerConfig("prepareTimeSeries", options={"format": "multi"}))
        made = made.display_name(f"${{__field.labels.{name}}}")
    return Placed(made, width, height)
