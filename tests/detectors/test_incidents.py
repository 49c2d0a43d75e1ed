"""Findings to incidents: what opens, fuses, is told again, ends, comes back, and survives a restart."""

import itertools
import json
from collections.abc import Iterable
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_fakes import machine
from finding_rows import PCI, T0, UUID, at, event, finding
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.collectors.base import Round
from graynode.collectors.kernel_log.collector import KernelLog
from graynode.detectors.advice import ADVICE
from graynode.detectors.event_rules import from_events
from graynode.detectors.incidents import Incidents
from graynode.pipeline.schema import CAUSES, OWNERS, TABLES, stable_id

XID_119_LOG = Path(__file__).parent.parent / "fixtures" / "gpud" / "dmesg-with-xid-119.log"


def states(revisions: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(r["state"], r["revision"]) for r in revisions]


def test_a_real_kernel_log_with_xid_119_becomes_one_incident(tmp_path: Path) -> None:
    """Five lines in six minutes of one GPU's GSP: one incident, by PCI address, with what the catalogue asks for."""
    host = machine(tmp_path)
    log = KernelLog(host, XID_119_LOG, "dmesg", zone=UTC)
    keys = {"cluster": host.cluster, "node": host.node, "node_id": host.node_id, "boot_id": host.boot_id}
    rows = [keys | row for _ in range(3) for row in log.collect(Round(T0, frozenset({1, 10, 60}))).get("event", [])]
    told = Incidents("test").add(from_events(rows), T0)
    assert len(told) == 1
    incident = told[0]
    assert (incident["cause"], incident["severity"], incident["state"]) == ("driver_fault", "page", "open")
    assert incident["pci_bus_id"] == "0000:9b:00.0"
    assert incident["gpu_uuid"] == "GPU-509665ad-b600-ac93-3616-d754b23d636d"
    assert "0000:9b:00.0" in incident["title"]
    assert "Xid 119" in incident["title"]
    assert "NVIDIA's catalogue asks for a GPU reset" in incident["action"]
    entry = json.loads(incident["evidence"])[0]
    assert (entry["count"], entry["since"], entry["last"]) == (5, "2025-02-23T16:24:18Z", "2025-02-23T16:30:13Z")
    assert set(incident) <= set(TABLES["incident"].names)


def test_one_node_and_one_cause_are_one_incident() -> None:
    """Findings of two detectors about two GPUs of a node fuse; another cause or node is another incident."""
    both = [finding(0), finding(0, gpu_uuid="GPU-b", signal="power"), finding(0, "thermal"), finding(0, node_id="n2")]
    told = Incidents("test").add(both, T0)
    assert len(told) == 3
    fused = next(r for r in told if r["count"] == 2)
    assert {e["gpu_uuid"] for e in json.loads(fused["evidence"])} == {UUID, "GPU-b"}


def test_the_id_is_stable() -> None:
    """Subject, cause and first evidence make the id: the same findings give the same id on any machine."""
    first = Incidents("test").add([finding(0)], at(90))[0]
    again = Incidents("test").add([finding(0)], at(7))[0]
    assert first["incident_id"] == again["incident_id"]
    assert first["incident_id"] == stable_id("test", "node/n1", "slow_gpu", T0.isoformat())


def test_evidence_says_what_was_seen_against_what_and_since_when() -> None:
    """Value, own normal, peers' median with their number, and the time of the first evidence are kept."""
    entry = json.loads(Incidents("test").add([finding(0, since=at(-600))], T0)[0]["evidence"])[0]
    assert (entry["value"], entry["baseline"], entry["peer_median"], entry["peers"]) == (1600.0, 1755.0, 1750.0, 63)
    assert entry["since"] == "2026-11-30T11:50:00Z"


def test_shadow_and_digest_open_nothing() -> None:
    """Findings in shadow and those for the digest tell nobody."""
    quiet = [finding(0, live=False), finding(1, severity="digest"), *from_events([event(2, code=31)])]
    assert Incidents("test").add(quiet, at(2)) == []


def test_digest_incidents_if_wanted() -> None:
    """A site that wants to hear of everything configures so."""
    assert states(Incidents("test", least="digest").add([finding(1, severity="digest")], T0)) == [("open", 0)]


