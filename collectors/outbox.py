"""Encoded messages until the spool has them, within a bound of memory.

The spool is on disk and takes them at once, so this is empty unless the disk is full or gone. Then rows go on
being read; when the bound is hit the oldest samples are dropped and counted, and events go last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog

from graynode.pipeline.bus import BusRefused, BusUnavailable, MessageRefused, Producer
from graynode.pipeline.codec import Message
from graynode.pipeline.schema import EVENTS, SAMPLES

_log = structlog.get_logger()

HOLD_BYTES: Final = 8 << 20
"""About forty minutes of one 8-GPU node at 1 Hz (3 to 4 KB a second, compressed)."""
_SEND_AT_ONCE: Final = 256
_OVERHEAD_BYTES: Final = 1000
"""What a message takes beside its value: headers and objects."""


@dataclass(slots=True)
class Sent:
    """What became of messages since the start."""

    messages: int = 0
    bytes: int = 0
    dropped_samples: int = 0
    dropped_events: int = 0
    refused: int = 0

    @property
    def dropped(self) -> int:
        """Messages that nobody will ever see."""
        return self.dropped_samples + self.dropped_events + self.refused


class Outbox:
    """First in, first out per topic; one thread."""

    def __init__(self, producer: Producer, hold_bytes: int = HOLD_BYTES) -> None:
        self._producer, self._hold_bytes = producer, hold_bytes
        self._waiting: dict[str, deque[Message]] = {EVENTS: deque(), SAMPLES: deque()}  # events are sent first
        self._trouble = ""
        self.sent = Sent()
        self.held_bytes = 0

    def put(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Add messages with their topics; over the bound the oldest samples go, then the oldest events."""
        for topic, message in messages:
            self._waiting.setdefault(topic, deque()).append(message)
            self.held_bytes += len(message.value) + _OVERHEAD_BYTES
        while self.held_bytes > self._hold_bytes:
            self._drop_oldest()

    def send(self) -> bool:
        """Hand over what waits; false if something could not be and waits for the next time."""
        for topic, queue in self._waiting.items():
            while queue:
                if not self._send_some(topic, queue):
                    return False
        if self._trouble:
            _log.info("the bus takes messages again", was=self._trouble, dropped=self.sent.dropped)
            self._trouble = ""
        return True

    def _send_some(self, topic: str, queue: deque[Message]) -> bool:
        some = list(islice(queue, _SEND_AT_ONCE))
        try:
            self._producer.send(topic, some)
        except MessageRefused as error:
            return self._send_singly(topic, queue, len(some), error)
        except (BusUnavailable, BusRefused, OSError) as error:
            return self._say_trouble(str(error))
        self._gone(queue, len(some))
        return True

    def _send_singly(self, topic: str, queue: deque[Message], count: int, error: Exception) -> bool:
        """One message spoils a batch: find it, so that only it is lost."""
        for _ in range(count):
            try:
                self._producer.send(topic, [queue[0]])
            except MessageRefused as refused:
                self._lose(queue)
                self.sent.refused += 1
                _log.error("the bus refused a message; it is dropped", topic=topic, reason=str(refused))
            except (BusUnavailable, BusRefused, OSError) as away:
                return self._say_trouble(str(away))
            else:
                self._gone(queue, 1)
        _log.debug("sent one by one", topic=topic, because=str(error))
        return True

    def _say_trouble(self, reason: str) -> bool:
        if not self._trouble:
            _log.warning("the bus takes no messages; they are held in memory", reason=reason)
        self._trouble = reason
        return False

    def _gone(self, queue: deque[Message], count: int) -> None:
        for _ in range(count):
            size = self._lose(queue)
            self.sent.messages += 1
            self.sent.bytes += size

    def _lose(self, queue: deque[Message]) -> int:
        size = len(queue.popleft().value)
        self.held_bytes -= size + _OVERHEAD_BYTES
        return size

    def _drop_oldest(self) -> None:
        for topic in (SAMPLES, *(t for t in self._waiting if t not in (SAMPLES, EVENTS)), EVENTS):
            if self._waiting[topic]:
                self._lose(self._waiting[topic])
                if topic == EVENTS:
                    self.sent.dropped_events += 1
                else:
                    self.sent.dropped_samples += 1
                return
