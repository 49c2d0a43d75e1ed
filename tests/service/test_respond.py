"""``graynode respond`` over a real spool and real HTTP receivers: order, patience, restarts, audit."""

import base64
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_fakes import until
from finding_rows import T0, finding
from http_receiver import Answer, HttpReceiver, Request
from structlog.testing import capture_logs

from graynode.detectors.incidents import Incidents
from graynode.pipeline.bus import BusRefused, BusUnavailable, Partition, Received
from graynode.pipeline.codec import Message, decode
from graynode.pipeline.schema import ACTIONS, INCIDENTS
from graynode.pipeline.spool import SpoolBus
from graynode.responders.base import Outcome
from graynode.responders.routes import Routes
from graynode.responders.webhook import Webhook
from graynode.service import respond, respond_make
from graynode.service.config import ConfigError, parse
from graynode.service.incident_bus import Publisher
from graynode.service.respond_delivery import Delivery
from graynode.service.respond_desk import Desk
from graynode.service.respond_tables import Receiver

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes long").decode()


def revisions(count: int, node: str = "n1", severity: str = "ticket") -> list[dict[str, Any]]:
    """``count`` revisions of one incident."""
    incidents = Incidents("test")
    made: list[dict[str, Any]] = []
    while len(made) < count:
        made += incidents.add([finding(len(made), severity=severity, node_id=node, signal=f"s{len(made)}")], T0)
    return made


def actions(bus: SpoolBus) -> list[dict[str, Any]]:
    """All rows of table ``action`` so far."""
    consumer = bus.consumer([ACTIONS], f"audit-{time.monotonic_ns()}", on_assigned=dict.fromkeys)
    try:
        return [row for r in consumer.poll(0.3) for row in decode(r.message).to_pylist()]
    finally:
        consumer.close()


