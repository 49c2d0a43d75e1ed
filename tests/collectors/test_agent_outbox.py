from __future__ import annotations

import errno
from datetime import UTC, datetime

from agent_fakes import Sink
from structlog.testing import capture_logs

from graynode.collectors.outbox import Outbox
from graynode.pipeline.bus import BusUnavailable, MessageRefused
from graynode.pipeline.codec import Message, Origin, encode
from graynode.pipeline.schema import EVENTS, SAMPLES

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def _message(number: int, table: str = "host", size: int = 0) -> Message:
    made = encode(table, [{"cluster": "c", "node_id": "n"}], Origin("c", "n", 1), number, NOW)
    return Message(made.key, bytes(size) if size else made.value, made.headers)


def _numbers(sink: Sink, topic: str) -> list[int]:
    return [int(m.headers["seq"]) for t, m in sink.sent if t == topic]


def test_what_waits_is_sent_in_order_events_first() -> None:
    """Order holds per topic; events do not stand behind samples; nothing is left behind."""
    sink = Sink()
    outbox = Outbox(sink)
    outbox.put([(SAMPLES, _message(1)), (EVENTS, _message(2, "event")), (SAMPLES, _message(3))])
    assert outbox.send()
    assert [t for t, _ in sink.sent] == [EVENTS, SAMPLES, SAMPLES]
    assert (_numbers(sink, SAMPLES), _numbers(sink, EVENTS)) == ([1, 3], [2])
    assert (outbox.sent.messages, outbox.held_bytes) == (3, 0)


def test_bus_away_loses_nothing_within_the_bound() -> None:
    """While the disk is full or the bus gone everything waits, and goes out in order when it is back; trouble is
    logged at its start and its end only."""
    sink = Sink()
    outbox = Outbox(sink)
    with capture_logs() as logged:
        for number in range(20):
            sink.trouble = OSError(errno.ENOSPC, "No space left on device") if number % 2 else BusUnavailable("away")
            outbox.put([(SAMPLES, _message(number))])
            assert not outbox.send()
        sink.trouble = None
        assert outbox.send()
    assert _numbers(sink, SAMPLES) == list(range(20))
    assert outbox.sent.dropped == 0
    assert [line["log_level"] for line in logged] == ["warning", "info"]


def test_over_the_bound_the_oldest_samples_go_and_events_stay() -> None:
    """Memory is bounded: samples are dropped oldest first and counted; the event survives them all."""
    sink = Sink()
    sink.trouble = BusUnavailable("away")
    outbox = Outbox(sink, hold_bytes=100_000)
    outbox.put([(EVENTS, _message(0, "event", 9000))])
    for number in range(1, 30):
        outbox.put([(SAMPLES, _message(number, size=9000))])
        assert outbox.held_bytes <= 100_000
        outbox.send()
    sink.trouble = None
    outbox.send()
    assert _numbers(sink, EVENTS) == [0]
    assert _numbers(sink, SAMPLES) == list(range(21, 30))
    assert (outbox.sent.dropped_samples, outbox.sent.dropped_events, outbox.sent.dropped) == (20, 0, 20)


def test_events_go_last() -> None:
    """Only when nothing but events waits are events dropped, oldest first, and counted apart."""
    sink = Sink()
    sink.trouble = BusUnavailable("away")
    outbox = Outbox(sink, hold_bytes=50_000)
    outbox.put([(SAMPLES, _message(0, size=9000))])
    outbox.put([(EVENTS, _message(n, "event", 9000)) for n in range(1, 10)])
    sink.trouble = None
    outbox.send()
    assert _numbers(sink, EVENTS) == [5, 6, 7, 8, 9]
    assert (outbox.sent.dropped_samples, outbox.sent.dropped_events) == (1, 4)


def test_refused_message_costs_only_itself() -> None:
    """One message that the bus never takes does not hold up those around it, and is counted."""
    sink = Sink()
    sink.refuse = lambda m: MessageRefused("too large") if m.headers["seq"] == "3" else None
    outbox = Outbox(sink)
    outbox.put([(SAMPLES, _message(n)) for n in range(6)])
    assert outbox.send()
    assert _numbers(sink, SAMPLES) == [0, 1, 2, 4, 5]
    assert (outbox.sent.refused, outbox.sent.messages, outbox.held_bytes) == (1, 5, 0)


def test_bus_going_away_in_the_middle_keeps_the_rest() -> None:
    """What was handed over is not handed over again; what was not waits."""
    sink = Sink()
    away = {"3"}
    sink.refuse = lambda m: (
        MessageRefused("no")
        if m.headers["seq"] == "1"
        else BusUnavailable("away")
        if m.headers["seq"] in away
        else None
    )
    outbox = Outbox(sink)
    outbox.put([(SAMPLES, _message(n)) for n in range(5)])
    assert not outbox.send()
    away.clear()
    assert outbox.send()
    assert _numbers(sink, SAMPLES) == [0, 2, 3, 4]
