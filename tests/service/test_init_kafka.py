"""``graynode init`` at a real broker with an authorizer: topics, settings, rights; twice, and with too few rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import bus_traffic
import kafka_broker
import pytest

from graynode.pipeline.bus import BusRefused
from graynode.pipeline.kafka import KafkaBus, KafkaSettings, topic_settings
from graynode.pipeline.schema import EVENTS, INCIDENTS, SAMPLES, TOPICS
from graynode.service.config_tables import Kafka
from graynode.service.init_acls import acl_steps, rights
from graynode.service.init_steps import Step, carry_out
from graynode.service.init_topics import admin, topic_steps

pytestmark = [pytest.mark.kafka, pytest.mark.early]
_SASL = "org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
_USERS = ("root", "agent", "server", "guest")


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka_broker.Broker]:
    """One with an authorizer that denies by default; ``root`` may all."""
    users = " ".join(f'user_{name}="{name}-secret"' for name in _USERS)
    made = kafka_broker.Broker(
        kafka_jars,
        tmp_path_factory.mktemp("init") / "broker",
        listeners={"PLAINTEXT": "PLAINTEXT", "PLAIN": "SASL_PLAINTEXT"},
        settings={
            "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plain.plain.sasl.jaas.config": _SASL.format(users=users),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:root",
        },
    )
    made.create()
    yield made
    made.stop()


def as_user(broker: kafka_broker.Broker, folder: Path, name: str) -> KafkaSettings:
    """How that user meets the broker."""
    secret = folder / f"{name}.password"
    secret.write_text(f"{name}-secret")
    plain: dict[str, Any] = {"security": "SASL_PLAINTEXT", "mechanism": "PLAIN", "connect_timeout_s": 5.0}
    return KafkaSettings(bootstrap=broker.address("PLAIN"), user=name, password_file=secret, **plain)


def all_steps(settings: KafkaSettings, kafka: Kafka) -> list[Step]:
    """Topics and rights."""
    return [*topic_steps(settings, kafka), *acl_steps(settings, "User:agent", "User:server")]


def states(steps: list[Step]) -> dict[str, set[str]]:
    """States by what they are about."""
    found: dict[str, set[str]] = {}
    for step in steps:
        found.setdefault(step.about, set()).add(step.state)
    return found


def test_topics_and_rights_from_nothing_to_work(broker: kafka_broker.Broker, tmp_path: Path) -> None:
    """Shown, made, well; then the agent may write and nothing else, the server may read, a guest may nothing.

    What is put right afterwards is what harms: a retention that a site made longer stays as it is.
    """
    root, kafka = as_user(broker, tmp_path, "root"), Kafka(partitions=2, replication=1)
    planned = all_steps(root, kafka)
    assert states(planned) == {"topics": {"make"}, "rights": {"make"}}
    assert all(step.state == "make" for step in all_steps(root, kafka)), "a plan changes nothing"
    assert [done.said for done in carry_out(planned) if done.failed] == []
    again = all_steps(root, kafka)
    assert states(again) == {"topics": {"well"}, "rights": {"well"}}
    assert len([s for s in again if s.about == "topics"]) == len(TOPICS)
    _rights_hold(broker, tmp_path)
    _only_harm_is_put_right(root, kafka)
    _partitions_are_a_persons(root)


def _rights_hold(broker: kafka_broker.Broker, folder: Path) -> None:
    agent, server, guest = (KafkaBus(as_user(broker, folder, name)) for name in ("agent", "server", "guest"))
    with closing(agent.producer()) as producer:
        producer.send(SAMPLES, bus_traffic.numbered(2))
        with pytest.raises(BusRefused):
            producer.send(INCIDENTS, bus_traffic.numbered(1))
    with closing(server.consumer([SAMPLES], "graynode-pipeline")) as consumer:
        assert len(bus_traffic.read(consumer, 2)) == 2
    with closing(server.producer()) as producer:
        producer.send(INCIDENTS, bus_traffic.numbered(1))
    with closing(guest.producer()) as producer, pytest.raises(BusRefused):
        producer.send(EVENTS, bus_traffic.numbered(1))


def _only_harm_is_put_right(root: KafkaSettings, kafka: Kafka) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType

    longer = str(2 * int(topic_settings(EVENTS, 1)["retention.ms"]))
    harm = {"retention.ms": "3600000", "message.timestamp.type": "CreateTime"}
    with admin(root, "alter") as client:
        client.alter_configs([
            ConfigResource(ConfigResourceType.TOPIC, EVENTS, {"retention.ms": longer}),
            ConfigResource(ConfigResourceType.TOPIC, SAMPLES, harm),
        ])  # fmt: skip
    due = [step for step in topic_steps(root, kafka) if step.state == "make"]
    assert [step.said for step in due] == [
        "graynode.samples: retention.ms from 3600000 to 259200000, "
        "message.timestamp.type from CreateTime to LogAppendTime"
    ]
    assert not any(done.failed for done in carry_out(due))
    after = {step.said.partition(":")[0]: step for step in topic_steps(root, kafka)}
    assert {step.state for step in after.values()} == {"well"}
    assert "retention 28 days" in after[EVENTS].said


def _partitions_are_a_persons(root: KafkaSettings) -> None:
    more = list(topic_steps(root, Kafka(partitions=8)))
    assert {step.state for step in more} == {"hand"}
    assert "stop all roles" in more[0].way_out
    copies = list(topic_steps(root, Kafka(partitions=1, replication=3)))
    assert {step.state for step in copies} == {"hand"}


def test_user_without_rights_is_told_what_to_ask_for(broker: kafka_broker.Broker, tmp_path: Path) -> None:
    """It may neither see topics nor give rights: each step says so, with commands for whoever may; nothing raises."""
    guest = as_user(broker, tmp_path, "guest")
    found = list(acl_steps(guest, "User:agent", "User:server"))
    assert [step.state for step in found] == ["hand"]
    assert (
        "kafka-acls.sh --add --allow-principal User:agent --operation Write --topic graynode.samples"
        in found[0].way_out
    )
    topics = list(topic_steps(guest, Kafka(), ["graynode.samples"]))
    made = [done for done in carry_out(topics) if done.failed]
    assert made or {step.state for step in topics} == {"hand"}
    assert all("not permitted" in done.said for done in made)


def test_users_must_be_named(broker: kafka_broker.Broker, tmp_path: Path) -> None:
    """With an authorizer and nobody to allow, the options that name them are said."""
    (said,) = acl_steps(as_user(broker, tmp_path, "root"), "", "")
    assert "--agent-user User:NAME" in said.way_out


def test_a_broker_without_authorizer_has_no_rights_to_give(kafka_address: str) -> None:
    """Everybody may everything there, and that is said."""
    (said,) = acl_steps(KafkaSettings(bootstrap=kafka_address), "User:a", "User:b")
    assert (said.state, "no authorizer" in said.said) == ("well", True)


def test_rights_are_the_least() -> None:
    """Agents read nothing and see no other topic; nobody may delete, alter, or give rights."""
    assert {(r.operation, r.name) for r in rights("User:a", "")} == {
        (operation, topic) for operation in ("WRITE", "DESCRIBE") for topic in (SAMPLES, EVENTS)
    }
    assert {r.operation for r in rights("User:a", "User:s")} == {"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"}
    assert all(topic.startswith("graynode.") for topic in TOPICS)
