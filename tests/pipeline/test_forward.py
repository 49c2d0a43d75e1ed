"""The forwarder between a spool and a far bus that is away, refuses, or forgets."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import bus_traffic
import pytest

from graynode.pipeline import forward
from graynode.pipeline.bus import BusRefused, BusUnavailable, Consumer, MessageRefused, OnAssigned, Partition
from graynode.pipeline.codec import Message
from graynode.pipeline.forward import Forwarder
from graynode.pipeline.kafka import KafkaBus, KafkaSettings
from graynode.pipeline.schema import SAMPLES
from graynode.pipeline.spool import SpoolBus


class FarBus:
    """A bus that remembers what it took, and says what it is told to say first."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.says: list[Exception] = []
        self.refuses: set[bytes] = set()
        self.closed = 0

    def producer(self) -> FarBus:
        return self

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        if self.says:
            raise self.says.pop(0)
        for message in messages:
            if message.value in self.refuses:
                raise MessageRefused(f"{topic}: too large")
            self.taken.append(message)

    def close(self) -> None:
        self.closed += 1

    def consumer(self, topics: Sequence[str], group: str, on_assigned: OnAssigned | None = None) -> Consumer:
        raise NotImplementedError

    def partitions(self, topic: str) -> list[Partition]:
        raise NotImplementedError


def _near(tmp_path: Path, count: int = 10, bound: int = 1 << 20, size: int = 0) -> SpoolBus:
    bus = SpoolBus(tmp_path / "spool", bound)
    with closing(bus.producer()) as producer:
        producer.send(SAMPLES, bus_traffic.numbered(count, size=size))
    return bus


def _sequence(messages: Sequence[Message]) -> list[int]:
    return [int(m.headers["seq"]) for m in messages]


def test_everything_in_order(tmp_path: Path) -> None:
    """What lies in the spool and what comes arrives once, unchanged and in order; the mark moves with it."""
    near, far = _near(tmp_path, 1200), FarBus()
    with closing(Forwarder(near, far, SAMPLES)) as forwarder:
        while forwarder.step():
            pass
        with closing(near.producer()) as producer:
            producer.send(SAMPLES, bus_traffic.numbered(5, first=1200))
        assert forwarder.step() == 5
    assert _sequence(far.taken) == list(range(1205))
    assert far.taken[:10] == bus_traffic.numbered(10)
    with closing(near.consumer([SAMPLES], forward.GROUP)) as consumer:
        assert consumer.poll(0) == []


@pytest.mark.parametrize("trouble", [BusUnavailable("connection refused"), BusRefused("wrong password")])
def test_far_bus_away_or_refusing_us(tmp_path: Path, trouble: Exception) -> None:
    """The same messages are offered again and again, none is given up, and the reason is there to be shown."""
    near, far = _near(tmp_path), FarBus()
    far.says = [trouble] * 3
    with closing(Forwarder(near, far, SAMPLES)) as forwarder:
        for _ in range(3):
            assert forwarder.step() == 0
            assert forwarder.forwarded.trouble == str(trouble)
        assert forwarder.step() == 10
        assert forwarder.forwarded.trouble == ""
    assert _sequence(far.taken) == list(range(10))


def test_restart_while_the_far_bus_is_away(tmp_path: Path) -> None:
    """What was read and not acknowledged is not marked: the next forwarder finds it."""
    near, far = _near(tmp_path), FarBus()
    far.says = [BusUnavailable("away")]
    with closing(Forwarder(near, far, SAMPLES)) as forwarder:
        forwarder.step()
    with closing(Forwarder(near, far, SAMPLES)) as forwarder:
        forwarder.step()
    assert _sequence(far.taken) == list(range(10))


