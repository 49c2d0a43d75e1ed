"""Faults and scenarios through the whole of detection, on a site that is small enough for a test."""

from __future__ import annotations

import numpy as np
import pytest

from graynode.benchmarks.detection import fleet_scenarios, fleet_site_figures, fleet_whole
from graynode.benchmarks.detection.fleet_site import Run, Site, Told
from graynode.benchmarks.detection.fleet_sweep import generator
from graynode.benchmarks.detection.fleet_whole import Placed
from graynode.benchmarks.detection.window_faults import KINDS, Place
from graynode.detectors import make

ROUNDS = 16
WIDTH = next(k for k in KINDS if k.name.startswith("pcie_width"))


@pytest.fixture(scope="module")
def site() -> Site:
    return Site(8, 3, {name: make(name) for name in ("pcie", "blind")}, primed=False)


def told(at: str, cause: str, after_s: float, entity: str = "") -> Told:
    return Told(after_s, "d", "s", cause, at, entity, "words")


def test_right_missed_and_false_are_told_apart(site: Site) -> None:
    """A finding of its cause finds a fault, one on a healthy node is false, one of another cause is neither."""
    ill, other, healthy = site.node_ids[:3]
    placed = [Placed(WIDTH, Place(ill, "GPU-1"), 60.0), Placed(WIDTH, Place(other, "GPU-2"), 60.0)]
    findings = [
        told(ill, "pcie_degraded", 30.0),
        told(ill, "pcie_degraded", 180.0, "GPU-1"),
        told(other, "slow_gpu", 90.0),
        told(healthy, "slow_gpu", 90.0),
        told(healthy, "slow_gpu", 120.0),
        told("rack:7", "fleet_shift", 90.0),
    ]
    whole = fleet_whole.judge(site, placed, Run(findings, [told(healthy, "slow_gpu", 90.0)], 2880))
    assert whole.delay_min == {WIDTH.name: [2.0, np.inf]}
    assert whole.named == {WIDTH.name: 1}
    assert [f.node_id for f in whole.false] == [healthy]
    assert len(whole.missed) == 1
    assert whole.healthy_node_days == pytest.approx(6.0)
    assert [i.node_id for i in whole.wrong_incidents] == [healthy]


def test_a_narrow_link_is_found_where_it_is_and_the_memory_stays_as_it_was(site: Site) -> None:
    """Put in at the second window, told two minutes later on that GPU; a run without it afterwards tells nothing."""
    gpu = next(g for j in site.at_work(ROUNDS * 30.0) for g in j.gpus)
    fleet = site.fleet
    node = fleet.node_ids[gpu // fleet.spec.per_node]
    placed = [Placed(WIDTH, Place(node, fleet.gpu_uuids[gpu]), 30.0)]
    whole = fleet_whole.run(site, placed, ROUNDS, generator(1))
    assert whole.delay_min[WIDTH.name] == [2.0]
    assert whole.named[WIDTH.name] == 1
    assert whole.false == []
    assert site.run(ROUNDS).findings == []


def test_nodes_that_fall_silent_together_are_not_named(site: Site) -> None:
    """More than a third of the nodes at once: the monitoring's fault, told of the cluster."""
    six = Site(20, 4, {"blind": make("blind")}, primed=False)
    scenario = fleet_scenarios.blind_at_once(six, generator(2))
    told_of = six.run(40, scenario.put)
    findings, incidents = fleet_whole.named_nodes(six, told_of)
    assert (findings, incidents) == ([], [])
    assert told_of.findings


def test_placing_gives_each_node_one_fault_at_most(site: Site) -> None:
    """And only GPUs at work in a synchronous job get any."""
    placed = fleet_whole.place(site, 2, ROUNDS, generator(3))
    nodes = [p.place.node_id for p in placed]
    working = {site.fleet.node_ids[g // 8] for j in site.at_work(ROUNDS * 30.0) for g in j.gpus}
    assert len(nodes) == len(set(nodes))
    assert set(nodes) <= working
    alone, together = fleet_whole.moved(site, placed)
    assert 0.0 <= alone <= together


def test_all_figures_of_a_small_site_are_there() -> None:
    """Every class that found a place, every scenario, the false rate: with all detectors, primed, for a few rounds."""
    figures, _ = fleet_site_figures.whole(5, 1, 6, nodes=16, scenario_rounds=3)
    assert "whole.false_per_node_day" in figures
    assert sum(n.startswith("whole.scenario.") for n in figures) == len(fleet_scenarios.SCENARIOS)
    assert any(n.endswith(".delay_min_median") for n in figures)
