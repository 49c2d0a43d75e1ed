"""What every responder promises, whatever the receiver does: one suite over all of them, against real receivers."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from email.utils import format_datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from finding_rows import T0
from http_receiver import Answer, HttpReceiver, Request
from told_incidents import incident, later, over

from graynode.pipeline.bus import Partition, Received
from graynode.pipeline.schema import INCIDENTS
from graynode.responders import RESPONDERS
from graynode.responders.alertmanager import Alertmanager
from graynode.responders.base import Responder
from graynode.responders.chat import Chat
from graynode.responders.post import Post
from graynode.responders.routes import Routes
from graynode.responders.webhook import Webhook
from graynode.service.incident_bus import to_message
from graynode.service.respond_delivery import Delivery
from graynode.service.respond_desk import Desk
from graynode.service.respond_tables import Receiver

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes long").decode()
Make = Callable[..., Any]


class Time:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = T0 + timedelta(hours=1)

    def __call__(self) -> datetime:
        return self.now

    def monotonic(self) -> float:
        return self.now.timestamp()


def webhook(url: str, clock: Time, timeout_s: float = 5.0) -> Responder:
    return Webhook(url, SECRET, timeout_s=timeout_s, clock=clock, monotonic=clock.monotonic)


def alertmanager(url: str, clock: Time, timeout_s: float = 5.0) -> Responder:
    post = Post(url, timeout_s=timeout_s, clock=clock, monotonic=clock.monotonic)
    return Alertmanager([post], clock=clock, monotonic=clock.monotonic)


def chat(url: str, clock: Time, timeout_s: float = 5.0) -> Responder:
    address = url.replace("http", "json", 1)
    return Chat([address], timeout_s=timeout_s, clock=clock, monotonic=clock.monotonic)


MAKERS = {"webhook": webhook, "alertmanager": alertmanager, "chat": chat}


@pytest.fixture(params=MAKERS.values(), ids=MAKERS.keys())
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


@pytest.fixture
def clock() -> Time:
    return Time()


def always(answer: Answer) -> Callable[[int, Request], Answer]:
    return lambda *_: answer


def test_every_responder_of_the_list_is_in_this_suite() -> None:
    """Each name of the list leads to a class that carries it, and is tried here."""
    assert {name for name, _ in RESPONDERS} == MAKERS.keys()
    for name, place in RESPONDERS:
        module, _, attribute = place.partition(":")
        assert getattr(import_module(module), attribute).name == name


@pytest.mark.parametrize("status", [200, 202])
def test_2xx_is_told_also_when_it_is_slow(make: Make, clock: Time, status: int) -> None:
    """A receiver that thinks for a while before it says yes has been told once."""
    with HttpReceiver(always(Answer(status, body=b"ok", delay_s=0.3))) as receiver:
        outcome = make(receiver.url, clock).respond(incident())
        assert (outcome.outcome, outcome.attempts) == ("done", 1)
        assert len(receiver.requests) == 1


@pytest.mark.parametrize("kind", ["revision", "reminder"])
def test_400_is_given_up_at_the_third_attempt(make: Make, clock: Time, kind: str) -> None:
    """The body is not wanted; the next revision has its own three."""
    with HttpReceiver(always(Answer(400, body=b"no such field"))) as receiver:
        responder, told = make(receiver.url, clock), incident(reminder=1)
        outcomes = [responder.respond(told, kind) for _ in range(3)]
        assert [o.outcome for o in outcomes] == ["failed", "failed", "refused"]
        assert "HTTP 400: no such field" in outcomes[2].reason
        assert responder.respond(later(told)).outcome == "failed"


def test_many_in_one_message_are_told_tried_again_and_given_up(make: Make, clock: Time) -> None:
    """As one incident is; every one of them is named."""
    with HttpReceiver(lambda n, _: Answer(503 if n == 0 else 200)) as receiver:
        responder, several = make(receiver.url, clock), [incident("n1"), incident("n2")]
        assert [responder.bundle(several, "the digest").outcome for _ in range(2)] == ["failed", "done"]
        said = receiver.requests[-1].body.decode()
        assert "n1" in said
        assert "n2" in said
    with HttpReceiver(always(Answer(422))) as receiver:
        responder = make(receiver.url, clock)
        assert [responder.bundle(several, "x").outcome for _ in range(3)] == ["failed", "failed", "refused"]


def test_410_is_final(make: Make, clock: Time) -> None:
    """A receiver that is gone for good is not asked again."""
    with HttpReceiver(always(Answer(410, body=b"moved out"))) as receiver:
        outcome = make(receiver.url, clock).respond(incident())
    assert outcome.outcome == "refused"
    assert "HTTP 410: moved out" in outcome.reason


def test_429_is_waited_for_as_it_asks(make: Make, clock: Time) -> None:
    """Seconds, an HTTP date, an hour at the most; nothing where it asks for nothing that can be read."""
    asked = ["7", format_datetime(clock() + timedelta(seconds=90), usegmt=True), "86400", "soon"]
    with HttpReceiver(lambda n, _: Answer(429, {"retry-after": asked[n]}, b"slow down")) as receiver:
        responder = make(receiver.url, clock)
        outcomes = [responder.respond(incident()) for _ in asked]
    assert {o.outcome for o in outcomes} == {"failed"}
    assert [o.retry_after_s for o in outcomes] == [7.0, 90.0, 3600.0, None]


def test_5xx_is_asked_again_for_as_long_as_it_takes(make: Make, clock: Time) -> None:
    """After a week it is still only failed, so that nothing is lost."""
    with HttpReceiver(always(Answer(500, body=b"oops"))) as receiver:
        responder = make(receiver.url, clock)
        responder.respond(incident())
        clock.now += timedelta(days=7)
        outcome = responder.respond(incident())
    assert (outcome.outcome, outcome.attempts) == ("failed", 2)


def test_what_somebody_must_repair_is_tried_for_a_day(make: Make, clock: Time) -> None:
    """A wrong token or address: then the incident is let go, with its reason."""
    with HttpReceiver(always(Answer(403))) as receiver:
        responder = make(receiver.url, clock)
        assert responder.respond(incident()).outcome == "failed"
        clock.now += timedelta(hours=25)
        assert responder.respond(incident()).outcome == "refused"


def test_redirects_are_not_followed(make: Make, clock: Time) -> None:
    """An incident goes where the configuration says and nowhere else."""
    with HttpReceiver() as other, HttpReceiver(always(Answer(307, {"location": other.url}))) as receiver:
        outcome = make(receiver.url, clock).respond(incident())
        assert outcome.outcome == "failed"
        assert "HTTP 307" in outcome.reason
        assert other.requests == []


def test_a_receiver_that_never_answers_costs_its_timeout(make: Make, clock: Time) -> None:
    """And is asked again."""
    with HttpReceiver(always(Answer(200, delay_s=3.0))) as receiver:
        began = time.monotonic()
        outcome = make(receiver.url, clock, timeout_s=0.3).respond(incident())
        took = time.monotonic() - began
    assert outcome.outcome == "failed"
    assert "no answer within 0.3 s" in outcome.reason
    assert took < 2.5


def test_an_answer_that_drips_or_is_endless_is_let_go(make: Make, clock: Time) -> None:
    """What is kept of it is a line's length without control characters."""
    with HttpReceiver(always(Answer(500, body=b"\x1b[2J" + b"y" * 3000, drip_s=0.01))) as receiver:
        began = time.monotonic()
        outcome = make(receiver.url, clock, timeout_s=0.5).respond(incident())
        took = time.monotonic() - began
    assert outcome.outcome == "failed"
    assert len(outcome.reason) < 300
    assert "\x1b" not in outcome.reason
    assert took < 8.0


