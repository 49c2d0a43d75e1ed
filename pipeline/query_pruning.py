"""A statement's ``gpu_1h(TIMESTAMPTZ '…', TIMESTAMPTZ '…')`` as the files of that time, before the database sees it.

The macro of that name gives the same rows, but is bound over every file of the table, which takes seconds on a lake of
months. Where the times are expressions the macro stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

_LITERAL: Final = re.compile(r"'(?:[^']|'')*'")
_TIME: Final = r"TIMESTAMPTZ\s+'([0-9T:.+\- Z]{10,40})'"


def pruned(sql: str, tables: frozenset[str], source: Callable[[str, datetime, datetime], str]) -> str:
    """The statement with every call of a table over two written times replaced. ``source(table, since, until)`` gives
    the rows' place. Nothing inside of a text is touched: a quote in a text is doubled, so the times do not match there.
    """

    def of(call: re.Match[str]) -> str:
        since, until = _moment(call[2]), _moment(call[3])
        if call[1] not in tables or since is None or until is None:
            return call[0]
        return (
            f"(FROM {source(call[1], since, until)} WHERE ts >= TIMESTAMPTZ '{since.isoformat()}' "
            f"AND ts < TIMESTAMPTZ '{until.isoformat()}')"
        )

    return _CALL.sub(of, sql)


_CALL: Final = re.compile(rf"\b([a-z_0-9]+)\(\s*{_TIME}\s*,\s*{_TIME}\s*\)")


def without_texts(sql: str) -> str:
    """The statement with its texts emptied, for looking at its words."""
    return _LITERAL.sub("''", sql)


def _moment(text: str) -> datetime | None:
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        return None
    return told.replace(tzinfo=UTC) if told.tzinfo is None else told.astimezone(UTC)
