"""The client library's errors become ours here, and nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from graynode.pipeline.bus import BusRefused, BusUnavailable, MessageRefused
from graynode.pipeline.kafka_probe import diagnose
from graynode.pipeline.kafka_settings import KafkaSettings


@contextlib.contextmanager
def ours(settings: KafkaSettings, doing: str) -> Iterator[None]:
    """Turn what kafka-python raises while ``doing`` into ``BusUnavailable`` or ``BusRefused`` with a reason."""
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        raise translated(settings, doing, error) from error
    except OSError as error:
        raise BusUnavailable(f"Kafka at {settings.bootstrap}: {doing}: {error}") from error


def translated(settings: KafkaSettings, doing: str, error: Exception) -> BusUnavailable | BusRefused:
    """Our error for the library's."""
    from kafka import errors

    where = f"Kafka at {settings.bootstrap}: {doing}"
    if isinstance(
        error,
        (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.InvalidRecordError),
    ):
        return MessageRefused(f"{where}: {error}; raise max.message.bytes of the topic to {10 << 20}")
    if isinstance(error, errors.AuthorizationError):
        return BusRefused(
            f"{where}: user {settings.user or '(none)'} is not permitted to ({error}); allow it on the broker"
        )
    if isinstance(error, (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError)):
        return diagnose(settings) or BusRefused(f"{where}: {error}")
    if isinstance(error, errors.InvalidTopicError):
        return BusRefused(f"{where}: {error}")
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return BusUnavailable(f"{where}: the topic does not exist there; create it")
    if isinstance(error, (errors.KafkaTimeoutError, errors.KafkaConnectionError)):
        return diagnose(settings) or BusUnavailable(
            f"{where}: no answer in time although the broker can be reached; does the topic exist, are all its"
            f" brokers up? ({error})"
        )
    return BusUnavailable(f"{where}: {error}")
