"""What ``detect`` needs of a bus beyond the contract: one producer for all threads, rows that wait, and patience."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from graynode.pipeline.bus import BusUnavailable, Producer
from graynode.pipeline.codec import Message, Origin, encode
from graynode.pipeline.schema import FINDINGS
from graynode.service.rounds import Result

Made = TypeVar("Made")


class OneAtATime:
    """A producer that several threads may use."""

    def __init__(self, producer: Producer) -> None:
        self._producer, self._lock = producer, threading.Lock()

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        """As the producer, one caller at a time."""
        with self._lock:
            self._producer.send(topic, messages)

    def close(self) -> None:
        """Close the producer."""
        with self._lock:
            self._producer.close()


@dataclass(slots=True)
class Outbox:
    """Rows of one sender for the topic of findings. What could not be sent waits and goes first, in order."""

    producer: Producer
    cluster: str
    node_id: str
    clock: Callable[[], datetime]
    _epoch: int = field(default_factory=time.time_ns)
    _sequence: int = 0
    _waiting: list[Message] = field(default_factory=list)

    def put(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Queue a message of these rows; none for no rows."""
        if rows:
            self._sequence += 1
            origin = Origin(self.cluster, self.node_id, self._epoch)
            self._waiting.append(encode(table, rows, origin, self._sequence, self.clock()))

    def flush(self) -> None:
        """Send what waits. ``BusUnavailable``: it waits on."""
        if self._waiting:
            self.producer.send(FINDINGS, self._waiting)
            self._waiting.clear()


def when_there(
    do: Callable[[], Made],
    stop: threading.Event,
    retry_s: float,
    log: Any,  # noqa: ANN401 (a structlog logger)
) -> Made | None:
    """What ``do`` gives, tried again while broker or topic is missing, with a line whenever the reason is another.

    ``None``: told to stop before.
    """
    away = ""
    while not stop.is_set():
        try:
            made = do()
        except BusUnavailable as error:
            if str(error) != away:
                log.warning("the bus is away; detect waits for it", reason=str(error))
            away = str(error)
            stop.wait(retry_s)
        else:
            if away:
                log.info("the bus is there")
            return made
    return None


def round_row(node_id: str, cluster: str, result: Result, versions: Mapping[str, int]) -> dict[str, Any]:
    """The row of table ``round`` about one round, with the versions of the tables that it was decided by."""
    return {
        "ts": result.start,
        "cluster": cluster,
        "node_id": node_id,
        "window_s": result.window_s,
        "table_versions": json.dumps(versions),
        "machines": len(result.machines),
        "late_machines": result.late,
        "findings": result.findings.height,
        "seconds": result.seconds,
    }
