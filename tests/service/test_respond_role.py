"""The role with routes, people's words, several kinds of receivers, a restart in between; and its commands."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_fakes import until
from alert_rig import free_port, told
from http_receiver import Answer, HttpReceiver
from people_site import NOW, Site
from respond_configs import SECRET, config, secret
from told_incidents import incident, later, over

from graynode.pipeline.codec import decode
from graynode.pipeline.schema import ACTIONS, EVENTS, INCIDENTS, PEOPLE
from graynode.pipeline.spool import SpoolBus
from graynode.responders.base import Outcome
from graynode.responders.routes import Routes
from graynode.service import canary, labels, maintenance_window, respond
from graynode.service.config import Config
from graynode.service.hard_events import HardEvents
from graynode.service.incident_bus import Publisher, read_incidents
from graynode.service.quiet import Quiet
from graynode.service.respond_places import Places
from graynode.service.respond_tables import Receiver


@contextmanager
def running(configured: Config) -> Iterator[list[int]]:
    """The role in a thread, until the block ends; its exit code then."""
    stop, codes = threading.Event(), list[int]()
    thread = threading.Thread(target=lambda: codes.append(respond.run(configured, stop)))
    thread.start()
    try:
        yield codes
    finally:
        stop.set()
        thread.join(20)
        assert codes == [0]


def send(bus: SpoolBus, *revisions: Mapping[str, Any]) -> None:
    producer = bus.producer()
    Publisher(producer, "test")([dict(r) for r in revisions])
    producer.close()


def now_(node: str = "n1", **other: Any) -> dict[str, Any]:
    text = datetime.now(UTC).isoformat()
    return incident(node, **{"ts": text, "since": text, "opened_ts": text, "updated_ts": text, **other})


def actions(bus: SpoolBus) -> list[dict[str, Any]]:
    consumer = bus.consumer([ACTIONS], f"audit-{datetime.now(UTC).timestamp()}", on_assigned=dict.fromkeys)
    rows: list[dict[str, Any]] = []
    while received := consumer.poll(0.3):
        rows += [row for r in received for row in decode(r.message).to_pylist()]
    consumer.close()
    return rows


def test_three_kinds_of_receivers_by_routes_and_a_restart(tmp_path: Path, new_alertmanager: Callable[..., Any]) -> None:
    """A page to pager and Alertmanager, a ticket to the channel; after a restart the end, to those who were told."""
    bus = SpoolBus(tmp_path / "bus", 1 << 30)
    with HttpReceiver(lambda *_: Answer(200)) as desk, HttpReceiver(lambda *_: Answer(200)) as channel:
        server = new_alertmanager(desk)
        server.fixed_port = free_port()
        server.start()
        with HttpReceiver(secret=SECRET) as pager:
            configured = config(
                tmp_path,
                {
                    "webhooks": {"pager": {"url": pager.url, "secret_file": secret(tmp_path, "s", SECRET)}},
                    "alertmanagers": {"am": {"urls": [server.url]}},
                    "chats": {
                        "channel": {
                            "urls_file": secret(tmp_path, "u", "# team\n" + channel.url.replace("http", "json", 1)),
                            "picture": False,
                        }
                    },
                    "routes": [
                        {"name": "pages", "severity": ["page"], "receivers": ["pager", "am"]},
                        {"name": "rest", "receivers": ["channel"]},
                    ],
                },
            )
            page, ticket = now_("n1"), now_("n2", severity="ticket")
            send(bus, page, ticket)
            with running(configured):
                assert until(lambda: len(pager.requests) == 1 and len(channel.requests) == 1, 20)
                assert until(lambda: told(desk) == [("firing", ["n1"])], 20)
            ends = datetime.now(UTC).isoformat()
            send(bus, *(over(i, resolved_ts=ends, ts=ends, updated_ts=ends) for i in (page, ticket)))
            with running(configured):
                assert until(lambda: len(pager.requests) == 2 and len(channel.requests) == 2, 20)
                assert until(lambda: told(desk)[1:] == [("resolved", ["n1"])], 20)
    assert [r.data["type"] for r in pager.requests] == ["incident.opened", "incident.resolved"]
    assert [r.data["title"].split()[0] for r in channel.requests] == ["TICKET", "RESOLVED"]
    done = sorted((r["responder"], r["node"], r["outcome"]) for r in actions(bus))
    assert done == sorted(
        [("webhook:pager", "n1", "done"), ("alertmanager:am", "n1", "done"), ("chat:channel", "n2", "done")] * 2
    )


class Teller:
    """A responder that remembers."""

    name = "webhook"

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int]] = []
        self.canaries: list[str] = []

    def respond(self, about: dict[str, Any], kind: str = "revision") -> Outcome:
        if kind == "canary":
            self.canaries.append(about["canary_id"])
        else:
            self.told.append((about["node"], kind, about["revision"]))
        return Outcome("done", "")

    def bundle(self, incidents: Any, why: str) -> Outcome:
        self.told += [(i["node"], "bundle", i["revision"]) for i in incidents]
        return Outcome("done", "")

    def close(self) -> None:
        pass


def joined(bus: SpoolBus, teller: Teller, place: Any = lambda _: {}, **terms: Any) -> Any:
    producer = bus.producer()
    publisher = Publisher(producer, "prod")
    routes = Routes((), {"desk": "ticket"})
    return producer, respond.join(bus, "desk", teller, publisher, Receiver(**terms), routes, place)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.incident("aaaa1111", "n1", NOW)
    return made


def ours(node: str, **other: Any) -> dict[str, Any]:
    return now_(node, cluster="prod", severity="ticket", **other)


def test_a_window_of_a_rack_holds_its_nodes_and_no_others(site: Site) -> None:
    """What is open at its end is told then; ended early, then at once."""
    racks = {"id-n1": "r7", "id-n2": "r8"}
    teller = Teller()
    producer, delivery = joined(site.bus, teller, lambda i: {"rack": racks.get(i["node_id"], "")})
    ended = site.run("maintenance", "add", "--rack", "r7", "--for", "2h", "--why", "new switch", "--by", "Kim")
    assert ended.returncode == 0, ended.stderr
    assert "of rack r7: " in ended.stdout
    send(site.bus, ours("n1"), ours("n2"))
    delivery.step(0.2)
    assert teller.told == [("n2", "revision", 0)]
    site.land()
    shown = site.run("maintenance", "list")
    assert "now" in shown.stdout
    assert "rack r7: new switch (Kim)" in shown.stdout
    (window,) = json.loads(site.run("maintenance", "list", "--json").stdout)
    assert shown.stdout.split()[0] == window["id"] == window["maintenance_id"][:8]
    ended = site.run("maintenance", "end", window["id"])
    assert ended.returncode == 0, ended.stderr
    delivery.step(0.1)
    assert teller.told[1:] == [("n1", "revision", 0)]
    delivery.consumer.close()
    delivery.desk.quiet.close()
    producer.close()
    site.land()
    assert "No maintenance" in site.run("maintenance", "list").stdout
    rows = site.lake.read("action").sort("ts").select("node", "outcome").rows()
    assert rows == [("n1", "held"), ("n2", "done"), ("n1", "done")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "--for", "2h", "--why", "x"), "say what it is of, one of --node NAME"),
        (("add", "--node", "n1", "--rack", "r", "--for", "2h", "--why", "x"), "one of --node NAME"),
        (("add", "--node", "n9", "--for", "2h", "--why", "x"), "knows no node 'n9'"),
        (("add", "--all", "--for", "2h"), "--why"),
        (("add", "--all", "--why", "x"), "not a time; write 2h"),
        (("add", "--all", "--for", "40d", "--why", "x"), "from 1s to 30d"),
        (("add", "--all", "--from", "2020-01-01", "--for", "2h", "--why", "x"), "would have ended"),
        (("add", "--all", "--from", "tomorrow", "--for", "2h", "--why", "x"), "a date or time such as"),
        (("add", "--all", "--from", "2999-01-01", "--for", "2h", "--why", "x"), "more than a year ahead"),
        (("end", "beef"), "no window that lasts begins with 'beef'; there are: none"),
    ],
)
def test_wrong_words_about_maintenance(words: tuple[str, ...], said: str, site: Site) -> None:
    """A sentence with the way out; nothing is sent."""
    ended = site.run("maintenance", *words)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert not (site.folder / "bus" / PEOPLE).exists()


def test_windows_by_what_they_are_of(site: Site) -> None:
    """Node, partition, all; not before they begin, not after they end, not in another cluster."""
    quiet = Quiet(site.bus, "t", place=lambda i: {"partition": "train"} if i["node_id"] == "id-n2" else {})
    begin = NOW + timedelta(hours=1)
    add = maintenance_window.add
    add(site.config, node="n1", from_=begin.isoformat(), for_="1h", why="fan", by="Kim", now=NOW)
    add(site.config, partition="train", for_="30m", why="image", by="Kim", now=NOW)
    one, two, three = (incident(n, cluster="prod") for n in ("n1", "n2", "n3"))
    assert quiet.because(one, NOW) == ""
    said = "maintenance of node n1 until 2026-11-30 14:00 UTC, says Kim"
    assert quiet.because(one, begin) == said
    assert quiet.because(incident("n1", cluster="other"), begin) == ""
    assert quiet.because(one, begin + timedelta(hours=1)) == ""
    assert quiet.because(two, NOW).startswith("maintenance of partition train until")
    assert quiet.because(three, NOW) == ""
    add(site.config, all_=True, for_="10m", why="power", by="Kim", now=NOW)
    assert quiet.because(three, NOW).startswith("maintenance of all until")
    quiet.close()


def test_a_window_of_a_node_is_listed_by_the_nodes_name(site: Site) -> None:
    """People know the name, not the id; ended by the short id that the list prints."""
    assert site.run("maintenance", "add", "--node", "n1", "--for", "2h", "--why", "fan", "--by", "Kim").returncode == 0
    site.land()
    shown = site.run("maintenance", "list").stdout
    assert "node n1: fan (Kim)" in shown
    assert "id-n1" not in shown
    ended = site.run("maintenance", "end", shown.split()[0])
    assert (ended.returncode, "of node n1 is over" in ended.stdout) == (0, True)


def test_an_ack_and_a_mute_hold_for_a_receiver_that_starts_anew(site: Site) -> None:
    """Who has taken it is known after a restart, and so is what the receiver was told."""
    teller, first = Teller(), ours("n1", incident_id="aaaa1111")
    producer, delivery = joined(site.bus, teller, remind_h=4.0)
    send(site.bus, first)
    delivery.step(0.2)
    labels.ack(site.config, "aaaa1111", by="Kim")
    delivery.consumer.close()
    delivery.desk.quiet.close()
    producer.close()
    again = Teller()
    book = respond.Book.read(site.bus, datetime.now(UTC))
    producer = site.bus.producer()
    publisher = Publisher(producer, "prod")
    delivery = respond.join(
        site.bus, "desk", again, publisher, Receiver(), Routes((), {"desk": "ticket"}), lambda _: {}, lambda: book
    )
    send_later = later(first)
    publisher([send_later])
    delivery.step(0.2)
    publisher([later(send_later, severity="page"), over(send_later, revision=3)])
    delivery.step(0.2)
    assert again.told == [("n1", "revision", 2), ("n1", "revision", 3)]
    delivery.consumer.close()
    delivery.desk.quiet.close()
    producer.close()


def test_a_heartbeat_goes_from_detect_to_the_receiver_and_is_no_incident(site: Site) -> None:
    """From the thread of hard events over the bus to those who want it; its age is measured; readers pass it over."""
    from graynode.detectors.incidents import Incidents

    teller = Teller()
    told_producer, delivery = joined(site.bus, teller, canary=True)
    producer = site.bus.producer()
    publisher = Publisher(producer, "prod")
    moment = [0.0]
    beat = canary.Canary("prod", publisher.canary, lambda: datetime.now(UTC), 300.0, lambda: moment[0])
    consumer = site.bus.consumer([EVENTS, PEOPLE], "detect")
    path = HardEvents(consumer, Incidents("prod"), publisher, lambda: datetime.now(UTC), each_step=beat)
    for second in (0, 299, 301):
        moment[0] = second
        path.step(0.0)
    delivery.step(0.3)
    assert len(teller.canaries) == 2
    assert teller.told == []
    assert delivery.canary.age_s() < 60
    assert read_incidents(site.bus, "look") == []
    site.land()
    assert site.lake.read("canary").height == 2
    for one in (delivery.consumer, delivery.desk.quiet, consumer, producer, told_producer):
        one.close()


def test_a_heartbeat_is_sent_only_where_somebody_wants_it(tmp_path: Path) -> None:
    """Nobody pays for what nobody looks at."""
    sent: list[Any] = []
    hook = {"url": "https://a.example/", "secret_file": secret(tmp_path, "s", SECRET)}
    for wanted in (False, True):
        configured = config(tmp_path, {"webhooks": {"a": {**hook, "canary": wanted}}})
        canary.sender(configured, sent.append, lambda: NOW)()
        assert len(sent) == wanted


def test_an_old_heartbeat_proves_nothing(site: Site) -> None:
    """A receiver that was away does not get an hour of them."""
    teller = Teller()
    producer, delivery = joined(site.bus, teller, canary=True)
    beat = canary.Canary("prod", delivery.publisher.canary, lambda: datetime.now(UTC) - timedelta(hours=1))
    beat()
    delivery.step(0.2)
    assert teller.canaries == []
    delivery.consumer.close()
    delivery.desk.quiet.close()
    producer.close()


def test_places_that_cannot_be_read_hold_nobody() -> None:
    """Telling goes on; what is known stays, and is read anew."""
    answers: list[Any] = [OSError("no lake"), {("prod", "id-n1"): {"rack": "r7"}}]

    def read() -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    places = Places(read, every_s=0.01)
    places.start()
    about = {"cluster": "prod", "node_id": "id-n1"}
    assert until(lambda: places(about) == {"rack": "r7"})
    assert places({"cluster": "prod", "node_id": "id-n2"}) == {}
    assert places({"cluster": "prod", "node_id": "rack:r9", "subject": "rack"}) == {"rack": "r9"}
    places.stop()


def test_racks_and_partitions_come_from_the_lake(site: Site) -> None:
    """What the inventory says of a node, and the partition of its last job."""
    from graynode.service.respond_places import from_lake

    rack = {"ts": NOW, "node_id": "id-n1", "node": "n1", "kind": "node", "entity": "id-n1"}
    site.write("inventory", [{**rack, "attributes": json.dumps({"rack": "r7"})}])
    job = {"ts": NOW, "node_id": "id-n1", "node": "n1", "job_id": "7", "state": "running", "partition": "train"}
    site.write("job", [{**job, "user": "u"}])
    table = from_lake(site.config, lambda: NOW + timedelta(hours=1))()
    assert table[("prod", "id-n1")] == {"rack": "r7", "partition": "train"}


def test_the_topics_are_those_of_the_contract() -> None:
    """Heartbeats travel with incidents, windows with what people say."""
    from graynode.pipeline.schema import TABLES

    assert TABLES["canary"].topic == INCIDENTS
    assert TABLES["maintenance"].topic == PEOPLE
