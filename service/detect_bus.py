"""What ``detect`` needs of a bus beyond the contract: one producer for two threads, and patience at the start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from graynode.pipeline.bus import BusUnavailable, Producer
from graynode.pipeline.codec import Message

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
