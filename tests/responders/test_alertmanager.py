"""The Alertmanager responder against real ones: fires, groups, resolves, and survives restarts of either side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import alert_rig
import pytest
from alert_rig import free_port, told, until
from http_receiver import Answer, HttpReceiver
from told_incidents import incident

from graynode.responders.alert_labels import labels, place_labels
from graynode.responders.alertmanager import PATH, Alertmanager
from graynode.responders.message import Links
from graynode.responders.post import Post

New = Callable[..., alert_rig.Alertmanager]


class Clock:
    """The real time, and minutes more for what is due once a minute."""

    ahead = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return (self() + self.ahead).timestamp()


def now_(node: str = "n1", **other: Any) -> dict[str, Any]:
    """An incident that opens now."""
    text = datetime.now(UTC).isoformat()
    return incident(node, **{"ts": text, "since": text, "opened_ts": text, "updated_ts": text, **other})


def next_(first: dict[str, Any], **other: Any) -> dict[str, Any]:
    """Its next revision, of now."""
    text = datetime.now(UTC).isoformat()
    return {**first, "revision": first["revision"] + 1, "state": "updated", "ts": text, "updated_ts": text, **other}


def end(first: dict[str, Any]) -> dict[str, Any]:
    return next_(first, state="resolved", resolved_ts=datetime.now(UTC).isoformat())


@pytest.fixture
def desk() -> Iterator[HttpReceiver]:
    """What Alertmanager tells goes here."""
    with HttpReceiver(lambda *_: Answer(200)) as receiver:
        yield receiver


@pytest.fixture
def server(new_alertmanager: New, desk: HttpReceiver) -> alert_rig.Alertmanager:
    made = new_alertmanager(desk)
    made.fixed_port = free_port()
    made.start()
    return made


def ours(*servers: alert_rig.Alertmanager, **options: Any) -> Alertmanager:
    clock = options.pop("clock", Clock())
    posts = [Post(server.url + PATH, timeout_s=3.0) for server in servers]
    return Alertmanager(posts, clock=clock, monotonic=clock.monotonic, **options)


def test_it_fires_with_labels_to_route_by_and_resolves(server: alert_rig.Alertmanager, desk: HttpReceiver) -> None:
    """What on-call teams route by is a label, what changes is an annotation, and the end is told."""
    where = {"rack": "r7", "partition": "train"}
    links = Links("https://gpu.example", "https://docs.example/runbooks/{cause}/")
    responder, first = ours(server, where=lambda _: where, links=links), now_()
    assert responder.respond(first).outcome == "done"
    assert until(lambda: told(desk) == [("firing", ["n1"])])
    alert = desk.requests[0].data["alerts"][0]
    assert alert["labels"] == {
        "alertname": "GraynodeGpuLost", "cluster": "test", "node": "n1", "gpu": "0000:9b:00.0", "cause": "gpu_lost",
        "severity": "page", "owner": first["owner"], "rack": "r7", "partition": "train",
    }  # fmt: skip
    said = alert["annotations"]
    assert said["summary"].startswith("PAGE n1")
    assert said["next_step"]
    assert said["look"] == f"graynode explain {first['incident_id'][:8]}"
    assert said["page_url"] == alert["generatorURL"] == f"https://gpu.example/incidents/{first['incident_id']}"
    assert said["runbook_url"] == "https://docs.example/runbooks/gpu_lost/"
    assert responder.respond(end(first)).outcome == "done"
    assert until(lambda: told(desk)[1:] == [("resolved", ["n1"])])


def test_a_rack_of_nodes_is_one_notification(server: alert_rig.Alertmanager, desk: HttpReceiver) -> None:
    """Alertmanager groups them: nothing in the labels of one cause keeps them apart."""
    responder = ours(server)
    outcome = responder.bundle([now_(f"n{i}") for i in range(5)], "a rack")
    assert outcome.outcome == "done"
    assert until(lambda: ("firing", ["n0", "n1", "n2", "n3", "n4"]) in told(desk))


def test_it_survives_a_restart_of_alertmanager(server: alert_rig.Alertmanager, desk: HttpReceiver) -> None:
    """It forgets alerts when it starts anew; a minute later it has them again, also those that came meanwhile."""
    clock = Clock()
    responder = ours(server, clock=clock)
    responder.respond(now_())
    assert until(lambda: len(server.alerts()) == 1)
    server.stop()
    assert responder.respond(now_("n2")).outcome == "failed"
    server.start()
    assert server.alerts() == []
    responder.keep(dict)
    clock.ahead += timedelta(seconds=59)
    assert responder.keep(dict) is None, "not before a minute has passed"
    clock.ahead += timedelta(seconds=2)
    outcome = responder.keep(dict)
    assert outcome is not None
    assert outcome.outcome == "done"
    assert until(lambda: {a["labels"]["node"] for a in server.alerts()} == {"n1", "n2"})
    assert not [state for state, _ in told(desk) if state == "resolved"]


def test_it_survives_a_restart_of_graynode(server: alert_rig.Alertmanager, desk: HttpReceiver) -> None:
    """The state comes from the bus: the same alert goes on, with the place that it had, and its end is told."""
    first = now_()
    racks = [{"rack": "r7"}]
    ours(server, where=lambda _: racks[0]).respond(first)
    assert until(lambda: told(desk) == [("firing", ["n1"])])
    grown = next_(first, gpu_uuid="GPU-x", pci_bus_id="0000:aa:00.0")
    after = ours(server, where=lambda _: racks[0])
    after.restore([first, grown])
    after.keep(dict)
    assert len(server.alerts()) == 1
    after.respond(end(grown))
    assert until(lambda: told(desk)[1:] == [("resolved", ["n1"])])


def test_what_gets_worse_is_another_alert_and_the_old_one_ends(server: alert_rig.Alertmanager) -> None:
    """A ticket that becomes a page is routed anew; never are both there."""
    responder, first = ours(server), now_(severity="ticket")
    responder.respond(first)
    assert until(lambda: [a["labels"]["severity"] for a in server.alerts()] == ["ticket"])
    responder.respond(next_(first, severity="page"))
    assert until(lambda: [a["labels"]["severity"] for a in server.alerts()] == ["page"])


def test_alerts_outlive_a_short_silence_of_graynode(server: alert_rig.Alertmanager) -> None:
    """They go on for half an hour without a word, so that an upgrade resolves nothing."""
    ours(server).respond(now_())
    (alert,) = server.alerts()
    ends = datetime.fromisoformat(alert["endsAt"]) - datetime.now(UTC)
    assert timedelta(minutes=29) < ends < timedelta(minutes=31)


def test_a_silence_of_a_person_is_left_alone(server: alert_rig.Alertmanager, desk: HttpReceiver) -> None:
    """What somebody silences in Alertmanager stays silent, and is not ours to end."""
    server.silence("node", "n1")
    responder = ours(server)
    responder.respond(now_("n1"))
    responder.respond(now_("n2"))
    responder.keep(dict)
    assert until(lambda: told(desk) == [("firing", ["n2"])])
    assert [s["createdBy"] for s in server.silences()] == ["Kim"]
    assert {a["labels"]["node"]: a["status"]["state"] for a in server.alerts()} == {"n1": "suppressed", "n2": "active"}


def test_what_people_mute_or_take_is_silenced_there_too(new_alertmanager: New, desk: HttpReceiver) -> None:
    """Alertmanager repeats by itself, so it is told who wants to be spared; worse breaks it, and the end is told."""
    server = new_alertmanager(desk, repeat="1s")
    server.start()
    clock = Clock()
    responder, first = ours(server, clock=clock), now_(severity="ticket")
    responder.respond(first)
    assert until(lambda: len(told(desk)) >= 2), "it repeats"
    responder.keep(lambda: {first["incident_id"]: "taken by Kim"})
    assert until(lambda: [s["comment"] for s in server.silences()] == ["taken by Kim"])
    assert until(lambda: [a["status"]["state"] for a in server.alerts()] == ["suppressed"])
    clock.ahead += timedelta(minutes=1)
    responder.keep(lambda: {first["incident_id"]: "taken by Kim"})
    assert len(server.silences()) == 1, "one is enough"
    worse = next_(first, severity="page")
    responder.respond(worse)
    assert until(lambda: any(a["status"]["state"] == "active" for a in server.alerts()))
    clock.ahead += timedelta(minutes=1)
    responder.keep(lambda: {first["incident_id"]: "taken by Kim"})
    assert until(lambda: [a["status"]["state"] for a in server.alerts()] == ["suppressed"])
    seen = len(desk.requests)
    responder.respond(end(worse))
    assert until(lambda: "resolved" in [state for state, _ in told(desk)[seen:]])
    clock.ahead += timedelta(minutes=1)
    responder.keep(dict)
    assert until(lambda: server.silences() == [])


def test_a_mute_that_is_over_ends_its_silence(server: alert_rig.Alertmanager) -> None:
    """Within a minute."""
    clock = Clock()
    responder, first = ours(server, clock=clock), now_()
    responder.respond(first)
    responder.keep(lambda: {first["incident_id"]: "muted"})
    assert until(lambda: len(server.silences()) == 1)
    clock.ahead += timedelta(minutes=1)
    responder.keep(dict)
    assert until(lambda: server.silences() == [])
    assert until(lambda: [a["status"]["state"] for a in server.alerts()] == ["active"])


def test_all_of_a_cluster_are_told_and_one_that_took_it_is_enough(new_alertmanager: New, desk: HttpReceiver) -> None:
    """Two members that gossip tell once; with one of them dead it goes on."""
    gossip = [free_port(), free_port()]
    servers = [new_alertmanager(desk) for _ in gossip]
    for number, server in enumerate(servers):
        server.start_in(gossip[number], gossip[:1] if number else [])
    responder = ours(*servers)
    outcome = responder.respond(now_())
    assert (outcome.outcome, outcome.reason) == ("done", "HTTP 200 from 2 of 2")
    assert until(lambda: all(len(server.alerts()) == 1 for server in servers))
    assert until(lambda: ("firing", ["n1"]) in told(desk))
    servers[0].stop()
    outcome = responder.respond(now_("n2"))
    assert outcome.outcome == "done"
    assert outcome.reason.startswith("HTTP 200 from 1 of 2; ")
    assert until(lambda: any("n2" in nodes for _, nodes in told(desk)))
    assert [nodes for _, nodes in told(desk)].count(["n1"]) == 1


def test_its_heartbeat_always_fires(server: alert_rig.Alertmanager) -> None:
    """A dead man's switch waits for it."""
    row = {"canary_id": "c1", "cluster": "test", "ts": datetime.now(UTC)}
    assert ours(server).respond(row, "canary").outcome == "done"
    assert [a["labels"]["alertname"] for a in server.alerts()] == ["GraynodeCanary"]


def test_labels_hold_nothing_that_changes_with_time() -> None:
    """Two revisions of one incident have the same labels, whatever was counted, measured or said since."""
    first = incident()
    grown = next_(first, count=99, title="another", job_id="77", next_step="other", due_ts="2026-12-01T00:00:00Z")
    place = place_labels(first, {})
    assert labels(first, place) == labels(grown, place)


def test_incidents_of_two_links_or_of_a_rack_are_alerts_of_their_own() -> None:
    """Labels are what Alertmanager knows an alert by."""
    one, two = (incident(subject="link", link=name) for name in ("mlx5_0/1", "mlx5_1/1"))
    rack = incident(subject="rack", node_id="rack:r7", node=None)
    found = [tuple(sorted(labels(i, place_labels(i, {})).items())) for i in (one, two, rack)]
    assert len(set(found)) == 3
    assert ("subject", "rack rack:r7") in found[2]
