"""A simulated fleet: who its machines are, what they do and what is wrong with them, as functions of time.

Everything follows from the seed and the moment called *now*: history ends there, and what is live goes on from
there, in whatever process. ``docs/simulation.md`` says what is modelled, from which data, and what is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from graynode.collectors.simulated import load as fleet_load
from graynode.collectors.simulated.faults import KINDS, NATURAL_MIX, Fault, FaultsError, Plan, Wanted
from graynode.collectors.simulated.jobs import Job, schedule
from graynode.collectors.simulated.noise import Array, generator, normal, uniform
from graynode.collectors.simulated.steps import Jumps, Steps
from graynode.pipeline.schema import stable_id

MODEL: Final = "NVIDIA H100 80GB HBM3"
VBIOS: Final = "96.00.74.00.1C"
DRIVERS: Final = ("570.124.06", "570.133.20")
NODES_PER_RACK: Final = 8
HISTORY_D: Final = 35.0
"""The least history that a fleet is built with, so that a live process agrees with the one that wrote it."""
_WARM_UP_D: Final = 1.0
_REBOOT_EVERY_D, _RELOAD_EVERY_D = 45.0, 25.0
REBOOT_S, RELOAD_S = 180.0, 20.0
"""How long a machine is silent while it reboots, and its GPUs while the driver is loaded again."""
_PCI: Final = ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")


@dataclass(frozen=True, slots=True)
class Spec:
    """What makes a fleet. ``now`` is the end of history; ``ahead_d`` how far after it the queue is known."""

    now: datetime
    nodes: int = 64
    per_node: int = 8
    seed: int = 1
    days: float = HISTORY_D
    ahead_d: float = 7.0
    cluster: str = "simulated"

    @property
    def origin(self) -> datetime:
        """Time 0 of the fleet's axis: the whole hour before history, with a day for the queue to fill."""
        begin = self.now - timedelta(days=max(self.days, HISTORY_D) + _WARM_UP_D)
        return begin.replace(minute=0, second=0, microsecond=0)


