"""Making a client of kafka-python so that one which finds no broker leaves nothing behind."""

# ruff: noqa: ANN401 (kafka-python has no types)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graynode.pipeline.kafka_probe import must_be_welcome
from graynode.pipeline.kafka_settings import KafkaSettings


def connected(kind: Callable[..., Any], settings: KafkaSettings, **options: Any) -> Any:
    """A ``KafkaProducer``, ``KafkaConsumer`` or ``KafkaAdminClient`` that has met its broker.

    Where the broker refuses us it says so at once. Left alone, a consumer that was never made goes on
    connecting in its own thread for ever, one more with every try.
    """
    from kafka.net.compat import KafkaNetClient

    must_be_welcome(settings)
    made: list[Any] = []

    def remembered(**config: Any) -> Any:
        made.append(KafkaNetClient(**config))
        return made[-1]

    try:
        return kind(kafka_client=remembered, **settings.client(), **options)
    except BaseException:
        for client in made:
            client.close()
        raise
