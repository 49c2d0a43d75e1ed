"""``label``, ``ack``, ``mute``, ``repair`` and ``audit``: what people say, whom it is about, and what follows."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from people_site import NOW, Site, node_days

from graynode.pipeline.lock_file import LockFile
from graynode.responders.base import Outcome
from graynode.service import audit, labels, people
from graynode.service.config import ConfigError
from graynode.service.incident_bus import Publisher
from graynode.service.quiet import Quiet
from graynode.service.respond import make_delivery

ONE = "aaaa1111-0000-5000-8000-000000000001"
TWO = "aaaa2222-0000-5000-8000-000000000002"
WEEK = "2026-W48"
IN_WEEK = audit.start_of(WEEK) + timedelta(days=1)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.incident(ONE, "n1", NOW - timedelta(hours=3))
    made.incident(TWO, "n2", NOW - timedelta(hours=2), severity="page")
    return made


def test_a_verdict_goes_by_the_beginning_of_the_id_and_lands(site: Site) -> None:
    """By the command line, to the bus, by the pipeline to the lake; the latest verdict of an incident counts."""
    ended = site.run("label", "aaaa1", "false", "--why", "a benchmark ran", "--by", "Kim")
    assert ended.returncode == 0, ended.stderr
    assert "incident aaaa1111 (Slow GPU on n1): false, says Kim" in ended.stdout
    labels.label(site.config, ONE, "true", why="looked again", by="Kim")
    site.land()
    now = people.ask(site.config, "SELECT incident_id, node_id, verdict, why, who FROM label_now")
    assert [tuple(row.values()) for row in now] == [(ONE, "id-n1", "true", "looked again", "Kim")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("label", "beef", "true", "--why", "x"), "no incident begins with 'beef'; the latest are aaaa2222 (n2)"),
        (("label", "aaaa", "true", "--why", "x"), "2 incidents begin with 'aaaa'"),
        (("label", ONE, "true"), "--why: say it in a few words"),
        (("label", ONE), "label INCIDENT true|false|unsure"),
        (("label", "n9@2026-W48", "true", "--why", "x"), "knows no node 'n9' in cluster 'prod'; it knows n1, n2"),
        (("label", "n1@lately", "true", "--why", "x"), "a week such as 2026-W48, or a day such as 2026-11-20"),
        (("label", "n1@2026-W60", "true", "--why", "x"), "@2026-W60"),
        (("ack", "cafe"), "no incident begins with 'cafe'"),
        (("mute", "n1", "--why", "x"), "say how long: --for 2d"),
        (("mute", "n1", "--for", "a while", "--why", "x"), "--for a while: not a time"),
        (("mute", "n1", "--for", "400d", "--why", "x"), "from 1s to 90d"),
        (("mute", "n1", "--for", "2d"), "--why"),
        (("repair", "n1"), "--what"),
        (("repair", "n1", "--what", "fan", "--at", "2999-01-01"), "is still to come"),
        (("repair", "n1", "--what", "fan", "--at", "yesterday"), "a date or time such as"),
        (("repair", "n1", "--what", "fan", "--incident", TWO), "is about n2, not n1"),
        (("audit", "--week", "2999-W01"), "is still to come"),
        (("audit", "--week", "2026-11-20"), "an ISO week such as"),
        (("audit", "--week", "2026-W60"), "--week 2026-W60: an ISO week such as"),
        (("audit", "--week", "2020-W01"), "the lake saw none then"),
    ],
)
def test_wrong_words_are_answered_with_the_way_out(words: tuple[str, ...], said: str, site: Site) -> None:
    """A sentence that says what there is instead; nothing is sent."""
    ended = site.run(*words)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert not (site.folder / "bus" / "graynode.people").exists()


def test_where_no_bus_is_nobody_would_hear_it(tmp_path: Path) -> None:
    """A configuration that names no running roles, a folder that may not be written, a topic that is held for long."""
    made = Site(tmp_path)
    made.incident(ONE, "n1", NOW)
    (tmp_path / "bus").rmdir()
    with pytest.raises(ConfigError, match=r"no bus is there.*--config"):
        labels.ack(made.config, ONE)
    (tmp_path / "bus").mkdir()
    with (
        LockFile(tmp_path / "bus" / "graynode.people" / "writer.lock"),
        pytest.raises(ConfigError, match="another command is writing for 0 s already"),
    ):
        people.say(made.config, [("ack", {"ts": NOW, "incident_id": ONE})], wait_s=0.2)
    if os.geteuid() != 0:
        (tmp_path / "bus" / "graynode.people").chmod(0o500)
        with pytest.raises(ConfigError, match="no permission"):
            labels.ack(made.config, ONE)


def test_two_commands_at_once_both_get_through(site: Site) -> None:
    """The one writer's lock is waited for."""
    held = LockFile(site.folder / "bus" / "graynode.people" / "writer.lock")
    threading.Timer(0.3, held.close).start()
    labels.ack(site.config, ONE, by="Kim")
    assert [row["who"] for row in site.said("ack")] == ["Kim"]


