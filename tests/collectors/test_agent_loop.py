from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import agent_fakes
import pytest
from agent_fakes import Sink, Source, until
from structlog.testing import capture_logs

from graynode.collectors.agent import Agent, Settings
from graynode.collectors.base import NoSource, Round, Rows
from graynode.pipeline.bus import BusUnavailable
from graynode.pipeline.schema import EVENTS

TICK = 0.02


def _agent(tmp_path: Path, sources: Sequence[Source], sink: Sink, **settings: Any) -> Agent:
    chosen = Settings(**{"batch_s": 0.1, "deadline_s": 5.0, "tick_s": TICK, **settings})
    return Agent(agent_fakes.machine(tmp_path), sources, sink, 3, settings=chosen)


@contextmanager
def _running(agent: Agent) -> Iterator[None]:
    stop, result = threading.Event(), []
    thread = threading.Thread(target=lambda: result.append(agent.run(stop)))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
    assert result


def _kinds(sink: Sink) -> list[str]:
    return [e["kind"] for e in sink.rows("event")]


def test_rounds_share_one_timestamp_and_all_rows_arrive(tmp_path: Path) -> None:
    """Every collector sees the same time in a round, no collection is lost, and the end flushes what waits."""
    sink, sources = Sink(), [Source(name=n) for n in ("a", "b", "c")]
    with _running(_agent(tmp_path, sources, sink, batch_s=60.0)):
        assert until(lambda: min(len(s.rounds) for s in sources) >= 20)
        assert sink.rows("host") == []
    times = [{r.ts for r in s.rounds} for s in sources]
    assert len(times[0] & times[1] & times[2]) >= 15
    assert all(len(t) == len(s.rounds) for t, s in zip(times, sources, strict=True))
    assert len(sink.rows("host")) == sum(len(s.rounds) for s in sources)
    assert sources[0].rounds[0].due == {1, 10, 60}
    assert 2 <= [10 in r.due for r in sources[0].rounds[:21]].count(True) <= 10  # more where ticks were skipped
    assert [s.closed for s in sources] == [1, 1, 1]
    assert sink.closed == 0  # whoever opened the bus closes it


def test_agent_tells_its_start_and_end(tmp_path: Path) -> None:
    """The first and the last event name version, epoch and collectors; ids differ between events and starts."""
    sink = Sink()
    with _running(_agent(tmp_path, [Source()], sink)):
        assert until(lambda: _kinds(sink) == ["agent_start"])
    start, stop = sink.rows("event")
    assert (start["kind"], stop["kind"], start["source"], start["node_id"]) == (
        "agent_start",
        "agent_stop",
        "agent",
        "machine-1",
    )
    attributes = json.loads(start["attributes"])
    assert (attributes["epoch"], attributes["collectors"]) == (3, ["source"])
    assert attributes["version"] in start["message"]
    again = Sink()
    Agent(agent_fakes.machine(tmp_path), [], again, 4, settings=Settings(tick_s=TICK)).once()
    assert len({e["event_id"] for e in [*sink.rows("event"), *again.rows("event")]}) == 4


def test_events_do_not_wait_for_the_batch(tmp_path: Path) -> None:
    """A kernel line is on the bus within its round although the batch is an hour long; samples wait."""
    xid = {"event": [{"event_id": "e1", "kind": "xid", "code": 79}], "host": [{"load1": 1.0}]}
    sink, source = Sink(), Source(lambda round_: xid if len(source.rounds) == 3 else {"host": [{"load1": 1.0}]})
    with _running(_agent(tmp_path, [source], sink, batch_s=3600.0)):
        assert until(lambda: "xid" in _kinds(sink))
        assert {t for t, _ in sink.sent} == {EVENTS}
    assert len(sink.rows("host")) == len(source.rounds)


def test_hung_source_is_told_once_and_the_others_go_on(tmp_path: Path) -> None:
    """A source stuck beyond the deadline is one event and many missed rounds; its return is an event; the others
    lose nothing."""
    gate = threading.Event()

    def read(round_: Round) -> Rows:
        gate.wait(20)
        return {}

    sink, stuck, well = Sink(), Source(read, "stuck"), Source(name="well")
    agent = _agent(tmp_path, [stuck, well], sink, deadline_s=0.1)
    with _running(agent):
        assert until(lambda: "collector_stuck" in _kinds(sink))
        assert agent.stuck == {"stuck"}
        before = len(well.rounds)
        assert until(lambda: len(well.rounds) > before + 10)
        assert _kinds(sink).count("collector_stuck") == 1
        gate.set()
        assert until(lambda: "collector_back" in _kinds(sink))
    assert _kinds(sink) == ["agent_start", "collector_stuck", "collector_back", "agent_stop"]
    told = next(e for e in sink.rows("event") if e["kind"] == "collector_stuck")
    assert json.loads(told["attributes"])["collector"] == "stuck"
    assert agent.workers[0].tally.missed > 10
    assert len(stuck.rounds) + agent.workers[0].tally.missed == agent.workers[0].tally.expected