def test_a_digest_finding_joins_the_incident_that_is_open() -> None:
    """It is evidence there, in whatever order both came, and no news of its own."""
    quiet, loud = finding(0, severity="digest", signal="first_ever"), finding(1)
    incidents = Incidents("test")
    told = incidents.add([quiet, loud], at(1))
    assert [r["count"] for r in told] == [2]
    assert incidents.add([finding(2, severity="digest", signal="another")], at(2)) == []


def test_told_again_only_when_a_person_should_know() -> None:
    """Worse, another GPU, or an hour of more evidence; a count that grows is no news by itself."""
    incidents = Incidents("test")
    assert states(incidents.add([finding(0)], at(0))) == [("open", 0)]
    assert incidents.add([finding(30)], at(30)) == []
    assert states(incidents.add([finding(60, gpu_uuid="GPU-b")], at(60))) == [("updated", 1)]
    assert states(incidents.add([finding(90, severity="page")], at(90))) == [("updated", 2)]
    more = [finding(100 + 30 * i) for i in range(110)]
    assert [r for f in more for r in incidents.add([f], f["ts"])] == []
    (hourly,) = incidents.add([finding(4000)], at(4000))
    assert (hourly["state"], hourly["revision"], hourly["count"]) == ("updated", 3, 115)
    assert incidents.add([finding(4030)], at(4030)) == []


def test_what_stands_for_weeks_is_told_once_a_day() -> None:
    """A flag that is stated again every half hour: some revisions on the first day, then one a day."""
    incidents, told = Incidents("test"), []
    for half_hour in range(14 * 48):
        told += incidents.add([finding(half_hour * 1800.0)], at(half_hour * 1800.0))
    by_day = [sum(r["ts"] < at(86_400 * d) for r in told) for d in (1, 2, 7, 14)]
    assert by_day[0] <= 9
    assert by_day[3] - by_day[2] == 7


def test_severity_does_not_fall_while_it_is_open() -> None:
    """The worst that was seen stays until it is over."""
    incidents = Incidents("test")
    incidents.add([finding(0, severity="page")], at(0))
    incidents.add([finding(30, gpu_uuid="GPU-b", severity="ticket")], at(30))
    assert incidents.current()[0]["severity"] == "page"


def test_silence_resolves() -> None:
    """After the configured time without evidence it is over, once."""
    incidents = Incidents("test", resolve_after_s=600)
    incidents.add([finding(0)], at(0))
    incidents.add([finding(500)], at(500))
    assert incidents.tick(at(1099)) == []
    over = incidents.tick(at(1100))
    assert states(over) == [("resolved", 1)]
    assert over[0]["resolved_ts"] == at(1100)
    assert incidents.tick(at(1200)) == []
    assert incidents.current() == []


def test_a_gpu_that_is_off_the_bus_is_silent_not_well() -> None:
    """What is held does not end by silence, not in a week; its return lifts the hold, and silence does the rest."""
    incidents = Incidents("test", resolve_after_s=600)
    incidents.add(from_events([event(0, code=79)]), at(0))
    assert incidents.tick(at(7 * 86400)) == []
    assert incidents.add(from_events([event(8 * 86400, "gpu_returned", pci_bus_id=PCI)]), at(8 * 86400)) == []
    assert states(incidents.tick(at(8 * 86400))) == [("resolved", 1)]


def test_another_gpus_return_changes_nothing() -> None:
    """Contrary evidence counts for its own GPU."""
    incidents = Incidents("test", resolve_after_s=600)
    incidents.add(from_events([event(0, code=79)]), at(0))
    incidents.add(from_events([event(60, "gpu_returned", pci_bus_id="0000:4e:00.0")]), at(60))
    assert incidents.tick(at(86400)) == []


def test_a_node_that_was_blind_as_a_whole_sees_again() -> None:
    """One GPU that answers contradicts that none does."""
    incidents = Incidents("test", resolve_after_s=600)
    incidents.add(from_events([event(0, "nvml_blind", source="nvml")]), at(0))
    assert incidents.tick(at(86400)) == []
    incidents.add(from_events([event(86400, "nvml_back", source="nvml", pci_bus_id=PCI)]), at(86400))
    assert states(incidents.tick(at(86400))) == [("resolved", 1)]