def test_nobody_listens(make: Make, clock: Time) -> None:
    """No connection, and one that ends without an answer, are asked again."""
    with HttpReceiver(always(Answer(hang_up=True))) as receiver:
        url = receiver.url
        assert make(url, clock).respond(incident()).outcome == "failed"
    outcome = make(url, clock, timeout_s=1.0).respond(incident())
    assert outcome.outcome == "failed"
    assert "not reached" in outcome.reason


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word, as a TLS server that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_tls_that_hangs_costs_its_timeout(make: Make, clock: Time, silent_port: int) -> None:
    """The handshake is bounded as the answer is."""
    began = time.monotonic()
    outcome = make(f"https://127.0.0.1:{silent_port}/hook", clock, timeout_s=0.5).respond(incident())
    assert outcome.outcome == "failed"
    assert time.monotonic() - began < 4.0


def test_certificates_are_verified(make: Make, clock: Time, tmp_path: Path) -> None:
    """A receiver with a certificate of nobody's is not told."""
    certificate, key = Authority(tmp_path).issue("receiver", server=True)
    with HttpReceiver() as receiver:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
        url = receiver.url.replace("http:", "https:").replace("127.0.0.1", "localhost")
        assert make(url, clock).respond(incident()).outcome == "failed"
        assert receiver.requests == []