def test_a_node_is_known_by_its_names_and_two_machines_of_one_name_are_asked_about(site: Site) -> None:
    """Host name or node_id, in any table that has seen it."""
    assert people.one_node(site.config, "n1") == ("id-n1", "n1")
    assert people.one_node(site.config, "id-n2") == ("id-n2", "n2")
    site.incident("bbbb", "n1", NOW, node_id="another")
    with pytest.raises(ConfigError, match="2 machines are called 'n1'; name one by its node_id: another, id-n1"):
        people.one_node(site.config, "n1")


def test_a_repair_may_lie_in_the_past_and_says_when_it_was_logged(site: Site) -> None:
    """``ts`` is when it was done; the incident that it was for and the one GPU are kept."""
    ended = site.run(
        "repair", "n1", "--what", "riser", "--at", "2026-11-29T08:00Z", "--gpu", "GPU-1", "--incident", ONE
    )
    assert ended.returncode == 0, ended.stderr
    (row,) = site.said("repair")
    assert row["ts"].isoformat() == "2026-11-29T08:00:00+00:00"
    assert row["logged_ts"] > row["ts"]
    assert (row["node_id"], row["gpu_uuid"], row["incident_id"]) == ("id-n1", "GPU-1", ONE)


def test_a_gpu_that_the_node_never_had_is_not_repaired(site: Site) -> None:
    """Its past would go on, and nobody would see why; what the node has is shown. One that has left is known still."""
    there = {"cluster": "prod", "node_id": "id-n1", "node": "n1", "kind": "gpu"}
    left = {"ts": NOW - timedelta(days=9), "entity": "GPU-1", "slot": "0000:19:00.0", **there}
    now = {"ts": NOW - timedelta(days=2), "entity": "GPU-2", "slot": "0000:19:00.0", **there}
    site.write("inventory", [left, now])
    ended = site.run("repair", "n1", "--what", "riser", "--gpu", "GPU-3")
    assert ended.returncode == 2
    assert "--gpu GPU-3: n1 has no such GPU; it has" in ended.stderr
    assert "GPU-2  0000:19:00.0" in ended.stderr
    assert site.run("repair", "n1", "--what", "swapped", "--gpu", "GPU-1").returncode == 0
    assert [row["gpu_uuid"] for row in site.said("repair")] == ["GPU-1"]


def revision(number: int = 0, **columns: object) -> dict[str, object]:
    said = {"incident_id": ONE, "cluster": "prod", "node_id": "id-n1", "revision": number, "severity": "ticket"}
    return {**said, "state": "open" if number == 0 else "updated", **columns}