def test_a_new_boot_lifts_the_hold_and_a_mere_agent_restart_does_not() -> None:
    """The agent's start in the same boot is no evidence of health."""
    incidents = Incidents("test", resolve_after_s=600)
    incidents.add(from_events([event(0, code=95)]), at(0))
    incidents.add(from_events([event(60, "agent_start")]), at(60))
    assert incidents.tick(at(86400)) == []
    incidents.add(from_events([event(90000, "agent_start", boot_id="b2")]), at(90000))
    assert states(incidents.tick(at(90000))) == [("resolved", 1)]


def test_a_repair_ends_it() -> None:
    """A logged repair of the node, or of the one GPU concerned, resolves; a repair of another GPU does not."""
    incidents = Incidents("test")
    incidents.add(from_events([event(0, code=64, gpu_uuid=UUID)]), at(0))
    assert incidents.repaired("n1", at(60), "GPU-b") == []
    assert incidents.repaired("n2", at(60)) == []
    assert states(incidents.repaired("n1", at(60), UUID)) == [("resolved", 1)]


def test_a_repair_ends_nothing_that_was_seen_after_it() -> None:
    """One that is logged for an earlier time says nothing of what came later."""
    incidents = Incidents("test")
    incidents.add(from_events([event(86400, code=64, gpu_uuid=UUID)]), at(86400))
    assert incidents.repaired("n1", at(90000), at=at(3600)) == []
    assert states(incidents.repaired("n1", at(90000), at=at(86460))) == [("resolved", 1)]


def test_what_comes_back_is_the_same_incident() -> None:
    """Evidence within a day opens it again as its next revision; later it is a new incident."""
    incidents = Incidents("test", resolve_after_s=600)
    first = incidents.add([finding(0)], at(0))[0]
    incidents.tick(at(600))
    back = incidents.add([finding(1000)], at(1000))
    assert states(back) == [("open", 2)]
    assert back[0]["incident_id"] == first["incident_id"]
    incidents.tick(at(1000 + 1200))
    incidents.tick(at(3 * 86400))
    new = incidents.add([finding(3 * 86400)], at(3 * 86400))
    assert states(new) == [("open", 0)]
    assert new[0]["incident_id"] != first["incident_id"]


def test_what_flaps_stays_open() -> None:
    """Each return doubles the silence that the next resolution takes: a day of flapping is three lines."""
    incidents = Incidents("test", resolve_after_s=600)
    told: list[dict[str, Any]] = []
    for minute in range(24 * 60):
        if minute % 20 == 0:
            told += incidents.add([finding(minute * 60)], at(minute * 60))
        told += incidents.tick(at(minute * 60))
    turns = [r for r in told if r["state"] in ("open", "resolved")]
    assert len(turns) == 3  # opened, resolved, opened for good
    assert incidents.current()


def test_the_same_findings_again_say_nothing() -> None:
    """Rounds that are computed again after a restart tell nothing twice, be the incident open or resolved."""
    incidents = Incidents("test", resolve_after_s=600)
    rows = [finding(i * 30) for i in range(10)]
    incidents.add(rows, at(300))
    assert incidents.add(rows, at(300)) == []
    incidents.tick(at(900))
    assert incidents.add(rows, at(901)) == []


def test_old_news_open_nothing_unless_they_hold() -> None:
    """A ticket two days late is over; a GPU off the bus two days ago is not."""
    old = Incidents("test").add([finding(0), *from_events([event(0, code=79)])], at(2 * 86400))
    assert [r["cause"] for r in old] == ["gpu_lost"]


def test_other_clusters_are_others() -> None:
    """Incidents of one cluster take in no findings of another."""
    assert Incidents("elsewhere").add([finding(0)], T0) == []


def test_a_fleet_shift_is_named_once() -> None:
    """What is about the whole cluster has no machine and is one incident, whatever detector says it."""
    shift = {"node_id": None, "node": "cluster test", "subject": "cluster", "gpu_uuid": None}
    told = Incidents("test").add(
        [finding(0, "fleet_shift", **shift), finding(1, "fleet_shift", signal="temp", **shift)], T0
    )
    assert len(told) == 1
    assert (told[0]["subject"], told[0]["node_id"]) == ("cluster", "cluster test")


