"""From rows to messages: the agent's own keys filled in, grouped by table and machine, encoded and numbered.

What does not fit the contract costs only itself: an unfit value becomes null and its field is named in the
counts, in the log (once) and as a ``quality`` row, so that a null is never a riddle. A row whose keys are
unfit is dropped and counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import structlog

from graynode.collectors.base import Machine, Row, Rows
from graynode.pipeline.codec import MAX_MESSAGE_BYTES, MAX_RAW_BYTES, Message, Origin, encode, to_batch
from graynode.pipeline.schema import EVENTS, TABLES, Table

_log = structlog.get_logger()

_UNFIT: Final = (KeyError, ValueError, TypeError, OverflowError)
_NEEDED: Final = ("ts", "cluster", "node_id")
_CHUNK_ROWS: Final = 5000
"""Rows a message at most: 160 columns of 8 bytes stay a tenth of the codec's limit."""
_HURRY_ROWS: Final = 20_000
"""Rows waiting that are sent before their time: a replayed day must not be held in memory."""
HOLD_VALUES: Final = 300_000
"""Values that may wait while nobody takes them (the disk hangs in a write): ten minutes of an 8-GPU node, some
40 MiB."""

Group = tuple[str, str, str]
"""Table, cluster, node_id: what one message is about."""


