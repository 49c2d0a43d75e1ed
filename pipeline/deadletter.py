"""Messages that cannot be read are kept in ``graynode.deadletter`` with the reason; nothing else stops.

A dead letter is the message as it came, under its own key; headers say why (``dead.reason``) and from where
(``dead.topic``, ``dead.partition``, ``dead.offset``, ``dead.arrived_ms``). It may be there twice after a
restart: topic, partition and offset are its identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog

from graynode.pipeline import bus_metrics
from graynode.pipeline.bus import Partition, Producer, Received
from graynode.pipeline.codec import MAX_MESSAGE_BYTES, Message
from graynode.pipeline.flood import FloodGate, FloodStop
from graynode.pipeline.schema import DEADLETTER

__all__ = ["DeadLetter", "DeadLetters", "FloodGate", "FloodStop", "opened"]

_log = structlog.get_logger()
_PREFIX: Final = "dead."
_MOST_REASON: Final = 1000
_MOST_HEADERS: Final = 7000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter opened: the message as it came (``cut`` bytes of its value are missing), why, and from where."""

    message: Message
    reason: str
    partition: Partition
    offset: int
    arrived_ms: int
    cut: int


class DeadLetters:
    """Where a reader puts what it cannot read. Ask ``skips`` first, then tell ``readable`` or ``put``."""

    def __init__(self, producer: Producer, gate: FloodGate | None = None) -> None:
        self._producer = producer
        self._gate = gate or FloodGate()

    def skips(self, received: Received) -> bool:
        """Whether to pass over the message unread, because its machine floods; counted here."""
        if not self._gate.skips(_node(received), received.arrived_ms / 1000):
            return False
        bus_metrics.HELD_BACK.labels(received.partition.topic).inc()
        return True

    def readable(self, received: Received) -> None:
        """The message was read."""
        self._gate.readable(_node(received), received.arrived_ms / 1000)

    def put(self, received: Received, reason: str) -> None:
        """Keep the message, on the bus when this returns.

        ``FloodStop``: stop reading, and do not move past this message. ``BusUnavailable``: the same message
        again, later. Beyond a machine's limit its messages are counted, not kept.
        """
        topic, node = received.partition.topic, _node(received)
        verdict = self._gate.unreadable(node, received.arrived_ms / 1000)
        if verdict == "keep":
            self._producer.send(DEADLETTER, [letter(received, reason)])
            bus_metrics.DEADLETTERED.labels(topic).inc()
            return
        bus_metrics.HELD_BACK.labels(topic).inc()
        if verdict == "shut out":
            _log.error("a machine floods the dead letters and is read no more", node=node, reason=reason)


def letter(received: Received, reason: str) -> Message:
    """The dead letter of a message; what of it is over the bus's limits is cut, and says so."""
    message, partition = received.message, received.partition
    headers: dict[str, str] = {}
    size = 0
    for name, text in message.headers.items():
        size += len(name) + len(text)
        if size > _MOST_HEADERS:
            break
        headers[name] = text
    cut = max(len(message.value) - MAX_MESSAGE_BYTES, 0)
    headers |= {
        f"{_PREFIX}reason": reason[:_MOST_REASON],
        f"{_PREFIX}topic": partition.topic,
        f"{_PREFIX}partition": str(partition.number),
        f"{_PREFIX}offset": str(received.offset),
        f"{_PREFIX}arrived_ms": str(received.arrived_ms),
        f"{_PREFIX}cut": str(cut),
    }
    return Message(message.key[:1000], message.value[:MAX_MESSAGE_BYTES], headers)


def opened(received: Received) -> DeadLetter:
    """A message of ``graynode.deadletter`` as what it was. ``ValueError`` if it is no dead letter."""
    headers = received.message.headers
    try:
        place = Partition(headers[f"{_PREFIX}topic"], int(headers[f"{_PREFIX}partition"]))
        offset, arrived_ms = int(headers[f"{_PREFIX}offset"]), int(headers[f"{_PREFIX}arrived_ms"])
        cut, reason = int(headers[f"{_PREFIX}cut"]), headers[f"{_PREFIX}reason"]
    except KeyError as error:
        raise ValueError(f"not a dead letter: header {error} is missing") from error
    own = {name: text for name, text in headers.items() if not name.startswith(_PREFIX)}
    message = Message(received.message.key, received.message.value, own)
    return DeadLetter(message, reason, place, offset, arrived_ms, cut)


def _node(received: Received) -> str:
    return received.message.key or f"(no key, {received.partition.topic}/{received.partition.number})"
