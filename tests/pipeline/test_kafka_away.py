"""A real broker that is killed and comes back while messages are on their way."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import bus_traffic
import kafka_broker
import pytest
from agent_fakes import until

from graynode.pipeline.bus import BusUnavailable, MessageRefused
from graynode.pipeline.codec import Message
from graynode.pipeline.forward import Forwarder
from graynode.pipeline.kafka import KafkaBus, KafkaSettings
from graynode.pipeline.schema import EVENTS, TOPICS
from graynode.pipeline.spool import SpoolBus

pytestmark = [pytest.mark.kafka, pytest.mark.early]


@pytest.fixture(scope="module")
def mortal(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka_broker.Broker]:
    """A broker that each test may kill and must leave running."""
    broker = kafka_broker.Broker(kafka_jars, tmp_path_factory.mktemp("mortal"))
    broker.create()
    yield broker
    broker.stop()


def _bus(broker: kafka_broker.Broker, **changes: Any) -> KafkaBus:
    return KafkaBus(
        KafkaSettings(bootstrap=broker.address(), session_timeout_s=3, **{"connect_timeout_s": 10, **changes})
    )


def _topic(bus: KafkaBus) -> str:
    name = f"topic{uuid.uuid4().hex[:8]}"
    bus.create_topics(2, 1, [name])
    return name


def test_killed_while_messages_are_sent(mortal: kafka_broker.Broker) -> None:
    """``kill -9`` and restart in the middle of a stream: nothing lost, nothing doubled, every machine in order."""
    bus = _bus(mortal, send_timeout_s=60)
    topic = _topic(bus)
    killed = threading.Event()

    def kill_and_restart() -> None:
        mortal.kill()
        killed.set()
        mortal.start()

    with closing(bus.producer()) as producer:
        killer = threading.Timer(0.3, kill_and_restart)
        killer.start()
        sent, after = 0, 0
        while after < 20:
            producer.send(topic, bus_traffic.numbered(40, nodes=4, first=sent, size=2000))
            sent += 10
            after += killed.is_set()
        killer.join()
    with closing(bus.consumer([topic], "g")) as consumer:
        got = bus_traffic.read(consumer, 4 * sent)
        got += consumer.poll(0.5)
    assert bus_traffic.sequences(got) == {f"node{i}": list(range(sent)) for i in range(4)}


def test_away_for_longer_than_send_waits(mortal: kafka_broker.Broker) -> None:
    """``send`` says so after its time, with the address; sending all again leaves no gap and no other order."""
    bus = _bus(mortal, send_timeout_s=1.5, connect_timeout_s=3)
    topic = _topic(bus)
    with closing(bus.producer()) as producer:
        producer.send(topic, bus_traffic.numbered(20, nodes=2))
        mortal.kill()
        batch = bus_traffic.numbered(2000, nodes=2, first=10, size=2000)
        for _ in range(2):
            with pytest.raises(BusUnavailable, match=rf"{mortal.address()}: connection refused: nothing listens"):
                producer.send(topic, batch)
        mortal.start()
        _until_sent(producer, topic, batch)
        producer.send(topic, bus_traffic.numbered(20, nodes=2, first=1010))
    with closing(bus.consumer([topic], "g")) as consumer:
        got = bus_traffic.read(consumer, 2040)
    assert bus_traffic.first_seen(got) == {f"node{i}": list(range(1020)) for i in range(2)}


def _until_sent(producer: Any, topic: str, batch: list[Message]) -> None:
    deadline = time.monotonic() + 40
    while True:
        try:
            return producer.send(topic, batch)
        except BusUnavailable:
            assert time.monotonic() < deadline


def test_reader_lives_through_it(mortal: kafka_broker.Broker) -> None:
    """A poll gives nothing meanwhile, a commit and the lag say that the broker is away; then reading goes on."""
    bus = _bus(mortal, connect_timeout_s=2)
    topic = _topic(bus)
    with closing(bus.producer()) as producer, closing(bus.consumer([topic], "g")) as consumer:
        producer.send(topic, bus_traffic.numbered(5))
        got = bus_traffic.read(consumer, 5)
        mortal.kill()
        assert consumer.poll(0.2) == []
        with pytest.raises(BusUnavailable, match="nothing listens"):
            consumer.commit({got[0].partition: 3})
        with pytest.raises(BusUnavailable, match="nothing listens"):
            consumer.end_offsets()
        mortal.start()
        _until_sent(producer, topic, bus_traffic.numbered(5, first=5))
        got += bus_traffic.read(consumer, 5)
        consumer.commit({got[0].partition: 10})
    assert bus_traffic.first_seen(got) == {"node0": list(range(10))}


def _forward(forwarder: Forwarder, stop: threading.Event) -> None:
    """As the agent does: again after a pause while the broker is away."""
    while not stop.is_set():
        forwarder.step(0.2)
        if forwarder.forwarded.trouble:
            stop.wait(0.2)
    forwarder.close()


def test_forwarding_through_an_outage(mortal: kafka_broker.Broker, tmp_path: Path) -> None:
    """The broker is away for seconds: the agent's spool fills, then all arrives in order and the spool is passed."""
    far, near = _bus(mortal, send_timeout_s=2, connect_timeout_s=2), SpoolBus(tmp_path / "spool", 64 << 20)
    far.create_topics(2, 1)
    stop = threading.Event()
    forwarder = Forwarder(near, far, EVENTS)
    thread = threading.Thread(target=_forward, args=(forwarder, stop))
    with closing(near.producer()) as producer:
        producer.send(EVENTS, bus_traffic.numbered(50, nodes=5))
        thread.start()
        assert until(lambda: forwarder.forwarded.messages == 50, 60)
        mortal.kill()
        for i in range(1, 20):
            producer.send(EVENTS, bus_traffic.numbered(50, nodes=5, first=10 * i))
        assert until(lambda: "nothing listens" in forwarder.forwarded.trouble, 60)
        mortal.start()
        assert until(lambda: forwarder.forwarded.messages == 1000, 60)
    assert forwarder.forwarded.trouble == ""
    assert forwarder.skew_s is not None
    assert abs(forwarder.skew_s) < 1
    stop.set()
    thread.join(30)
    with closing(far.consumer([EVENTS], f"g{uuid.uuid4().hex}")) as consumer:
        got = bus_traffic.read(consumer, 1000)
    assert bus_traffic.first_seen(got) == {f"node{i}": list(range(200)) for i in range(5)}
    with closing(near.consumer([EVENTS], "forward")) as consumer:
        assert consumer.poll(0) == []


