"""From the agent's spool to Kafka: woken when there is something, not by looking ten times a second."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from graynode.pipeline.bus import Bus, BusRefused, BusUnavailable, Producer
from graynode.pipeline.codec import Message
from graynode.pipeline.forward import Forwarder
from graynode.pipeline.schema import EVENTS, SAMPLES

_log = structlog.get_logger()

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 15.0
_LOOK_S: Final = 60.0
"""Without a bell something may still wait: what a start found in the spool, or a bell lost with an error."""


class Forwarding:
    """One thread a topic, so that an hour of held-back samples delays no event.

    ``prepare`` is called before the first message, and again until it has succeeded or been refused.
    """

    def __init__(
        self, spool: Bus, target: Bus, prepare: Callable[[], object], topics: Sequence[str] = (EVENTS, SAMPLES)
    ) -> None:
        self._prepare, self._lock, self._prepared = prepare, threading.Lock(), False
        self._away, self._away_at = "", float("-inf")
        self._ending = threading.Event()
        self._lines = {topic: _Line(Forwarder(spool, target, topic), self) for topic in topics}
        for line in self._lines.values():
            line.start()

    def ring(self, topic: str) -> None:
        """Something was put into the spool."""
        if topic in self._lines:
            self._lines[topic].bell.set()

    @property
    def ending(self) -> bool:
        """Whether the threads should end as soon as nothing is left."""
        return self._ending.is_set()

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait so long, or until ``finish``."""
        self._ending.wait(timeout_s)

    @property
    def skew_s(self) -> float | None:
        """This machine's clock minus the broker's, by the topic that knows."""
        skews = [line.forwarder.skew_s for line in self._lines.values()]
        return next((s for s in skews if s is not None), None)

    @property
    def trouble(self) -> str:
        """Why messages are held in the spool now; empty when they are not."""
        told = [self._away, *(line.forwarder.forwarded.trouble for line in self._lines.values())]
        return next(filter(None, told), "")

    def prepare(self) -> bool:
        """Once for all topics; false if the target is away. What is not permitted to us is someone else's work."""
        with self._lock:
            if self._prepared or time.monotonic() - self._away_at < _FIRST_WAIT_S:
                return self._prepared
            try:
                self._prepare()
            except BusRefused as refused:
                _log.info("topics are not made by this agent", reason=str(refused))
            except BusUnavailable as away:
                if not self._away:
                    _log.warning("the broker is away; messages are kept in the spool", reason=str(away))
                self._away, self._away_at = str(away), time.monotonic()
                return False
            self._prepared, self._away = True, ""
            return True

    def finish(self, timeout_s: float) -> bool:
        """Forward what the spool holds, then end; false if something is left there for the next start."""
        self._ending.set()
        for line in self._lines.values():
            line.bell.set()
        until = time.monotonic() + timeout_s
        for line in self._lines.values():
            line.join(max(0.0, until - time.monotonic()))
        return all(line.drained for line in self._lines.values())


class _Line(threading.Thread):
    """One topic's thread."""

    def __init__(self, forwarder: Forwarder, whole: Forwarding) -> None:
        super().__init__(name="forward", daemon=True)
        self.forwarder, self._whole = forwarder, whole
        self.bell, self.drained = threading.Event(), False
        self._wait_s = _FIRST_WAIT_S

    def run(self) -> None:
        """Forward at every ring, and again after a pause while the target is away."""
        self.bell.set()  # what an earlier life has left
        try:
            while True:
                self.bell.wait(_LOOK_S)
                self.bell.clear()
                ending = self._whole.ending
                self.drained = self._drain()
                if ending:
                    return
                if not self.drained:
                    self._pause()
                else:
                    self._wait_s = _FIRST_WAIT_S
        finally:
            self.forwarder.close()

    def _drain(self) -> bool:
        if not self._whole.prepare():
            return False
        while self.forwarder.step():
            pass
        return not self.forwarder.forwarded.trouble

    def _pause(self) -> None:
        # Scattered and growing: a whole fleet comes back at the same moment. The end does not wait for it.
        self._whole.wait_for_end(self._wait_s * random.uniform(0.5, 1.0))  # noqa: S311 (guards nothing)
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)
        self.bell.set()


class RingingProducer:
    """The spool's producer, which rings for each topic that got something."""

    def __init__(self, producer: Producer, ring: Callable[[str], None]) -> None:
        self._producer, self._ring = producer, ring

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        """As the spool's."""
        self._producer.send(topic, messages)
        self._ring(topic)

    def close(self) -> None:
        """As the spool's."""
        self._producer.close()
