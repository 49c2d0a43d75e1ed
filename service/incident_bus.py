"""Incidents and findings on the bus: one JSON message per incident revision (schema ``incident.v1``).

The object has the fields of table ``incident``; times are ISO 8601 with ``Z``; ``evidence`` and ``finding_ids``
are arrays. The key is ``cluster/node_id``, so that a node's revisions keep their order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Protocol

import msgspec

from graynode.collectors.base import utc_now
from graynode.pipeline.bus import Bus, Consumer, Partition, Producer
from graynode.pipeline.codec import Message, Origin, Unreadable, check_version, encode, headers_of
from graynode.pipeline.schema import ACTIONS, FINDINGS, INCIDENTS, TABLES, Field

_ARRAYS: Final = ("evidence", "finding_ids")
_INTEGERS: Final = {"int32": 2**31, "int64": 2**63}
_NO_MACHINE: Final = "-"
"""``node_id`` in headers and key of what is about no single machine."""
_QUIET_S: Final = 3.0
_ASSIGN_S: Final = 60.0


class Restored(Protocol):
    """What takes revisions back in (``graynode.detectors.incidents.Incidents``)."""

    def restore(self, revisions: Sequence[Mapping[str, Any]]) -> None:
        """Take up where these revisions left off."""
        ...


def incident_v1(revision: Mapping[str, Any]) -> dict[str, Any]:
    """A revision as ``incident.v1``: every field of the table, arrays as arrays; nulls stay."""
    told: dict[str, Any] = {name: revision.get(name) for name in TABLES["incident"].names}
    for name in _ARRAYS:
        value = told[name]
        if isinstance(value, str):
            told[name] = msgspec.json.decode(value)
    return told


def to_message(revision: Mapping[str, Any], epoch: int, sequence: int, sent: datetime) -> Message:
    """One revision as one message."""
    value = msgspec.json.encode(incident_v1(revision))
    origin = Origin(str(revision["cluster"]), str(revision.get("node_id") or _NO_MACHINE), epoch)
    headers = headers_of("incident", 1, len(value), origin, sequence, sent)
    return Message(origin.key, value, {**headers, "encoding": "json"})


def from_message(message: Message) -> dict[str, Any]:
    """The revision in a message. ``Unreadable`` says what is wrong; a newer major version is not read."""
    check_version(message.headers.get("v", ""))
    try:
        told = msgspec.json.decode(message.value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error}") from error
    if not isinstance(told, dict):
        raise Unreadable("not a JSON object")
    for name in ("incident_id", "revision", "state", "cluster", "node_id", "cause", "ts"):
        if not isinstance(told.get(name), int if name == "revision" else str):
            raise Unreadable(f"incident has no {name}")
    for field in TABLES["incident"].fields:
        value = told.get(field.name)
        if value is not None and not _fits(field, value):
            raise Unreadable(f"{field.name} of the incident is no {field.type}: {str(value)[:40]!r}")
    return told


def _fits(field: Field, value: object) -> bool:
    """Whether a value is of its field's type, as the lake's reader has it: what one refuses, the other is not told."""
    if field.type == "timestamp":
        return _is_instant(value)
    if field.type == "string":
        return isinstance(value, list if field.name in _ARRAYS else str)
    if field.type == "bool" or isinstance(value, bool):
        return field.type == "bool" and isinstance(value, bool)
    if field.type in _INTEGERS:
        return isinstance(value, int) and -_INTEGERS[field.type] <= value < _INTEGERS[field.type]
    return isinstance(value, int | float)


def _is_instant(text: object) -> bool:
    try:
        return isinstance(text, str) and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


class Publisher:
    """Sends incidents, findings and actions, in the order given, from any thread.

    What could not be sent waits here and goes first at the next call, so that a node's revisions keep their order
    whoever made them. One per process: its epoch and sequence are how a reader knows a message it has seen.
    """

    def __init__(
        self, producer: Producer, cluster: str, clock: Callable[[], datetime] = utc_now, epoch: int | None = None
    ) -> None:
        self._producer, self._cluster, self._clock = producer, cluster, clock
        self._epoch = time.time_ns() if epoch is None else epoch
        self._sequence = 0
        self._waiting: deque[tuple[str, Message]] = deque()
        self._lock = threading.Lock()

    def __call__(self, revisions: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, Any]] = ()) -> None:
        """Send findings, then revisions. ``BusUnavailable``: they wait for the next call or ``flush``."""
        with self._lock:
            for row in findings:
                self._put(FINDINGS, "finding", row)
            for revision in revisions:
                self._sequence += 1
                message = to_message(revision, self._epoch, self._sequence, self._clock())
                self._waiting.append((INCIDENTS, message))
            self._flush()

    def actions(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send rows of table ``action``."""
        with self._lock:
            for row in rows:
                self._put(ACTIONS, "action", row)
            self._flush()

    def canary(self, row: Mapping[str, Any]) -> None:
        """Send a heartbeat where incidents go: who reads incidents and does not know it passes it over."""
        with self._lock:
            self._put(INCIDENTS, "canary", row)
            self._flush()

    def flush(self) -> None:
        """Send what waits."""
        with self._lock:
            self._flush()

    def _put(self, topic: str, table: str, row: Mapping[str, Any]) -> None:
        self._sequence += 1
        origin = Origin(self._cluster, str(row.get("node_id") or _NO_MACHINE), self._epoch)
        self._waiting.append((topic, encode(table, [row], origin, self._sequence, self._clock())))

    def _flush(self) -> None:
        while self._waiting:
            topic, first = next(groupby(self._waiting, itemgetter(0)))
            run = [message for _, message in first]
            self._producer.send(topic, run)
            for _ in run:
                self._waiting.popleft()


