"""All cases of one trace, made once and before any method sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.benchmarks.detection import attribution_faults as faults
from graynode.benchmarks.detection.attribution_faults import Profile, Sums
from graynode.benchmarks.detection.attribution_job import Trace
from graynode.benchmarks.detection.intervals import FloatArray, IntArray

EXCESSES: Final = (0.05, 0.1, 0.2, 0.5)
_FEW_STEPS: Final = 10
_SURROUNDINGS: Final = ("sequence_length", "combined")
"""Causes in whose presence slow hardware is looked for too: the ones that blur it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many victims of a kind (a job with more has them drawn by the seed), and how many jobs of each cause."""

    victims: int = 64
    jobs: int = 30


FULL: Final = Sizes(victims=100_000, jobs=150)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """``base`` is the job without its slow worker. ``victims`` are rows by kind (rank, node), ``within`` single victims
    in harder surroundings, ``application`` the jobs in which no hardware is slow."""

    base: Trace
    sums: Sums
    profile: Profile
    victims: Mapping[str, list[IntArray]]
    within: Mapping[str, list[tuple[int, Sums]]]
    application: Mapping[str, list[Sums]]
    notes: list[str]


def make(trace: Trace, seed: tuple[int, int], sizes: Sizes) -> Made:
    """Every rank and node as victim, or as many as ``sizes`` has room for, and jobs of each application cause."""
    base, profile = faults.healthy(trace)
    sums = faults.sums(base)
    rng = np.random.default_rng([*seed, 1])
    ranks = [np.array([r]) for r in range(len(base.rank))]
    nodes = [np.flatnonzero(base.node == n) for n in np.unique(base.node)]
    most = sizes.victims
    victims = {"rank": _drawn(ranks, most, rng), "node": _drawn([n for n in nodes if len(n) > 1], most, rng)}
    application = {
        cause: [
            faults.waiting(sums, faults.sums(maker(base, np.random.default_rng([*seed, 1000 + place, number]))))
            for number in range(sizes.jobs)
        ]
        for place, (cause, maker) in enumerate(faults.makers(base).items())
    }
    return Made(
        base=base,
        sums=sums,
        profile=profile,
        victims=victims,
        within=_within(base, sums, profile, victims["rank"], application, rng),
        application={"nothing": _resampled(sums, base.steps, len(application["combined"]), rng), **application},
        notes=_notes(trace, profile, len(victims["rank"])),
    )


def _drawn(groups: list[IntArray], most: int, rng: np.random.Generator) -> list[IntArray]:
    if len(groups) <= most:
        return groups
    return [groups[i] for i in sorted(rng.choice(len(groups), size=most, replace=False).tolist())]


def _within(
    base: Trace, sums: Sums, profile: Profile, victims: list[IntArray], application: Mapping[str, list[Sums]],
    rng: np.random.Generator,
) -> dict[str, list[tuple[int, Sums]]]:  # fmt: skip
    """A slow rank in ten steps only, and slow ranks in jobs that have application causes too."""
    made: dict[str, list[tuple[int, Sums]]] = {}
    if base.steps > _FEW_STEPS:
        short = []
        for (victim,) in victims:
            first = int(rng.integers(0, base.steps - _FEW_STEPS + 1))
            job = faults.slow_hardware(sums, profile, np.array([victim]), 0.1)
            short.append((int(victim), taken(job, np.arange(first, first + _FEW_STEPS))))
        made[f"10pct_in_{_FEW_STEPS}_steps"] = short
    for cause, jobs in application.items():
        if cause not in _SURROUNDINGS:
            continue
        slow = rng.integers(len(base.rank), size=len(jobs)).tolist()
        made[f"20pct_with_{cause}"] = [
            (v, faults.slow_hardware(job, profile, np.array([v]), 0.2)) for v, job in zip(slow, jobs, strict=True)
        ]
    return made


def _resampled(sums: Sums, steps: int, count: int, rng: np.random.Generator) -> list[Sums]:
    """Nothing done to the job: half of its steps, drawn anew for each case."""
    size = max(steps // 2, min(steps, 5))
    return [taken(sums, np.sort(rng.choice(steps, size=size, replace=False))) for _ in range(count)]


def taken(sums: Sums, steps: IntArray) -> Sums:
    """These steps only."""

    def part(table: FloatArray | None) -> FloatArray | None:
        return None if table is None else table[:, steps]

    return Sums(
        busy={p: s[:, steps] for p, s in sums.busy.items()},
        optimizer=part(sums.optimizer),
        steady=sums.steady[:, steps],
        input=part(sums.input),
        wait=sums.wait[:, steps],
        wall=sums.wall[:, steps],
    )


def _notes(trace: Trace, profile: Profile, victims: int) -> list[str]:
    lines = [*trace.notes]
    if profile.worker is not None and profile.ratio is not None:
        lines.append(
            f"{trace.name}: worker {profile.worker} is recorded at {profile.ratio:.2f} times its stage; it is made "
            "well for the base of all cases, and its excess, scaled, is the hardware fault"
        )
    else:
        lines.append(f"{trace.name}: no worker far above its stage: the hardware fault is a flat excess of all compute")
    others = ", ".join(str(rank) for rank in sorted(profile.well) if rank != profile.worker)
    if others:
        lines.append(f"{trace.name}: recorded slower than the others of their stage, and made well too: {others}")
    if trace.role is None:
        lines.append(f"{trace.name}: no stages are told, so only learned roles are evaluated")
    if victims < len(trace.rank):
        lines.append(
            f"{trace.name}: {victims} of {len(trace.rank)} workers are victims, drawn by the seed; --full takes all"
        )
    lines.append(f"{trace.name}: application causes are synthetic, made from the trace's own microbatches")
    return lines
