"""The template engine, its filters, and ``render``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from graynode.dashboards.pages import svg, words
from graynode.dashboards.pages.statics import STATICS
from graynode.dashboards.pieces import clean

_TEMPLATES: Final = Path(__file__).with_name("templates")


@functools.cache
def environment() -> Environment:
    """One engine a process: everything is escaped, and a name that nobody gave is an error, not an empty text."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_shown,
    )
    made.filters.update(words.FILTERS)
    made.globals.update(
        spark=svg.spark, strip=svg.strip, bar=svg.bar, timeline=svg.timeline, stacked=svg.stacked,
        static=_address, state_word=words.state_word,
    )  # fmt: skip
    return made


def render(template: str, **context: Any) -> str:  # noqa: ANN401 (rows of any table)
    """The page that the template makes of these values. ``jinja2.UndefinedError`` names what was not given."""
    return environment().get_template(template).render(**context)


def _shown(value: Any) -> Any:  # noqa: ANN401 (whatever a template shows)
    """None is a dot (could not tell), never the word None; machines' texts lose what a browser might act on."""
    if value is None:
        return "·"
    return clean_text(value) if type(value) is str else value


def clean_text(text: str) -> str:
    """The text without control characters and without marks that turn the direction of writing."""
    return text if text.isprintable() else clean(text)


def _address(name: str) -> str:
    """Where a script or style sheet is, named by its content so that it may be kept for ever."""
    return f"/static/{name}?v={STATICS[name].digest}"
