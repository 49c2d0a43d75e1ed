"""Which GPUs another signal shows to be at fault, so that figures can be given with and without them.

The rule never looks at the signal under evaluation: to remove whoever is slow would be to remove what is to be found.
A GPU goes where one of the *other* signals of its runs (for time: clock and power; for clock: time and power) says so:

- level: the median of its runs is worse than that of the other GPUs at the same work, by at least ``least`` and with
  less than ``chance`` that any GPU of a healthy fleet of this size would be (Bonferroni over GPUs and signals; robust z
  with the tail for its number of peers, as ``detectors.probes`` ranks);
- change: at least ``runs`` of its runs are worse than its own past and its peers, by the same ``least`` and with the
  same chance over all runs (``detectors.run_level``).

So where clock and power are missing or quiet nobody is removed, and of a healthy fleet nobody in 99 of 100.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy import special

from graynode.benchmarks.detection.slow_data import Workload
from graynode.benchmarks.detection.slow_methods import Case
from graynode.benchmarks.detection.slow_protocol import BoolArray
from graynode.detectors import conformal, residual, run_level


@dataclass(frozen=True, slots=True)
class Rule:
    """See the module; the values are frozen with the track."""

    chance: float = 0.01
    least: float = 0.005
    runs: int = 2


def corroborated(workload: Workload, scored: str, rule: Rule) -> BoolArray:
    """Of each GPU, whether a signal other than ``scored`` shows it to be at fault."""
    others = [s for s in workload.worse if s != scored]
    chance = rule.chance / max(len(others), 1) / 2.0
    faulty = np.zeros(len(workload.ids), dtype=np.bool_)
    for signal in others:
        faulty |= _by_level(workload, signal, rule.least, chance)
        faulty |= _by_change(workload, signal, rule, chance)
    return faulty


def levels(workload: Workload, signal: str) -> pl.DataFrame:
    """Of each GPU at each work (``gpu``, ``work``): the median of its runs less that of the other GPUs (``excess``,
    log), its ``chance`` in a healthy fleet, and its ``runs``."""
    worse = pl.Series(workload.worse[signal], nan_to_null=True)
    rows = pl.DataFrame({"gpu": workload.gpu, "work": workload.work, "worse": worse}).drop_nulls("worse")
    gpus = rows.group_by("gpu", "work", maintain_order=True).agg(pl.col("worse").median(), pl.len().alias("runs"))
    floor = max(run_level.resolution(workload.worse[signal]) / 2.0, 1e-6)
    z, excess, peers = residual.robust_z(gpus.get_column("worse").to_numpy(), gpus.get_column("work").to_numpy(), floor)
    chance = np.where(np.isnan(z), 1.0, conformal.robust_tail(np.nan_to_num(z), peers))
    return gpus.select("gpu", "work", "runs", excess=pl.Series(excess), chance=pl.Series(chance))


def _by_level(workload: Workload, signal: str, least: float, chance: float) -> BoolArray:
    seen = levels(workload, signal)
    found = seen.filter((pl.col("excess") >= least) & (pl.col("chance") < chance / max(seen.height, 1)))
    faulty = np.zeros(len(workload.ids), dtype=np.bool_)
    faulty[found.get_column("gpu").to_numpy()] = True
    return faulty


def _by_change(workload: Workload, signal: str, rule: Rule, chance: float) -> BoolArray:
    case = Case(workload, signal)
    judged = case.judge()
    usual = run_level.usual_spread(judged, run_level.resolution(case.worse))
    score = judged.score(usual)
    known = ~np.isnan(score)
    tail = special.stdtr(run_level.PRIOR_RUNS + judged.settled, -np.where(known, score, 0.0))
    worse = known & (judged.excess >= rule.least) & (tail < chance / max(int(known.sum()), 1))
    return np.asarray(np.bincount(workload.gpu[worse], minlength=len(workload.ids)) >= rule.runs, dtype=np.bool_)
