"""``graynode explain``: the words, and where incidents are found."""

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from finding_rows import PCI, T0, UUID, at, event, finding
from rich.console import Console
from window_rounds import Cluster

from graynode.dashboards.explain import as_json, explain, one_line
from graynode.detectors.event_rules import from_events
from graynode.detectors.incidents import Incidents
from graynode.detectors.waiting import Terms
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.spool import SpoolBus
from graynode.service import explain as role
from graynode.service.config import Config, parse
from graynode.service.incident_bus import Publisher, incident_v1


def shown(incident: dict[str, Any], history: list[dict[str, Any]] | None = None, width: int = 80) -> str:
    sink = io.StringIO()
    Console(file=sink, width=width, highlight=False).print(explain(incident, history or [], at(7200)))
    return sink.getvalue()


def slow() -> dict[str, Any]:
    """An incident by statistics."""
    return Incidents("test").add([finding(0, since=at(-600))], T0)[0]


def hard(node: str = "n1") -> dict[str, Any]:
    """An incident by a kernel line."""
    return Incidents("test").add(from_events([event(0, code=119, node_id=node, gpu_uuid=UUID)]), T0)[0]


def test_a_person_reads_what_was_seen_against_what_since_when_and_what_to_do() -> None:
    """Value, own normal, peers, time, action, next step and owner are all on the page."""
    text = " ".join(shown(slow()).split())
    for said in (
        "TICKET gpu-01: slow GPU", "measured 1600 MHz", "own normal 1755", "median of 63 peers 1750", "8.8 % worse",
        "2026-11-30 11:50:00 UTC (2 hours ago)", "Measure it alone.", "Run a GEMM probe", "owner platform", UUID,
        "graynode sql -c",
    ):  # fmt: skip
        assert said in text, said


def test_due_time_cost_of_waiting_and_the_picture_are_on_the_page() -> None:
    """Until when, what a day costs and on what that rests, and how the value went; unknown cost is said to be so."""
    incidents = Incidents("test", terms=Terms({"H100": 2.5}, "USD"))
    incidents.see(next(Cluster(nodes=2, gpus=8, nodes_per_job=2).rounds(1)))
    where = {"node_id": "id-node001", "node": "node001", "gpu_uuid": "GPU-001-3"}
    told = [r for i in range(4) for r in incidents.add([finding(1200 * i, value=1600.0 - i, **where)], at(1200 * i))]
    text = " ".join(shown(told[-1]).split())
    for said in ("due 2026-12-01 05:", "about 33.8 GPU-hours a day (84 USD): all 16 GPUs", "job job-0", "█▆▃▁"):
        assert said in text, said
    assert "waiting cost unknown: how many GPUs the node has is not known" in " ".join(shown(hard()).split())


def test_a_vendors_rule_says_who_asks_and_who_disagrees() -> None:
    """The catalogue with its version, the kernel's line, and the other opinions."""
    text = " ".join(shown(hard()).split())
    for said in (PCI, "Xid 119", "NVIDIA's catalogue asks for a GPU reset", "policy 1", "NVRM: Xid", "Crusoe"):
        assert said in text, said


@pytest.mark.parametrize("width", [80, 120, 40])
def test_it_fits_the_terminal(width: int) -> None:
    """No line is longer than the terminal is wide."""
    for incident in (slow(), hard()):
        assert max(len(line) for line in shown(incident, [], width).splitlines()) <= width


def test_what_was_said_and_told_is_on_the_page() -> None:
    """Who took it and who was told stand in order of time; the line to copy asks the lake that was asked."""
    said = [
        {"ts": at(60), "what": "notify done (revision 1)", "who": "webhook", "why": None},
        {"ts": at(120), "what": "taken", "who": "ops\x1b[2J", "why": "looking"},
    ]
    sink = io.StringIO()
    Console(file=sink, width=100).print(explain(slow(), [], at(7200), said=said, lake="/data/my lake"))
    text = " ".join(sink.getvalue().split())
    assert "2026-11-30 12:02:00 UTC taken by ops [2J: looking" in text
    assert text.index("notify done") < text.index("taken by")
    assert "graynode sql --lake '/data/my lake' -c" in text


def test_rows_and_messages_read_alike() -> None:
    """A row of the lake, ``incident.v1`` and its JSON give the same page."""
    incident = hard()
    message = incident_v1(incident)
    import msgspec

    assert shown(incident) == shown(message) == shown(json.loads(msgspec.json.encode(message)))


def test_texts_of_machines_are_no_markup_and_move_no_cursor() -> None:
    """A process named to paint the terminal, or like rich's markup, is shown as text."""
    nasty = event(0, code=119, process="[red]x[/red]\x1b[2J", pid=1)
    text = shown(Incidents("test").add(from_events([nasty]), T0)[0])
    assert "[red]x[/red]" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("evidence", [None, "{", "[]", "[1, null]", '[{"since": 5, "value": null}]'])
def test_an_incident_with_little_to_say(evidence: str | None) -> None:
    """Absent or unreadable evidence is said, not raised."""
    bare = {"incident_id": "abc", "revision": 0, "evidence": evidence, "severity": "ticket"}
    assert "What was seen" in shown(bare)
    assert one_line(bare).startswith("ticket")
    assert json.loads(as_json(bare))["incident_id"] == "abc"