def test_restored_incidents_go_on() -> None:
    """After a restart an open incident is updated and resolved as before, and not opened anew."""
    before = Incidents("test", resolve_after_s=600)
    revisions = before.add([finding(0), *from_events([event(0, code=79)])], at(0))
    revisions += before.add([finding(60, severity="page")], at(60))
    for taken in (revisions, list(reversed(revisions)), [json.loads(_as_json(r)) for r in revisions]):
        after = Incidents("test", resolve_after_s=600)
        after.restore(taken)
        assert len(after.current()) == 2
        assert after.add([finding(0), finding(60, severity="page")], at(61)) == []
        assert states(after.add([finding(90, gpu_uuid="GPU-b")], at(90))) == [("updated", 2)]
        over = after.tick(at(86400))
        assert [r["cause"] for r in over] == ["slow_gpu"]  # the lost GPU is still held


def test_restored_resolutions_are_remembered() -> None:
    """What was resolved before the restart comes back as the same incident, as patient as before."""
    before = Incidents("test", resolve_after_s=600)
    revisions = before.add([finding(0)], at(0)) + before.tick(at(600))
    revisions += before.add([finding(900)], at(900)) + before.tick(at(900 + 1200))
    after = Incidents("test", resolve_after_s=600)
    after.restore(revisions)
    assert after.current() == []
    assert states(after.add([finding(3000)], at(3000))) == [("open", 4)]
    assert after.tick(at(3000 + 2399)) == []
    assert states(after.tick(at(3000 + 2400))) == [("resolved", 5)]


def test_late_evidence_does_not_open_what_is_over() -> None:
    """A finding about another GPU that is older than the last evidence comes too late to open it again."""
    incidents = Incidents("test", resolve_after_s=600)
    incidents.add([finding(300)], at(300))
    incidents.tick(at(900))
    assert incidents.add([finding(200, gpu_uuid="GPU-b")], at(901)) == []


def test_a_milder_line_does_not_lift_the_hold() -> None:
    """A fatal NVLink error is held although the same number comes again as non-fatal."""
    lines = [
        event(s, code=145, attributes={"severity": how, "unit": "RLW_CTRL"})
        for s, how in ((0, "fatal"), (60, "nonfatal"))
    ]
    incidents = Incidents("test", resolve_after_s=600)
    incidents.add(from_events(lines), at(60))
    assert incidents.tick(at(86400)) == []
    assert incidents.current()[0]["severity"] == "page"


@pytest.mark.parametrize("over", [False, True])
def test_what_is_computed_again_after_a_restart_is_known(over: bool) -> None:
    """A revision names its latest 50 findings; the hundred before them say nothing new either."""
    rows = [finding(i * 30) for i in range(150)]
    before = Incidents("test", resolve_after_s=600)
    revisions = before.add(rows, at(4500)) + (before.tick(at(9000)) if over else [])
    after = Incidents("test", resolve_after_s=600)
    after.restore(revisions)
    assert after.add(rows, at(9001)) == []
    assert [states(after.add([row], at(9001))) for row in rows] == [[]] * 150


@pytest.mark.parametrize("evidence", ["{broken", None, "17", '[{"since": "never"}]'])
def test_a_revision_with_unreadable_evidence_is_still_an_incident(evidence: str | None) -> None:
    """What cannot be read of it costs its details only."""
    told = Incidents("test").add([finding(0)], at(0))[0] | {"evidence": evidence, "finding_ids": "?"}
    after = Incidents("test", resolve_after_s=600)
    after.restore([told])
    assert states(after.tick(at(600))) == [("resolved", 1)]