def test_topics_are_made_once(kafka_address: str) -> None:
    """All of the contract's topics, as they are wanted; those that exist are left alone."""
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType

    bus = KafkaBus(KafkaSettings(bootstrap=kafka_address, connect_timeout_s=10))
    made = bus.create_topics(3, 1)
    found = {topic: len(bus.partitions(topic)) for topic in TOPICS}  # those of another test may have fewer
    assert {found[topic] for topic in made} <= {3}
    assert bus.create_topics(5, 1) == []
    assert {topic: len(bus.partitions(topic)) for topic in TOPICS} == found
    with closing(KafkaAdminClient(bootstrap_servers=kafka_address)) as admin:
        said = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, EVENTS)])
    assert "LogAppendTime" in str(said)
    with pytest.raises(BusUnavailable, match="topic nowhere does not exist"):
        bus.partitions("nowhere")


def test_reader_whose_client_stopped_looking(kafka_address: str) -> None:
    """The client no longer learns of new topics, as after a lost update, and one is made: it is read all the same."""
    bus = KafkaBus(KafkaSettings(bootstrap=kafka_address, session_timeout_s=3))
    topic = f"topic{uuid.uuid4().hex[:8]}"
    consumer: Any = bus.consumer([topic], f"g{topic}")
    consumer._monotonic = lambda: time.monotonic() * 10  # its patience, ten times faster
    consumer._client._client.cluster.closed = True  # ends its metadata loop
    with closing(consumer), closing(bus.producer()) as producer:
        assert consumer.poll(5) == []
        bus.create_topics(2, 1, [topic])
        producer.send(topic, bus_traffic.numbered(3))
        assert len(bus_traffic.read(consumer, 3)) == 3