@contextmanager
def running(
    bus: SpoolBus, url: str, publisher: Publisher, label: str = "oncall", least: str = "ticket"
) -> Iterator[None]:
    """A delivery in a thread, with short waits."""
    delivery = respond.make_delivery(bus, label, Webhook(url, SECRET, timeout_s=1.0), publisher, least)
    delivery.trouble.wait_s = 0.05
    stop = threading.Event()
    thread = threading.Thread(target=delivery.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def bus(tmp_path: Path) -> SpoolBus:
    return SpoolBus(tmp_path / "bus", 1 << 30)


@pytest.fixture
def publisher(bus: SpoolBus) -> Iterator[Publisher]:
    producer = bus.producer()
    yield Publisher(producer, "test")
    producer.close()


def got(receiver: HttpReceiver) -> list[tuple[str, int]]:
    return [(r.data["data"]["node_id"], r.data["data"]["revision"]) for r in receiver.requests]


def test_incidents_are_told_in_order_and_audited(bus: SpoolBus, publisher: Publisher) -> None:
    """Every revision of both nodes arrives once, in order, each with a row of table ``action``."""
    with HttpReceiver(secret=SECRET) as receiver, running(bus, receiver.url, publisher):
        publisher([*revisions(3), *revisions(2, "n2")])
        assert until(lambda: len(receiver.requests) == 5)
    assert [r for n, r in got(receiver) if n == "n1"] == [0, 1, 2]
    assert [r for n, r in got(receiver) if n == "n2"] == [0, 1]
    rows = actions(bus)
    assert [(r["outcome"], r["responder"], r["kind"], r["attempts"]) for r in rows] == [
        ("done", "webhook:oncall", "notify", 1)
    ] * 5
    assert {r["node_id"] for r in rows} == {"n1", "n2"}


def test_a_receiver_that_was_down_gets_all_of_it_in_order(bus: SpoolBus, publisher: Publisher) -> None:
    """Failures tell nothing twice and skip nothing; the first failure is a row, each success is one."""
    up = threading.Event()
    with HttpReceiver(lambda *_: Answer(204 if up.is_set() else 503), SECRET) as receiver:
        with running(bus, receiver.url, publisher):
            publisher(revisions(4))
            assert until(lambda: len(receiver.requests) >= 2)
            up.set()
            assert until(lambda: sum(r["outcome"] == "done" for r in actions(bus)) == 4)
        told = [r for _, r in got(receiver)]
    assert set(told[: told.index(1)]) == {0}
    assert told[told.index(1) :] == [1, 2, 3]
    outcomes = [(r["revision"], r["outcome"]) for r in actions(bus)]
    assert outcomes == [(0, "failed"), (0, "done"), (1, "done"), (2, "done"), (3, "done")]


def test_a_new_receiver_begins_with_what_is_open_now(bus: SpoolBus, publisher: Publisher) -> None:
    """Not at the oldest incident: nothing of what is over, of what is open the latest revision, and then all news."""
    over_ = [r | {"state": "resolved" if r["revision"] == 2 else r["state"]} for r in revisions(3, "n1")]
    publisher(over_)
    publisher(revisions(4, "n2"))
    with HttpReceiver(secret=SECRET) as receiver, running(bus, receiver.url, publisher, "new"):
        assert until(lambda: got(receiver) == [("n2", 3)])
        publisher(revisions(5, "n2")[4:] + revisions(1, "n3"))
        assert until(lambda: sorted(got(receiver)) == [("n2", 3), ("n2", 4), ("n3", 0)])


def test_a_restart_goes_on_where_it_stood(bus: SpoolBus, publisher: Publisher) -> None:
    """What was told before is not told again; what was not, is."""
    with HttpReceiver(secret=SECRET) as receiver:
        told = revisions(5)
        with running(bus, receiver.url, publisher):
            publisher(told[:2])
            assert until(lambda: len(actions(bus)) == 2)
        publisher(told[2:])
        with running(bus, receiver.url, publisher):
            assert until(lambda: len(receiver.requests) == 5)
    assert [r for _, r in got(receiver)] == [0, 1, 2, 3, 4]


def test_dying_between_answer_and_mark_tells_again(bus: SpoolBus, publisher: Publisher) -> None:
    """At least once: an offset that was not kept is told again, under the same webhook-id."""
    publisher(revisions(1))
    with HttpReceiver(secret=SECRET) as receiver:
        consumer = bus.consumer([INCIDENTS], "graynode-respond-oncall")
        message = consumer.poll(1.0)[0].message
        consumer.close()  # read, and not committed
        from graynode.service.incident_bus import from_message

        Webhook(receiver.url, SECRET).respond(from_message(message))
        with running(bus, receiver.url, publisher):
            assert until(lambda: len(receiver.requests) == 2)
        assert len({r.headers["webhook-id"] for r in receiver.requests}) == 1


def test_a_slow_receiver_holds_nobody_else(bus: SpoolBus, publisher: Publisher) -> None:
    """While one takes its whole timeout for everything, the other has been told long ago."""
    slow = HttpReceiver(lambda *_: Answer(delay_s=1.5), SECRET)
    quick = HttpReceiver(secret=SECRET)
    with slow, quick, running(bus, slow.url, publisher, "slow"), running(bus, quick.url, publisher, "quick"):
        publisher(revisions(10))
        assert until(lambda: len(quick.requests) == 10)
        assert len(slow.requests) <= 5


def test_refused_is_final_and_the_next_goes_on(bus: SpoolBus, publisher: Publisher) -> None:
    """A body that the receiver will not take is let go after three attempts; those behind it arrive."""

    def answer(_: int, request: Request) -> Answer:
        return Answer(422 if request.data["data"]["revision"] == 1 else 204)

    with HttpReceiver(answer, SECRET) as receiver, running(bus, receiver.url, publisher):
        publisher(revisions(3))
        assert until(lambda: len(actions(bus)) == 4)
    assert [r for _, r in got(receiver)] == [0, 1, 1, 1, 2]
    assert [(r["revision"], r["outcome"], r["attempts"]) for r in actions(bus)] == [
        (0, "done", 1), (1, "failed", 1), (1, "refused", 3), (2, "done", 1),
    ]  # fmt: skip


def test_least_severity(bus: SpoolBus, publisher: Publisher) -> None:
    """A receiver for pages hears of pages only."""
    with HttpReceiver(secret=SECRET) as receiver, running(bus, receiver.url, publisher, least="page"):
        publisher([*revisions(1, "n1", "ticket"), *revisions(1, "n2", "page")])
        assert until(lambda: len(receiver.requests) == 1)
    assert got(receiver) == [("n2", 0)]


def test_a_hostile_message_is_passed_over(bus: SpoolBus, publisher: Publisher) -> None:
    """What is no incident tells nobody and stops nothing."""
    producer = bus.producer()
    for value in (b"", b"{", b"[]", b'{"incident_id": 5}', b"\xff\xfe", b"[" * 5000):
        producer.send(INCIDENTS, [Message("test/x", value, {"v": "1.0", "table": "incident"})])
    producer.send(INCIDENTS, [Message("test/x", b"{}", {})])
    producer.close()
    with HttpReceiver(secret=SECRET) as receiver, running(bus, receiver.url, publisher):
        publisher(revisions(1))
        assert until(lambda: len(receiver.requests) == 1)


class Consumer:
    """A group's member whose bus goes away and comes back; remembers commits."""

    def __init__(self, batches: list[list[Received] | Exception]) -> None:
        self.batches, self.committed = batches, {}
        self.held = frozenset({Partition(INCIDENTS, 0)})

    def poll(self, timeout_s: float, max_messages: int = 1000, max_bytes: int = 0) -> list[Received]:
        batch = self.batches.pop(0) if self.batches else []
        if isinstance(batch, Exception):
            raise batch
        return batch

    def assigned(self) -> frozenset[Partition]:
        return self.held

    def commit(self, offsets: dict[Partition, int]) -> None:
        self.committed |= offsets


class Responder:
    """Remembers, and answers by a list; then ``done``."""

    def __init__(self, *answers: Any) -> None:
        self.told: list[int] = []
        self.answers = list(answers)

    def respond(self, incident: dict[str, Any]) -> Any:
        self.told.append(incident["revision"])
        return self.answers.pop(0) if self.answers else Outcome("done", "")


class Audit:
    """Takes rows of ``action``."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def actions(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows


def received(numbers: list[int]) -> list[Received]:
    from graynode.service.incident_bus import to_message

    made = revisions(max(numbers) + 1)
    return [Received(to_message(made[n], 1, n, T0), Partition(INCIDENTS, 0), n, 0) for n in numbers]


def delivery(consumer: Any, responder: Responder, **other: Any) -> Delivery:
    desk = Desk("oncall", Receiver(), Routes((), {"oncall": "ticket"}))
    return Delivery("oncall", consumer, responder, other.pop("publisher", Audit()), desk, jitter=lambda: 1.0, **other)


def test_waits_double_up_to_a_minute_and_start_afresh() -> None:
    """1, 2, 4 … 60 seconds; a receiver that is back has its short waits back."""
    failed = Outcome("failed", "HTTP 500")
    consumer = Consumer([received([0, 1])])
    one = delivery(consumer, Responder(*[failed] * 8, Outcome("done", ""), failed))
    assert [one.step() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert one.step() == 1
    assert one.step() == 0.0


def test_waits_are_jittered_and_never_shorter_than_asked() -> None:
    """Chance takes up to a half of the wait; what the receiver asks for is the least."""
    outcome = Outcome("failed", "HTTP 429", retry_after_s=30.0)
    one = delivery(Consumer([received([0])]), Responder(outcome, Outcome("failed", "")))
    one.jitter = lambda: 0.0
    assert [one.step(), one.step()] == [30.0, 1.0]


def test_offsets_move_only_when_told_or_refused() -> None:
    """A failed attempt commits nothing; done and refused commit the next offset."""
    consumer = Consumer([received([0, 1])])
    one = delivery(consumer, Responder(Outcome("failed", ""), Outcome("refused", "HTTP 410")))
    one.step()
    assert consumer.committed == {}
    one.step()
    assert consumer.committed == {Partition(INCIDENTS, 0): 2}


def test_messages_that_come_again_after_a_rejoin_are_not_told_again() -> None:
    """A broker that gives the group's partitions anew sends from the last commit; what this process told is known."""
    consumer = Consumer([received([0, 1]), received([0, 1, 2])])
    responder = Responder()
    one = delivery(consumer, responder)
    one.step()
    one.step()
    assert responder.told == [0, 1, 2]


def test_partitions_that_went_to_another_member_are_left_to_it() -> None:
    """What was polled of them before is neither told nor committed here."""
    consumer, responder = Consumer([received([0])]), Responder()
    consumer.held = frozenset()
    delivery(consumer, responder).step()
    assert (responder.told, consumer.committed) == ([], {})


def test_the_bus_away_loses_nothing() -> None:
    """Neither what was polled nor what could not be audited."""

    class Away(Audit):
        away = True

        def actions(self, rows: list[dict[str, Any]]) -> None:
            super().actions(rows)
            if self.away:
                raise BusUnavailable("gone")

    audit, responder, consumer = Away(), Responder(), Consumer([received([0])])
    one = delivery(consumer, responder, publisher=audit)
    with pytest.raises(BusUnavailable):
        one.step()
    assert consumer.committed == {}
    audit.away = False
    one.step()
    assert responder.told == [0, 0]
    assert consumer.committed == {Partition(INCIDENTS, 0): 1}


# --- configuration ---


def section(tmp_path: Path, secret: str | None = SECRET, mode: int = 0o600, **other: Any) -> Any:
    path = tmp_path / "secret"
    if secret is not None:
        path.write_text(secret)
        path.chmod(mode)
    settings = {"url": "https://alerts.example/hook", "secret_file": str(path), **other}
    return parse({"respond": {"webhooks": {"oncall": settings}}}, "test").respond.webhooks["oncall"]


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (None, "cannot be read"),
        ("", "whsec_"),
        ("hunter2", "whsec_"),
        ("whsec_", "24 bytes"),
        ("whsec_c2hvcnQ=", "24 bytes"),
        ("whsec_!!!!", "base64"),
        (SECRET[6:], "whsec_"),
    ],
)
def test_a_wrong_secret_file(tmp_path: Path, secret: str | None, said: str) -> None:
    """The key, the file and what it should hold are named; the secret is not shown."""
    with pytest.raises(ConfigError, match=said) as caught:
        respond_make.make_webhook("oncall", section(tmp_path, secret))
    assert "respond.webhooks.oncall.secret_file" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_wrong_address_or_ca(tmp_path: Path) -> None:
    """The key is named."""
    with pytest.raises(ConfigError, match=r"respond\.webhooks\.oncall\.url: .*use https"):
        respond_make.make_webhook("oncall", section(tmp_path, url="http://alerts.example/"))
    with pytest.raises(ConfigError, match=r"respond\.webhooks\.oncall\.ca_file"):
        respond_make.make_webhook("oncall", section(tmp_path, ca_file=str(tmp_path / "none.pem")))
    with pytest.raises(ConfigError, match="a receiver's name"):
        respond_make.make_webhook("on call", section(tmp_path))