def test_message_that_can_never_be_taken(tmp_path: Path) -> None:
    """It alone is passed over, counted; its neighbours arrive in order."""
    near, far = _near(tmp_path), FarBus()
    far.refuses = {b"4"}
    with closing(Forwarder(near, far, SAMPLES)) as forwarder:
        assert forwarder.step() == 9
        assert forwarder.forwarded.refused == 1
        assert forwarder.step() == 0
    kept = [m for i, m in enumerate(far.taken) if m not in far.taken[:i]]
    assert _sequence(kept) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_messages_that_left_the_spool(tmp_path: Path) -> None:
    """Those that the bound took are counted, and forwarding goes on at the oldest there is."""
    near, far = _near(tmp_path, 20, bound=160_000, size=1000), FarBus()
    with closing(Forwarder(near, far, SAMPLES)) as forwarder:
        assert forwarder.step() == 20
        with closing(near.producer()) as producer:
            for i in range(400):
                producer.send(SAMPLES, bus_traffic.numbered(1, first=20 + i, size=1000))
        while sum((forwarder.step(), forwarder.step())):
            pass
        gone = forwarder.forwarded.gone
    assert gone > 100
    sequence = _sequence(far.taken)
    assert sequence == sorted(set(sequence))
    assert len(sequence) + gone == 420
    assert sequence[-1] == 419


class Torn:
    """A spool whose mark cannot be written for a while."""

    def __init__(self, bus: SpoolBus) -> None:
        self._bus = bus
        self.broken = 0

    def consumer(self, topics: Sequence[str], group: str, on_assigned: OnAssigned | None = None) -> Consumer:
        consumer = self._bus.consumer(topics, group, on_assigned)
        commit = consumer.commit

        def breaking(offsets: Mapping[Partition, int]) -> None:
            if self.broken:
                self.broken -= 1
                raise BusUnavailable("no space left")
            commit(offsets)

        consumer.commit = breaking
        return consumer

    def producer(self) -> FarBus:
        raise NotImplementedError

    def partitions(self, topic: str) -> list[Partition]:
        return self._bus.partitions(topic)


def test_mark_that_cannot_be_written(tmp_path: Path) -> None:
    """Nothing is sent twice for it within a process; the mark follows when it can."""
    near = Torn(_near(tmp_path))
    near.broken, far = 2, FarBus()
    with closing(Forwarder(near, far, SAMPLES)) as forwarder:
        assert [forwarder.step() for _ in range(3)] == [0, 0, 0]
        assert forwarder.forwarded.messages == 10
        assert forwarder.forwarded.trouble == ""
    assert _sequence(far.taken) == list(range(10))
    near.broken = 0
    with closing(Forwarder(near, far, SAMPLES)) as forwarder:
        assert forwarder.step() == 0


KILLED_BETWEEN = """
import os, signal, sys
from pathlib import Path
from graynode.pipeline.forward import Forwarder
from graynode.pipeline.kafka import KafkaBus, KafkaSettings
from graynode.pipeline.spool import SpoolBus

class Killing:
    def __init__(self, bus):
        self.bus, self.left = bus, int(sys.argv[3])
    def producer(self):
        self.real = self.bus.producer()
        return self
    def send(self, topic, messages):
        self.real.send(topic, messages)
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

target = Killing(KafkaBus(KafkaSettings(bootstrap=sys.argv[2], connect_timeout_s=10)))
forwarder = Forwarder(SpoolBus(Path(sys.argv[1]), 1 << 26), target, sys.argv[4])
while True:
    forwarder.step(1.0)
"""


@pytest.mark.kafka
def test_killed_between_acknowledgement_and_mark(tmp_path: Path, kafka_address: str) -> None:
    """To a real broker, killed three times just there: what comes twice carries the same identity, so that who drops
    what it has seen has everything once and in order."""
    near = SpoolBus(tmp_path / "spool", 1 << 26)
    topic = f"topic{uuid.uuid4().hex[:8]}"
    far = KafkaBus(KafkaSettings(bootstrap=kafka_address, connect_timeout_s=10, session_timeout_s=3))
    far.create_topics(2, 1, [topic])
    with closing(near.producer()) as producer:
        producer.send(topic, bus_traffic.numbered(4000, nodes=4, size=100))
    for sends in (1, 2, 3):
        arguments = [str(tmp_path / "spool"), kafka_address, str(sends), topic]
        done = subprocess.run([sys.executable, "-I", "-c", KILLED_BETWEEN, *arguments], timeout=120, check=False)
        assert done.returncode == -9
    with closing(Forwarder(near, far, topic)) as forwarder:
        while forwarder.step():
            pass
    with closing(far.consumer([topic], "g")) as consumer:
        got = bus_traffic.read(consumer, 5500)
    assert len(got) == 5500  # 500 a send; each kill doubled one send
    assert bus_traffic.first_seen(got) == {f"node{i}": list(range(1000)) for i in range(4)}
