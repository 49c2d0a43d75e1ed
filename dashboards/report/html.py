"""The report as one HTML file: no script, no address to fetch, prints well, dark where the reader's screen is.

Every text is escaped by the template (autoescape); the only markup taken as it is are the pictures drawn by
``graynode.dashboards.render``, which escapes what is in them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from graynode.dashboards.chart_theme import dark_rules
from graynode.dashboards.report.markdown import clean_lines
from graynode.dashboards.report.model import Column, Report
from graynode.dashboards.report.words import value


def write(report: Report) -> str:
    """The whole page."""
    return _environment().get_template("report.html.j2").render(report=report, dark=Markup(dark_rules("figure svg")))  # noqa: S704 (our own colours)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("graynode.dashboards.report", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"cell": _cell, "side": _side, "drawn": Markup, "sql": clean_lines}
    return made


def _cell(told: Any, column: Column) -> str:  # noqa: ANN401 (a cell)
    return value(told, column.unit)


def _side(told: Any) -> str:  # noqa: ANN401 (a cell)
    """Numbers stand right, so that their digits do."""
    number = isinstance(told, (int, float)) and not isinstance(told, (bool, datetime))
    return "n" if number else "t"
