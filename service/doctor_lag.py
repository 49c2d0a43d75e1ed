"""Whether the bus is as the server needs it: topics and their settings, rights, and how far behind its readers are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.schema import EVENTS, INCIDENTS, SAMPLES
from graynode.service.config import Config
from graynode.service.doctor_checks import Check

_BEHIND: Final = 10_000
"""Messages. A fleet of 1,250 nodes sends some 125 a second: this is above a minute of them."""
_TIMEOUT_S: Final = 5.0


def lag_checks(config: Config) -> Iterator[Check]:
    """All of the bus; a broker that is away is one line."""
    if config.bus.kind == "spool":
        yield from _spool(config)
        return
    from graynode.pipeline.kafka_probe import diagnose
    from graynode.service.wiring import kafka_settings

    try:
        settings = kafka_settings(config)
        problem: Exception | None = diagnose(settings, _TIMEOUT_S)
        if problem is None:
            yield from _topics(config, settings)
            yield from _kafka_lag(config, settings)
            return
    except (BusRefused, BusUnavailable) as error:
        problem = error
    yield Check("bus", "mend", str(problem), "correct bus.kafka, or start the broker; agents keep what they send")


def readers(config: Config) -> dict[str, tuple[str, str]]:
    """Topic and consumer group by who reads."""
    found = {"pipeline": (SAMPLES, config.pipeline.group), "detect": (EVENTS, "graynode-detect-events")}
    return found | {f"respond {name}": (INCIDENTS, f"graynode-respond-{name}") for name in config.respond.receivers}


def behind(who: str, messages: int | None) -> Check:
    """How far behind one reader is."""
    if messages is None:
        return Check("lag", "note", f"{who}: has not read anything yet", "start it, if it is meant to run here")
    if messages > _BEHIND:
        way = f"is graynode {who.split()[0]} running, and does it keep up? docs/sizing.md says what it needs"
        return Check("lag", "mend", f"{who}: {messages:,} messages behind", way)
    return Check("lag", "well", f"{who}: {messages:,} messages behind")


# --- spool -----------------------------------------------------------------------------------------------------


def _spool(config: Config) -> Iterator[Check]:
    from graynode.pipeline import spool_files
    from graynode.pipeline.spool_reader import TopicReader

    root = config.bus.spool_dir
    try:
        there = spool_files.topics(root)
    except OSError as error:
        yield Check("bus", "mend", f"{root}: {error.strerror}", "run this as the user of the roles")
        return
    if not there:
        yield Check("bus", "note", f"nothing was sent to the spool in {root} yet")
        return
    yield Check("bus", "well", f"the spool in {root}: {', '.join(there)}")
    for who, (topic, group) in readers(config).items():
        if topic not in there:
            continue
        held = spool_files.groups(root, topic).get(group)
        with closing(TopicReader(root, topic, "doctor")) as reader:
            yield behind(who, None if held is None else max(0, reader.end() - held))


# --- Kafka -----------------------------------------------------------------------------------------------------


def _topics(config: Config, settings: Any) -> Iterator[Check]:  # noqa: ANN401 (KafkaSettings, imported late)
    """What ``graynode init`` would make or ask for, as checks."""
    from graynode.service.init_topics import topic_steps

    for step in topic_steps(settings, config.bus.kafka):
        way = "graynode init --role server --yes" if step.state == "make" else step.way_out
        yield Check("topics", "well" if step.state == "well" else "mend", step.said, way)


def _kafka_lag(config: Config, settings: Any) -> Iterator[Check]:  # noqa: ANN401 (the same)
    from graynode.service.init_topics import admin

    wanted = readers(config)
    with admin(settings, "ask for lag") as client:
        ends = _ends(client, {topic for topic, _ in wanted.values()})
        for who, (topic, group) in wanted.items():
            committed = client.list_group_offsets({group: None}).get(group, {})
            held = {tp.partition: o.offset for tp, o in committed.items() if tp.topic == topic and o.offset >= 0}
            yield behind(who, _sum(ends.get(topic, {}), held))


def _sum(ends: Mapping[int, int], held: Mapping[int, int]) -> int | None:
    """Messages of all partitions that were not read; ``None`` where the group has never read one."""
    if not held:
        return None
    return sum(max(0, end - held.get(partition, 0)) for partition, end in ends.items())


def _ends(client: Any, topics: set[str]) -> dict[str, dict[int, int]]:  # noqa: ANN401 (kafka-python has no types)
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    there = {
        t["name"]: t["partitions"] for t in client.describe_topics() if t["name"] in topics and not t["error_code"]
    }
    parts = [TopicPartition(topic, p["partition_index"]) for topic, some in there.items() for p in some]
    ends: dict[str, dict[int, int]] = {}
    if parts:
        for part, said in client.list_partition_offsets(dict.fromkeys(parts, OffsetSpec.LATEST)).items():
            ends.setdefault(part.topic, {})[part.partition] = said.offset
    return ends
