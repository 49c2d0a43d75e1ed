"""The hard-event path over a real spool: kernel line to incident, restarts, a bus that goes away."""

import base64
import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agent_fakes import machine, until
from finding_rows import PCI, T0, at, event, finding
from http_receiver import HttpReceiver
from structlog.testing import capture_logs

from graynode.collectors.base import Round
from graynode.collectors.kernel_log.collector import KernelLog
from graynode.detectors.incidents import Incidents
from graynode.pipeline.bus import BusUnavailable
from graynode.pipeline.codec import Message, Origin, decode, encode
from graynode.pipeline.schema import ACTIONS, EVENTS, FINDINGS, INCIDENTS, VERSION
from graynode.pipeline.spool import SpoolBus
from graynode.responders.webhook import Webhook
from graynode.service import incident_bus
from graynode.service.hard_events import GROUP, TOPICS, HardEvents
from graynode.service.incident_bus import Publisher
from graynode.service.respond import make_delivery

XID_119_LOG = Path(__file__).parent.parent / "fixtures" / "gpud" / "dmesg-with-xid-119.log"
ORIGIN = Origin("test", "n1", 1)


@pytest.fixture
def bus(tmp_path: Path) -> SpoolBus:
    return SpoolBus(tmp_path / "bus", 1 << 30)


@pytest.fixture
def producer(bus: SpoolBus) -> Iterator[Any]:
    made = bus.producer()
    yield made
    made.close()


def path(
    bus: SpoolBus, producer: Any, incidents: Incidents | None = None, topics: tuple[str, ...] = TOPICS
) -> HardEvents:
    """A hard-event path with its own memory."""
    made = incidents if incidents is not None else Incidents("test")
    if incidents is None:
        incident_bus.restore(bus, made)
    return HardEvents(bus.consumer(topics, GROUP), made, Publisher(producer, "test"), lambda: at(60))


def send(producer: Any, *events: dict[str, Any], topic: str = EVENTS, table: str = "event") -> None:
    producer.send(topic, [encode(table, events, ORIGIN, time.monotonic_ns(), T0)])


def told(bus: SpoolBus) -> list[dict[str, Any]]:
    return incident_bus.read_incidents(bus, "look")


def rows(bus: SpoolBus, topic: str) -> list[dict[str, Any]]:
    consumer = bus.consumer([topic], "look-rows", on_assigned=dict.fromkeys)
    try:
        return [row for r in consumer.poll(0.2) for row in decode(r.message).to_pylist()]
    finally:
        consumer.close()


def test_a_kernel_log_becomes_one_incident_on_the_bus(bus: SpoolBus, producer: Any, tmp_path: Path) -> None:
    """File → collector → message → rules → one message of schema incident.v1 that names the GPU and the action."""
    host = machine(tmp_path)
    log = KernelLog(host, XID_119_LOG, "dmesg", zone=UTC)
    keys = {"cluster": "test", "node": host.node, "node_id": host.node_id, "boot_id": host.boot_id}
    events = [keys | row for _ in range(3) for row in log.collect(Round(T0, frozenset({1, 10, 60}))).get("event", [])]
    for one in events:  # each in a message of its own, as a live log would come
        send(producer, one)
    hard = path(bus, producer)
    assert hard.step() == 7
    incidents = told(bus)
    assert len({i["incident_id"] for i in incidents}) == 1
    assert [i["state"] for i in incidents] == ["open"]
    assert incidents[0]["pci_bus_id"] == "0000:9b:00.0"
    assert "NVIDIA's catalogue asks for a GPU reset" in incidents[0]["action"]
    assert incidents[0]["since"] == "2025-02-23T16:24:18Z"
    assert incidents[0]["evidence"][0]["count"] == 5


