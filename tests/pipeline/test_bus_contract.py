"""What both buses promise, shown over both: the spool on a disk and a real Apache Kafka broker."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import bus_traffic
import pytest

from graynode.pipeline.bus import Bus, BusUnavailable, MessageRefused, OffsetGone, Partition
from graynode.pipeline.codec import MAX_MESSAGE_BYTES, Message
from graynode.pipeline.kafka import KafkaBus, KafkaSettings
from graynode.pipeline.spool import SpoolBus


class Medium(Protocol):
    bus: Bus

    def topic(self) -> str: ...

    def trim(self, topic: str) -> None:
        """Make the oldest messages of the topic leave."""
        ...


class OnSpool:
    def __init__(self, root: Path) -> None:
        self.bus = SpoolBus(root, 400_000)

    def topic(self) -> str:
        return f"topic{uuid.uuid4().hex[:8]}"

    def trim(self, topic: str) -> None:
        with closing(self.bus.producer()) as producer:
            producer.send(topic, bus_traffic.numbered(100, size=5_000))


class OnKafka:
    def __init__(self, address: str) -> None:
        self.bus = KafkaBus(KafkaSettings(bootstrap=address, connect_timeout_s=10, session_timeout_s=3))

    def topic(self) -> str:
        name = f"topic{uuid.uuid4().hex[:8]}"
        self.bus.create_topics(3, 1, [name])
        return name

    def trim(self, topic: str) -> None:
        from kafka import KafkaAdminClient, TopicPartition

        with closing(self.bus.producer()) as producer:
            producer.send(topic, bus_traffic.numbered(100, size=100))
        with closing(KafkaAdminClient(bootstrap_servers=self.bus._settings.bootstrap)) as admin:
            partition = next(p for p in self.bus.partitions(topic) if _end(self.bus, p))
            admin.delete_records({TopicPartition(topic, partition.number): _end(self.bus, partition) // 2})


def _end(bus: Bus, partition: Partition) -> int:
    with closing(bus.consumer([partition.topic], f"end{uuid.uuid4().hex}")) as consumer:
        _join(consumer)
        return consumer.end_offsets()[partition]


def _join(consumer: Any, count: int = 1) -> None:
    deadline = time.monotonic() + 20
    while len(consumer.assigned()) < count:
        assert time.monotonic() < deadline
        consumer.poll(0.1, max_messages=1)


@pytest.fixture(params=["spool", pytest.param("kafka", marks=pytest.mark.kafka)])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Medium:
    if request.param == "spool":
        return OnSpool(tmp_path / "spool")
    return OnKafka(request.getfixturevalue("kafka_address"))


@pytest.fixture
def send(medium: Medium) -> Any:
    producers = []

    def send(topic: str, messages: list[Message]) -> None:
        if not producers:
            producers.append(medium.bus.producer())
        producers[0].send(topic, messages)

    yield send
    for producer in producers:
        producer.close()


Send = Callable[[str, list[Message]], None]


def test_order_per_key(medium: Medium, send: Send) -> None:
    """Every machine's messages arrive, each once, in the order in which they were sent."""
    topic = medium.topic()
    for part in range(4):
        send(topic, bus_traffic.numbered(70, nodes=7, first=part * 10))
    with closing(medium.bus.consumer([topic], "g")) as consumer:
        got = bus_traffic.read(consumer, 280)
    assert bus_traffic.sequences(got) == {f"node{i}": list(range(40)) for i in range(7)}


def test_message_is_unchanged(medium: Medium, send: Send) -> None:
    """Key, value and headers come as they went, empty ones and non-ASCII ones too, with the time of arrival."""
    topic = medium.topic()
    sent = [
        Message("site/a", b"", {}),
        Message("site/a", bytes(range(256)), {"table": "gpu", "empty": "", "text": "µs – ü"}),
        Message("", b"no key", {"v": "1.0"}),
    ]
    before = time.time()
    send(topic, sent)
    with closing(medium.bus.consumer([topic], "g")) as consumer:
        got = bus_traffic.read(consumer, 3)
    assert sorted((r.message for r in got), key=lambda m: m.value) == sorted(sent, key=lambda m: m.value)
    assert all(before - 5 < r.arrived_ms / 1000 < time.time() + 5 for r in got)


