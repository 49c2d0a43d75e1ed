"""Messages that cannot be read: kept with their reason, and limits to a flood of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.pipeline import bus_metrics
from graynode.pipeline.bus import BusUnavailable, Partition, Received, check_size
from graynode.pipeline.codec import MAX_MESSAGE_BYTES, Message
from graynode.pipeline.deadletter import DeadLetters, FloodGate, FloodStop, letter, opened
from graynode.pipeline.flood import Limits
from graynode.pipeline.schema import DEADLETTER, SAMPLES
from graynode.pipeline.spool import SpoolBus


def _received(node: str = "node0", offset: int = 0, at_s: float = 0.0, value: bytes = b"?") -> Received:
    message = Message(f"site/{node}", value, {"table": "gpu", "v": "9.0"})
    return Received(message, Partition(SAMPLES, 3), offset, int(at_s * 1000))


class Kept:
    """A producer that remembers."""

    def __init__(self) -> None:
        self.letters: list[Message] = []
        self.away = False

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        assert topic == DEADLETTER
        if self.away:
            raise BusUnavailable("away")
        self.letters += messages

    def close(self) -> None:
        """Nothing to let go."""


def _count(counter: object) -> float:
    return float(counter.labels(SAMPLES)._value.get())


def test_round_trip_over_a_bus(tmp_path: Path) -> None:
    """A dead letter gives back the message as it came, why it is there, and where it lay."""
    bus = SpoolBus(tmp_path, 1 << 20)
    received = _received(offset=77, at_s=1_790_000_000, value=bytes(range(256)))
    before = _count(bus_metrics.DEADLETTERED)
    with closing(bus.producer()) as producer:
        DeadLetters(producer).put(received, "contract version 9.0 is newer than 1.0")
    with closing(bus.consumer([DEADLETTER], "person")) as consumer:
        dead = opened(consumer.poll(0)[0])
    assert dead.message == received.message
    assert (dead.partition, dead.offset, dead.arrived_ms) == (received.partition, 77, received.arrived_ms)
    assert dead.reason == "contract version 9.0 is newer than 1.0"
    assert dead.cut == 0
    assert _count(bus_metrics.DEADLETTERED) == before + 1


@given(
    key=st.text(st.characters(exclude_categories=["Cs"]), max_size=2000),
    headers=st.dictionaries(st.text(max_size=300), st.text(max_size=3000), max_size=8),
    reason=st.text(max_size=3000),
)
def test_letter_of_anything(key: str, headers: dict[str, str], reason: str) -> None:
    """Whatever came, its letter is within the bus's limits: what cannot be read must not stop at the dead letters."""
    check_size(letter(Received(Message(key, b"", headers), Partition(SAMPLES, 0), 0, 0), reason))


def test_letter_of_a_message_over_the_limit() -> None:
    """A foreign sender's larger message is cut to the limit, and the letter says by how much."""
    big = letter(_received(value=b"x" * (MAX_MESSAGE_BYTES + 5)), "too large")
    check_size(big)
    assert opened(Received(big, Partition(DEADLETTER, 0), 0, 0)).cut == 5


def test_other_messages_are_no_dead_letters() -> None:
    """Opening one says what is missing."""
    with pytest.raises(ValueError, match=r"not a dead letter: header 'dead\.topic' is missing"):
        opened(_received())


def test_dead_letters_away() -> None:
    """If the letter cannot be sent the reader hears it, so that it does not move past the message."""
    kept = Kept()
    kept.away = True
    with pytest.raises(BusUnavailable):
        DeadLetters(kept).put(_received(), "bad")


LIMITS = Limits(kept_per_node=5, per_s=100.0, probe_s=10.0, recent=100, share=0.1, least=10, nodes=3)


def test_one_machine_floods() -> None:
    """It is kept up to its limit, then passed over unread and counted; others are read; one that is readable at a
    probe ends it."""
    kept = Kept()
    dead = DeadLetters(kept, FloodGate(LIMITS))
    before = _count(bus_metrics.HELD_BACK)
    skipped = 0
    for i in range(40):
        bad = _received("bad", offset=i, at_s=i / 10)
        if dead.skips(bad):
            skipped += 1
        else:
            dead.put(bad, "bad")
        good = _received("good", offset=i, at_s=i / 10)
        assert not dead.skips(good)
        dead.readable(good)
    assert [m.headers["dead.offset"] for m in kept.letters] == ["0", "1", "2", "3", "4"]
    assert skipped == 34  # the sixth was tried and not kept
    assert _count(bus_metrics.HELD_BACK) - before == 35
    mended = _received("bad", offset=100, at_s=12.0)
    assert not dead.skips(mended)
    dead.readable(mended)
    assert not dead.skips(_received("bad", offset=101, at_s=12.1))
    dead.put(_received("bad", offset=102, at_s=12.2), "bad")
    assert len(kept.letters) == 6


