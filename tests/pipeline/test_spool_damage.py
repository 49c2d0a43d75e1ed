"""The spool when its process is killed in mid-write and when its disk does not give back what was written."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import bus_traffic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.pipeline import bus_metrics
from graynode.pipeline.bus import Partition
from graynode.pipeline.codec import Message
from graynode.pipeline.spool import SpoolBus
from graynode.pipeline.spool_frame import encode_frame, is_whole, read_frame, walk

TOPIC = "graynode.events"
BOUND = 64 << 20

WRITER = """
import sys
from pathlib import Path
from graynode.pipeline.codec import Message
from graynode.pipeline.spool import SpoolBus
producer = SpoolBus(Path(sys.argv[1]), 64 << 20).producer()
first, epoch = int(sys.argv[2]), sys.argv[3]
for seq in range(first, first + 1_000_000, 7):
    producer.send("graynode.events", [
        Message("site/node0", b"x" * (seq * 977 % 3000), {"node_id": "node0", "epoch": epoch, "seq": str(i)})
        for i in range(seq, seq + 7)
    ])
    print(seq + 6, flush=True)
"""


def _segment(root: Path, number: int = -1) -> Path:
    return sorted((root / TOPIC).glob("*.seg"))[number]


def _sequence(bus: SpoolBus, group: str = "check") -> list[int]:
    with closing(bus.consumer([TOPIC], group)) as consumer:
        return bus_traffic.sequences(_all(consumer)).get("node0", [])


def _all(consumer: object) -> list[object]:
    got: list[object] = []
    while some := consumer.poll(0):
        got += some
    return got


def _count(counter: object, *labels: str) -> float:
    return float(counter.labels(*labels)._value.get())


def test_killed_while_writing(tmp_path: Path) -> None:
    """After ``kill -9`` at random moments everything acknowledged is there, once and in order, and writing goes on."""
    acknowledged = -1
    moment = random.Random(7)
    for epoch in range(4):
        command = [sys.executable, "-I", "-c", WRITER, str(tmp_path), str(acknowledged + 1), str(epoch)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(moment.uniform(0.01, 0.15))
            writer.send_signal(signal.SIGKILL)
            lines = writer.stdout.read().split()
        bus = SpoolBus(tmp_path, BOUND)
        got = _sequence(bus, f"after{epoch}")
        told = int(lines[-1]) if lines else acknowledged + 7
        assert got == list(range(len(got)))
        assert len(got) > told
        acknowledged = len(got) - 1


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 400))
def test_torn_tail(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """What a death left unfinished is cut off when the spool is opened, counted, and overwritten by what follows."""
    root = tmp_path_factory.mktemp("torn")
    bus = SpoolBus(root, BOUND)
    with closing(bus.producer()) as producer:
        producer.send(TOPIC, bus_traffic.numbered(5, size=60))
    path = _segment(root)
    size = path.stat().st_size
    frame = size // 5
    os.truncate(path, size - cut)
    before = _count(bus_metrics.CUT_BYTES, TOPIC)
    with closing(bus.consumer([TOPIC], "live")) as live, closing(bus.producer()) as producer:
        whole = (size - cut) // frame
        assert len(_all(live)) == whole
        producer.send(TOPIC, bus_traffic.numbered(2, first=100))
        assert bus_traffic.sequences(_all(live)) == {"node0": [100, 101]}
    assert _count(bus_metrics.CUT_BYTES, TOPIC) - before == (size - cut) % frame
    assert _sequence(bus) == [*range(whole), 100, 101]
    with path.open("rb") as file:
        assert sum(size for _, size, _ in walk(file.fileno(), 0, 0)) == path.stat().st_size


@settings(max_examples=100, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), junk=st.binary(min_size=1, max_size=300))
def test_damage_in_the_middle(tmp_path_factory: pytest.TempPathFactory, place: float, junk: bytes) -> None:
    """Whatever bytes the disk spoils: no crash, the messages outside of them come in order, the rest is counted."""
    root = tmp_path_factory.mktemp("damage")
    bus = SpoolBus(root, BOUND)
    with closing(bus.producer()) as producer:
        producer.send(TOPIC, bus_traffic.numbered(40, size=50))
    path = _segment(root)
    raw = bytearray(path.read_bytes())
    at = int(place * (len(raw) - 1))
    end = min(at + len(junk), len(raw))
    raw[at:end] = junk[: end - at]
    path.write_bytes(raw)
    with closing(bus.producer()) as producer:
        producer.send(TOPIC, bus_traffic.numbered(3, first=40))
    before = _count(bus_metrics.SKIPPED, TOPIC, "check")
    got = _sequence(bus)
    assert got == sorted(set(got))
    assert got[-3:] == [40, 41, 42]
    lost = 43 - len(got)
    assert lost <= len(junk) // 80 + 2
    tail = [i for i in range(40) if i not in got and i > max([g for g in got if g < 40], default=-1)]
    # A damaged tail is cut by the next writer, and its numbers are given anew; in the middle it is counted.
    assert _count(bus_metrics.SKIPPED, TOPIC, "check") - before == lost - len(tail)


def test_damaged_end_of_a_finished_segment(tmp_path: Path) -> None:
    """A reader goes on with the next segment and counts what the damaged one had."""
    bus = SpoolBus(tmp_path, 160_000)  # segments of 10,000 bytes
    with closing(bus.producer()) as producer:
        for i in range(10):
            producer.send(TOPIC, bus_traffic.numbered(4, first=4 * i, size=900))
    first = _segment(tmp_path, 0)
    count = int(_segment(tmp_path, 1).stem)
    os.truncate(first, first.stat().st_size - 10)
    before = _count(bus_metrics.SKIPPED, TOPIC, "check")
    got = _sequence(bus)
    assert got == [i for i in range(40) if i != count - 1]
    assert _count(bus_metrics.SKIPPED, TOPIC, "check") - before == 1


def test_seek_into_damage(tmp_path: Path) -> None:
    """A position inside a damaged stretch leads to the first whole message behind it."""
    bus = SpoolBus(tmp_path, BOUND)
    with closing(bus.producer()) as producer:
        producer.send(TOPIC, bus_traffic.numbered(10, size=100))
    path = _segment(tmp_path)
    size = path.stat().st_size // 10
    with path.open("r+b") as file:
        file.seek(4 * size + 2)
        file.write(b"?" * (2 * size))
    with closing(bus.consumer([TOPIC], "g", lambda held: dict.fromkeys(held, 5))) as consumer:
        assert bus_traffic.sequences(_all(consumer)) == {"node0": [7, 8, 9]}


def test_power_lost_behind_a_commit(tmp_path: Path) -> None:
    """Numbers that a group has committed are not given again, or it would take new messages for old ones."""
    bus = SpoolBus(tmp_path, BOUND)
    with closing(bus.producer()) as producer, closing(bus.consumer([TOPIC], "g")) as consumer:
        producer.send(TOPIC, bus_traffic.numbered(10))
        assert len(_all(consumer)) == 10
        consumer.commit({Partition(TOPIC, 0): 10})
    os.truncate(_segment(tmp_path), 0)
    with closing(bus.producer()) as producer:
        producer.send(TOPIC, bus_traffic.numbered(2, first=50))
    with closing(bus.consumer([TOPIC], "g")) as consumer:
        got = _all(consumer)
    assert [(r.offset, r.message.headers["seq"]) for r in got] == [(10, "50"), (11, "51")]


def test_commit_that_was_torn(tmp_path: Path) -> None:
    """A group whose mark cannot be read begins at the oldest message: twice is better than never."""
    bus = SpoolBus(tmp_path, BOUND)
    with closing(bus.producer()) as producer:
        producer.send(TOPIC, bus_traffic.numbered(3))
    with closing(bus.consumer([TOPIC], "g")) as consumer:
        consumer.poll(0)
        consumer.commit({Partition(TOPIC, 0): 2})
    mark = tmp_path / TOPIC / "groups" / "g"
    mark.write_bytes(mark.read_bytes().replace(b"2 ", b"9 "))
    assert _sequence(bus, "g") == [0, 1, 2]


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(
    key=_TEXT,
    value=st.binary(max_size=2000),
    headers=st.dictionaries(_TEXT, _TEXT, max_size=8),
    offset=st.integers(0, 2**62),
    arrived=st.integers(0, 2**62),
    flip=st.integers(0),
)
def test_frame(key: str, value: bytes, headers: dict[str, str], offset: int, arrived: int, flip: int) -> None:
    """A frame gives back what went in, and one flipped bit anywhere behind the magic is noticed."""
    message = Message(key, value, headers)
    frame = encode_frame(message, offset, arrived)
    got = read_frame(bytes(frame), 0, Partition("t", 0))
    assert (got.message, got.offset, got.arrived_ms) == (message, offset, arrived)
    bit = 32 + flip % (8 * (len(frame) - 4))
    frame[bit // 8] ^= 1 << bit % 8
    assert not is_whole(bytes(frame), 0, len(frame))