def test_a_muted_node_is_spared_until_then_and_heard_again_after(site: Site) -> None:
    """Not its neighbours, not another cluster's node of that id; an end comes early by ``--end``."""
    quiet = Quiet(site.bus, "t")
    assert quiet.because(revision(), NOW) == ""
    labels.mute(site.config, "n1", for_="2d", why="moved", by="Kim", now=NOW)
    assert quiet.because(revision(), NOW) == "muted until 2026-12-02 12:00 UTC by Kim"
    assert quiet.because(revision(node_id="id-n2"), NOW) == ""
    assert quiet.because(revision(cluster="other"), NOW) == ""
    assert quiet.because(revision(), NOW + timedelta(days=2)) == ""
    labels.mute(site.config, "n1", end=True, now=NOW + timedelta(hours=1))
    assert quiet.because(revision(), NOW + timedelta(hours=2)) == ""
    quiet.close()
    fresh = Quiet(site.bus, "t")
    assert fresh.because(revision(), NOW + timedelta(hours=2)) == ""
    fresh.close()


def test_a_taken_incident_is_told_when_it_gets_worse_opens_again_or_is_over(site: Site) -> None:
    """Going on is no news to whoever has it; a receiver that never heard of it is told once."""
    labels.ack(site.config, ONE, by="Kim")
    quiet = Quiet(site.bus, "t")
    steps = [
        (revision(1), ""),
        (revision(2), "taken by Kim"),
        (revision(3, severity="page"), ""),
        (revision(4, severity="page"), "taken by Kim"),
        (revision(5, state="resolved"), ""),
        (revision(6, state="open"), ""),
        (revision(7), "taken by Kim"),
        (revision(8, incident_id=TWO), ""),
    ]
    for told, because in steps:
        assert quiet.because(told, NOW) == because, told["revision"]
        if not because:
            assert quiet.because(told, NOW) == "", "a receiver that failed is asked again"
            quiet.told(told)
    quiet.close()


class Receiver:
    """A responder that remembers."""

    name = "receiver"

    def __init__(self) -> None:
        self.told: list[int] = []

    def respond(self, incident: dict[str, Any]) -> Outcome:
        self.told.append(incident["revision"])
        return Outcome("done", "heard")


def test_what_a_receiver_is_spared_is_a_row_of_its_own(site: Site) -> None:
    """Muted between two revisions: the second waits, its offset moves, and the audit trail says why."""
    producer = site.bus.producer()
    publisher, receiver = Publisher(producer, "prod", lambda: NOW), Receiver()
    delivery = make_delivery(site.bus, "desk", receiver, publisher, "ticket")  # type: ignore[arg-type]
    times = {"ts": NOW, "since": NOW, "opened_ts": NOW, "updated_ts": NOW, "cause": "slow_gpu", "title": "t"}
    publisher([{**revision(0), **times}])
    delivery.step(0.1)
    labels.mute(site.config, "n1", for_="2d", why="moved", by="Kim")
    publisher([{**revision(1, severity="page"), **times}])
    delivery.step(0.1)
    delivery.consumer.close()
    producer.close()
    assert receiver.told == [0]
    site.land()
    rows = site.lake.read("action").sort("revision").select("revision", "outcome", "reason").rows()
    assert rows[0][:2] == (0, "done")
    assert rows[1][:2] == (1, "held")
    assert "muted until" in rows[1][2]
    assert "by Kim" in rows[1][2]


def test_what_is_over_needs_nobody_to_take_it(site: Site) -> None:
    """Acknowledging a resolved incident is answered with what to do instead."""
    site.incident("cccc", "n3", NOW, state="resolved", resolved_ts=NOW)
    with pytest.raises(ConfigError, match=r"is over since .*label it"):
        labels.ack(site.config, "cccc")


