"""Panels over Prometheus, which scrapes ``/metrics`` of ``graynode serve``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from graynode.dashboards.grafana.panels import Levels, Placed, plain, steps
from graynode.dashboards.grafana.sdk import common, common_model, model, prometheus, stat, timeseries

PLUGIN: Final = "prometheus"
UID: Final = "graynode-prometheus"
EMPTY: Final = "Prometheus has nothing: let it scrape /metrics of graynode serve (docs/grafana.md)"


def source() -> common_model.DataSourceRef:
    """Prometheus as a data source."""
    return common_model.DataSourceRef(type_val=PLUGIN, uid=UID)


def _asked(expressions: Sequence[tuple[str, str]], *, now: bool) -> list[prometheus.Dataquery]:
    made = []
    for number, (expression, legend) in enumerate(expressions):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number))
        made.append((query.instant() if now else query.range()).datasource(source()))
    return made


def scraped_lines(
    title: str, about: str, expressions: Sequence[tuple[str, str]], unit: str, *, width: int = 12, height: int = 8,
    stacked: bool = False, empty: str = EMPTY,
) -> Placed:  # fmt: skip
    """Expressions (with their legends) as lines."""
    made = timeseries.Panel().title(title).description(about).datasource(source()).unit(unit).no_value(empty)
    made = made.tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI))
    if stacked:
        made = made.fill_opacity(30).stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL))
    for query in _asked(expressions, now=False):
        made = made.with_target(query)
    return Placed(made, width, height)


def scraped_numbers(
    title: str, about: str, expressions: Sequence[tuple[str, str]], unit: str, *, width: int = 12, height: int = 4,
    levels: Levels = (), said: Mapping[str, tuple[str, str]] | None = None, empty: str = EMPTY,
) -> Placed:  # fmt: skip
    """Expressions as numbers; ``said``: a word and its colour instead of a value."""
    made = stat.Panel().title(title).description(about).datasource(source()).unit(unit).no_value(empty)
    made = made.text_mode(common_model.BigValueTextMode.VALUE_AND_NAME)
    made = made.graph_mode(common_model.BigValueGraphMode.NONE).color_scheme(plain())
    made = made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if said:
        options = {value: model.ValueMappingResult(text, color) for value, (text, color) in said.items()}
        made = made.mappings([model.ValueMap(options)])
    for query in _asked(expressions, now=True):
        made = made.with_target(query)
    if levels:
        told = {"thresholds": steps(levels), "color": {"mode": "thresholds"}}
        made = made.override_by_regexp(".*", [model.DynamicConfigValue(id_, value) for id_, value in told.items()])
    return Placed(made, width, height)