def test_kernel_line_to_webhook(bus: SpoolBus, producer: Any, tmp_path: Path) -> None:
    """A line that the kernel writes now is at the receiver within seconds, with no lake anywhere."""
    secret = "whsec_" + base64.b64encode(os.urandom(24)).decode()
    log = tmp_path / "kmsg"
    log.write_text("")
    kernel = KernelLog(machine(tmp_path), log, "kmsg")
    kernel.collect(Round(datetime.now(UTC), frozenset({1})))
    stop = threading.Event()
    publisher = Publisher(producer, "test")
    hard = HardEvents(bus.consumer(TOPICS, GROUP), Incidents("test"), publisher, lambda: datetime.now(UTC))
    with HttpReceiver(secret=secret) as receiver:
        delivery = make_delivery(bus, "oncall", Webhook(receiver.url, secret), publisher, "ticket")
        threads = [threading.Thread(target=work, args=(stop,)) for work in (hard.run, delivery.run)]
        for thread in threads:
            thread.start()
        try:
            began = time.monotonic()
            with log.open("a") as kmsg:
                now_us = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
                kmsg.write(f"3,17,{now_us},-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n")
            found = kernel.collect(Round(datetime.now(UTC), frozenset({1})))["event"]
            send(producer, *({"cluster": "test", "node": "h", "node_id": "n1", "boot_id": "b", **row} for row in found))
            assert until(lambda: len(receiver.requests) == 1)
            took = time.monotonic() - began
        finally:
            stop.set()
            for thread in threads:
                thread.join(10)
    assert took < 5.0  # of ten; the agent's batch takes its part of the rest
    assert receiver.requests[0].data["data"]["cause"] == "gpu_lost"


def test_findings_are_kept_beside_the_incident(bus: SpoolBus, producer: Any) -> None:
    """What rules said goes to ``graynode.findings``, digests too; contrary evidence is no finding."""
    send(producer, event(0, code=79), event(9, code=31), event(20, "gpu_returned", pci_bus_id=PCI))
    path(bus, producer).step()
    assert [(f["signal"], f["severity"]) for f in rows(bus, FINDINGS)] == [("xid_79", "page"), ("xid_31", "digest")]
    assert [(i["cause"], i["state"]) for i in told(bus)] == [("gpu_lost", "open")]


def test_events_that_come_again_say_nothing(bus: SpoolBus, producer: Any) -> None:
    """An agent that sends a batch twice, and an event in two batches, make one episode."""
    line = event(0, code=95)
    hard = path(bus, producer)
    send(producer, line)
    send(producer, line)
    assert hard.step() == 1
    send(producer, line)
    assert hard.step() == 0
    assert len(rows(bus, FINDINGS)) == 1


def test_a_restart_reads_no_event_twice_and_forgets_no_incident(bus: SpoolBus, producer: Any) -> None:
    """The second start knows the incident from the bus and goes on behind the last event read."""
    send(producer, event(0, code=79))
    first = path(bus, producer)
    first.step()
    first._consumer.close()
    send(producer, event(30, code=79, pci_bus_id="0000:4e:00.0"))
    second = path(bus, producer)
    assert second.step() == 1
    assert [(i["revision"], i["state"]) for i in told(bus)] == [(0, "open"), (1, "updated")]


def test_dying_before_the_offset_is_kept(bus: SpoolBus, producer: Any) -> None:
    """Events are read again then; the incident that was told is known, and nothing is told twice."""
    send(producer, event(0, code=79))
    first = path(bus, producer)
    first._consumer.commit = lambda _: None
    first.step()
    first._consumer.close()
    second = path(bus, producer)
    assert second.step() == 1
    assert len(told(bus)) == 1


class Flaky:
    """A producer whose bus is away while ``away``."""

    def __init__(self, producer: Any) -> None:
        self.producer, self.away = producer, False

    def send(self, topic: str, messages: list[Message]) -> None:
        if self.away:
            raise BusUnavailable("the broker is away")
        self.producer.send(topic, messages)


def test_a_bus_that_goes_away_in_between_loses_nothing(bus: SpoolBus, producer: Any) -> None:
    """Said but not sent waits, in order; offsets wait with it."""
    flaky = Flaky(producer)
    incidents = Incidents("test")
    consumer = bus.consumer(TOPICS, GROUP)
    hard = HardEvents(consumer, incidents, Publisher(flaky, "test"), lambda: at(60))
    send(producer, event(0, code=79))
    flaky.away = True
    for _ in range(3):
        with pytest.raises(BusUnavailable):
            hard.step()
    send(producer, event(30, code=79, pci_bus_id="0000:4e:00.0"))
    flaky.away = False
    assert hard.step() == 1
    assert [i["revision"] for i in told(bus)] == [0, 1]
    assert len(rows(bus, FINDINGS)) == 2


def test_run_waits_for_the_bus_and_ends(bus: SpoolBus, producer: Any) -> None:
    """The loop outlives a bus that is away, and ends when told."""
    flaky = Flaky(producer)
    hard = HardEvents(bus.consumer(TOPICS, GROUP), Incidents("test"), Publisher(flaky, "test"), lambda: at(60))
    stop = threading.Event()
    thread = threading.Thread(target=hard.run, args=(stop, 0.05))
    flaky.away = True
    send(producer, event(0, code=79))
    thread.start()
    try:
        time.sleep(0.3)
        flaky.away = False
        assert until(lambda: len(told(bus)) == 1)
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()


