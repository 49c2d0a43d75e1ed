from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agent_process import AgentProcess, kmsg_line

from graynode.pipeline.codec import Message, decode
from graynode.pipeline.kafka import KafkaBus, KafkaSettings
from graynode.pipeline.schema import EVENTS, SAMPLES

pytestmark = [pytest.mark.kafka, pytest.mark.early]

XID = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


def _agent(folder: Path, address: str, **agent: Any) -> AgentProcess:
    return AgentProcess(
        folder, agent, bus={"kind": "kafka", "kafka": {"bootstrap": address, "connect_timeout_s": 2, "partitions": 2}}
    )


def _arrived(address: str, wanted: Callable[[list[Message]], bool], timeout_s: float = 120.0) -> list[Message]:
    """All messages of both topics, as soon as they are what is wanted."""
    consumer = KafkaBus(KafkaSettings(bootstrap=address)).consumer([SAMPLES, EVENTS], f"look{time.time_ns()}")
    found: list[Message] = []
    end = time.monotonic() + timeout_s
    try:
        while not wanted(found):
            assert time.monotonic() < end, [m.headers for m in found]
            found += [r.message for r in consumer.poll(0.5)]
    finally:
        consumer.close()
    return found


def _kinds(messages: list[Message]) -> list[str]:
    return [row["kind"] for m in messages if m.headers["table"] == "event" for row in decode(m).to_pylist()]


def _seconds(messages: list[Message]) -> list[Any]:
    return [row["ts"] for m in messages if m.headers["table"] == "host" for row in decode(m).to_pylist()]


def test_broker_away_at_the_start_and_in_the_middle(tmp_path: Path, new_broker: Callable[..., Any]) -> None:
    """The agent starts without a broker and keeps everything on disk; when one comes, and goes, and comes again, all
    of it arrives, once, in order, with the Xid; then the spool is empty and SIGTERM ends it well."""
    broker = new_broker()
    broker.stop()
    with _agent(tmp_path, broker.address()) as agent:
        agent.start()
        agent.kmsg.write_text(kmsg_line(1, XID))
        spool = tmp_path / "state/spool"
        agent.until(lambda: len(agent.rows("host", spool)) >= 3)
        broker.start()
        first = _arrived(broker.address(), lambda found: "xid" in _kinds(found) and len(_seconds(found)) >= 4)
        broker.kill()
        held = len(_seconds(first))
        agent.until(lambda: len(agent.rows("host", spool)) >= held + 4)
        broker.start()
        _arrived(broker.address(), lambda found: len(_seconds(found)) >= held + 4)
        assert agent.stop() == 0
        found = _arrived(broker.address(), lambda found: _kinds(found).count("agent_stop") == 1)
        seconds = _seconds(found)
        assert _kinds(found) == ["agent_start", "xid", "agent_stop"]
        assert seconds == sorted(set(seconds))
        gaps = [(b - a).total_seconds() for a, b in pairwise(seconds)]
        assert max(gaps) < 1.9
        assert {m.key for m in found} == {"test/machine-1"}


def test_once_waits_until_the_broker_has_it(tmp_path: Path, kafka_address: str) -> None:
    """``--once`` with Kafka ends when the broker has acknowledged everything, and says so by its exit code."""
    node_id = f"once-{time.time_ns()}"
    own = f"test/{node_id}"
    with _agent(tmp_path, kafka_address, node_id=node_id) as agent:
        assert agent.call("--once").returncode == 0
        found = _arrived(kafka_address, lambda found: [m.key for m in found].count(own) >= 3)
    assert _kinds([m for m in found if m.key == own]) == ["agent_start", "agent_stop"]


def test_once_without_a_broker_keeps_it_for_the_next_start(tmp_path: Path) -> None:
    """No broker: exit code 1, a warning with the address, and the rows stay in the spool."""
    with _agent(tmp_path, "127.0.0.1:9") as agent:
        done = agent.call("--once")
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "messages wait in the spool for the next start" in done.stderr
    assert len(agent.rows("host", tmp_path / "state/spool")) == 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_broker_away_for_minutes(tmp_path: Path, new_broker: Callable[..., Any]) -> None:
    """Three minutes without a broker, killed in mid-run: every second of them arrives, once and in order."""
    broker = new_broker()
    with _agent(tmp_path, broker.address(), batch_s=5) as agent:
        agent.start()
        first = _arrived(broker.address(), lambda found: len(_seconds(found)) >= 6)
        broker.kill()
        time.sleep(180)
        broker.start()
        _arrived(broker.address(), lambda found: len(_seconds(found)) >= len(_seconds(first)) + 185, 120)
        assert agent.stop() == 0
        seconds = _seconds(_arrived(broker.address(), lambda found: "agent_stop" in _kinds(found)))
    assert seconds == sorted(set(seconds))
    assert max((b - a).total_seconds() for a, b in pairwise(seconds)) < 1.9
    assert (seconds[-1] - seconds[0]).total_seconds() > 185
