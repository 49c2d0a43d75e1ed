"""Whether the bus takes what the agent will send: broker, topics and rights are asked for, nothing is made or sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.schema import EVENTS, SAMPLES, TOPICS
from graynode.service.config import Config
from graynode.service.doctor_checks import Check

_TIMEOUT_S: Final = 5.0
_WRITE: Final = 1 << 4
_UNKNOWN: Final = -(1 << 31)
"""``AclOperation`` WRITE is 4; a broker that does not tell rights answers with the smallest int32 (KIP-430)."""
_SKEW_S: Final = 15.0


def bus_checks(config: Config, clock: Callable[[], float] = time.time) -> Iterator[Check]:
    """The broker's, where there is one."""
    if config.bus.kind == "spool":
        yield Check("bus", "well", f"the spool in {config.bus.spool_dir}; no broker is needed")
        return
    try:
        yield from _broker(config, clock)
    except (BusRefused, BusUnavailable) as error:
        yield Check(
            "broker", "mend", str(error), "correct bus.kafka, or start the broker; until then messages wait on disk"
        )


def _broker(config: Config, clock: Callable[[], float]) -> Iterator[Check]:
    from graynode.pipeline.kafka_probe import diagnose
    from graynode.service.wiring import kafka_settings

    settings = kafka_settings(config)
    problem = diagnose(settings, _TIMEOUT_S)
    if problem is not None:
        raise problem
    yield Check("broker", "well", f"{settings.bootstrap} answers and lets us in ({settings.security})")
    topics, newest = _ask(settings)
    now = clock()
    missing = [topic for topic in TOPICS if topic not in topics]
    if missing:
        ours = [topic for topic in missing if topic in (EVENTS, SAMPLES)]
        said = f"not there, or hidden from this user: {', '.join(missing)}"
        way = "an agent makes them if it may; else make them, or allow DESCRIBE and WRITE to this user"
        yield Check("topics", "mend" if ours else "note", said, way)
    yield from _rights({topic: rights for topic, rights in topics.items() if topic in TOPICS})
    yield broker_clock(newest, now)


def _ask(settings: Any) -> tuple[dict[str, int], float | None]:  # noqa: ANN401 (KafkaSettings, imported late)
    """Rights by topic, and the broker's time of the newest sample. Metadata of all topics is asked for: to ask for one
    that is not there would make it on some brokers."""
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.admin import OffsetSpec

    from graynode.pipeline.kafka_client import connected
    from graynode.pipeline.kafka_errors import ours

    with ours(settings, "describe topics"):
        admin = connected(KafkaAdminClient, settings)
        try:
            found = {t["name"]: t for t in admin.describe_topics() if not t["error_code"]}
            rights = {name: int(t.get("topic_authorized_operations", _UNKNOWN)) for name, t in found.items()}
            if SAMPLES not in found:
                return rights, None
            parts = [TopicPartition(SAMPLES, p["partition_index"]) for p in found[SAMPLES]["partitions"]]
            offsets = admin.list_partition_offsets(dict.fromkeys(parts, OffsetSpec.MAX_TIMESTAMP))
            stamps = [o.timestamp for o in offsets.values() if o.timestamp and o.timestamp > 0]
            return rights, max(stamps) / 1000 if stamps else None
        finally:
            admin.close()


def _rights(topics: dict[str, int]) -> Iterator[Check]:
    known = {topic: bits for topic, bits in topics.items() if bits != _UNKNOWN}
    refused = [topic for topic in (SAMPLES, EVENTS) if topic in known and not known[topic] & _WRITE]
    if refused:
        yield Check(
            "topics", "mend", f"this user may not write {', '.join(refused)}", "allow WRITE on them to this user"
        )
    elif topics:
        told = "writable" if known else "there; the broker does not tell our rights"
        yield Check("topics", "well", f"{', '.join(sorted(topics))}: {told}")


def broker_clock(newest: float | None, now: float) -> Check:
    """The broker stamps what arrives. On a topic that others write all the time, the newest stamp is its clock."""
    about = "clock and broker"
    if newest is None:
        return Check(
            about, "note", "unknown: no sample has arrived yet; a running agent measures it (host.clock_skew_s)"
        )
    ahead = newest - now
    if ahead > _SKEW_S:
        return Check(
            about, "mend", f"this clock is at least {ahead:.1f} s behind the broker's", "repair time synchronisation"
        )
    if ahead > 0:
        return Check(about, "well", f"this clock is at least {ahead:.3f} s behind the broker's")
    said = f"the newest sample arrived {-ahead:.1f} s ago by the broker's clock"
    return Check(about, "well", f"{said}: this clock is ahead by no more than that")