def test_a_secret_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    """It works, and says how to close it."""
    with capture_logs() as said:
        respond_make.make_webhook("oncall", section(tmp_path, mode=0o644)).close()
    assert [(line["log_level"], line["way_out"]) for line in said] == [("warning", "chmod 600")]
    with capture_logs() as said:
        respond_make.make_webhook("oncall", section(tmp_path)).close()
    assert said == []


def config(tmp_path: Path, url: str) -> Any:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    hook = {"url": url, "secret_file": str(secret)}
    return parse(
        {"cluster": "test", "bus": {"spool_dir": str(tmp_path / "bus")},
         "respond": {"metrics_listen": "", "webhooks": {"a": hook, "b": {**hook, "least": "page"}}}},
        "test",
    )  # fmt: skip


def in_thread(work: Callable[[], int]) -> tuple[threading.Thread, list[int]]:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(work()))
    thread.start()
    return thread, codes


def test_the_role_tells_each_receiver_and_stops(tmp_path: Path, bus: SpoolBus) -> None:
    """``run`` serves all receivers of the configuration until it is told to stop, and returns 0."""
    with HttpReceiver(secret=SECRET) as receiver:
        stop = threading.Event()
        thread, codes = in_thread(lambda: respond.run(config(tmp_path, receiver.url), stop))
        producer = bus.producer()
        Publisher(producer, "test")([*revisions(1), *revisions(1, "n2", "page")])
        producer.close()
        assert until(lambda: len(receiver.requests) == 3)
        stop.set()
        thread.join(15)
    assert codes == [0]
    assert sorted(got(receiver)) == [("n1", 0), ("n2", 0), ("n2", 0)]


