"""Events of services, mounts, memory, disks and the BMC: what people are told, and when it is over."""

from __future__ import annotations

import json
from typing import Any

import pytest
from finding_rows import at, event

from graynode.detectors.event_rules import EventRules, from_events, is_clearing
from graynode.detectors.incidents import Incidents
from graynode.detectors.service_kinds import SERVICE_KINDS
from graynode.pipeline.schema import CAUSES


def happened(second: float, kind: str, about: str, **facts: Any) -> dict[str, Any]:
    """An event as the collector ``services`` makes it."""
    return event(second, kind, source="services", raw=None, attributes={"about": about, **facts})


@pytest.mark.parametrize(
    ("kind", "facts", "severity"),
    [
        ("service_failed", {"state": "failed", "since": "2026-11-10T08:00:00+00:00"}, "ticket"),
        ("service_restarted", {"in_last_hour": 1}, "digest"),
        ("service_restarted", {"in_last_hour": 7}, "ticket"),
        ("mount_hung", {"type": "nfs4", "source": "filer:/home"}, "ticket"),
        ("mount_failing", {"why": "nfs4 filer:/home: Stale file handle"}, "ticket"),
        ("mount_read_only", {"source": "/dev/nvme0n1"}, "ticket"),
        ("disk_full", {"why": "99.0 % of its bytes in use"}, "ticket"),
        ("edac_ue", {"errors": 2}, "ticket"),
        ("edac_ce", {"errors": 900}, "digest"),
        ("nvme_critical_warning", {"why": "read-only"}, "ticket"),
        ("nvme_dead", {}, "ticket"),
        ("ipmi_sel", {"critical": True, "event": "Uncorrectable ECC · Asserted"}, "ticket"),
    ],
)
def test_each_kind_is_a_host_fault_of_its_severity(kind: str, facts: dict[str, Any], severity: str) -> None:
    """A person is told what, and what to do; nothing pages, for the scheduler still has the node."""
    (found,) = from_events([happened(0, kind, "thing", **facts)])
    assert (found["cause"], found["severity"], found["subject"]) == ("host_fault", severity, "node")
    assert found["cause"] in CAUSES
    assert found["signal"] == f"{kind}_thing"
    assert found["action"]
    assert not is_clearing(found)


def test_service_down_for_twenty_days_says_since_when() -> None:
    """The agent came late: the event's own time is now, what it says is since when."""
    (found,) = from_events(
        [happened(0, "service_failed", "nvidia-fabricmanager.service", state="failed", since="2026-11-10")]
    )
    assert "nvidia-fabricmanager.service does not run (failed since 2026-11-10)" in found["message"]
    assert "fabricmanager.log" in found["action"]
    assert "services.ignore" in json.loads(found["evidence"])["next_step"]


def test_bmc_record_that_asks_for_nobody_tells_nobody() -> None:
    """Most of a BMC's log is routine."""
    assert from_events([happened(0, "ipmi_sel", "Power Unit", critical=False, event="Power off/down")]) == []
    assert from_events([happened(0, "ipmi_sel", "Power Unit", critical="yes", event="?")]) == []


def test_two_services_that_fail_together_are_two_findings() -> None:
    """Within the five seconds of one episode; the same one twice is one."""
    rows = [happened(n, "service_failed", unit) for n, unit in enumerate(("slurmd", "munge", "slurmd"))]
    assert [f["signal"] for f in from_events(rows)] == ["service_failed_slurmd", "service_failed_munge"]


def test_what_comes_back_clears_itself_alone() -> None:
    """One service that runs again says nothing of the other; a mount's return ends its hang and its write fault."""
    incidents = Incidents("test", resolve_after_s=600.0)
    rules = EventRules()

    def after(second: float, *rows: dict[str, Any]) -> list[str]:
        told = incidents.add(rules.findings(rows), at(second))
        return [r["state"] for r in [*told, *incidents.tick(at(second))]]

    down = [happened(0, "service_failed", unit) for unit in ("slurmd", "munge")]
    assert after(0, *down, happened(0, "mount_hung", "/home")) == ["open"]
    assert after(5000) == []
    after(5000, happened(5000, "mount_back", "/home"))
    after(5001, happened(5001, "service_back", "munge"))
    assert "resolved" not in after(8000)
    after(8001, happened(8001, "mount_hung", "/home"))
    after(8002, happened(8002, "service_back", "slurmd"))
    assert "resolved" not in after(9000)
    assert after(9001, happened(9001, "mount_back", "/home")) == ["resolved"]


def test_file_server_that_dies_is_one_event_and_broken_dimms_are_many() -> None:
    """From the tenth node on a hang of the same mount is the cluster's; other mounts and memory are the nodes' own."""
    for kind, about, nodes, expected in (("mount_hung", "/home", 30, 10), ("edac_ue", "mc0", 30, 30)):
        incidents, rules = Incidents("test"), EventRules()
        told = []
        for n in range(nodes):
            row = happened(n, kind, about) | {"node_id": f"n{n}", "node": f"gpu-{n}"}
            told += incidents.add(rules.findings([row]), at(n))
        opened = [r for r in told if r["state"] == "open"]
        assert len(opened) == expected
        assert (opened[-1]["cause"] == "fleet_shift") == (kind == "mount_hung")
    incidents, rules = Incidents("test"), EventRules()
    for n in range(30):
        row = happened(n, "mount_hung", f"/data{n}") | {"node_id": f"n{n}", "node": f"gpu-{n}"}
        incidents.add(rules.findings([row]), at(n))
    assert {r["cause"] for r in incidents.current()} == {"host_fault"}


def test_boot_ends_what_an_earlier_boot_had() -> None:
    """The new agent tells what is still bad."""
    incidents = Incidents("test", resolve_after_s=600.0)
    incidents.add(from_events([happened(0, "edac_ue", "mc0", errors=1)]), at(0))
    assert incidents.tick(at(5000)) == []
    incidents.add(from_events([event(5001, "agent_start", source="agent", boot_id="b2")]), at(5001))
    assert [r["state"] for r in incidents.tick(at(9000))] == ["resolved"]


@pytest.mark.parametrize("kind", SERVICE_KINDS)
@pytest.mark.parametrize("attributes", [None, {"about": None}, {"about": "x" * 9000}, {"about": ["\x00"], "since": {}}])
def test_events_that_lack_their_words(kind: str, attributes: dict[str, Any] | None) -> None:
    """Another version's event, or a hostile one: a finding of bounded size, or none, and no crash."""
    for found in from_events([event(0, kind, source="services", attributes=attributes)]):
        assert len(found["signal"]) < 120
        assert len(found["message"]) < 500