def test_spare_member_is_left_in_peace(kafka_address: str) -> None:
    """More members than partitions: the one that holds nothing waits, and disturbs nobody."""
    bus = KafkaBus(KafkaSettings(bootstrap=kafka_address, session_timeout_s=3))
    topic = f"topic{uuid.uuid4().hex[:8]}"
    bus.create_topics(1, 1, [topic])
    with closing(bus.consumer([topic], f"g{topic}")) as first, closing(bus.consumer([topic], f"g{topic}")) as second:
        members: list[Any] = [first, second]
        while sum(len(m.assigned()) for m in members) != 1 or not any(m._client.assignment() for m in members):
            for member in members:
                member.poll(0.2)
        clients = [member._client for member in members]
        for member in members:
            member._monotonic = lambda: time.monotonic() * 100
        for _ in range(5):
            assert [member.poll(0.2) for member in members] == [[], []]
        assert [member._client for member in members] == clients


def test_topic_that_does_not_exist(kafka_address: str) -> None:
    """The sender hears that it may be the topic, not the broker."""
    bus = KafkaBus(KafkaSettings(bootstrap=kafka_address, connect_timeout_s=1))
    with (
        closing(bus.producer()) as producer,
        pytest.raises(BusUnavailable, match="does the topic exist"),
    ):
        producer.send("nowhere", bus_traffic.numbered(1))


def test_topic_with_a_smaller_limit(kafka_address: str) -> None:
    """A message that only this topic finds too large is refused as a message; the next goes through."""
    from kafka import KafkaAdminClient

    name = f"topic{uuid.uuid4().hex[:8]}"
    with closing(KafkaAdminClient(bootstrap_servers=kafka_address)) as admin:
        wanted = {"num_partitions": 1, "replication_factor": 1, "configs": {"max.message.bytes": "10000"}}
        admin.create_topics({name: wanted}, wait_for_metadata=True)
    bus = KafkaBus(KafkaSettings(bootstrap=kafka_address, connect_timeout_s=10))
    with closing(bus.producer()) as producer:
        with pytest.raises(MessageRefused, match=r"max\.message\.bytes"):
            producer.send(name, [Message("site/a", bytes(50_000), {})])
        producer.send(name, [Message("site/a", b"small", {})])
    with closing(bus.consumer([name], "g")) as consumer:
        assert bus_traffic.values(bus_traffic.read(consumer, 1)) == [b"small"]


def test_wrong_clock(kafka_address: str) -> None:
    """The producer measures how far this machine's clock is from the broker's; arrival is by the broker's."""
    from graynode.pipeline.kafka import KafkaBusProducer

    settings = KafkaSettings(bootstrap=kafka_address, connect_timeout_s=10)
    bus = KafkaBus(settings)
    topic = _topic(bus)
    with closing(KafkaBusProducer(settings, clock=lambda: time.time() + 300)) as producer:
        producer.send(topic, bus_traffic.numbered(1))  # the first connects, which is not quick
        producer.send(topic, bus_traffic.numbered(1, first=1))
        assert producer.skew_s == pytest.approx(300, abs=2)
    with closing(bus.consumer([topic], "g")) as consumer:
        assert all(abs(r.arrived_ms / 1000 - time.time()) < 60 for r in bus_traffic.read(consumer, 2))


def test_failed_clients_leave_no_thread() -> None:
    """Tries without a broker leave no thread behind that goes on connecting."""
    bus = KafkaBus(KafkaSettings(bootstrap=f"127.0.0.1:{kafka_broker.free_port()}", connect_timeout_s=0.3))
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(BusUnavailable):
            bus.consumer(["topic"], "g")
        with pytest.raises(BusUnavailable):
            bus.partitions("topic")
        with closing(bus.producer()) as producer, pytest.raises(BusUnavailable):
            producer.send("topic", bus_traffic.numbered(1))
    assert threading.active_count() <= before