def test_nothing_to_send(medium: Medium, send: Send) -> None:
    """An empty list is sent at once."""
    send(medium.topic(), [])


def test_two_groups(medium: Medium, send: Send) -> None:
    """Groups do not take from each other: both get all."""
    topic = medium.topic()
    send(topic, bus_traffic.numbered(20))
    for group in ("one", "other"):
        with closing(medium.bus.consumer([topic], group)) as consumer:
            assert len(bus_traffic.read(consumer, 20)) == 20


def test_commit_is_where_the_next_member_begins(medium: Medium, send: Send) -> None:
    """A new member of the group goes on at the commit; read but not committed comes again."""
    topic = medium.topic()
    send(topic, bus_traffic.numbered(10))
    with closing(medium.bus.consumer([topic], "g")) as first:
        got = bus_traffic.read(first, 10)
        first.commit({got[0].partition: got[4].offset})
    with closing(medium.bus.consumer([topic], "g")) as second:
        again = bus_traffic.read(second, 6)
    assert bus_traffic.sequences(again) == {"node0": [4, 5, 6, 7, 8, 9]}


def test_no_commit_begins_at_the_oldest(medium: Medium, send: Send) -> None:
    """A member that read all and committed nothing leaves all to the next."""
    topic = medium.topic()
    send(topic, bus_traffic.numbered(5))
    for _ in range(2):
        with closing(medium.bus.consumer([topic], "g")) as consumer:
            assert len(bus_traffic.read(consumer, 5)) == 5


def test_seek(medium: Medium, send: Send) -> None:
    """Reading goes on where ``seek`` says, forward and back."""
    topic = medium.topic()
    send(topic, bus_traffic.numbered(10))
    with closing(medium.bus.consumer([topic], "g")) as consumer:
        got = bus_traffic.read(consumer, 10)
        partition = got[0].partition
        consumer.seek(partition, got[7].offset)
        assert bus_traffic.sequences(bus_traffic.read(consumer, 3)) == {"node0": [7, 8, 9]}
        consumer.seek(partition, got[2].offset)
        assert consumer.poll(5.0, max_messages=1)[0].message == got[2].message


def test_lag(medium: Medium, send: Send) -> None:
    """The end is the offset after the last message and grows with each."""
    topic = medium.topic()
    send(topic, bus_traffic.numbered(4))
    with closing(medium.bus.consumer([topic], "g")) as consumer:
        last = bus_traffic.read(consumer, 4)[-1]
        ends = consumer.end_offsets()
        assert set(ends) == consumer.assigned()
        assert ends[last.partition] == last.offset + 1
        send(topic, bus_traffic.numbered(3, first=4))
        assert consumer.end_offsets()[last.partition] == last.offset + 4


def test_largest_message(tmp_path: Path, medium: Medium) -> None:
    """A message of exactly the limit passes whole."""
    if isinstance(medium, OnSpool):
        medium.bus = SpoolBus(tmp_path / "large", 64 << 20)
    topic = medium.topic()
    large = Message("site/a", b"x" * MAX_MESSAGE_BYTES, {"rows": "1"})
    with closing(medium.bus.producer()) as producer, closing(medium.bus.consumer([topic], "g")) as consumer:
        producer.send(topic, [large, Message("site/a", b"next", {})])
        got = bus_traffic.read(consumer, 2)
    assert [r.message for r in got] == [large, Message("site/a", b"next", {})]