def test_a_bus_that_is_away_at_the_start_is_waited_for() -> None:
    """Joining is tried until it works, said once; a bus that refuses ends the role with its reason, not a traceback."""
    tries: list[int] = []

    def make() -> Delivery:
        tries.append(1)
        if len(tries) == 1:
            raise BusUnavailable("broker 127.0.0.1:1 does not answer")
        raise BusRefused("wrong password")

    with capture_logs() as said:
        assert respond._run_all({"oncall": make}, threading.Event())
    assert len(tries) == 2
    assert [line["reason"] for line in said] == ["broker 127.0.0.1:1 does not answer", "wrong password"]
    assert not any("exc_info" in line for line in said)


def test_no_receiver_waits_and_says_so() -> None:
    """Nobody to tell is no error: the role says it and waits to be stopped."""
    stop = threading.Event()
    empty = parse({"respond": {"metrics_listen": ""}}, "test")
    with capture_logs() as said:
        thread, codes = in_thread(lambda: respond.run(empty, stop))
        assert until(lambda: bool(said))
        assert thread.is_alive()
        stop.set()
        thread.join(5)
    assert codes == [0]
    assert said[0]["key"] == "respond.webhooks"


@pytest.mark.kafka
def test_through_a_real_broker(kafka_address: str) -> None:
    """The same over Kafka: all revisions in order through a receiver's bad minute, and none again after a restart."""
    from graynode.pipeline.kafka import KafkaBus, KafkaSettings
    from graynode.service.incident_bus import read_incidents

    broker: Any = KafkaBus(KafkaSettings(bootstrap=kafka_address))
    broker.create_topics(2, 1)
    label = f"r{time.time_ns()}"
    told = [{**r, "node_id": label} for r in revisions(4)]
    others = 0

    def mine(receiver: HttpReceiver) -> list[int]:
        return [r.data["data"]["revision"] for r in receiver.requests if r.data["data"]["node_id"] == label]

    def answer(_: int, request: Request) -> Answer:
        nonlocal others
        others += request.data["data"]["node_id"] == label
        return Answer(503 if others in (1, 2) else 204)

    producer = broker.producer()
    try:
        with HttpReceiver(answer, SECRET) as receiver:
            publisher = Publisher(producer, "test")
            with running(broker, receiver.url, publisher, label):
                publisher(told[:3])
                assert until(lambda: mine(receiver)[-1:] == [2], 60)
                time.sleep(0.5)  # the commit that follows
            publisher(told[3:])
            with running(broker, receiver.url, publisher, label):
                assert until(lambda: 3 in mine(receiver), 60)
            assert mine(receiver) == [0, 0, 0, 1, 2, 3]
        seen = read_incidents(broker, f"look-{label}")
        assert [r["revision"] for r in seen if r["node_id"] == label] == [0, 1, 2, 3]
    finally:
        producer.close()
