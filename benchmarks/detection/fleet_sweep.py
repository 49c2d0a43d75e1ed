"""What the core does at one noise: maxima of healthy node-days, and the delays of faults that were put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.benchmarks.detection import faults
from graynode.benchmarks.detection.delays import Floats
from graynode.benchmarks.detection.faults import Family
from graynode.benchmarks.detection.fleet_core import DAY, WINDOW_S, Fleet, Limits, Method, Size, Whole
from graynode.benchmarks.detection.noise import Array, Noise

CORRELATIONS: Final = (0.0, 0.3, 0.6, 0.8)
OFFSETS: Final = (0.001, 0.003, 0.01)
CELLS: Final = tuple(Noise(c, tails, offset) for tails in ("normal", "t4") for c in CORRELATIONS for offset in OFFSETS)
BASE: Final = Noise(0.3, "t4", 0.003)
"""The cell that the figures to reach are about: the hardest of those they name."""
HARSH: Final = Noise(0.8, "t4", 0.003)
"""The noise that shipped thresholds have to stand, before a site has its own: training steps' correlation and more."""
HORIZON: Final = 4 * 120
"""Windows that a fault is watched for: four hours."""
_SETTLE: Final = 2 * 120
_FLEET_MOVES: Final = 0.09
"""Sigmas that all faults of a fleet together may move its mean: the issue's limit is 0.1."""
_TRAIN, _TEST = 20_261_130, 7
_FLEET: Final = Size()


def generator(*path: int, training: bool = False) -> np.random.Generator:
    """Random numbers of one part of a run. Those of training and of test differ whatever the seed."""
    sequence = np.random.SeedSequence([_TRAIN if training else _TEST, *path])
    return np.random.Generator(np.random.SFC64(sequence))


@dataclass(frozen=True, slots=True)
class NodeDays:
    """The largest S of each node and day, across jobs and in the job."""

    across: Array
    in_job: Array

    def __len__(self) -> int:
        return len(self.across)

    def told(self, limits: Limits) -> int:
        """Node-days on which a healthy node was named."""
        return int(limits.told(self.across, self.in_job).sum())


def node_days(
    noise: Noise, size: Size, days: int, rng: np.random.Generator, method: Method | None = None,
    limits: Limits | None = None,
) -> NodeDays:  # fmt: skip
    """Maxima of ``size.nodes`` × ``days`` healthy node-days, after two hours in which nothing is counted."""
    fleet = Fleet(noise, size, rng, method)
    if limits is not None:
        fleet.limits = limits
    for _ in range(_SETTLE):
        fleet.step()
    across, in_job = [], []
    for _ in range(days):
        most = np.zeros((2, size.jobs, size.gpus), dtype=np.float32)
        for _ in range(DAY):
            fleet.step()
            np.maximum(most[0], fleet.across, out=most[0])
            np.maximum(most[1], fleet.in_job, out=most[1])
        fleet.midnight()
        across.append(size.by_node(most[0]))
        in_job.append(size.by_node(most[1]))
    return NodeDays(np.concatenate(across), np.concatenate(in_job))


@dataclass(frozen=True, slots=True)
class Case:
    """One class and severity of fault."""

    family: Family
    severity: float

    @property
    def name(self) -> str:
        """As figures name it: ``slow.5pct``."""
        return f"{self.family.name}.{self.severity * 100:g}pct"

    @property
    def effect(self) -> float:
        """What it does at its worst, in log units."""
        return float(faults.lost(self.severity))


@dataclass(frozen=True, slots=True)
class Enriched:
    """Delays in minutes from onset to the end of the crossing window, infinite for those missed within four hours.

    ``fleet_moved`` is how far the faults of any fleet together moved its mean, in sigmas.
    """

    delay_min: dict[str, Floats]
    fleet_moved: float


def enriched(
    noise: Noise, cases: Sequence[Case], each: int, limits: Limits, rng: np.random.Generator,
    method: Method | None = None, size: Size = _FLEET,
) -> Enriched:  # fmt: skip
    """``each`` faults of every case, one to a job, spread over fleets of ``size`` so that their means hardly move."""
    wanted = np.repeat(np.arange(len(cases)), each)
    rng.shuffle(wanted)
    effects = np.array([c.effect for c in cases])
    most = _FLEET_MOVES * noise.sigma * size.jobs * size.gpus
    fleets, moved = _fleets(effects[wanted], most, size.jobs), 0.0
    delay = np.full(len(wanted), np.inf)
    for first, last in fleets:
        mine = [cases[i] for i in wanted[first:last]]
        delay[first:last] = _watched(noise, size, mine, limits, rng, method)
        moved = max(moved, float(effects[wanted[first:last]].sum()) / (size.jobs * size.gpus) / noise.sigma)
    return Enriched({c.name: delay[wanted == i] for i, c in enumerate(cases)}, moved)


def _fleets(effects: Floats, most: float, jobs: int) -> list[tuple[int, int]]:
    """Faults in order, cut so that a fleet has one a job at most and their effects sum to ``most`` at most."""
    cuts, total, first = [], 0.0, 0
    for i, effect in enumerate(effects):
        if i > first and (total + effect > most or i - first >= jobs):
            cuts.append((first, i))
            total, first = 0.0, i
        total += float(effect)
    return [*cuts, (first, len(effects))]


def _watched(
    noise: Noise, size: Size, cases: Sequence[Case], limits: Limits, rng: np.random.Generator, method: Method | None
) -> Floats:
    """Delays of one fleet's faults: the first GPU of each job, from a moment within a window on."""
    fleet = Fleet(noise, size, rng, method)
    fleet.limits = limits
    for _ in range(_SETTLE):
        fleet.step()
    many = len(cases)
    first_s = WINDOW_S * (1.0 - rng.random(many))
    course = np.array(
        [faults.windows(c.family.course, c.severity, s, HORIZON) for c, s in zip(cases, first_s, strict=True)]
    )
    effect: Array = np.zeros((size.jobs, size.gpus), dtype=np.float32)
    found: Whole = np.full(many, -1)
    before = limits.told(fleet.across[:many, 0], fleet.in_job[:many, 0])
    for window in range(HORIZON):
        effect[:many, 0] = course[:, window]
        fleet.step(effect)
        now = limits.told(fleet.across[:many, 0], fleet.in_job[:many, 0])
        found[now & ~before & (found < 0)] = window
        before &= now
    return np.where(found >= 0, (found * WINDOW_S + first_s) / 60.0, np.inf)
