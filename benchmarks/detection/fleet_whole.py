"""Faults through the whole of detection: where they are put, and whether, when and how rightly they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from graynode.benchmarks.detection.delays import Floats
from graynode.benchmarks.detection.fleet_site import WINDOW_S, Run, Site, Told
from graynode.benchmarks.detection.window_faults import KINDS, Kind, Measured, Place

CAUSES: Final = {
    "slow": {"slow_gpu", "thermal"},
    "held_by_heat": {"thermal", "slow_gpu"},
    "hotter": {"thermal"},
    "corrected": {"memory_errors", "memory_degraded"},
    "pcie_width": {"pcie_degraded", "pcie_errors"},
    "pcie_generation": {"pcie_degraded", "pcie_errors"},
    "link_flap": {"link_flap", "link_down", "link_errors"},
    "link_down": {"link_flap", "link_down", "link_errors"},
    "silent_node": {"monitoring_blind"},
    "slow_answers": {"monitoring_blind"},
    "losing_samples": {"monitoring_blind"},
}
"""Which causes of a finding tell which class of fault. A finding with another cause on its node is neither right nor
false."""
_ONSET: Final = 40
"""Faults begin at a window of the first twenty minutes."""
_FEW: Final = 2
_CLOCKS: Final = ("slow", "held_by_heat", "hotter")


@dataclass(frozen=True, slots=True)
class Placed:
    """One fault in its place."""

    kind: Kind
    place: Place
    start_s: float


@dataclass(slots=True)
class Whole:
    """Delays in minutes by class (infinite: missed), of them those that named the GPU or link itself, and the rest."""

    delay_min: dict[str, list[float]] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)
    false: list[Told] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    healthy_node_days: float = 0.0
    incidents: int = 0
    wrong_incidents: list[Told] = field(default_factory=list)


def place(site: Site, each: int, rounds: int, rng: np.random.Generator) -> list[Placed]:
    """``each`` faults of every class (two of those that move clocks and temperatures), one to a node.

    Those of GPUs are put where a synchronous job works all the time: an idle GPU is neither slow nor hot.
    """
    fleet, per_node = site.fleet, site.fleet.spec.per_node
    gpus = {g: str(j.number) for j in site.at_work(rounds * WINDOW_S) for g in j.gpus}
    free = rng.permutation(sorted({g // per_node for g in gpus})).tolist()
    placed: list[Placed] = []
    for turn in range(each):
        for kind in KINDS:
            if not free or (turn >= _FEW and kind.name.partition(".")[0] in _CLOCKS):
                continue
            node = int(free.pop())
            at = rng.choice([g for g in gpus if g // per_node == node])
            entity = {
                "gpu": fleet.gpu_uuids[at],
                "link": fleet.link_names[int(rng.integers(per_node))],
                "node": "",
            }[kind.target]
            start_s = float(rng.integers(1, _ONSET) * WINDOW_S)
            placed.append(Placed(kind, Place(fleet.node_ids[node], entity, gpus[at]), start_s))
    return placed


def run(site: Site, placed: Sequence[Placed], rounds: int, rng: np.random.Generator) -> Whole:
    """All of them at once, and what was told."""

    def put(m: Measured, t: float) -> None:
        for p in placed:
            if t >= p.start_s:
                p.kind.change(m, p.place, t - p.start_s, p.kind.size, rng)

    return judge(site, placed, site.run(rounds, put))


def judge(site: Site, placed: Sequence[Placed], told: Run) -> Whole:
    """Right, missed and false: a finding on a node without a fault is false, whatever it says."""
    whole, ill = Whole(), {p.place.node_id: p for p in placed}
    for p in placed:
        causes = CAUSES[p.kind.name.partition(".")[0]]
        mine = [
            f for f in told.findings if f.node_id == p.place.node_id and f.after_s > p.start_s and f.cause in causes
        ]
        whole.delay_min.setdefault(p.kind.name, []).append((mine[0].after_s - p.start_s) / 60.0 if mine else np.inf)
        whole.named.setdefault(p.kind.name, 0)
        if mine:
            whole.named[p.kind.name] += p.place.entity in {f.entity for f in mine} or p.kind.target == "node"
        else:
            whole.missed.append(f"{p.kind.name} on {p.place.node_id} {p.place.entity}, from {p.start_s:.0f} s")
    nodes = set(site.node_ids)
    seen: set[tuple[str, str]] = set()
    for f in told.findings:
        if f.node_id in nodes and f.node_id not in ill and (f.node_id, f.cause) not in seen:
            seen.add((f.node_id, f.cause))
            whole.false.append(f)
    whole.incidents = len(told.incidents)
    whole.wrong_incidents = [i for i in told.incidents if i.node_id in nodes and i.node_id not in ill]
    whole.healthy_node_days = (len(nodes) - len(ill)) * told.rounds * WINDOW_S / 86_400.0
    return whole


def moved(site: Site, placed: Sequence[Placed]) -> tuple[float, float]:
    """How far the largest single fault, and all together, move the fleet's mean clock, in sigmas of a window.

    The simulated fleet's sigma of a window of 30 s is 0.43 % (``collectors.simulated.signals``).
    """
    effects: Floats = np.array(
        [-np.log1p(-p.kind.size) for p in placed if p.kind.name.partition(".")[0] in ("slow", "held_by_heat")]
    )
    in_sigmas = effects / site.fleet.gpus / 0.0043
    return float(in_sigmas.max(initial=0.0)), float(in_sigmas.sum())


def named_nodes(site: Site, told: Run) -> tuple[list[Told], list[Told]]:
    """Findings and incidents that name a machine of the site."""
    nodes = set(site.node_ids)
    return [f for f in told.findings if f.node_id in nodes], [i for i in told.incidents if i.node_id in nodes]