def test_hostile_words_stay_words(make: Make, clock: Time) -> None:
    """A node that is called like a mention, a tag or a terminal's command does nothing of the kind."""
    named = "<!channel> @everyone <script>\x1b[2J\r\nBcc: x"
    with HttpReceiver(always(Answer(200))) as receiver:
        assert make(receiver.url, clock).respond(incident(node=named, title=named)).outcome == "done"
        said = receiver.requests[0].body.decode()
    assert "\x1b" not in said
    if make is not webhook:  # its body is incident.v1, as the lake has it, escaped as JSON
        assert not any(word in said for word in ("<!channel", "@everyone", "<script", "\\r"))


class Group:
    """A consumer of revisions that remembers what was committed."""

    def __init__(self, revisions: list[dict[str, Any]]) -> None:
        self.partition, self.committed = Partition(INCIDENTS, 0), 0
        self.there = [Received(to_message(r, 1, n, T0), self.partition, n, 0) for n, r in enumerate(revisions)]

    def poll(self, *_: Any, **__: Any) -> list[Received]:
        there, self.there = self.there, []
        return there

    def assigned(self) -> frozenset[Partition]:
        return frozenset({self.partition})

    def commit(self, offsets: dict[Partition, int]) -> None:
        self.committed = offsets[self.partition]


class Audit:
    """Takes rows of ``action``."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def actions(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows


def test_a_receiver_that_was_away_for_an_hour_gets_all_of_it_once_and_in_order(make: Make, clock: Time) -> None:
    """Three incidents, one of them over meanwhile: each revision is taken once, in order, after the hour."""
    one, two, three = incident("n1"), incident("n2"), incident("n3")
    revisions = [one, two, later(one), three, over(two)]
    back = clock() + timedelta(hours=1)
    taken: list[bytes] = []

    def answer(_: int, request: Request) -> Answer:
        if clock() < back:
            return Answer(503)
        taken.append(request.body)
        return Answer(200)

    with HttpReceiver(answer) as receiver:
        audit, group = Audit(), Group(revisions)
        desk = Desk("r", Receiver(), Routes((), {"r": "ticket"}))
        delivery = Delivery("r", group, make(receiver.url, clock), audit, desk, clock=clock)  # type: ignore[arg-type]
        while (wait_s := delivery.step(0.0)) > 0:
            assert wait_s <= 60.0
            clock.now += timedelta(seconds=wait_s)
    done = [(r["node"], r["revision"]) for r in audit.rows if r["outcome"] == "done"]
    assert done == [("n1", 0), ("n2", 0), ("n1", 1), ("n3", 0), ("n2", 1)]
    assert len(taken) == 5
    assert [r["outcome"] for r in audit.rows].count("failed") <= 2, "the first, and one an hour"
    assert group.committed == 5
    assert timedelta(0) <= clock() - back < timedelta(minutes=2)


def test_the_wait_that_is_asked_for_is_kept(make: Make, clock: Time) -> None:
    """Nothing is sent before it is over."""
    with HttpReceiver(lambda n, _: Answer(429 if n == 0 else 200, {"retry-after": "120"})) as receiver:
        desk = Desk("r", Receiver(), Routes((), {"r": "ticket"}))
        group = Group([incident()])
        delivery = Delivery("r", group, make(receiver.url, clock), Audit(), desk, clock=clock)  # type: ignore[arg-type]
        assert delivery.step(0.0) == 120.0
        clock.now += timedelta(seconds=120)
        assert delivery.step(0.0) == 0.0
    assert group.committed == 1


def test_threads_of_their_own_do_not_mix(clock: Time) -> None:
    """Two chat receivers at once: the answer of one is not the other's."""
    outcomes: dict[int, Any] = {}
    with HttpReceiver(always(Answer(410))) as gone, HttpReceiver(always(Answer(200, delay_s=0.2))) as well:
        responders = [chat(receiver.url, clock) for receiver in (gone, well)]
        work = [
            threading.Thread(target=lambda i=i: outcomes.update({i: responders[i].respond(incident())})) for i in (0, 1)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert [outcomes[i].outcome for i in (0, 1)] == ["refused", "done"]
