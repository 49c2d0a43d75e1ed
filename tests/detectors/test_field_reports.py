"""False alarms and missed faults that operators have reported of other health systems, each as it was in the field.

``docs/field-reports.md`` lists the reports, their threads, and which test is whose.
"""

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from finding_rows import PCI, T0, at, event, finding
from window_rounds import Cluster, Columns

from graynode.detectors import make
from graynode.detectors.base import Round
from graynode.detectors.event_rules import EventRules, from_events
from graynode.detectors.incidents import Incidents

Change = Callable[[int, Columns], None]


def said(detectors: Iterable[str], rounds: Iterable[Round], least: str = "ticket") -> list[dict[str, Any]]:
    """Findings of ``least`` severity or worse by these detectors over the rounds."""
    wanted = {"page", "ticket"} if least == "ticket" else {"page", "ticket", "digest"}
    made = {name: make(name) for name in detectors}
    states: dict[str, dict[str, pl.DataFrame]] = {name: {} for name in made}
    told: list[dict[str, Any]] = []
    for round_ in rounds:
        for name, detector in made.items():
            scored = detector.score(round_, states[name])
            states[name] = dict(scored.state)
            told += [row for row in scored.findings.iter_rows(named=True) if row["severity"] in wanted]
    return told


def incidents(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What people are told of these events, each heard a second after it happened."""
    rules, kept = EventRules(), Incidents("test")
    told: list[dict[str, Any]] = []
    for one in events:
        told += kept.add(rules.findings([one]), one["ts"] + timedelta(seconds=1))
    return told


def links(active: Callable[[int], float], gpus: slice, of: float = 18.0) -> Change:
    """These GPUs' NVLinks by window: so many active, the rest of ``of`` inactive; all others have all of theirs."""

    def change(w: int, c: Columns) -> None:
        n = len(next(iter(c.values())))
        up = np.full(n, of)
        up[gpus] = active(w)
        c["nvlink_links_active_last"], c["nvlink_links_inactive_last"] = up, of - up
        c["nvlink_links_sleep_last"] = np.zeros(n)

    return change


# --- telemetry that looks like a fault ------------------------------------------------------------------


def test_links_that_train_after_boot_are_no_outage() -> None:
    """NVSentinel #1701: 214 of 288 nodes raised NVLINK_DOWN in three and a half weeks, all of it training at boot."""
    booting = links(lambda w: 0.0 if w < 2 else 18.0, slice(0, 32))
    assert said(["links", "rules"], Cluster(nodes=8, gpu_fault=booting).rounds(40)) == []


def test_a_card_without_a_bridge_has_no_links_to_lose() -> None:
    """NVSentinel PR #1481: NVLINK_DOWN on PCIe A100s whose links never were active."""
    bare = links(lambda w: 0.0, slice(None), of=12.0)
    assert said(["links", "rules"], Cluster(nodes=4, gpu_fault=bare).rounds(60)) == []


def test_a_link_that_stays_inactive_is_not_healthy() -> None:
    """GPUd #1085: an NVLink that went inactive left the GPU Healthy."""
    told = said(
        ["links"], Cluster(nodes=4, gpu_fault=links(lambda w: 18.0 if w < 20 else 17.0, slice(5, 6))).rounds(60)
    )
    assert {(f["gpu_uuid"], f["cause"]) for f in told} == {("GPU-000-5", "nvlink_fault")}


def held(column: str, seconds: float = 30.0, gpus: slice = slice(9, 10)) -> Change:
    def change(w: int, c: Columns) -> None:
        c[column] = np.zeros(len(next(iter(c.values()))))
        c[column][gpus] = seconds

    return change


def test_a_power_brake_that_stands_for_hours_is_told_once_and_again() -> None:
    """NVSentinel #1666: nine nodes with the brake asserted for more than 36 hours, never told."""
    told = said(["rules"], Cluster(nodes=4, gpu_fault=held("hw_power_brake_s")).rounds(130))
    assert {(f["gpu_uuid"], f["cause"]) for f in told} == {("GPU-001-1", "power_brake")}
    assert len(told) == 3  # after 90 s, then every half hour, so that a restarted reader hears of it


@pytest.mark.parametrize("bit", ["gpu_idle_s", "app_clocks_s", "display_s", "sw_power_cap_s", "sync_boost_s"])
def test_clocks_that_are_low_for_a_good_reason_are_no_throttle(bit: str) -> None:
    """hardware-observer PR #331, NVSentinel #890: idle, application clocks, display and the power cap are normal."""
    assert said(["rules", "slow", "thermal"], Cluster(nodes=2, gpu_fault=held(bit)).rounds(30)) == []


def test_corrected_errors_of_a_lifetime_are_no_news() -> None:
    """azurehpc #562–#650: limits of 20,000, 10 and 20 million corrected errors, moved five times in eight months."""

    def old(w: int, c: Columns) -> None:
        n = len(next(iter(c.values())))
        c["ecc_sbe_aggregate_last"] = np.full(n, 60_000_000.0)
        c["ecc_sbe_aggregate_delta"] = np.zeros(n)

    assert said(["ecc", "rules"], Cluster(nodes=4, gpu_fault=old).rounds(60)) == []


def test_spare_ports_that_are_down_are_nobodys_fault() -> None:
    """GPUd #989: ports that were never connected made nodes unhealthy."""

    def spare(w: int, c: Columns) -> None:
        c["state"] = np.where(np.arange(len(c["state"])) % 2 == 1, "down", c["state"])

    assert said(["links"], Cluster(nodes=4, link_fault=spare).rounds(60)) == []


# --- Xids ---------------------------------------------------------------------------------------------


def test_an_application_xid_takes_no_node_out() -> None:
    """NVSentinel #911: Xid 31 cordoned nodes although its action was NONE."""
    assert incidents([event(i * 600, code=31, pid=i) for i in range(5)]) == []
    assert {f["cause"] for f in from_events([event(0, code=31)])} == {"application_error"}


def test_ignored_xids_of_a_device_plugin_are_kept_for_the_digest() -> None:
    """k8s-device-plugin #1340: 13, 31, 43, 45 and 68 are passed over there; here they are rows, and nobody's alarm."""
    found = from_events([event(i * 60, code=c) for i, c in enumerate((13, 31, 43, 45, 68))])
    assert [f["severity"] for f in found] == ["digest"] * 5


def test_an_xid_of_an_earlier_boot_does_not_hold_a_node() -> None:
    """azurehpc: a grep for Xids kept nodes drained until the log was rotated, restart or not."""
    kept, rules = Incidents("test", resolve_after_s=60), EventRules()
    (opened,) = kept.add(rules.findings([event(0, code=119)]), at(1))
    assert opened["state"] == "open"
    again = event(600, "agent_start", boot_id="b2", attributes={})
    kept.add(rules.findings([again]), at(601))
    assert [r["state"] for r in kept.tick(at(1200))] == ["resolved"]


def test_a_fault_outlives_the_maintenance_window() -> None:
    """GPUd #1212: Xids looked back on for less than the maintenance took, and the node came back unrepaired."""
    kept = Incidents("test")
    (opened,) = kept.add(from_events([event(0, code=64)]), at(1))
    assert [r for hour in range(1, 7 * 24) for r in kept.tick(T0 + timedelta(hours=hour))] == []
    assert [r["state"] for r in kept.repaired(opened["node_id"], T0 + timedelta(days=7))] == ["resolved"]


def test_gsp_and_recovery_xids_are_not_hidden_by_what_cannot_be_read() -> None:
    """gpustack PR #26: a check that fails open hid Xids 119 and 154."""
    broken = event(0, code=119, attributes="{not json") | {"attributes": "{not json"}
    told = incidents([broken, event(60, code=154, pci_bus_id="0000:4e:00.0")])
    assert {r["pci_bus_id"] for r in told} == {PCI, "0000:4e:00.0"}


def test_a_failed_remap_asks_for_more_than_a_reset() -> None:
    """awsome-distributed-ai PR #1190: Xid 64 was RESET and is a reason to return the GPU."""
    (found,) = from_events([event(0, code=64)])
    assert found["severity"] == "page"
    assert found["cause"] == "memory_degraded"


def test_a_flood_of_lines_is_one_incident() -> None:
    """GPUd #1164: a flooding kernel log filled the event store."""
    told = incidents([event(i / 10, code=119) for i in range(5_000)])
    assert len(told) == 1


# --- conditions that stay, or stand at the beginning ------------------------------------------------------


def test_a_derived_condition_ends() -> None:
    """NVSentinel #1553: conditions made by an analyser never cleared."""
    kept = Incidents("test")
    told = []
    state: dict[str, pl.DataFrame] = {}
    rules = make("rules")
    brake: Change = lambda w, c: held("hw_power_brake_s", 30.0 if w < 20 else 0.0)(w, c)  # noqa: E731 (a fault by window)
    for round_ in Cluster(nodes=4, gpu_fault=brake).rounds(60 * 3):
        scored = rules.score(round_, state)
        state = dict(scored.state)
        now = round_.start + timedelta(seconds=30)
        told += kept.add(scored.findings.iter_rows(named=True), now) + kept.tick(now)
    assert [r["state"] for r in told] == ["open", "resolved"]


def test_a_flap_heals_by_itself_and_a_flapper_stays() -> None:
    """GPUd PR #1247: a flap stuck until an operator acted; the other way round, what flaps daily is not well."""
    flap = {"cause": "link_flap", "signal": "downs", "subject": "link", "link": "mlx5_0/1", "gpu_uuid": None}
    kept, told = Incidents("test", resolve_after_s=3600), []
    for hours in (0.0, 2.0, 5.0):
        now = T0 + timedelta(hours=hours)
        told += kept.tick(now) + kept.add([finding(hours * 3600, **flap)], now + timedelta(seconds=1))
    told += kept.tick(T0 + timedelta(hours=5.5)) + kept.tick(T0 + timedelta(hours=30))
    assert [r["state"] for r in told] == ["open", "resolved", "open", "resolved", "open", "resolved"]
    assert len({r["incident_id"] for r in told}) == 1


def test_a_fleet_that_is_watched_for_the_first_time_names_no_node() -> None:
    """draino #54: every node was cordoned right after the install."""
    first = Cluster(nodes=32, seed=7).rounds(20)
    assert said(["rules", "slow", "thermal", "ecc", "links", "pcie", "blind", "forest"], first) == []


def test_a_non_fatal_nvlink_line_is_not_told_as_fatal() -> None:
    """gpud #1160 and #1174: an NVLink 5 error that the line itself calls non-fatal was reported as fatal."""
    mild = event(0, code=149, attributes={"severity": "nonfatal", "unit": "NETIR"})
    grave = event(60, code=149, attributes={"severity": "fatal", "unit": "NETIR"})
    assert incidents([mild]) == []
    assert [r["severity"] for r in incidents([grave])] == ["page"]


def test_counters_since_the_host_s_boot_are_no_news() -> None:
    """soperator #481: InfiniBand counters run since boot; what they hold at the first look happened long ago."""

    def old(_: int, c: Columns) -> None:
        for name in ("symbol_errors", "link_downed"):
            c[f"{name}_last"] = np.full(len(c["samples"]), 4_000_000.0)
            c[f"{name}_delta"] = np.full(len(c["samples"]), np.nan)

    assert said(["links"], Cluster(nodes=4, link_fault=old).rounds(10), least="digest") == []


def test_a_recovery_by_another_name_of_the_same_gpu_ends_it() -> None:
    """NVSentinel #669, #725: a healthy event had to carry the same ids as the fault, or the node stayed sick."""
    kept = Incidents("test", resolve_after_s=600)
    kept.add(from_events([event(0, code=79, gpu_uuid="GPU-a")]), at(0))
    kept.add(from_events([event(60, "gpu_returned", source="nvml", pci_bus_id=PCI, gpu_uuid=None)]), at(60))
    assert [r["state"] for r in kept.tick(at(3600))] == ["resolved"]


def test_calls_that_block_and_samples_that_are_lost_are_the_fault_s_own_sign() -> None:
    """DCGM #313: on a GPU with corrected errors under load calls block for 45 s, and up to 82 % of samples are lost."""

    def blocked(w: int, c: Columns) -> None:
        if w >= 4:
            c["samples_taken_sum"][1] *= 0.5
            c["samples"][1] *= 0.5

    def lost(w: int, c: Columns) -> None:
        if w >= 4:
            c["samples"][8:16] = 12.0

    found = said(["blind"], Cluster(nodes=4, host_fault=blocked, gpu_fault=lost).rounds(16))
    assert {(f["node_id"], f["signal"]) for f in found} == {("id-node001", "samples")}


def test_every_report_names_a_test_that_exists() -> None:
    """The page's last column is ``path::test``, and there is such a test."""
    root = Path(__file__).parents[2]
    rows = [line for line in (root / "docs/field-reports.md").read_text().splitlines() if line.startswith("| [")]
    assert len(rows) > 15
    for row in rows:
        for named in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.rpartition(" | ")[2]) or [("none", row)]:
            assert (root / named[0]).is_file(), row
            assert f"def {named[1]}(" in (root / named[0]).read_text(), row