@pytest.mark.parametrize(
    "bad",
    [
        Message("site/a", b"x" * (MAX_MESSAGE_BYTES + 1), {}),
        Message("k" * 1001, b"", {}),
        Message("site/a", b"", {"h": "x" * 10_001}),
    ],
    ids=["value", "key", "headers"],
)
def test_message_over_the_limit(medium: Medium, send: Send, bad: Message) -> None:
    """It is refused with the limit in the text, and the bus goes on with the next."""
    topic = medium.topic()
    with pytest.raises(MessageRefused, match=r"limit is 8388608|1,000 characters"):
        send(topic, [bad])
    send(topic, [Message("site/a", b"good", {})])
    with closing(medium.bus.consumer([topic], "g")) as consumer:
        assert bus_traffic.values(bus_traffic.read(consumer, 1)) == [b"good"]


def test_poll_limits(medium: Medium, send: Send) -> None:
    """A poll gives at most so many messages and bytes, yet always one, and loses none between."""
    topic = medium.topic()
    send(topic, bus_traffic.numbered(12, size=1000))
    with closing(medium.bus.consumer([topic], "g")) as consumer:
        got = []
        deadline = time.monotonic() + 20
        while len(got) < 12 and time.monotonic() < deadline:
            some = consumer.poll(1.0, max_messages=3, max_bytes=2_500)
            assert len(some) <= 2  # two fit in 2,500 bytes
            got += some
        consumer.seek(got[0].partition, got[0].offset)
        assert len(consumer.poll(5.0, max_bytes=1)) == 1
    assert bus_traffic.sequences(got) == {"node0": list(range(12))}


def test_nothing_there(medium: Medium) -> None:
    """A poll of an empty topic gives ``[]`` after about its time."""
    with closing(medium.bus.consumer([medium.topic()], "g")) as consumer:
        _join(consumer)
        began = time.monotonic()
        assert consumer.poll(0.3) == []
        assert 0.2 < time.monotonic() - began < 5


def test_message_that_comes_while_waiting(medium: Medium, send: Send) -> None:
    """A reader that waits gets what is sent meanwhile."""
    topic = medium.topic()
    with closing(medium.bus.consumer([topic], "g")) as consumer:
        _join(consumer)
        later = threading.Timer(0.3, send, (topic, bus_traffic.numbered(1)))
        later.start()
        assert len(consumer.poll(20.0)) == 1
        later.join()


def test_close_twice(medium: Medium) -> None:
    """Twice is as good as once, used or not."""
    topic = medium.topic()
    producer, consumer = medium.bus.producer(), medium.bus.consumer([topic], "g")
    producer.send(topic, bus_traffic.numbered(1))
    for _ in range(2):
        producer.close()
        consumer.close()
    medium.bus.producer().close()


def test_several_topics(medium: Medium, send: Send) -> None:
    """One member reads several topics, each in order."""
    topics = [medium.topic() for _ in range(3)]
    for number, topic in enumerate(topics):
        send(topic, bus_traffic.numbered(5, first=100 * number))
    with closing(medium.bus.consumer(topics, "g")) as consumer:
        got = bus_traffic.read(consumer, 15)
        assert {p.topic for p in consumer.assigned()} == set(topics)
    for number, topic in enumerate(topics):
        of_topic = [r for r in got if r.partition.topic == topic]
        assert bus_traffic.sequences(of_topic) == {"node0": [100 * number + i for i in range(5)]}


def test_members_share_and_follow_each_other(medium: Medium, send: Send) -> None:
    """No partition is with two members of a group at once; what one leaves another takes from the commit on."""
    topic = medium.topic()
    whole = set(medium.bus.partitions(topic))
    first, second = (medium.bus.consumer([topic], "g") for _ in range(2))
    with closing(first), closing(second):
        _both(first, second, whole)
        send(topic, bus_traffic.numbered(60, nodes=12))
        got = []
        deadline = time.monotonic() + 20
        while len(got) < 60 and time.monotonic() < deadline:
            for member in (first, second):
                some = member.poll(0.2)
                member.commit({r.partition: r.offset + 1 for r in some})
                got += some
        first.close()
        _join(second, len(whole))
        assert second.assigned() == whole
        send(topic, bus_traffic.numbered(12, nodes=12, first=5))
        got += bus_traffic.read(second, 12)
    assert bus_traffic.sequences(got) == {f"node{i}": list(range(6)) for i in range(12)}


