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
from roles import to_toml
from told_incidents import incident, later, over

from graynode.pipeline.codec import decode
from graynode.pipeline.schema import ACTIONS, EVENTS, INCIDENTS, PEOPLE
from graynode.pipeline.spool import SpoolBus
from graynode.responders.base import Outcome
from graynode.responders.routes import Routes
from graynode.service import canary, labels, maintenance_window, respond
from graynode.service.config import Config, ConfigError, parse
from graynode.service.hard_events import HardEvents
from graynode.service.incident_bus import Publisher, read_incidents
from graynode.service.quiet import Quiet
from graynode.service.respond_config import make_routes
from graynode.service.respond_make import make_receivers
from graynode.service.respond_places import Places
from graynode.service.respond_tables import Receiver

SECRET = "whsec_YSBzZWNyZXQgb2YgMjQgYnl0ZXMgbG9uZw=="  # noqa: S105 (a test's own)
UP = "2026-11-30T12:00:00+00:00"


def secret(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def config(folder: Path, respond_: dict[str, Any]) -> Config:
    told = {
        "cluster": "test", "bus": {"spool_dir": str(folder / "bus")}, "lake": {"path": str(folder / "lake")},
        "respond": {"metrics_listen": "", **respond_},
    }  # fmt: skip
    return parse(told, "test")


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
    try:
        return [row for r in consumer.poll(0.3) for row in decode(r.message).to_pylist()]
    finally:
        consumer.close()


def test_three_kinds_of_receivers_by_routes_and_a_restart(tmp_path: Path, new_alertmanager: Callable[..., Any]) -> None:
    """A page to the pager and Alertmanager, a ticket to the channel; the end, after a restart, to those who were told."""
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
    ended = site.run("maintenance", "end", window["maintenance_id"][:6])
    assert ended.returncode == 0, ended.stderr
    delivery.step(0.1)
    assert teller.told[1:] == [("n1", "revision", 0)]
    delivery.consumer.close()
    delivery.desk.quiet.close()
    producer.close()
    site.land()
    assert "No maintenance" in site.run("maintenance", "list").stdout
    rows = [(r["node"], r["outcome"]) for r in site.lake.read("action").iter_rows(named=True)]
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
    said = "maintenance of node id-n1 until 2026-11-30 14:00 UTC, says Kim"
    assert quiet.because(one, begin) == said
    assert quiet.because(incident("n1", cluster="other"), begin) == ""
    assert quiet.because(one, begin + timedelta(hours=1)) == ""
    assert quiet.because(two, NOW).startswith("maintenance of partition train until")
    assert quiet.because(three, NOW) == ""
    add(site.config, all_=True, for_="10m", why="power", by="Kim", now=NOW)
    assert quiet.because(three, NOW).startswith("maintenance of all until")
    quiet.close()


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


# --- configuration and `graynode routes test` ---

NIGHT = {"name": "night", "receivers": ["team"], "quiet_hours": "22:00-07:00", "timezone": "Europe/Berlin"}


@pytest.fixture
def routed(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    hook = {"url": "https://a.example/", "secret_file": secret(tmp_path, "s", SECRET)}
    chat = {"urls_file": secret(tmp_path, "u", "json://127.0.0.1/x"), "digest_at": "08:00"}
    pages = 'severity = ["page"]\nreceivers = ["pager"]\ncontinue = true\nname = "pages"\n'
    text = to_toml({"respond": {"webhooks": {"pager": hook}, "chats": {"team": chat}}})
    text += f"[[respond.routes]]\n{pages}"
    text += '[[respond.routes]]\nname = "train"\npartition = ["train*"]\nreceivers = ["team"]\ndeliver = "digest"\n'
    text += "[[respond.routes]]\n" + to_toml(NIGHT)
    made.file.write_text(made.file.read_text() + text)
    return made


def test_routes_test_says_who_would_be_told_and_why(routed: Site) -> None:
    """Each route with its reason, each receiver with what it would hear; nobody is told by asking."""
    at = ("--at", "2026-12-02T23:00Z")
    ended = routed.run("routes", "test", "--severity", "page", "--cause", "gpu_lost", "--partition", "train-a", *at)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "An incident of severity page, cause gpu_lost, cluster prod, partition train-a:",
        "  pages: fits",
        "  train: fits",
        "  night: fits",
        "pager: at once, as a page (pages)",
        "team: in the digest of 2026-12-03 08:00 UTC (train)",
    ]
    ended = routed.run("routes", "test", "--severity", "ticket", *at)
    assert ended.stdout.splitlines()[1:] == [
        "  pages: no, severity 'ticket' is none of page",
        "  train: no, partition 'unknown' is none of train*",
        "  night: fits",
        "team: after quiet hours, at 2026-12-03 06:00 UTC (night)",
        "pager: nothing",
    ]


def test_routes_test_of_an_incident_that_there_is(routed: Site) -> None:
    """By the beginning of its id, as the lake or the bus has it."""
    routed.incident("aaaa1111-0000-5000-8000-000000000001", "n1", NOW, severity="page")
    ended = routed.run("routes", "test", "aaaa1", "--json", "--at", "2026-12-02T12:00Z")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert [(r["receiver"], r["deliver"]) for r in told["receivers"]] == [("pager", "page"), ("team", "page")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name an incident, or describe one: --severity page"),
        (("--severity", "loud"), "there are page, ticket, digest"),
        (("--severity", "page", "--cause", "bad"), "--cause 'bad': there is none such"),
        (("beef",), "no incident begins with 'beef'"),
    ],
)
def test_wrong_words_about_routes(words: tuple[str, ...], said: str, routed: Site) -> None:
    """A sentence with the way out."""
    ended = routed.run("routes", "test", *words)
    assert ended.returncode == 2
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"routes": [{"receivers": ["nobody"]}]}, "there is no receiver 'nobody'; there are am, pager, team"),
        ({"routes": [{"receivers": ["pager"], "quiet_hours": "22-7"}]}, "write 22:00-07:00"),
        ({"routes": [{"receivers": ["pager"], "quiet_hours": "22:00-07:00", "timezone": "Moon"}]}, "no time zone 'Moon'"),
        ({"digest_at": "8"}, "write 08:00, or hourly"),
    ],
)  # fmt: skip
def test_routes_that_cannot_be(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    """The route or receiver is named, and what is right."""
    with pytest.raises(ConfigError, match=said):
        make_routes(config(tmp_path, receivers(tmp_path, change)).respond)


def receivers(folder: Path, change: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "webhooks": {"pager": {"url": "https://a.example/", "secret_file": secret(folder, "s", SECRET)}},
        "alertmanagers": {"am": {"urls": ["https://am.example"]}},
        "chats": {"team": {"urls_file": secret(folder, "u", "json://127.0.0.1/x")}},
    }
    at = {"digest_at": change.pop("digest_at")} if "digest_at" in change else {}
    told["chats"]["team"] |= at
    return {**told, **change}


@pytest.mark.parametrize(
    ("kind", "section", "said"),
    [
        ("chats", {"urls_file": "/nowhere"}, r"respond\.chats\.x\.urls_file = /nowhere: cannot be read"),
        ("chats", {"urls": "# none\n"}, "no address in it; write one a line"),
        ("chats", {"urls": "json://mail.example/hunter2"}, r"respond\.chats\.x\.urls_file = .*use https"),
        ("alertmanagers", {"urls": ["http://am.example"]}, r"respond\.alertmanagers\.x\.urls: .*use https"),
        ("alertmanagers", {"urls": ["https://am.example"], "ca_file": "/nowhere"}, r"x\.ca_file = /nowhere"),
    ],
)
def test_receivers_that_cannot_be(kind: str, section: dict[str, Any], said: str, tmp_path: Path) -> None:
    """The key is named; what is secret is not shown."""
    if isinstance(section.get("urls"), str):
        section = {"urls_file": secret(tmp_path, "x", section["urls"])}
    with pytest.raises(ConfigError, match=said) as caught:
        make_receivers(config(tmp_path, {kind: {"x": section}}).respond, lambda _: {}, lambda _: None)
    assert "hunter2" not in str(caught.value)


def test_one_name_for_two_receivers_is_refused(tmp_path: Path) -> None:
    """Routes could not tell them apart."""
    told = receivers(tmp_path, {})
    told["chats"] = {"pager": told["chats"]["team"]}
    with pytest.raises(ConfigError, match=r"respond\.chats\.pager: respond\.webhooks\.pager has this name too"):
        make_receivers(config(tmp_path, told).respond, lambda _: {}, lambda _: None)


def test_config_check_names_what_routes_forget(routed: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A receiver that no route names, a file that is not there."""
    text = routed.file.read_text().replace('receivers = ["pager"]', 'receivers = ["team"]')
    routed.file.write_text(text.replace(str(routed.folder / "u"), "/nowhere"))
    ended = routed.run("config", "check")
    assert ended.returncode == 1
    assert "respond.routes: none names the receiver 'pager'" in ended.stderr
    assert "respond.chats.team.urls_file = /nowhere: no such file" in ended.stderr


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
    site.write("job", [{**job, "start_ts": NOW, "user": "u"}])
    table = from_lake(site.config, lambda: NOW + timedelta(hours=1))()
    assert table[("prod", "id-n1")] == {"rack": "r7", "partition": "train"}


def test_the_topics_are_those_of_the_contract() -> None:
    """Heartbeats travel with incidents, windows with what people say."""
    from graynode.pipeline.schema import TABLES

    assert TABLES["canary"].topic == INCIDENTS
    assert TABLES["maintenance"].topic == PEOPLE
