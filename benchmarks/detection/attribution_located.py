"""Step times: where a worker slows down, and that nobody is accused of more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from graynode.benchmarks.detection.attribution_cases import share
from graynode.benchmarks.detection.attribution_faults import slowed
from graynode.benchmarks.detection.result import Figure, Result
from graynode.detectors.straggler import Limits, Straggler
from graynode.detectors.stragglers import judge
from graynode.detectors.work import Work

EXCESSES: Final = (0.1, 0.2, 0.5)
_SHARE: Final = 0.2
"""The made slowdown lasts a fifth of the run."""
_TOLD: Final = 4


def evaluate(
    jobs: Mapping[str, Work], variations: Mapping[str, pl.DataFrame], limits: Limits, seed: int, result: Result
) -> None:
    """Put the figures of all jobs of step times into ``result``."""
    for place, (name, work) in enumerate(jobs.items()):
        said = judge(work, limits)
        flags = sum(s.cause == "hardware" for s in said)
        result.figures[f"{name}.hardware_flags"] = Figure(float(flags), n=len(work), note="to reach: 0; " + _told(said))
        result.figures[f"{name}.located_workers"] = Figure(
            float(len({s.ranks for s in said})), n=len(work), note="how many stand out; who does in truth is not told"
        )
        rng = np.random.default_rng([seed, 2000 + place])
        for excess in EXCESSES:
            _made(name, work, said, limits, excess, rng, result)
    for name, table in variations.items():
        result.figures[f"{name}.hardware_flags"] = Figure(
            0.0, n=table.height, note="variation over workers names no worker: nothing is judged, all unknown"
        )


def _told(said: list[Straggler]) -> str:
    lines = [
        f"worker {s.ranks[0]} {(s.excess or 0.0):+.0%}"
        + (
            f" steps {s.evidence['first_step']}–{s.evidence['last_step']}"
            if s.evidence["kind"] == "change"
            else " throughout"
        )
        for s in said[:_TOLD]
    ]
    more = f" and {len(said) - _TOLD} more" if len(said) > _TOLD else ""
    return ("unknown: " + ", ".join(lines) + more) if lines else "nobody stands out"


def _made(
    name: str, work: Work, before: list[Straggler], limits: Limits, excess: float, rng: np.random.Generator,
    result: Result,
) -> None:  # fmt: skip
    """Each worker slower for a fifth of the run: is it located, and is anybody accused."""
    assert work.wall is not None  # noqa: S101 (jobs of step times have wall seconds)
    steps = work.wall.shape[1]
    found, accused = [], []
    for worker in range(len(work)):
        length = max(int(steps * _SHARE), limits.wall_steps)
        first = int(rng.integers(steps // 10, max(steps - length, steps // 10 + 1)))
        last = min(first + length - 1, steps - 1)
        said = judge(replace(work, wall=slowed(work.wall, worker, first, last, excess)), limits)
        rank = int(work.rank[worker])
        ok = _covered(said, rank, first, last) and not _covered(before, rank, first, last)
        found.append(ok)
        accused.append(any(s.cause == "hardware" for s in said))
        if not ok:
            result.failures.append(f"{name}: worker {rank} at {excess:+.0%} in steps {first}–{last} not located")
    label = f"{excess:.0%}".replace("%", "pct")
    result.figures[f"{name}.located_{label}"] = share(found)
    result.figures[f"{name}.hardware_flag_rate_{label}"] = share(accused, "to reach: 0")


def _covered(said: list[Straggler], rank: int, first: int, last: int) -> bool:
    """Whether statements about the worker cover at least half of these steps."""
    covered = 0
    for s in said:
        if s.ranks == (rank,) and s.evidence["kind"] == "change":
            covered += max(0, min(last, s.evidence["last_step"]) - max(first, s.evidence["first_step"]) + 1)
    return 2 * covered >= last - first + 1