def test_source_that_hangs_for_ever_does_not_hold_the_end(tmp_path: Path) -> None:
    """SIGTERM with a thread stuck in the driver: the end says who hangs, flushes, and comes within seconds."""
    sink, never = Sink(), threading.Event()

    def read(round_: Round) -> Rows:
        never.wait(60)
        return {}

    with _running(_agent(tmp_path, [Source(read, "stuck"), Source(name="well")], sink)):
        assert until(lambda: _kinds(sink) == ["agent_start"])
    never.set()
    end = sink.rows("event")[-1]
    assert (end["kind"], json.loads(end["attributes"])["hanging"]) == ("agent_stop", ["stuck"])
    assert len(sink.rows("host")) > 0


def test_failing_and_absent_sources_cost_the_others_nothing(tmp_path: Path) -> None:
    """One raises, one is not there, one gives what nobody knows: the fourth's rows all arrive."""

    def broken(round_: Round) -> Rows:
        raise RuntimeError("bad day")

    def absent(round_: Round) -> Rows:
        raise NoSource("none here")

    odd: Any = {"no_table": [{}], "host": [{"load1": 2.0, "no_field": 1}]}
    sink, well = Sink(), Source(name="well")
    sources = [
        Source(broken, "broken"),
        Source(absent, "absent"),
        Source(lambda r: json.loads(json.dumps(odd)), "odd"),
        well,
    ]
    agent = _agent(tmp_path, sources, sink)
    with capture_logs(), _running(agent):
        assert until(lambda: len(well.rounds) >= 20)
    assert sum(r["load1"] == 1.0 for r in sink.rows("host")) == len(well.rounds)
    assert {q["field"] for q in sink.rows("quality")} == {"no_field"}
    assert agent.misfits.counts.keys() == {("no_table", "*"), ("host", "no_field")}
    assert agent.workers[0].tally.errors >= 1
    assert agent.workers[1].gone == "none here"
    assert len(sources[1].rounds) == 1


def test_bus_away_holds_rows_and_delivers_them_in_order(tmp_path: Path) -> None:
    """While the bus takes nothing the loop goes on; afterwards every row is there once, in order."""
    sink, source = Sink(), Source()
    sink.trouble = BusUnavailable("disk full")
    with capture_logs(), _running(_agent(tmp_path, [source], sink, batch_s=0.05)):
        assert until(lambda: len(source.rounds) >= 20)
        sink.trouble = None
        assert until(lambda: len(sink.rows("host")) >= 20)
    rows = sink.rows("host")
    assert [r["ts"] for r in rows] == [r.ts for r in source.rounds]
    assert [int(m.headers["seq"]) for t, m in sink.sent if t != EVENTS] == sorted(
        int(m.headers["seq"]) for t, m in sink.sent if t != EVENTS
    )


def test_end_with_the_bus_away_says_so(tmp_path: Path) -> None:
    """What could not be handed over is said, not passed off as sent; and sources are not closed, because closing
    keeps their position and the next start must read again what was lost."""
    sink, source = Sink(), Source()
    sink.trouble = BusUnavailable("disk full")
    with capture_logs() as logged:
        assert not _agent(tmp_path, [source], sink).once()
    assert source.closed == 0
    assert any("held in memory is lost" in line["event"] for line in logged)


def test_once_reads_everything_twice_for_rates(tmp_path: Path) -> None:
    """One look: two readings a tick apart with every class due, so that rates exist; then flush and close."""
    sink, source = Sink(), Source()
    assert _agent(tmp_path, [source], sink, batch_s=3600.0, tick_s=0.2).once()
    assert [r.due for r in source.rounds] == [{1, 10, 60}] * 2
    assert source.rounds[0].elapsed_s is None
    assert source.rounds[1].elapsed_s == pytest.approx(0.2, abs=0.15)
    assert len(sink.rows("host")) == 2
    assert _kinds(sink) == ["agent_start", "agent_stop"]
