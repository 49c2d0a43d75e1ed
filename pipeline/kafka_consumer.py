"""The reading half over Kafka: a group's member whose positions are the caller's or the group's commit."""

# ruff: noqa: ANN401 (kafka-python has no types)
from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from graynode.pipeline.bus import BusUnavailable, OffsetGone, OnAssigned, Partition, Received
from graynode.pipeline.codec import Message
from graynode.pipeline.kafka_client import connected
from graynode.pipeline.kafka_errors import ours
from graynode.pipeline.kafka_settings import MAX_REQUEST_BYTES, KafkaSettings
from graynode.pipeline.kafka_watch import unread

_FETCH_BYTES: Final = 32 << 20
_CLOSE_S: Final = 5.0
_METADATA_MS: Final = 30_000
"""How soon a new topic or partition is noticed; the client's own 5 minutes leave it unread for so long."""
_EMPTY_S: Final = 20.0
"""A member that has held nothing for so long asks the broker whether anyone reads its topics: two joins and more."""


class KafkaBusConsumer:
    """A member of ``group``. ``BusUnavailable`` or ``BusRefused`` at once if the broker cannot be used."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Sequence[str],
        group: str,
        on_assigned: OnAssigned | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._group, self._on_assigned, self._monotonic = settings, group, on_assigned, monotonic
        self._timeout_ms = int(settings.connect_timeout_s * 1000)
        self._held: frozenset[Partition] = frozenset()
        self._pending: deque[Received] = deque()
        self._changed = threading.Event()
        self._topics = list(topics)
        with ours(settings, f"join group {group}"):
            self._join()

    def poll(self, timeout_s: float, max_messages: int = 1000, max_bytes: int = 32 << 20) -> list[Received]:
        """Messages in order per partition, at least one if any comes within ``timeout_s``."""
        deadline = self._monotonic() + timeout_s
        with ours(self._settings, f"read as {self._group}"):
            while not self._pending:
                left = max(deadline - self._monotonic(), 0.0)
                self._fetch(left, max_messages)
                self._join_again_if_forgotten()
                if left == 0.0:
                    break
        return self._hand_out(max_messages, max_bytes)

    def assigned(self) -> frozenset[Partition]:
        """The partitions that this member holds since the last change that ``poll`` saw."""
        return self._held

    def seek(self, partition: Partition, offset: int) -> None:
        """Read from ``offset`` next. ``BusUnavailable`` if the partition has been taken away."""
        self._must_hold(partition)
        self._client.seek(_theirs(partition), offset)
        self._pending = deque(r for r in self._pending if r.partition != partition)

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Keep the next offset of each for the group. ``BusUnavailable`` if one has been taken away."""
        from kafka import OffsetAndMetadata

        if not offsets:
            return
        for partition in offsets:
            self._must_hold(partition)
        with ours(self._settings, f"commit as {self._group}"):
            self._client.commit(
                {_theirs(p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}, self._timeout_ms
            )

    def end_offsets(self) -> dict[Partition, int]:
        """The offset after the last message of each partition held."""
        with ours(self._settings, f"ask for the end as {self._group}"):
            ends = self._client.end_offsets([_theirs(p) for p in self._held], self._timeout_ms)
        return {Partition(tp.topic, tp.partition): int(end) for tp, end in ends.items()}

    def close(self) -> None:
        """Leave the group, so that another member goes on at once."""
        self._held = frozenset()
        self._pending.clear()
        self._leave(self._client)

    def _join(self) -> None:
        self._client = _client(self._settings, self._group)
        self._client.subscribe(self._topics, listener=_listener(self._changed))
        for topic in self._topics:
            # Without it the first assignment may be made before the topic is known, and so be empty.
            self._client.partitions_for_topic(topic)
        self._empty_since_s = self._monotonic()

    def _join_again_if_forgotten(self) -> None:
        """A client that waits while nobody reads its topics is made anew; see ``kafka_watch``."""
        if self._held or self._monotonic() - self._empty_since_s < _EMPTY_S:
            return
        self._empty_since_s = self._monotonic()
        if unread(self._settings, self._topics, self._group):
            forgotten = self._client
            self._join()
            self._leave(forgotten)

    def _leave(self, client: Any) -> None:
        client.close(autocommit=False, timeout_ms=int(min(self._settings.connect_timeout_s, _CLOSE_S) * 1000))

    def _must_hold(self, partition: Partition) -> None:
        if _theirs(partition) not in (self._client.assignment() or ()):
            raise BusUnavailable(
                f"{partition.topic}/{partition.number} has been taken away from this member of {self._group};"
                " poll again and drop what was read of it"
            )

    def _fetch(self, timeout_s: float, max_messages: int) -> None:
        from kafka.errors import LogTruncationError, NoOffsetForPartitionError, OffsetOutOfRangeError

        try:
            records = self._client.poll(timeout_ms=int(timeout_s * 1000), max_records=max_messages)
        except NoOffsetForPartitionError:
            self._changed.set()
            records = {}
        except OffsetOutOfRangeError as error:
            raise self._gone(error.args[0]) from error
        except LogTruncationError as error:
            tp, cut = next(iter(error.divergent_offsets.items()))
            raise OffsetGone(Partition(tp.topic, tp.partition), self._client.position(tp), cut.offset) from error
        if self._changed.is_set():
            # What this poll brought was read from positions that are about to be set; it comes again.
            self._begin()
            return
        for tp, some in records.items():
            partition = Partition(tp.topic, tp.partition)
            self._pending.extend(_received(partition, record) for record in some)

    def _begin(self) -> None:
        """After a change of what is held: ask where to begin. Done again at the next poll if the broker goes."""
        held = frozenset(Partition(tp.topic, tp.partition) for tp in self._client.assignment() or ())
        self._changed.clear()
        if not held and not self._held:
            return
        try:
            self._held = held
            self._empty_since_s = self._monotonic()
            self._pending.clear()
            given = self._on_assigned(held) if self._on_assigned else {}
            for partition in held:
                tp = _theirs(partition)
                offset = (
                    given[partition] if partition in given else self._client.committed(tp, timeout_ms=self._timeout_ms)
                )
                self._client.seek(tp, self._oldest(tp) if offset is None else offset)
        except BaseException:
            self._changed.set()
            raise

    def _oldest(self, tp: Any) -> int:
        return int(self._client.beginning_offsets([tp], self._timeout_ms)[tp])

    def _gone(self, wanted: Mapping[Any, int]) -> OffsetGone:
        tp, offset = next(iter(wanted.items()))
        return OffsetGone(Partition(tp.topic, tp.partition), offset, self._oldest(tp))

    def _hand_out(self, max_messages: int, max_bytes: int) -> list[Received]:
        taken: list[Received] = []
        while self._pending and len(taken) < max_messages:
            max_bytes -= len(self._pending[0].message.value)
            if taken and max_bytes < 0:
                break
            taken.append(self._pending.popleft())
        return taken


def _client(settings: KafkaSettings, group: str) -> Any:
    from kafka import KafkaConsumer

    return connected(
        KafkaConsumer,
        settings,
        metrics_enabled=False,
        group_id=group,
        enable_auto_commit=False,
        # "earliest" would jump over trimmed messages without a word; OffsetGone says it.
        auto_offset_reset="none",
        allow_auto_create_topics=False,
        metadata_max_age_ms=_METADATA_MS,
        fetch_max_bytes=_FETCH_BYTES,
        max_partition_fetch_bytes=MAX_REQUEST_BYTES,
        session_timeout_ms=int(settings.session_timeout_s * 1000),
        heartbeat_interval_ms=int(settings.session_timeout_s * 1000 / 3),
    )


def _listener(changed: threading.Event) -> Any:
    from kafka import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
        """Runs in the client's own thread, so it only notes that something changed; ``poll`` acts."""

        def on_partitions_revoked(self, _revoked: Any) -> None:
            """The partitions stay ours until others are assigned."""

        def on_partitions_assigned(self, _assigned: Any) -> None:
            """Something else is held now."""
            changed.set()

        def on_partitions_lost(self, _lost: Any) -> None:
            """Nothing is held now."""
            changed.set()

    return Listener()


def _theirs(partition: Partition) -> Any:
    from kafka import TopicPartition

    return TopicPartition(partition.topic, partition.number)


def _received(partition: Partition, record: Any) -> Received:
    headers = {name: (raw or b"").decode("utf-8", "replace") for name, raw in record.headers}
    message = Message((record.key or b"").decode("utf-8", "replace"), record.value or b"", headers)
    return Received(message, partition, record.offset, record.timestamp)
