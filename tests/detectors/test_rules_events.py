"""Events to findings, without windows."""

import json
import random

import polars as pl
import pytest
from finding_rows import PCI, at, event

from graynode.detectors.event_rules import EventRules, from_events, is_clearing


def test_lines_within_five_seconds_are_one_episode() -> None:
    """A thousand lines of one fault are one finding that counts its lines; six seconds later begins another."""
    lines = [event(i / 500, code=95) for i in range(1000)]
    found = from_events([*lines, event(8, code=95)])
    assert [f["value"] for f in found] == [1000.0, 1.0]


def test_episodes_do_not_depend_on_how_lines_arrive() -> None:
    """The same lines in one batch, one by one, or shuffled within it, are the same episodes."""
    lines = [event(s, code=c) for s, c in ((0, 119), (2, 119), (3, 79), (12, 119), (14, 119), (30, 79))]
    whole = {f["finding_id"] for f in from_events(lines)}
    rules = EventRules()
    single = {f["finding_id"] for line in lines for f in rules.findings([line])}
    shuffled = lines[:]
    random.Random(5).shuffle(shuffled)
    assert whole == single == {f["finding_id"] for f in from_events(shuffled)}
    assert len(whole) == 4


def test_two_gpus_are_two_findings() -> None:
    """The same number on another GPU is another episode."""
    found = from_events([event(0, code=119), event(1, code=119, pci_bus_id="0000:4e:00.0")])
    assert {json.loads(f["evidence"])["pci_bus_id"] for f in found} == {PCI, "0000:4e:00.0"}


def test_a_finding_names_gpu_process_and_catalogue() -> None:
    """A person reads which GPU, which program, and who asks for what."""
    found = from_events([event(0, code=119, pid=77, process="trainer")])[0]
    assert PCI in found["message"]
    assert "trainer (77)" in found["message"]
    assert "GPU reset" in found["action"]
    assert json.loads(found["evidence"])["action_source"].startswith("NVIDIA Xid catalogue")


def test_frames_and_rows_are_alike() -> None:
    """Polars frames as rounds have them give what rows give."""
    rows = [event(0, code=48), event(9, code=31)]
    assert from_events(pl.DataFrame(rows)) == from_events(rows)


def test_off_the_bus_without_an_xid() -> None:
    """The kernel's words alone are Xid 79's meaning, but not beside an Xid 79, which has told it."""
    alone, beside = event(0, "gpu_off_bus"), event(0, "gpu_off_bus", attributes={"after_xid": True})
    assert [(f["cause"], f["severity"]) for f in from_events([alone])] == [("gpu_lost", "page")]
    assert from_events([beside]) == []


def test_nvml_alone_does_not_make_a_gpu_lost() -> None:
    """One witness is blindness; with the kernel log or the PCI bus agreeing, the GPU is lost."""
    lost = event(60, "gpu_lost", source="nvml", pci_bus_id=PCI)
    assert [f["cause"] for f in from_events([lost])] == ["monitoring_blind"]
    assert [f["cause"] for f in from_events([event(0, code=79), lost])] == ["gpu_lost", "gpu_lost"]
    asked = {"nvml": "GPU is lost", "pci": "device is gone", "kernel_log": "nothing"}
    seen = event(60, "gpu_lost", source="nvml", attributes=asked)
    assert [(f["cause"], f["severity"]) for f in from_events([seen])] == [("gpu_lost", "page")]
    late = event(3600, "gpu_lost", source="nvml", pci_bus_id=PCI)
    assert [f["cause"] for f in from_events([event(0, code=79), late])] == ["gpu_lost", "monitoring_blind"]


def test_a_line_that_a_program_wrote_is_not_the_kernels_word() -> None:
    """Records of another facility than the kernel's are shown and told to nobody."""
    found = from_events([event(0, code=79, attributes={"facility": 1})])[0]
    assert found["severity"] == "digest"
    assert "program" in found["message"]


@pytest.mark.parametrize(
    ("kind", "facts", "cause", "severity"),
    [
        ("aer", {"severity": "corrected"}, "pcie_errors", "digest"),
        ("aer", {"severity": "nonfatal"}, "pcie_errors", "ticket"),
        ("aer", {"severity": "fatal"}, "pcie_errors", "page"),
        ("mce", {"source": "edac", "severity": "corrected"}, "host_fault", "digest"),
        ("mce", {"source": "edac", "severity": "uncorrected"}, "host_fault", "ticket"),
        ("mce", {"source": "mce", "status": "be00000000800400"}, "host_fault", "ticket"),
        ("mce", {"source": "mce", "status": "8c00004000010090"}, "host_fault", "digest"),
        ("mce", {"source": "memory_failure"}, "host_fault", "ticket"),
        ("mlx5", {"event": "health"}, "network_fault", "ticket"),
        ("mlx5", {"event": "port_module", "status": "Cable plugged"}, "network_fault", "digest"),
        ("mlx5", {"event": "port_module", "status": "Cable error, Power budget exceeded"}, "network_fault", "ticket"),
        ("gpu_hung", {}, "driver_fault", "ticket"),
        ("gpu_reset_required", {}, "driver_fault", "ticket"),
        ("nvml_blind", {}, "monitoring_blind", "ticket"),
        ("nvrm", {}, "driver_fault", "ticket"),
        ("kmsg_gap", {}, "monitoring_blind", "digest"),
        ("clock_skew", {}, "clock_skew", "ticket"),
        ("oom_kill", {}, "application_error", "digest"),
    ],
)
def test_kinds_without_a_number(kind: str, facts: dict[str, object], cause: str, severity: str) -> None:
    """Each kind has its cause and severity by what its line says."""
    found = from_events([event(0, kind, attributes=facts)])
    assert [(f["cause"], f["severity"]) for f in found] == [(cause, severity)]


@pytest.mark.parametrize("kind", ["link_up", "link_down", "agent_stop", "fault_start", "sxid_detail", "no_such_kind"])
def test_kinds_that_say_nothing_here(kind: str) -> None:
    """Links are judged by their counters, imports are history, and what is unknown is kept by the lake."""
    assert from_events([event(0, kind)]) == []
    assert from_events([event(0, "mlx5", attributes={"event": "link_down"})]) == []


@pytest.mark.parametrize("kind", ["gpu_returned", "nvml_back", "driver_reload", "nvrm_load", "agent_start"])
def test_contrary_evidence(kind: str) -> None:
    """What ends something comes as a finding that clears, and is no finding to be stored."""
    found = from_events([event(0, kind)])[0]
    assert is_clearing(found)
    assert json.loads(found["evidence"])["clears"]


@pytest.mark.parametrize("broken", ["{", "[]", '"text"', None])
def test_attributes_that_cannot_be_read(broken: str | None) -> None:
    """The number alone is judged then."""
    row = event(0, code=79)
    row["attributes"] = broken
    assert from_events([row])[0]["ts"] == at(0)
