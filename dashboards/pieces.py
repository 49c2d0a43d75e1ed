"""What the stories of incidents and of jobs are put together from."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def clean(value: Any) -> str:  # noqa: ANN401 (JSON)
    """A machine's text without what would move a terminal's cursor; empty for none."""
    return "".join(c if c.isprintable() else " " for c in str(value)) if value is not None else ""


def time(value: Any, absent: str = "unknown") -> str:  # noqa: ANN401 (JSON)
    """A time to the second, UTC; ``absent`` for what is none."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, datetime) else absent


def from_json(text: str) -> Any:  # noqa: ANN401 (JSON)
    """What the text says; none where it cannot be read."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def label(text: str) -> Text:
    """The heading of a part."""
    return Text(text, style="bold underline")


def head(word: str, style: str, sentence: str, facts: Iterable[tuple[str, str]]) -> RenderableType:
    """The sentence after its word, and the facts below it."""
    title = Text(f"{word.upper()}  ", style=style)
    title.append(sentence, style="bold")
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in facts:
        rows.add_row(name, Text(value))
    return Group(title, Text(), rows)


def look_yourself(sql: str, lake: str = "") -> RenderableType:
    """A line for a person to copy: the question, to the lake that was asked (empty: the configured one)."""
    where = f" --lake {shlex.quote(clean(lake))}" if lake else ""
    return Group(label("Look yourself"), Padding(Text(f'graynode sql{where} -c "{sql}"'), (0, 0, 0, 2)))