def _both(first: Any, second: Any, whole: set[Partition]) -> None:
    """Poll both in turn until together they hold all and none twice, stably."""
    deadline = time.monotonic() + 20
    stable = 0
    while stable < 3:
        assert time.monotonic() < deadline
        first.poll(0.3)
        second.poll(0.3)
        together = first.assigned() | second.assigned()
        shared = len(whole) == 1 or bool(first.assigned() and second.assigned())
        apart = first.assigned().isdisjoint(second.assigned())
        stable = stable + 1 if together == whole and shared and apart else 0


def test_positions_kept_elsewhere(medium: Medium, send: Send) -> None:
    """``on_assigned`` is asked for what is held and its positions go before the group's commit."""
    topic = medium.topic()
    send(topic, bus_traffic.numbered(10))
    with closing(medium.bus.consumer([topic], "g")) as consumer:
        got = bus_traffic.read(consumer, 10)
        consumer.commit({got[0].partition: got[9].offset})
    asked = []

    def positions(held: frozenset[Partition]) -> dict[Partition, int | None]:
        asked.append(held)
        return {p: got[3].offset if p == got[0].partition else None for p in held}

    with closing(medium.bus.consumer([topic], "g", positions)) as consumer:
        again = bus_traffic.read(consumer, 7)
        assert asked[-1] == consumer.assigned() == frozenset(medium.bus.partitions(topic))
    assert bus_traffic.sequences(again) == {"node0": list(range(3, 10))}
    with closing(medium.bus.consumer([topic], "g", lambda held: {})) as consumer:
        assert bus_traffic.sequences(bus_traffic.read(consumer, 1)) == {"node0": [9]}
    with closing(medium.bus.consumer([topic], "g", lambda held: dict.fromkeys(held))) as consumer:
        assert len(bus_traffic.read(consumer, 10)) == 10


def test_offset_that_has_left(medium: Medium) -> None:
    """A trimmed offset is said, with the oldest there is, until a seek goes there; nothing is jumped over."""
    topic = medium.topic()
    medium.trim(topic)
    with closing(medium.bus.consumer([topic], "g", lambda held: dict.fromkeys(held, 0))) as consumer:
        for _ in range(2):
            with pytest.raises(OffsetGone) as gone:
                bus_traffic.read(consumer, 1)
        assert (gone.value.partition.topic, gone.value.wanted) == (topic, 0)
        assert gone.value.first > 0
        consumer.seek(gone.value.partition, gone.value.first)
        got = [r for r in bus_traffic.read(consumer, 1) if r.partition == gone.value.partition]
        assert got[0].offset == gone.value.first


def test_offset_beyond_the_end(medium: Medium, send: Send) -> None:
    """A position that the bus never reached (it was made anew) is said too: waiting there would lose messages."""
    topic = medium.topic()
    send(topic, bus_traffic.numbered(3))
    with (
        closing(medium.bus.consumer([topic], "g", lambda held: dict.fromkeys(held, 1000))) as consumer,
        pytest.raises(OffsetGone, match="offset 1000 is gone, the oldest is 0"),
    ):
        bus_traffic.read(consumer, 1)


def test_partition_that_is_not_held(medium: Medium) -> None:
    """Seek and commit speak of partitions held; another is an error to try again after a poll."""
    topic = medium.topic()
    with closing(medium.bus.consumer([topic], "g")) as consumer:
        with pytest.raises(BusUnavailable, match="poll"):
            consumer.commit({Partition(topic, 0): 1})
        with pytest.raises(BusUnavailable, match="poll"):
            consumer.seek(Partition(topic, 0), 1)
