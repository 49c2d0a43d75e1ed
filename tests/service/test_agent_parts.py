from __future__ import annotations

import io
import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import agent_fakes
import pytest
from agent_fakes import Sink, Source
from structlog.testing import capture_logs

from graynode.collectors.agent import Agent, Settings
from graynode.collectors.base import Round
from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.codec import Message, Origin, encode
from graynode.pipeline.schema import EVENTS, SAMPLES
from graynode.pipeline.spool import SpoolBus
from graynode.service.agent_forward import Forwarding, RingingProducer
from graynode.service.agent_parts import listeners, make_collectors
from graynode.service.agent_print import Printer
from graynode.service.agent_spool import BusHealth, Spool
from graynode.service.config import Config, ConfigError, parse

NOW = datetime(2026, 11, 30, 12, 0, 1, tzinfo=UTC)


def _message(table: str, rows: list[dict[str, Any]], number: int = 1) -> Message:
    who = {"ts": NOW, "cluster": "c", "node_id": "n", "node": "host-1"}
    return encode(table, [{**who, **row} for row in rows], Origin("c", "n", 1), number, NOW)


def test_pipe_gets_every_row_as_json() -> None:
    """Every reading, absent values left out, times with their zone: what ``replay`` reads back."""
    out = io.StringIO()
    Printer(out=out).send(SAMPLES, [_message("host", [{"load1": 1.0}, {"load1": 0.0}])])
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    keys = {"table": "host", "ts": "2026-11-30T12:00:01+00:00", "cluster": "c", "node_id": "n", "node": "host-1"}
    assert lines == [{**keys, "load1": 1.0}, {**keys, "load1": 0.0}]


def test_person_gets_the_latest_of_each_thing() -> None:
    """At a terminal: the last reading of each GPU, link and node, every event, and not the keys that never differ."""
    out = io.StringIO()
    printer = Printer(out=out, person=True)
    printer.send(
        SAMPLES, [_message("gpu", [{"gpu_uuid": u, "power_w": w} for u, w in (("A", 1.0), ("B", 2.0), ("A", 3.0))])]
    )
    printer.send(EVENTS, [_message("event", [{"kind": "xid", "event_id": "1"}, {"kind": "xid", "event_id": "2"}])])
    text = out.getvalue()
    assert [line.split() for line in text.splitlines()] == [
        ["12:00:01", "gpu", "A"], ["power_w", "3"], ["12:00:01", "gpu", "B"], ["power_w", "2"],
        ["12:00:01", "event", "xid"], ["event_id", "1"], ["12:00:01", "event", "xid"], ["event_id", "2"],
    ]  # fmt: skip


def test_collectors_are_made_once_each_in_the_order_named(tmp_path: Path) -> None:
    """The configuration decides; a name twice is one collector; one without a source is left out with its reason."""
    config = parse({"agent": {"collectors": ["host", "replay", "infiniband", "host"]}}, "test")
    with capture_logs() as logged:
        made = make_collectors(config, agent_fakes.machine(tmp_path), dict)
    assert [c.name for c in made] == ["host", "infiniband"]
    assert [(line["collector"], bool(line["reason"])) for line in logged] == [("replay", True)]
    for collector in made:
        collector.close()


def test_recording_named_in_the_configuration_is_replayed(tmp_path: Path) -> None:
    """``replay.path`` is read again by the agent, from the form that a dry run prints."""
    out = io.StringIO()
    Printer(out=out).send(SAMPLES, [_message("host", [{"load1": 1.0}])])
    (tmp_path / "rows.jsonl").write_text(out.getvalue())
    settings = {"agent": {"collectors": ["replay"]}, "replay": {"path": str(tmp_path / "rows.jsonl"), "pace": 0}}
    (replay,) = make_collectors(parse(settings, "test"), agent_fakes.machine(tmp_path), dict)
    rows = replay.collect(Round(NOW, frozenset({1, 10, 60})))
    assert [row["load1"] for row in rows["host"]] == [1.0]


def test_simulated_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """A start without a zone is a wrong setting, said before the first round."""
    config = parse({"agent": {"collectors": ["simulated"]}, "simulated": {"start": "2026-01-01T00:00:00"}}, "test")
    with pytest.raises(ConfigError, match=r"simulated.*no zone"):
        make_collectors(config, agent_fakes.machine(tmp_path), dict)


def test_kernel_events_are_heard_by_those_who_ask() -> None:
    """NVML's reader needs a second witness for a lost GPU; it hears the kernel log's events and nothing else."""

    class Ear(Source):
        heard: list[Any]

        def note_kernel_events(self, rows: Any) -> None:
            self.heard = [*getattr(self, "heard", []), *rows]

    ear = Ear(name="nvml")
    (tell,) = listeners([ear, Source(name="kernel_log")])
    tell("kernel_log", {"event": [{"kind": "xid"}]})
    tell("infiniband", {"event": [{"kind": "link_down"}]})
    tell("kernel_log", {"quality": [{}]})
    assert ear.heard == [{"kind": "xid"}]
    assert listeners([Source()]) == []