class Fleet:
    """Machines, jobs, faults and load. ``t`` is always seconds since ``spec.origin``."""

    def __init__(self, spec: Spec, plan: Plan | None = None) -> None:
        self.spec, self.plan = spec, plan or Plan()
        self.origin, self.now_s = spec.origin, (spec.now - spec.origin).total_seconds()
        self.horizon_s = self.now_s + spec.ahead_d * 86400.0
        self.gpus, self.links = spec.nodes * spec.per_node, spec.nodes * (spec.per_node + 1)
        self.node_of_gpu = np.repeat(np.arange(spec.nodes), spec.per_node)
        self.node_of_link = np.repeat(np.arange(spec.nodes), spec.per_node + 1)
        self.racks = np.arange(spec.nodes) // NODES_PER_RACK
        self.inlet_c: Array = 20.0 + 1.2 * normal(spec.seed, 20, self.racks, np.zeros(1, np.int64))
        self._boot_ids: dict[tuple[int, int], str] = {}
        self._name_machines()
        wanted = [*self.plan.wanted, *_natural(spec, self.plan.natural_rate, self.horizon_s, self.now_s)]
        lost = [self._placed(w, i) for i, w in enumerate(wanted) if w.kind.name == "gpu_lost"]
        self.jobs: list[Job] = schedule(spec.seed, spec.nodes, spec.per_node, self.horizon_s, lost)
        self.faults: tuple[Fault, ...] = self._place_all(wanted, lost)
        self.load: Steps = fleet_load.steps(spec.seed, self.gpus, spec.per_node, self.jobs, self.faults, self.inlet_c)
        self.boots: Steps = self._boots()
        self.corrected = Jumps(_corrected_errors(spec, self.faults, self.gpus, self.horizon_s))

    def ahead(self, ahead_d: float) -> Fleet:
        """The same fleet, known further ahead."""
        s = self.spec
        return Fleet(Spec(s.now, s.nodes, s.per_node, s.seed, s.days, ahead_d, s.cluster), self.plan)

    def seconds(self, moment: datetime) -> float:
        """A moment on the fleet's axis."""
        return (moment - self.origin).total_seconds()

    def moment(self, t: float) -> datetime:
        """A place on the axis as a moment."""
        return self.origin + timedelta(seconds=float(t))

    # --- who they are -----------------------------------------------------------------------------------

    def _name_machines(self) -> None:
        s = self.spec
        self.node_names = [f"sim-{n:03d}" for n in range(s.nodes)]
        self.node_ids = [stable_id("simulated", s.cluster, s.seed, n) for n in range(s.nodes)]
        self.gpu_uuids = [f"GPU-{stable_id('simulated', s.cluster, s.seed, n, 'gpu', g)}"
                          for n in range(s.nodes) for g in range(s.per_node)]  # fmt: skip
        ports = [*(f"mlx5_{p}/1" for p in range(s.per_node)), "eth0"]
        self.link_names = ports * s.nodes
        self.pci = [f"0000:{_PCI[g % 8]}:{g // 8:02x}.0" for g in range(s.per_node)] * s.nodes
        self.drivers = [DRIVERS[int(r) % 2] for r in self.racks]

    def boot_id(self, node: int, boot: int) -> str:
        """Kernel boot id of the node's so-many-th boot."""
        key = (node, boot)
        if key not in self._boot_ids:
            self._boot_ids[key] = stable_id("simulated", self.spec.cluster, self.spec.seed, node, "boot", boot)
        return self._boot_ids[key]

    def node_number(self, told: int | str) -> int:
        """The node of that number or name; ``FaultsError`` where there is none."""
        if isinstance(told, str) and told in self.node_names:
            return self.node_names.index(told)
        if isinstance(told, str) or told >= self.spec.nodes:
            raise FaultsError(
                f"node = {told!r}: there are {self.spec.nodes} nodes, sim-000 to {self.node_names[-1]} "
                f"(or 0 to {self.spec.nodes - 1})"
            )
        return told

    # --- what is wrong ----------------------------------------------------------------------------------

    def _placed(self, w: Wanted, number: int, taken: set[int] | None = None) -> Fault:
        s = self.spec
        start, draw = self.now_s + w.start_s, uniform(s.seed, 30, np.arange(3), np.full(3, number))
        node = self.node_number(w.node) if w.node is not None else int(draw[0] * s.nodes)
        gpu = w.gpu if w.gpu is not None else int(draw[1] * s.per_node)
        if w.node is None and taken is not None:
            node, gpu = self._at_work(w, start, draw, taken) or (node, gpu)
        link = w.link if w.link is not None else int(draw[2] * s.per_node)
        for key, told, most in (("gpu", gpu, s.per_node), ("link", link, s.per_node + 1)):
            if told >= most:
                raise FaultsError(f"{w.kind.name}: {key} = {told}: a node has {most}, numbered from 0")
        return Fault(
            w.kind.name, node,
            node * s.per_node + gpu if w.kind.target == "gpu" else -1,
            node * (s.per_node + 1) + link if w.kind.target == "link" else -1,
            start, start + w.duration_s, w.size, w.extra, w.natural,
        )  # fmt: skip

    def _at_work(self, w: Wanted, start: float, draw: Array, taken: set[int]) -> tuple[int, int] | None:
        """A GPU that works in a synchronous job when the fault begins, and as long as can be; else none."""
        running = [
            j for j in self.jobs
            if j.start <= start < j.end - 600.0 and j.kind.synchronous
            and any(g // self.spec.per_node not in taken for g in j.gpus)
        ]  # fmt: skip
        if not running or w.natural:
            return None
        longest = max(min(j.end, start + w.duration_s) for j in running)
        best = [j for j in running if min(j.end, start + w.duration_s) >= min(longest, self.now_s + 7200.0)]
        job = best[int(draw[0] * len(best))]
        free = [g for g in job.gpus if g // self.spec.per_node not in taken]
        gpu = free[int(draw[1] * len(free))]
        return (gpu // self.spec.per_node, w.gpu if w.gpu is not None else gpu % self.spec.per_node)

    def _place_all(self, wanted: Sequence[Wanted], lost: Sequence[Fault]) -> tuple[Fault, ...]:
        taken = {f.node for f in lost}
        taken |= {self.node_number(w.node) for w in wanted if w.node is not None}
        placed, gone = [], iter(lost)
        for i, w in enumerate(wanted):
            fault = next(gone) if w.kind.name == "gpu_lost" else self._placed(w, i, taken)
            taken.add(fault.node)
            placed.append(fault)
        return tuple(placed)

    # --- boots and driver loads -------------------------------------------------------------------------

    def _boots(self) -> Steps:
        """Boot and driver load of each node: repairs, and maintenance in idle gaps."""
        rows: list[tuple[int, float, int, int, float]] = []
        busy: list[list[tuple[float, float]]] = [[] for _ in self.node_names]
        for job in self.jobs:
            for node in {g // self.spec.per_node for g in job.gpus}:
                busy[node].append((job.start, job.end))
        for node in range(self.spec.nodes):
            rows += self._boots_of(node, _gaps(busy[node], self.horizon_s))
        table = np.array(rows, np.float64)
        columns = {"boot": table[:, 2].astype(int), "load": table[:, 3].astype(int), "silent_s": table[:, 4]}
        # A counter begins again when its step does; the first began before time 0.
        return Steps(table[:, 0].astype(int), table[:, 1], columns)

    def _boots_of(self, node: int, gaps: Sequence[tuple[float, float]]) -> list[tuple[int, float, int, int, float]]:
        seed, moments = self.spec.seed, []
        for stream, every, silent in ((40, _REBOOT_EVERY_D, REBOOT_S), (41, _RELOAD_EVERY_D, RELOAD_S)):
            for k in range(math.ceil(self.horizon_s / 86400.0 / every) + 1):
                due = (k + float(uniform(seed, stream, np.array([node]), np.array([k]))[0]) - 0.5) * every * 86400.0
                gap = next(((a, b) for a, b in gaps if max(a, due) + 900.0 < b), None)
                if gap is not None and 0 < due < self.horizon_s:
                    moments.append((max(gap[0], due) + 120.0, silent))
        moments += [(f.end, REBOOT_S) for f in self.faults if f.kind == "gpu_lost" and f.node == node and f.end < 1e12]
        rows, boot, load, previous = [(node, -1.0, 0, 1, 0.0)], 0, 1, -1.0
        for t, silent in sorted(moments):
            if t - previous < 3600.0:
                continue
            boot, load, previous = boot + (silent == REBOOT_S), load + 1, t
            rows.append((node, t + silent, boot, load, silent))  # from when it answers again
        return rows


def _gaps(busy: Sequence[tuple[float, float]], horizon: float) -> list[tuple[float, float]]:
    gaps, free = [], 0.0
    for start, end in sorted(busy):
        if start > free:
            gaps.append((free, start))
        free = max(free, end)
    return [*gaps, (free, horizon)] if free < horizon else gaps


def _natural(spec: Spec, rate: float, horizon_s: float, now_s: float) -> list[Wanted]:
    """Faults that simply happen, at ``rate`` per 1,000 node-days, in the proportions of ``NATURAL_MIX``."""
    if rate <= 0:
        return []
    rng, kinds, t = generator(spec.seed, 2), tuple(NATURAL_MIX), 0.0
    share = np.array([NATURAL_MIX[k] for k in kinds])
    found: list[Wanted] = []
    while True:
        t += rng.exponential(86400.0 * 1000.0 / (rate * spec.nodes))
        if t >= horizon_s:
            return found
        kind = KINDS[str(rng.choice(kinds, p=share / share.sum()))]
        lasts = float(np.clip(rng.lognormal(math.log(8 * 3600.0), 1.0), 600.0, 10 * 86400.0))
        size = float(np.clip(kind.default * rng.lognormal(0.0, 0.5), kind.lo, kind.hi))
        if kind.name == "pcie_width":
            size = float(rng.choice((4, 8)))
        found.append(
            Wanted(kind, t - now_s, lasts, size, int(rng.integers(spec.nodes)), int(rng.integers(spec.per_node)),
                   int(rng.integers(spec.per_node)), natural=True)
        )  # fmt: skip


def _corrected_errors(
    spec: Spec, faults: Sequence[Fault], gpus: int, horizon_s: float
) -> list[tuple[int, float, float]]:
    """Moments of corrected memory errors: rare clusters on one GPU in twenty, and growth where asked for.

    One in twenty GPUs ever shows one, 0.5 to 3 a day there, in clusters (as on the A100s of Delta and Perlmutter).
    """
    rng = generator(spec.seed, 3)
    found: list[tuple[int, float, float]] = []
    for gpu in np.nonzero(uniform(spec.seed, 50, np.arange(gpus), np.zeros(1)) < 0.05)[0]:
        mine = generator(spec.seed, 1000 + int(gpu))
        t = 0.0
        while (t := t + mine.exponential(4 * 86400.0)) < horizon_s:
            found += [(int(gpu), t + mine.exponential(600.0), 1.0) for _ in range(1 + mine.poisson(2.0))]
    for f in faults:
        if f.kind == "ecc_growth":
            found += _growth(f, min(f.end, max(horizon_s, f.start)), rng)
    return found


def _growth(f: Fault, end: float, rng: np.random.Generator) -> list[tuple[int, float, float]]:
    """Episodes whose daily count grows as the square of the time to ``size`` a day, then stays there."""
    grows_s = min(f.end - f.start, 8 * 86400.0)
    found, t = [], f.start
    while t < end:
        rate = f.size * min(1.0, (t + 1800.0 - f.start) / grows_s) ** 2
        errors = int(rng.poisson(rate / 24.0))
        if errors:
            moments = t + np.sort(rng.uniform(0.0, 3600.0, max(1, errors // 3)))
            weights = rng.multinomial(errors - len(moments), np.full(len(moments), 1 / len(moments))) + 1
            found += [(f.gpu, float(m), float(w)) for m, w in zip(moments, weights, strict=True) if m < end]
        t += 3600.0
    return found
