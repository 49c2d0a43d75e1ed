"""Kafka as the bus of a fleet. The client library is imported with the first use, never before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from graynode.pipeline.bus import BusUnavailable, OnAssigned, Partition
from graynode.pipeline.kafka_client import connected
from graynode.pipeline.kafka_consumer import KafkaBusConsumer
from graynode.pipeline.kafka_errors import ours
from graynode.pipeline.kafka_producer import KafkaBusProducer
from graynode.pipeline.kafka_settings import MAX_REQUEST_BYTES, KafkaSettings
from graynode.pipeline.schema import ACTIONS, DEADLETTER, EVENTS, INCIDENTS, PEOPLE, SAMPLES, TOPICS

__all__ = ["KafkaBus", "KafkaBusConsumer", "KafkaBusProducer", "KafkaSettings", "topic_settings"]

_DAY_MS: Final = 86_400_000
_RETENTION_D: Final = {SAMPLES: 3, EVENTS: 14, DEADLETTER: 14, INCIDENTS: 400, ACTIONS: 400, PEOPLE: 400}
"""Samples: a long weekend without a pipeline. Incidents, actions and what people say are few, and what is open is
rebuilt from them."""
_RETENTION_ELSE_D: Final = 7
_ALREADY_EXISTS: Final = 36


def topic_settings(topic: str, replication: int) -> dict[str, str]:
    """The settings that a topic of ours is made with."""
    return {
        "retention.ms": str(_RETENTION_D.get(topic, _RETENTION_ELSE_D) * _DAY_MS),
        "max.message.bytes": str(MAX_REQUEST_BYTES),
        # Arrival by the broker's clock: that of a node may be wrong, and is measured against this.
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": "2" if replication > 2 else "1",
    }


class KafkaBus:
    """A bus over the brokers of ``settings``. ``BusRefused`` where a file it names cannot be used."""

    def __init__(self, settings: KafkaSettings) -> None:
        settings.client()  # an unusable file or address stops the start, not the first message
        self._settings = settings

    def producer(self) -> KafkaBusProducer:
        """A producer; it connects with the first message."""
        return KafkaBusProducer(self._settings)

    def consumer(self, topics: Sequence[str], group: str, on_assigned: OnAssigned | None = None) -> KafkaBusConsumer:
        """A member of ``group``; it connects at once and is given partitions in its first polls."""
        return KafkaBusConsumer(self._settings, topics, group, on_assigned)

    def partitions(self, topic: str) -> list[Partition]:
        """The topic's partitions. ``BusUnavailable`` if it does not exist."""
        with self._admin(f"describe {topic}") as admin:
            found = [t for t in admin.describe_topics([topic]) if not t["error_code"]]
        if not found:
            raise BusUnavailable(f"Kafka at {self._settings.bootstrap}: topic {topic} does not exist; create it")
        return sorted(Partition(topic, p["partition_index"]) for p in found[0]["partitions"])

    def create_topics(self, partitions: int, replication: int, topics: Sequence[str] = TOPICS) -> list[str]:
        """Make the topics that are not there yet, and give their names; those that exist stay as they are."""
        wanted = {
            topic: {
                "num_partitions": partitions,
                "replication_factor": replication,
                "configs": topic_settings(topic, replication),
            }
            for topic in topics
        }
        with self._admin("create topics") as admin:
            answer = admin.create_topics(wanted, raise_errors=False)
            codes = {t["name"]: (t["error_code"], t["error_message"]) for t in answer["topics"]}
            for name, (code, text) in codes.items():
                if code not in (0, _ALREADY_EXISTS):
                    raise self._not_created(name, code, text)
            admin.wait_for_topics(list(topics))
        return [name for name, (code, _) in codes.items() if code == 0]

    @contextmanager
    def _admin(self, doing: str) -> Iterator[Any]:
        with ours(self._settings, doing):
            from kafka import KafkaAdminClient

            admin = connected(KafkaAdminClient, self._settings)
            try:
                yield admin
            finally:
                admin.close()

    def _not_created(self, name: str, code: int, text: str | None) -> Exception:
        from kafka import errors

        error: Exception = errors.for_code(code)(f"{name}: {text or 'no reason given'}")
        return error