def test_skewed_clock_is_an_event_at_its_start_and_its_end(tmp_path: Path) -> None:
    """Above 15 s from the broker's clock is told once, and once that it is over; the figure goes into ``host``."""
    sink, skews = Sink(), iter([0.2, -16.0, -17.0, None, 3.0])
    agent = Agent(agent_fakes.machine(tmp_path), [], sink, 1, settings=Settings(tick_s=0.02))
    health = BusHealth(Spool(sink, lambda: 0, lambda: 7, lambda: next(skews)), agent)
    assert health(frozenset({1})) == {}
    told = [health(frozenset({1, 10})) for _ in range(5)]
    agent.once()
    assert [t["clock_skew_s"] for t in told] == [0.2, -16.0, -17.0, None, 3.0]
    assert told[0]["spool_bytes"] == 7
    kinds = [e["kind"] for e in sink.rows("event")]
    assert sorted(kinds) == sorted(["clock_skew", "clock_skew_end", "agent_start", "agent_stop"])


class Far:
    """A bus whose producers are one sink."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def producer(self) -> Sink:
        return self.sink


def _forwarding(tmp_path: Path, sink: Sink, prepare: Any) -> tuple[Forwarding, RingingProducer]:
    spool = SpoolBus(tmp_path, 1 << 26)
    forwarding = Forwarding(spool, Far(sink), prepare)
    return forwarding, RingingProducer(spool.producer(), forwarding.ring)


def test_message_is_forwarded_when_it_comes(tmp_path: Path) -> None:
    """A ring, not a look every tenth of a second: what is sent is on its way at once, per topic."""
    sink = Sink()
    forwarding, producer = _forwarding(tmp_path, sink, lambda: None)
    producer.send(EVENTS, [_message("event", [{"kind": "xid"}])])
    assert agent_fakes.until(lambda: [t for t, _ in sink.sent] == [EVENTS])
    producer.send(SAMPLES, [_message("host", [{}], 2)])
    assert agent_fakes.until(lambda: [t for t, _ in sink.sent] == [EVENTS, SAMPLES])
    assert forwarding.finish(10)
    producer.close()


def test_samples_that_are_held_up_hold_up_no_event(tmp_path: Path) -> None:
    """A topic has a thread and a connection of its own."""
    samples_may_go = threading.Event()

    class SlowForSamples(Sink):
        def send(self, topic: str, messages: Sequence[Message]) -> None:
            if topic == SAMPLES:
                samples_may_go.wait(30)
            super().send(topic, messages)

    sink = SlowForSamples()
    forwarding, producer = _forwarding(tmp_path, sink, lambda: None)
    producer.send(SAMPLES, [_message("host", [{}])])
    producer.send(EVENTS, [_message("event", [{"kind": "xid"}], 2)])
    assert agent_fakes.until(lambda: [t for t, _ in sink.sent] == [EVENTS])
    samples_may_go.set()
    assert agent_fakes.until(lambda: [t for t, _ in sink.sent] == [EVENTS, SAMPLES])
    assert forwarding.finish(10)
    producer.close()


def test_far_bus_away_keeps_messages_and_sends_them_after(tmp_path: Path) -> None:
    """Not prepared, not sent: the topics must be there first; when the bus is back everything follows."""
    sink, away, asked = Sink(), threading.Event(), []

    def prepare() -> None:
        asked.append(1)
        if not away.is_set():
            raise BusUnavailable("no broker")

    with capture_logs() as logged:
        forwarding, producer = _forwarding(tmp_path, sink, prepare)
        producer.send(EVENTS, [_message("event", [{"kind": "xid"}])])
        assert agent_fakes.until(lambda: len(asked) >= 2)
        assert sink.sent == []
        assert forwarding.trouble == "no broker"
        away.set()
        assert agent_fakes.until(lambda: len(sink.sent) == 1)
        assert forwarding.finish(10)
        producer.close()
    assert forwarding.trouble == ""
    assert [line["reason"] for line in logged if line["log_level"] == "warning"] == ["no broker"]


def test_agent_that_may_not_make_topics_forwards_all_the_same(tmp_path: Path) -> None:
    """Least privilege: someone else makes the topics."""

    def prepare() -> None:
        raise BusRefused("not permitted")

    sink = Sink()
    with capture_logs():
        forwarding, producer = _forwarding(tmp_path, sink, prepare)
        producer.send(EVENTS, [_message("event", [{"kind": "xid"}])])
        assert agent_fakes.until(lambda: len(sink.sent) == 1)
        assert forwarding.finish(10)
    producer.close()


def test_end_says_when_something_is_left(tmp_path: Path) -> None:
    """The broker away at the end: false, and soon; the messages are the next start's."""
    sink = Sink()
    sink.trouble = BusUnavailable("away")
    with capture_logs():
        forwarding, producer = _forwarding(tmp_path, sink, lambda: None)
        producer.send(EVENTS, [_message("event", [{"kind": "xid"}])])
        assert not forwarding.finish(10)
        assert forwarding.trouble == "away"
    producer.close()
    sink.trouble = None
    again, producer = _forwarding(tmp_path, sink, lambda: None)
    assert agent_fakes.until(lambda: len(sink.sent) == 1)
    assert again.finish(10)
    producer.close()


def test_default_configuration_names_collectors_that_exist() -> None:
    """What ships works."""
    from graynode.collectors import COLLECTORS

    assert set(Config().agent.collectors) <= {name for name, _ in COLLECTORS}
