"""Where a dry run sends its messages: the terminal, as a table, or a pipe, as JSON lines.

Messages are decoded again to be printed, so what is seen is what would have been sent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

from graynode.pipeline.codec import Message, decode

_HIDDEN: Final = frozenset({"ts", "cluster", "node_id", "node", "boot_id", "driver_load", "vendor"})
"""Keys that are the same in every row of one machine: named once above the table, not in each line."""


class Printer:
    """A ``Producer`` that prints. ``person``: a readable form; otherwise one JSON object a row."""

    def __init__(
        self, gone: Callable[[], None] = lambda: None, out: TextIO | None = None, person: bool | None = None
    ) -> None:
        self._gone, self._out = gone, out or sys.stdout
        self._person = self._out.isatty() if person is None else person

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        """Print all rows. A reader of the pipe that has seen enough is no error: ``gone`` is called, once or more."""
        try:
            self._print(messages)
        except BrokenPipeError:
            # Python flushes standard output once more at its end; that must have somewhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())
            self._gone()

    def _print(self, messages: Sequence[Message]) -> None:
        for message in messages:
            table = message.headers["table"]
            rows = [{k: v for k, v in row.items() if v is not None} for row in decode(message).to_pylist()]
            if self._person:
                lines = [_for_person(table, row) for row in _latest(table, rows)]
            else:
                lines = [json.dumps({"table": table, **row}, default=_plain, ensure_ascii=False) for row in rows]
            print(*lines, sep="\n", file=self._out)
        self._out.flush()

    def close(self) -> None:
        """Nothing to let go of."""


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _latest(table: str, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Of samples the last of each GPU, link and node: a person looks at what is."""
    if table not in ("gpu", "link", "host"):
        return rows
    return list({(row.get("node_id"), _name(row), row.get("mig_instance")): row for row in rows}.values())


def _name(row: Mapping[str, Any]) -> Any:  # noqa: ANN401 (the contract's keys are texts)
    keys = ("gpu_uuid", "link", "kind", "entity", "node")
    return next((row[key] for key in keys if row.get(key)), "")


def _for_person(table: str, row: Mapping[str, Any]) -> str:
    name = _name(row)
    lines = [f"{row['ts']:%H:%M:%S}  {table}  {name}"]
    shown = {k: v for k, v in row.items() if k not in _HIDDEN and v != name}
    width = max(map(len, shown), default=0)
    return "\n".join([*lines, *(f"    {field:<{width}}  {_short(value)}" for field, value in shown.items())])


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return _plain(value)