@pytest.mark.parametrize("state", ["open", "updated", "resolved", "of a newer version"])
def test_a_revision_with_little_in_it_goes_on(state: str) -> None:
    """What another version or program wrote may lack fields, or name a cause that this one does not know."""
    bare = {"incident_id": "i", "revision": 3, "state": state, "cluster": "test", "node_id": "n1", "cause": "new_cause"}
    after = Incidents("test", resolve_after_s=600)
    after.restore([{**bare, "ts": "2026-11-30T12:00:00Z", "count": "many"}])
    told = after.add([finding(30, "new_cause")], at(30)) + after.add([finding(4000, "new_cause")], at(4000))
    told += after.tick(at(90_000))
    assert told[-1]["state"] == "resolved"
    assert {r["incident_id"] for r in told} == {"i"}


def test_every_cause_has_advice() -> None:
    """No incident leaves a person without an owner, an action and a next step."""
    assert set(ADVICE) == set(CAUSES)
    assert all(a.owner in OWNERS and a.action and a.next_step and a.title for a in ADVICE.values())


def test_memory_is_bounded() -> None:
    """An incident that lasts for weeks keeps its latest findings, and few entries."""
    incidents = Incidents("test")
    for i in range(5000):
        incidents.add([finding(i, signal=f"s{i % 200}")], at(i))
    told = incidents.current()[0]
    assert len(json.loads(told["evidence"])) <= 30
    assert len(json.loads(told["finding_ids"])) == 50
    case = next(iter(incidents._cases.values()))
    assert len(case.seen) <= 2000


CHOICES = st.lists(
    st.tuples(st.integers(0, 4000), st.sampled_from(["n1", "n2"]), st.sampled_from(["slow_gpu", "thermal"]),
              st.sampled_from(["page", "ticket", "digest"])),
    max_size=40,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(CHOICES)
def test_promises_hold_for_any_findings(choices: list[tuple[int, str, str, str]]) -> None:
    """Revisions count up by one, states alternate, a restart at any point changes nothing that follows."""
    rows = sorted(
        (finding(s, cause, severity, node_id=node) for s, node, cause, severity in choices), key=lambda f: f["ts"]
    )
    whole, told = Incidents("test", resolve_after_s=300), []
    restarted, retold = Incidents("test", resolve_after_s=300), []
    for row in rows:
        now = row["ts"]
        told += whole.tick(now) + whole.add([row], now)
        retold += restarted.tick(now) + restarted.add([row], now)
        restarted = Incidents("test", resolve_after_s=300)
        restarted.restore(retold)
    told += whole.tick(at(90_000))
    assert not whole.current()
    by_id: dict[str, list[dict[str, Any]]] = {}
    for revision in told:
        by_id.setdefault(revision["incident_id"], []).append(revision)
    for revisions in by_id.values():
        assert [r["revision"] for r in revisions] == list(range(len(revisions)))
        open_ = [r["state"] != "resolved" for r in revisions]
        assert open_[0]
        assert not open_[-1]
        assert all(not (a is False and b is False) for a, b in itertools.pairwise(open_))
    opened = {r["incident_id"] for r in told if r["state"] == "open"}
    assert opened == {r["incident_id"] for r in retold if r["state"] == "open"}


def _as_json(revision: dict[str, Any]) -> bytes:
    import msgspec

    told = dict(revision)
    for name in ("evidence", "finding_ids"):
        told[name] = json.loads(told[name])
    return msgspec.json.encode(told)


def test_times_are_the_callers() -> None:
    """``opened``, ``updated`` and ``resolved`` are the caller's now; ``since`` is the evidence's."""
    told = Incidents("test").add([finding(-86000)], T0)[0]
    assert (told["opened_ts"], told["updated_ts"], told["since"]) == (T0, T0, T0 - timedelta(seconds=86000))


@pytest.mark.parametrize(("kind", "ended"), [("nvml_back", []), ("gpu_returned", [("resolved", 1)])])
def test_a_hung_gpu_is_well_only_when_it_answers_itself(kind: str, ended: list[tuple[str, int]]) -> None:
    """NVML answers again as soon as the hung GPU is left out: that ends the blindness, not the hang."""
    incidents = Incidents("test", resolve_after_s=600)
    incidents.add(from_events([event(0, "gpu_hung", source="nvml", pci_bus_id=PCI)]), at(0))
    incidents.add(from_events([event(60, kind, source="nvml", pci_bus_id=PCI)]), at(60))
    assert states(incidents.tick(at(86400))) == ended