def test_the_week_draws_the_audit_and_told_nodes_are_not_in_it(tmp_path: Path) -> None:
    """The same week, the same nodes; a node that joins changes no other's place; what was told needs no audit."""
    s = Site(tmp_path)
    s.nodes([f"n{i}" for i in range(30)], IN_WEEK)
    s.incident(ONE, "n3", IN_WEEK, resolved_ts=None)
    s.incident(TWO, "n4", IN_WEEK - timedelta(days=9))  # still open in that week
    quiet, told = audit.unalarmed(s.config, audit.start_of(WEEK), audit.start_of(WEEK) + timedelta(days=7))
    assert told == 2
    assert {"id-n3", "id-n4"}.isdisjoint(quiet)
    chosen = audit.pick(quiet, WEEK, 5)
    assert chosen == audit.pick(sorted(quiet, reverse=True), WEEK, 5)
    assert chosen != audit.pick(quiet, "2026-W47", 5)
    assert len(set(chosen) - set(audit.pick([*quiet, "new"], WEEK, 5))) <= 1
    shown = json.loads(s.run("audit", "--week", WEEK, "-n", "5", "--json").stdout)
    assert [row["node_id"] for row in shown["nodes"]] == chosen
    assert (shown["seen"], shown["told"]) == (30, 2)


def test_the_audit_says_what_to_look_at_and_how_to_answer(tmp_path: Path) -> None:
    """What came nearest to a threshold that week, the verdict that is there already, and the command."""
    s = Site(tmp_path)
    s.nodes(["n000", "n001"], IN_WEEK)
    s.lake.write("node_day", node_days(2, 7, last=(IN_WEEK + timedelta(days=4)).date(), odd={(0, 3): 0.3}))
    assert s.run("label", f"n001@{WEEK}", "false", "--why", "a probe was fine").returncode == 0
    s.land()
    shown = s.run("audit", "--week", WEEK).stdout
    assert "2 of 2 nodes had no page and no ticket" in shown
    assert "n000                     slow.clock came to 50% of its threshold" in shown
    assert "[false]" in shown.splitlines()[-1]
    assert f"graynode label NODE@{WEEK} true|false|unsure" in shown


def test_precision_and_misses_come_with_exact_intervals(tmp_path: Path) -> None:
    """Eight of ten judged incidents true: 0.444 to 0.975; one of twenty audited nodes sick: 0.001 to 0.249."""
    s = Site(tmp_path)
    s.nodes([f"a{i}" for i in range(40)], IN_WEEK)
    for i in range(13):
        s.incident(f"inc{i:02}", f"n{i}", IN_WEEK, cause="slow_gpu" if i < 9 else "thermal")
    verdicts = ["true"] * 8 + ["false"] * 2 + ["unsure"]
    who = {"ts": NOW, "who": "Kim"}
    s.write("label", [{**who, "incident_id": f"inc{i:02}", "verdict": v} for i, v in enumerate(verdicts)])
    s.write("label", [{**who, "node_id": f"id-a{i}", "period": WEEK, "verdict": "true" if i == 0 else "false"}
                      for i in range(20)])  # fmt: skip
    found = json.loads(s.run("label", "--summary", "--json").stdout)
    p = found["precision"]
    assert (p["hits"], p["of"], found["unsure"], found["unlabelled"]) == (8, 10, 1, 2)
    assert (round(p["ci_low"], 3), round(p["ci_high"], 3)) == (0.444, 0.975)
    assert found["by_cause"]["slow_gpu"]["precision"]["of"] == 9
    assert (found["missed"]["hits"], found["missed"]["of"]) == (1, 20)
    assert (round(found["missed"]["ci_low"], 3), round(found["missed"]["ci_high"], 3)) == (0.001, 0.249)
    said = s.run("label", "--summary").stdout
    assert "8 of 10 true: 80.0% (44.4% to 97.5%)" in said
    assert f"{WEEK}: 1 of 20 sick: 5.0% (0.1% to 24.9%), 0 unsure; 40 nodes, so 0 to 10 sick ones among them" in said


def test_without_labels_nothing_is_claimed(site: Site) -> None:
    """No verdict, no precision; no audit, no missed rate."""
    said = site.run("label", "--summary").stdout
    assert "none judged" in said
    assert "2 not judged" in said
    assert "what was missed is not known" in said


def test_a_command_takes_a_moment_and_no_more(site: Site) -> None:
    """The topic is let go of at once: another writer finds it free."""
    labels.ack(site.config, ONE)
    began = time.monotonic()
    LockFile(site.folder / "bus" / "graynode.people" / "writer.lock").close()
    assert time.monotonic() - began < 1.0