def test_other_tables_and_hostile_messages_stop_nothing(bus: SpoolBus, producer: Any) -> None:
    """Jobs share the topic; what cannot be read is the pipeline's to keep."""
    send(producer, {"ts": T0, "cluster": "test", "node_id": "n1", "job_id": "7"}, table="job")
    producer.send(
        EVENTS, [Message("test/n1", b"\x00nonsense", {"v": "1.0", "table": "event", "rows": "1", "raw": "9"})]
    )
    producer.send(EVENTS, [Message("test/n1", b"", {})])
    send(producer, {"ts": None, "cluster": "test", "node_id": None}, event(0, code=79))
    assert path(bus, producer).step() == 1
    assert len(told(bus)) == 1


def test_an_event_that_no_rule_can_bear_costs_itself_only(bus: SpoolBus, producer: Any) -> None:
    """Attributes nested deeper than any reader goes: said, passed over, and those around it are judged."""
    deep = event(1, code=95) | {"attributes": '{"a":' + "[" * 20_000}
    send(producer, event(0, code=79))
    send(producer, deep)
    send(producer, event(2, code=48, pci_bus_id="0000:1b:00.0"))
    hard = path(bus, producer)
    with capture_logs() as said:
        assert hard.step() == 3
        assert hard.step() == 0
    assert {f["signal"] for f in rows(bus, FINDINGS)} - {"xid_95"} == {"xid_79", "xid_48"}
    assert {e["pci_bus_id"] for i in told(bus) for e in i["evidence"]} >= {PCI, "0000:1b:00.0"}
    if said:  # a rule that takes it for no attributes at all is as good
        assert [(line["event"], line["kind"]) for line in said] == [
            ("an event cannot be judged and is passed over", "xid")
        ]


def test_a_logged_repair_ends_the_incident(bus: SpoolBus, producer: Any) -> None:
    """Where the reader also has the actions' topic, a repair resolves what was held."""
    send(producer, event(0, code=64))
    hard = path(bus, producer, topics=(*TOPICS, ACTIONS))
    hard.step()
    send(producer, {"ts": at(50), "cluster": "test", "node_id": "n1", "what": "swapped"}, topic=ACTIONS, table="repair")
    hard.step()
    assert [i["state"] for i in told(bus)] == ["open", "resolved"]


def test_revisions_of_two_threads_keep_their_order(bus: SpoolBus, producer: Any) -> None:
    """Rounds and events speak through one publisher and one lock: revisions on the bus only count up."""
    incidents, lock, publisher = Incidents("test"), threading.Lock(), Publisher(producer, "test")

    def speak(name: str) -> None:
        for i in range(50):
            with lock:
                publisher(incidents.add([finding(i, signal=f"{name}{i % 15}", severity="ticket")], at(i)))

    threads = [threading.Thread(target=speak, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    revisions = [i["revision"] for i in told(bus)]
    assert revisions == list(range(len(revisions)))


def test_the_message_is_incident_v1(bus: SpoolBus, producer: Any) -> None:
    """JSON with the table's fields, arrays as arrays, times with Z, and headers that say so."""
    Publisher(producer, "test", epoch=7)(Incidents("test").add([finding(0)], T0))
    consumer = bus.consumer([INCIDENTS], "look")
    message = consumer.poll(1.0)[0].message
    consumer.close()
    value = json.loads(message.value)
    assert message.key == "test/n1"
    assert {k: message.headers[k] for k in ("v", "table", "encoding", "rows", "cluster", "node_id", "epoch")} == {
        "v": f"{VERSION[0]}.{VERSION[1]}", "table": "incident", "encoding": "json", "rows": "1", "cluster": "test",
        "node_id": "n1", "epoch": "7",
    }  # fmt: skip
    assert int(message.headers["raw"]) == len(message.value)
    assert value["ts"].endswith("Z")
    assert isinstance(value["evidence"], list)
    from graynode.pipeline.decode_json import decode_json

    table, frame = decode_json(message)
    assert (table, frame.height) == ("incident", 1)
    assert json.loads(frame["evidence"][0])[0]["signal"] == "clock"


def test_reading_the_incidents_of_a_bus_that_has_none(bus: SpoolBus) -> None:
    """No topic yet is no incident."""
    assert incident_bus.read_incidents(bus, "look") == []