class Misfits:
    """Fields and rows that did not fit the contract, counted by (table, field); each is logged once."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def add(self, table: str, field: str, value: object, reason: str) -> bool:
        """Count one; true if it is the first of its kind."""
        first = (table, field) not in self.counts
        self.counts[table, field] = self.counts.get((table, field), 0) + 1
        if first:
            _log.error(
                "a collector gave what the contract does not know; the value is left out",
                table=table, field=field, value=ascii(value)[:80], reason=reason[:200],
            )  # fmt: skip
        return first


class Batcher:
    """Rows of all collectors until they are taken as messages. ``add`` from any thread, ``take`` from one."""

    def __init__(
        self,
        machine: Machine,
        epoch: int,
        *,
        driver_load: Callable[[], int | None],
        now: Callable[[], datetime],
        misfits: Misfits,
    ) -> None:
        self._machine, self._epoch, self._driver_load, self._now = machine, epoch, driver_load, now
        self._misfits = misfits
        self._lock = threading.Lock()
        self._waiting: dict[Group, list[Row]] = {}
        self._sequence = 0
        self.shed_rows = 0
        """Rows of samples dropped because nobody took them."""

    def add(self, rows: Rows, ts: datetime) -> bool:
        """Keep rows of one round; true if they should not wait for the batch: events, or very many rows."""
        hurry = False
        load = self._driver_load()
        with self._lock:
            for table, some in rows.items():
                if table not in TABLES or not TABLES[table].topic:
                    self._misfits.add(table, "*", len(some), "no collector fills such a table")
                    continue
                for row in some:
                    fill_keys(TABLES[table], row, ts, self._machine, load)
                    group = (table, str(row["cluster"]), str(row["node_id"]))
                    self._waiting.setdefault(group, []).append(row)
                hurry = hurry or (TABLES[table].topic == EVENTS and len(some) > 0)
            return hurry or _rows(self._waiting) > _HURRY_ROWS

    def shed(self, most_values: int = HOLD_VALUES) -> None:
        """Keep memory bounded while nobody takes: drop the older samples until so many values wait; events stay."""
        with self._lock:
            samples = [rows for group, rows in self._waiting.items() if TABLES[group[0]].topic != EVENTS]
            while samples and sum(len(row) for rows in samples for row in rows) > most_values:
                for rows in samples:
                    older = (len(rows) + 1) // 2
                    self.shed_rows += older
                    del rows[:older]

    def take(self, *, events_only: bool = False) -> list[tuple[str, Message]]:
        """Messages with their topics. With ``events_only`` samples go on waiting."""
        with self._lock:
            if _rows(self._waiting) > _HURRY_ROWS:
                events_only = False
            taken = {g: r for g, r in self._waiting.items() if not events_only or TABLES[g[0]].topic == EVENTS}
            self._waiting = {g: r for g, r in self._waiting.items() if g not in taken}
        return [message for group, rows in taken.items() for message in self._messages(group, rows)]

    def _messages(self, group: Group, rows: list[Row]) -> Iterable[tuple[str, Message]]:
        topic = TABLES[group[0]].topic
        for start in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[start : start + _CHUNK_ROWS]
            try:
                messages = self._encode(group, chunk)
            except Exception as error:  # whatever it is, the other tables and machines do not pay for it
                self._misfits.add(group[0], "*", chunk[0], f"{type(error).__name__}: {error}")
                continue
            yield from ((topic, message) for message in messages)

    def _encode(self, group: Group, rows: Sequence[Row]) -> list[Message]:
        table, cluster, node_id = group
        origin = Origin(cluster, node_id, self._epoch)
        try:
            message = encode(table, rows, origin, self._sequence + 1, self._now())
        except _UNFIT:
            rows = self._mend(TABLES[table], rows)
            if not rows:
                return []
            message = encode(table, rows, origin, self._sequence + 1, self._now())
        if len(message.value) <= MAX_MESSAGE_BYTES and int(message.headers["raw"]) <= MAX_RAW_BYTES:
            self._sequence += 1
            return [message]
        if len(rows) == 1:
            self._misfits.add(table, "*", len(message.value), "one row alone is larger than a message may be")
            return []
        half = len(rows) // 2
        return [*self._encode(group, rows[:half]), *self._encode(group, rows[half:])]

    def _mend(self, table: Table, rows: Sequence[Row]) -> list[Row]:
        kept: list[Row] = []
        for row in rows:
            unfit = unfit_fields(table, row)
            for field, reason in unfit.items():
                if self._misfits.add(table.name, field, row[field], reason):
                    self._say_dead(table, row, field, reason)
            if not unfit.keys() & set(_NEEDED):
                kept.append({name: value for name, value in row.items() if name not in unfit})
        return kept

    def _say_dead(self, table: Table, row: Row, field: str, reason: str) -> None:
        entity = row.get("gpu_uuid") or row.get("link") or row["node_id"]
        said = {
            "table_name": table.name, "entity": str(entity), "field": field, "state": "error",
            "reason": f"does not fit the contract: {reason}"[:400],
        }  # fmt: skip
        who = {name: row[name] for name in ("node_id", "node", "boot_id") if isinstance(row.get(name), str)}
        if table.name != "quality":  # else a wrong quality row would speak of itself for ever
            self.add({"quality": [{**who, **said}]}, self._now())


def fill_keys(table: Table, row: Row, ts: datetime, machine: Machine, driver_load: int | None) -> None:
    """Set what the agent knows and the row does not say. Rows of other machines get no boot id of this one."""
    own = {"ts": ts, "cluster": machine.cluster, "node_id": machine.node_id, "vendor": "NVIDIA"}
    if row.get("node_id") in (None, machine.node_id):
        own |= {"node": machine.node, "boot_id": machine.boot_id, "driver_load": driver_load}
    for name, value in own.items():
        if row.get(name) is None and value is not None and name in _FIELDS[table.name]:
            row[name] = value


def unfit_fields(table: Table, row: Row) -> dict[str, str]:
    """The fields of a row that the contract does not take, and why."""
    unfit: dict[str, str] = {}
    for name, value in row.items():
        try:
            to_batch(table, [{name: value}])
        except _UNFIT as error:
            unfit[name] = str(error) or type(error).__name__
    return unfit


def _rows(waiting: Mapping[Group, Sequence[Row]]) -> int:
    return sum(len(rows) for rows in waiting.values())


_FIELDS: Final[dict[str, frozenset[str]]] = {name: frozenset(table.names) for name, table in TABLES.items()}