def read_incidents(bus: Bus, group: str, monotonic: Callable[[], float] = time.monotonic) -> list[dict[str, Any]]:
    """All revisions that the bus still has, those of a node oldest first. Nothing is committed.

    Messages that cannot be read are passed over: the pipeline keeps them among the dead letters.
    """
    return read_all(bus, INCIDENTS, group, lambda message: [from_message(message)], monotonic)


def read_all(
    bus: Bus, topic: str, group: str, rows: Callable[[Message], Sequence[dict[str, Any]]],
    monotonic: Callable[[], float] = time.monotonic,
) -> list[dict[str, Any]]:  # fmt: skip
    """What ``rows`` makes of all messages of a topic; those that it finds ``Unreadable`` are passed over."""
    consumer = bus.consumer([topic], group, on_assigned=lambda held: dict.fromkeys(held))
    try:
        return _read_to_end(consumer, rows, monotonic)
    finally:
        consumer.close()


def restore(bus: Bus, incidents: Restored, group: str = "graynode-detect-incidents") -> int:
    """Rebuild open incidents from the bus; gives how many revisions were read.

    The group never commits: on a spool, that keeps every incident (up to its bound) for the next start.
    """
    revisions = read_incidents(bus, group)
    incidents.restore(revisions)
    return len(revisions)


def _read_to_end(
    consumer: Consumer, rows: Callable[[Message], Sequence[dict[str, Any]]], monotonic: Callable[[], float]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    position: dict[Partition, int] = {}
    ends: dict[Partition, int] | None = None
    started = quiet = monotonic()
    while ends is None or any(position.get(p, 0) < end for p, end in ends.items()):
        received = consumer.poll(0.1)
        now = monotonic()
        if received:
            quiet = now
        for r in received:
            position[r.partition] = r.offset + 1
            try:
                found += rows(r.message)
            except Unreadable:
                continue
        if ends is None and consumer.assigned():
            ends, quiet = consumer.end_offsets(), now
        # What retention has taken away never comes: quiet after assignment is the end as well
        if (ends is not None and now - quiet > _QUIET_S) or now - started > _ASSIGN_S:
            break
    return found