def test_history_is_told_in_order() -> None:
    """Opened, updated, resolved, with times."""
    incidents = Incidents("test", resolve_after_s=60)
    history = incidents.add([finding(0)], at(0)) + incidents.add([finding(5, severity="page")], at(5))
    history += incidents.tick(at(100))
    text = shown(history[-1], history)
    assert text.index("revision 0: open") < text.index("revision 1: updated") < text.index("revision 2: resolved")
    assert "(resolved)" in one_line(history[-1])


def test_one_line_is_one_line() -> None:
    """Severity first, the id's beginning last, and nothing that breaks the line."""
    line = one_line(hard() | {"title": "a\nb\x1b"})
    assert "\n" not in line
    assert "\x1b" not in line
    assert line.startswith("page")
    assert line.endswith(hard()["incident_id"][:8])


def test_many_entries_are_counted() -> None:
    """A dozen is shown; the rest is a number."""
    many = Incidents("test").add([finding(i, signal=f"s{i}") for i in range(20)], at(30))[0]
    assert "and 8 more" in shown(many)


# --- where incidents are found ---


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folders = {"bus": {"spool_dir": str(tmp_path / "bus")}, "lake": {"path": str(tmp_path / "lake")}}
    return parse({"cluster": "test", **folders}, "test")


def land(config: Config, *revisions: dict[str, Any]) -> None:
    """As the pipeline would."""
    lake = Lake(config.lake.path)
    lake.write("incident", pl.DataFrame(list(revisions), schema=frame_schema("incident"), orient="row"))


def publish(config: Config, *revisions: dict[str, Any]) -> None:
    producer = SpoolBus(config.bus.spool_dir, 1 << 30).producer()
    Publisher(producer, "test")(revisions)
    producer.close()


def asked(config: Config, incident: str, **how: Any) -> tuple[int, str]:
    sink = io.StringIO()
    return role.run(config, incident, out=sink, **how), sink.getvalue()


@pytest.mark.parametrize("place", [land, publish])
def test_an_incident_is_found_by_the_beginning_of_its_id(config: Config, place: Any) -> None:
    """In the lake, or on the bus before the pipeline has landed it; upper case and blanks do not matter."""
    incident = hard()
    place(config, incident)
    for given in (incident["incident_id"], incident["incident_id"][:6], f" {incident['incident_id'][:6].upper()} "):
        code, text = asked(config, given)
        assert code == 0
        assert "Xid 119" in text


def test_json(config: Config) -> None:
    """``--json`` is the latest revision in incident.v1, with the earlier ones."""
    incidents = Incidents("test")
    revisions = incidents.add([finding(0)], at(0)) + incidents.add([finding(5, severity="page")], at(5))
    land(config, *revisions)
    code, text = asked(config, revisions[0]["incident_id"], as_json=True)
    told = json.loads(text)
    assert code == 0
    assert (told["revision"], told["severity"], told["since"]) == (1, "page", "2026-11-30T12:00:00Z")
    assert [h["revision"] for h in told["history"]] == [0]
    assert told["evidence"][0]["peers"] == 63


def test_an_unknown_id_lists_the_latest(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """A person sees which there are, from lake and bus, newest first."""
    older, newer = hard(), slow() | {"ts": T0 + timedelta(hours=1)}
    land(config, older)
    publish(config, newer)
    assert asked(config, "ffffffff-0000")[0] == 1
    said = capsys.readouterr().err
    assert "no incident begins with 'ffffffff-0000'" in said
    assert said.index(newer["incident_id"]) < said.index(older["incident_id"])


def test_two_incidents_that_begin_alike(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """More of the id is asked for, and both are shown."""
    one, two = hard() | {"incident_id": "abc1"}, slow() | {"incident_id": "abc2"}
    land(config, one, two)
    assert asked(config, "abc")[0] == 1
    said = capsys.readouterr().err
    assert "2 incidents begin with 'abc'" in said
    assert asked(config, "abc1")[0] == 0


@pytest.mark.parametrize("given", ["", "'; DROP TABLE incident", "%", "zzz", "a" * 60])
def test_what_is_no_id(config: Config, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said, and nothing is asked with it."""
    land(config, hard())
    assert asked(config, given)[0] == 1
    assert "no incident begins" in capsys.readouterr().err


def test_nothing_anywhere(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """No lake and no bus yet: it is said, and no folder is made."""
    assert asked(config, "abc")[0] == 1
    assert "none at all yet" in capsys.readouterr().err
    assert not config.bus.spool_dir.exists()


def test_looking_keeps_no_messages(config: Config) -> None:
    """A look at the bus leaves no reader behind that would hold its segments."""
    publish(config, hard())
    asked(config, "abc")
    groups = config.bus.spool_dir / "graynode.incidents" / "groups"
    assert not [f.name for f in groups.iterdir() if not f.name.endswith(".lock")]


def test_other_clusters_on_the_bus_are_not_shown(config: Config) -> None:
    """The bus may be shared; the question is about this cluster."""
    publish(config, hard() | {"cluster": "elsewhere"})
    assert asked(config, hard()["incident_id"])[0] == 1
