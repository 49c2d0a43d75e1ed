"""From the spool to the broker: an agent's messages leave its disk only when the far bus has them.

One forwarder a topic, each with connections of its own and a thread of its caller's, so that an hour of held-back
samples delays no event. Between the far acknowledgement and the mark in the spool a death sends again: the message
carries the same (node_id, epoch, seq), and the partition's owner drops what it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from graynode.pipeline import bus_metrics
from graynode.pipeline.bus import (
    Bus,
    BusRefused,
    BusUnavailable,
    Consumer,
    MessageRefused,
    OffsetGone,
    Producer,
    Received,
)

_log = structlog.get_logger()

GROUP: Final = "forward"
_MOST_MESSAGES: Final = 500
_MOST_BYTES: Final = 4 << 20


@dataclass(slots=True)
class Forwarded:
    """What became of the messages of a topic since the start. ``gone`` left the spool unread, at its bound."""

    messages: int = 0
    gone: int = 0
    refused: int = 0
    trouble: str = ""


class Forwarder:
    """Moves ``topic`` from ``source`` to ``target`` in order, some at every ``step``; the caller waits between them.

    Nothing is given up while the target is away or refuses us (password, certificate, permission): it stays in the
    source. Only a message that can never be taken (``MessageRefused``) is passed over, counted and logged.
    """

    def __init__(self, source: Bus, target: Bus, topic: str) -> None:
        self._source, self._target, self._topic = source, target, topic
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._held: list[Received] = []
        self._unmarked: Received | None = None
        self.forwarded = Forwarded()

    def step(self, timeout_s: float = 0.0) -> int:
        """Forward what is there, waiting at most ``timeout_s`` for something; the number acknowledged.

        0 with ``forwarded.trouble`` set: the target or the source is away, and the same is tried next time.
        """
        try:
            done = self._step(timeout_s)
        except (BusUnavailable, BusRefused) as error:
            self._say_trouble(str(error))
            return 0
        if self.forwarded.trouble:
            _log.info("messages are forwarded again", topic=self._topic, was=self.forwarded.trouble)
        self.forwarded.trouble = ""
        return done

    @property
    def skew_s(self) -> float | None:
        """This machine's clock minus the target's, where the target's producer measures it (Kafka)."""
        skew_s: float | None = getattr(self._producer, "skew_s", None)
        return skew_s

    def close(self) -> None:
        """Let go of both ends; twice is as good as once."""
        consumer, producer = self._consumer, self._producer
        self._consumer = self._producer = None
        self._held, self._unmarked = [], None
        if consumer:
            consumer.close()
        if producer:
            producer.close()

    def _step(self, timeout_s: float) -> int:
        consumer = self._reading()
        self._mark(consumer)
        if not self._held:
            self._held = self._poll(consumer, timeout_s)
        if not self._held:
            return 0
        sent = self._send(self._held)
        self._unmarked, self._held = self._held[-1], []
        self.forwarded.messages += sent
        bus_metrics.FORWARDED.labels(self._topic).inc(sent)
        self._mark(consumer)
        return sent

    def _reading(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self._source.consumer([self._topic], GROUP)
        return self._consumer

    def _poll(self, consumer: Consumer, timeout_s: float) -> list[Received]:
        try:
            return consumer.poll(timeout_s, _MOST_MESSAGES, _MOST_BYTES)
        except OffsetGone as error:
            lost = max(error.first - error.wanted, 0)
            self.forwarded.gone += lost
            bus_metrics.GONE.labels(self._topic).inc(lost)
            _log.warning("messages left the spool before they could be sent", topic=self._topic, messages=lost)
            consumer.seek(error.partition, error.first)
            return []

    def _send(self, some: Sequence[Received]) -> int:
        try:
            self._to_target(some)
        except MessageRefused:
            return sum(self._send_singly(r) for r in some)
        return len(some)

    def _send_singly(self, one: Received) -> int:
        """One message spoils a batch: find it, so that only it is passed over."""
        try:
            self._to_target([one])
        except MessageRefused as error:
            self.forwarded.refused += 1
            bus_metrics.FORWARD_REFUSED.labels(self._topic).inc()
            _log.error("a message is passed over", topic=self._topic, offset=one.offset, reason=str(error))
            return 0
        return 1

    def _to_target(self, some: Sequence[Received]) -> None:
        if self._producer is None:
            self._producer = self._target.producer()
        self._producer.send(self._topic, [r.message for r in some])

    def _mark(self, consumer: Consumer) -> None:
        if self._unmarked is not None:
            consumer.commit({self._unmarked.partition: self._unmarked.offset + 1})
            self._unmarked = None

    def _say_trouble(self, reason: str) -> None:
        bus_metrics.FORWARD_FAILURES.labels(self._topic).inc()
        if not self.forwarded.trouble:
            _log.warning("messages are held in the spool", topic=self._topic, reason=reason)
        self.forwarded.trouble = reason
