"""Topics and rights at the broker, for ``graynode init``: looked at first, then only what is missing is made.

What is there and serves is left as the site has it: longer retention, more partitions. What harms is put right (too
short a retention, too small a message, the producer's clock). Partitions are never added, because a node's messages
would change partition in mid-stream: that is said and left to a person.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.kafka import KafkaBus, topic_settings
from graynode.pipeline.kafka_client import connected
from graynode.pipeline.kafka_errors import ours
from graynode.pipeline.kafka_settings import KafkaSettings
from graynode.pipeline.schema import TOPICS
from graynode.service.config_tables import Kafka
from graynode.service.init_steps import Step

_AT_LEAST: Final = ("retention.ms", "max.message.bytes", "min.insync.replicas")
_FOREVER: Final = -1
_LOOKS: Final = 60
_LOOK_S: Final = 0.25


def topic_steps(settings: KafkaSettings, kafka: Kafka, topics: Sequence[str] = TOPICS) -> Iterator[Step]:
    """Each topic: to be made, to be put right, or well. A broker that is away or refuses is a step by hand."""
    try:
        there = _described(settings, topics)
        held = _settings(settings, [topic for topic in topics if topic in there])
    except (BusRefused, BusUnavailable) as error:
        yield Step("topics", "hand", str(error), "start the broker or correct bus.kafka, then this again")
        return
    missing = [topic for topic in topics if topic not in there]
    if missing:
        size = f"{kafka.partitions} partitions, {kafka.replication} copies"
        yield Step("topics", "make", f"{', '.join(missing)}: {size}", do=_maker(settings, kafka, missing))
    for topic, (partitions, copies) in there.items():
        yield from _existing(settings, kafka, topic, partitions, copies, held.get(topic))


def _existing(
    settings: KafkaSettings, kafka: Kafka, topic: str, partitions: int, copies: int, held: Mapping[str, str] | None
) -> Iterator[Step]:
    if held is None:
        way = "allow DESCRIBE_CONFIGS on it to this user, or look by kafka-configs.sh --describe"
        yield Step("topics", "hand", f"{topic}: this user may not see its settings", way)
        return
    ours_are = topic_settings(topic, copies)
    wrong = {key: value for key, value in ours_are.items() if not _serves(key, held.get(key), value)}
    if wrong:
        said = ", ".join(f"{key} from {held.get(key)} to {value}" for key, value in wrong.items())
        yield Step("topics", "make", f"{topic}: {said}", do=_corrector(settings, topic, wrong))
    if partitions < kafka.partitions:
        said = f"{topic} has {partitions} partitions, bus.kafka.partitions = {kafka.partitions}"
        way = "stop all roles, then kafka-topics.sh --alter --partitions; or set bus.kafka.partitions to what it has"
        yield Step("topics", "hand", said, way)
    elif copies < kafka.replication:
        said = f"{topic} has {copies} copies, bus.kafka.replication = {kafka.replication}"
        yield Step("topics", "hand", said, "kafka-reassign-partitions.sh; or set bus.kafka.replication to what it has")
    elif not wrong:
        yield Step("topics", "well", f"{topic}: {partitions} partitions, {copies} copies, retention {_days(held)}")


def _serves(key: str, held: str | None, wanted: str) -> bool:
    """Whether a setting does what ours would: more is as good, for retention −1 is for ever."""
    if held is None or key not in _AT_LEAST:
        return held == wanted
    return int(held) >= int(wanted) or (key == "retention.ms" and int(held) == _FOREVER)


def _days(held: Mapping[str, str]) -> str:
    ms = int(held["retention.ms"])
    return "for ever" if ms == _FOREVER else f"{ms / 86_400_000:g} days"


def _described(settings: KafkaSettings, topics: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Partitions and copies of those that are there. All topics are asked for: naming one may make it."""
    with admin(settings, "describe topics") as client:
        found = {t["name"]: t["partitions"] for t in client.describe_topics() if not t["error_code"]}
    return {t: (len(found[t]), min(len(p["replica_nodes"]) for p in found[t])) for t in topics if t in found}


def _settings(settings: KafkaSettings, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Settings by topic; without those that this user may not see."""
    if not topics:
        return {}
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.errors import AuthorizationError

    wanted = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    with admin(settings, "describe topics") as client:
        try:
            found = client.describe_configs(wanted, config_filter="all")
        except AuthorizationError:
            return {}
    by_topic: dict[str, dict[str, Any]] = next(iter(found.values()), {})
    return {topic: {key: said["value"] for key, said in configs.items()} for topic, configs in by_topic.items()}


def _maker(settings: KafkaSettings, kafka: Kafka, missing: Sequence[str]) -> Callable[[], None]:
    def make() -> None:
        KafkaBus(settings).create_topics(kafka.partitions, kafka.replication, missing)

    return make


def _corrector(settings: KafkaSettings, topic: str, wrong: Mapping[str, str]) -> Callable[[], None]:
    def correct() -> None:
        from kafka.admin import ConfigResource, ConfigResourceType

        with admin(settings, f"alter {topic}") as client:
            client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(wrong))])
        seen(lambda: wrong.items() <= _settings(settings, [topic]).get(topic, {}).items(), f"settings of {topic}")

    return correct


def seen(there: Callable[[], bool], what: str) -> None:
    """Wait until a broker shows what its controller has taken; ``BusUnavailable`` where it does not in time."""
    for _ in range(_LOOKS):
        if there():
            return
        time.sleep(_LOOK_S)
    raise BusUnavailable(f"{what}: taken, and not to be seen after {_LOOKS * _LOOK_S:.0f} s; look again later")


@contextmanager
def admin(settings: KafkaSettings, doing: str) -> Iterator[Any]:
    """An admin client that is closed, and whose errors are ours."""
    from kafka import KafkaAdminClient

    with ours(settings, doing):
        client = connected(KafkaAdminClient, settings)
        try:
            yield client
        finally:
            client.close()
