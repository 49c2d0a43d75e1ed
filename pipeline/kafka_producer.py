"""The writing half over Kafka: idempotent, acknowledged by all replicas, bounded in flight."""

# ruff: noqa: ANN401 (kafka-python has no types)
from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from graynode.pipeline.bus import BusUnavailable, check_size
from graynode.pipeline.codec import Message
from graynode.pipeline.kafka_client import connected
from graynode.pipeline.kafka_errors import ours
from graynode.pipeline.kafka_settings import MAX_REQUEST_BYTES, KafkaSettings

_FOREVER_MS: Final = 2**31 - 1
_QUICK_S: Final = 1.0


class KafkaBusProducer:
    """Connects with the first ``send``, and anew after one that failed.

    Within one ``send`` the client tries again by itself, and the broker drops what it has already (idempotence).
    What a partition has taken of a failed ``send`` is always the first part of it: the connection is given
    up with the first failure, before anything behind it is sent. So sending all again never leaves a gap.

    ``skew_s`` is this machine's clock minus the broker's, true to half the time that the last quick ``send``
    took; ``None`` where the topics do not keep the broker's time (``message.timestamp.type``).
    """

    def __init__(
        self,
        settings: KafkaSettings,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock, self._monotonic = settings, clock, monotonic
        self.skew_s: float | None = None
        self._client: Any = None
        self._closed = False

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        """Return when all replicas have all messages; ``BusUnavailable`` after ``send_timeout_s`` at the latest."""
        for message in messages:
            check_size(message)
        if self._closed:
            raise BusUnavailable(f"Kafka at {self._settings.bootstrap}: this producer is closed")
        if not messages:
            return
        with ours(self._settings, f"send to {topic}"):
            try:
                self._send(self._connected(), topic, messages)
            except BaseException:
                self._give_up()
                raise

    def close(self) -> None:
        """Let go. Nothing is left to flush: ``send`` returns only when all is acknowledged."""
        self._closed = True
        self._give_up()

    def _send(self, client: Any, topic: str, messages: Sequence[Message]) -> None:
        started = self._monotonic()
        stamp_ms, deadline = int(self._clock() * 1000), started + self._settings.send_timeout_s
        waiting: deque[tuple[Any, int]] = deque()
        held = 0
        for message in messages:
            size = len(message.value)
            while waiting and held + size > self._settings.max_in_flight_bytes:
                held -= self._wait(waiting.popleft(), deadline)
            headers = [(name, text.encode()) for name, text in message.headers.items()]
            future = client.send(topic, message.value, message.key.encode(), headers=headers, timestamp_ms=stamp_ms)
            # In the client's own thread, so that it sends nothing more behind what failed.
            future.add_errback(lambda _error: client._sender.force_close())
            waiting.append((future, size))
            held += size
        while waiting:
            self._wait(waiting.popleft(), deadline)
        self._note_skew(future.value.timestamp, stamp_ms, self._monotonic() - started)

    def _note_skew(self, arrived_ms: int, stamp_ms: int, took_s: float) -> None:
        # A topic that keeps our time gives it back to the millisecond.
        if took_s < _QUICK_S and arrived_ms != stamp_ms:
            self.skew_s = (stamp_ms - arrived_ms) / 1000 + took_s / 2

    def _wait(self, sent: tuple[Any, int], deadline: float) -> int:
        future, size = sent
        future.get(timeout=max(deadline - self._monotonic(), 0.001))
        return size

    def _connected(self) -> Any:
        if self._client is None:
            from kafka import KafkaProducer

            self._client = connected(
                KafkaProducer,
                self._settings,
                metrics_enabled=False,
                enable_idempotence=True,
                acks="all",
                linger_ms=5,
                batch_size=262_144,
                max_request_size=MAX_REQUEST_BYTES,
                max_block_ms=int(self._settings.connect_timeout_s * 1000),
                # Ours is the deadline, in send: a batch that expired by itself would leave a gap.
                delivery_timeout_ms=_FOREVER_MS,
                allow_auto_create_topics=False,
            )
        return self._client

    def _give_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            # close() alone would wait for what is still unsent, and leave its thread running if it gave up.
            client._sender.force_close()
            client._sender.join(self._settings.connect_timeout_s)
            client.close(timeout=1)
