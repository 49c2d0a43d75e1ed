"""The whole of detection on a simulated site: figures of its faults and of what may name no node."""

from __future__ import annotations

from typing import Final

import numpy as np

from graynode.benchmarks.detection import fleet_figures, fleet_scenarios, fleet_whole
from graynode.benchmarks.detection.fleet_site import Run, Site
from graynode.benchmarks.detection.fleet_sweep import generator
from graynode.benchmarks.detection.fleet_whole import Whole
from graynode.benchmarks.detection.result import Figure, Figures
from graynode.benchmarks.detection.window_faults import KINDS
from graynode.detectors import make

NODES: Final = 125
EACH: Final = 4
_LARGE_ROUNDS: Final = 60
_TEST_ONLY: Final = {k.name for k in KINDS if k.test_only}


def whole(
    seed: int, batches: int, rounds: int, nodes: int = NODES, scenario_rounds: int = fleet_scenarios.ROUNDS
) -> tuple[Figures, list[str]]:
    """Batches of faults, then each scenario, all from the same primed site with shipped thresholds."""
    site = Site(nodes, seed)
    figures, failures = _faults(site, seed, batches, rounds)
    for i, scene in enumerate(fleet_scenarios.SCENARIOS):
        scenario = scene(site, generator(seed, 22, i))
        told = site.run(scenario_rounds, scenario.put, works=scenario.works)
        more, wrong = _named(site, scenario.name, told)
        figures |= more
        failures += wrong
    return figures, failures


def large_blind(seed: int) -> tuple[Figures, list[str]]:
    """500 of 1,250 nodes blind at once: the detectors that see it, on a fleet too large for the rest to be primed."""
    site = Site(10 * NODES, seed, {name: make(name) for name in ("blind", "rules")}, primed=False)
    scenario = fleet_scenarios.blind_at_once(site, generator(seed, 24))
    return _named(site, "500_nodes_blind_at_once", site.run(_LARGE_ROUNDS, scenario.put))


def _named(site: Site, name: str, told: Run) -> tuple[Figures, list[str]]:
    findings, incidents = fleet_whole.named_nodes(site, told)
    figure = Figure(
        float(len({i.node_id for i in incidents})), n=len(site.node_ids), note=f"of incidents ({len(told.incidents)} "
        f"opened); findings named {len({f.node_id for f in findings})} nodes; to reach: 0",
    )  # fmt: skip
    return {f"whole.scenario.{name}.nodes_named": figure}, [
        f"{name} named {i.node_id}: {i.message}" for i in incidents[:5]
    ]


def _faults(site: Site, seed: int, batches: int, rounds: int) -> tuple[Figures, list[str]]:
    runs: list[Whole] = []
    moved = (0.0, 0.0)
    for i in range(batches):
        placed = fleet_whole.place(site, EACH, rounds, generator(seed, 20, i))
        moved = max(moved, fleet_whole.moved(site, placed))
        runs.append(fleet_whole.run(site, placed, rounds, generator(seed, 21, i)))
    figures = Figures()
    for kind in KINDS:
        delay = np.array([d for r in runs for d in r.delay_min.get(kind.name, ())])
        if not len(delay):
            continue
        name = f"whole.{kind.name}"
        note = "class seen only in test" if kind.name in _TEST_ONLY else ""
        figures |= fleet_figures.of_delays(name, delay, generator(seed, 23), note)
        found, named = int(np.isfinite(delay).sum()), sum(r.named.get(kind.name, 0) for r in runs)
        figures[f"{name}.entity_named"] = fleet_figures.share(named, found, "of those found: the GPU or link itself")
    healthy = sum(r.healthy_node_days for r in runs)
    figures["whole.false_per_node_day"] = fleet_figures.rate(
        sum(len(r.false) for r in runs), healthy, "all detectors, shipped thresholds"
    )
    figures["whole.false_incidents"] = Figure(float(sum(len(r.wrong_incidents) for r in runs)), n=round(healthy))
    figures["whole.one_fault_moves_sigma"] = Figure(
        moved[0], note=f"of the fleet's mean clock; to stay below 0.1 (all at once: {moved[1]:.2f})"
    )
    failures = [f"missed: {words}" for r in runs for words in r.missed]
    failures += [f"false: {f.detector}.{f.signal} on {f.node_id}: {f.message}" for r in runs for f in r.false]
    return figures, failures