def test_flooding_machine_that_stays_bad() -> None:
    """It is tried once every ``probe_s``, however long it lasts."""
    gate = FloodGate(LIMITS)
    tried = []
    for second in range(400):
        if not gate.skips("bad", float(second)):
            tried.append(second)
            gate.unreadable("bad", float(second))
    assert tried[:6] == [0, 1, 2, 3, 4, 5]
    assert tried[6:] == list(range(15, 400, 10))


def test_machine_that_is_mostly_readable() -> None:
    """One bad table of many does not cost the others: kept up to the limit, counted above, read on."""
    gate = FloodGate(LIMITS)
    verdicts = []
    for i in range(12):
        assert not gate.skips("mixed", i / 10)
        verdicts.append(gate.unreadable("mixed", i / 10))
        for _ in range(3):
            gate.readable("mixed", i / 10)
    assert verdicts == ["keep"] * 5 + ["count"] * 7


def test_limit_is_per_time() -> None:
    """A machine with a bad message now and then keeps them all."""
    gate = FloodGate(LIMITS)
    assert [gate.unreadable("rare", 30.0 * i) for i in range(50)] == ["keep"] * 50


def test_bad_roll_out_stops_the_reader() -> None:
    """Three machines and more than a tenth of what came: the reader stops, and names machines and way out."""
    kept = Kept()
    dead = DeadLetters(kept, FloodGate(LIMITS))
    for i in range(60):
        dead.readable(_received(f"good{i % 20}", at_s=i))
    for i in range(9):
        dead.put(_received(f"bad{i % 3}", offset=i, at_s=60 + i), "contract version 9.0 is newer")
    with pytest.raises(FloodStop) as stop:
        dead.put(_received("bad0", offset=9, at_s=69), "contract version 9.0 is newer")
    assert "10 of the last 70 messages, from 3 machines (site/bad0, site/bad1, site/bad2)" in str(stop.value)
    assert "stay on the bus" in str(stop.value)
    assert len(kept.letters) == 9


def test_two_machines_do_not_stop_the_fleet() -> None:
    """However many they send."""
    gate = FloodGate(LIMITS)
    for i in range(500):
        gate.unreadable(f"bad{i % 2}", i / 100)


def test_few_among_many_do_not_stop_the_fleet() -> None:
    """Bad messages of many machines below a tenth are dead letters and no more."""
    gate = FloodGate(LIMITS)
    for i in range(3000):
        if i % 12:
            gate.readable(f"node{i % 50}", i / 100)
        else:
            gate.unreadable(f"node{i % 50}", i / 100)


def test_stop_does_not_come_from_the_past() -> None:
    """Only the last messages count: an hour ago is forgotten."""
    gate = FloodGate(LIMITS)
    for i in range(9):
        gate.unreadable(f"bad{i}", 0.0)
    for i in range(100):
        gate.readable("good", float(i))
    for i in range(9):
        gate.unreadable(f"bad{i}", 200.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=300))
def test_nothing_is_kept_over_the_limit_and_nothing_good_is_shut_out(log: list[tuple[int, bool]]) -> None:
    """In any traffic: between two readable messages of a machine at most ``kept_per_node`` are kept, and a machine
    whose messages can all be read (the first one here) is never skipped."""
    gate = FloodGate(Limits(kept_per_node=5, per_s=1000.0, probe_s=0.05, nodes=99))
    kept = dict.fromkeys(range(6), 0)
    for i, (node, readable) in enumerate(log):
        skipped = gate.skips(str(node), i / 100)
        assert node or not skipped
        if skipped:
            continue
        if readable or not node:
            gate.readable(str(node), i / 100)
            kept[node] = 0
        else:
            kept[node] += gate.unreadable(str(node), i / 100) == "keep"
            assert kept[node] <= 5
