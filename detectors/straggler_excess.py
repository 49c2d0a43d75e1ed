"""How much longer a rank computes than its peers, with what the role and what the data cost taken out.

log busy = role at that step + data of the pipeline + rank + rest. Medians over steps come first, then references that a
slow minority cannot move: the lower median over *nodes* of a role, so that the two halves of a slow node are not each
other's measure, and the lower median over a pipeline's roles, so that a slow rank is not taken for long sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors.conformal import robust_tail
from graynode.detectors.frames import Bools, Floats
from graynode.detectors.residual import log_of
from graynode.detectors.straggler_places import Places, lower_median, median, total

_SPREAD_FLOOR: Final = 0.002
"""Least spread between ranks in log units: 0.2 %, twice a GPU's own run-to-run spread in Longhorn's sgemm runs."""
_MOST_CORRELATED: Final = 0.9
_CLEARLY: Final = 2.0
"""What pipelines share varies so many times more than what is left: then it can be seen how each role answers to it."""
_POWERS: Final = (0.3, 3.0)


@dataclass(frozen=True, slots=True)
class Excess:
    """Per rank, in log units: ``own`` excess, ``shared`` by its pipeline, ``level`` of its role over the other roles,
    ``noise`` (between ranks, or of the rank's own median if larger), tail ``p`` of own against noise, and the share of
    steps in which at least half of ``own`` is there. NaN: cannot tell.

    ``varies`` is how much the data of pipelines moves busy time from step to step, ``apart`` by how much the pipelines'
    shared excess differs beyond what so many steps leave to chance.
    """

    own: Floats
    shared: Floats
    level: Floats
    noise: Floats
    p: Floats
    lasting: Floats
    varies: float
    apart: float


def deviations(seconds: Floats, places: Places) -> tuple[Floats, Floats]:
    """Each rank's median over steps of log seconds less its role's median at that step, and what is left per step."""
    log = log_of(np.where(np.isfinite(seconds), seconds, np.nan))
    at_step = log - places.role.over(log, median)
    own = median(at_step, axis=1)
    return own, at_step - own[:, None]


def measure(seconds: Floats, places: Places) -> Excess:
    """The excess of busy ``seconds`` (ranks × steps) of one part of the work."""
    own, rest = deviations(seconds, places)
    answer, varies = np.ones(len(own)), 0.0
    if places.cells is not None:
        together = np.nan_to_num(places.of_pipelines(rest, median))
        varies = float(1.4826 * np.median(np.abs(together)))
        answer = _answers(rest, together, places)
        rest = rest - answer[:, None] * together
        # A median of sums is no sum of medians: what is left has a level of its own, and a far surer one
        moved = median(rest, axis=1)
        own, rest = own + moved, rest - moved[:, None]
    level = own - places.reference(own)
    shared = answer * np.nan_to_num(places.of_pipelines((level / answer)[:, None], lower_median)[:, 0])
    apart = _apart(shared, varies, seconds.shape[1], places)
    left = level - shared
    left = left - places.reference(left)
    spread, count = _spread(left, places)
    noise = np.fmax(np.fmax(spread, _standard_error(rest)), _SPREAD_FLOOR)
    return Excess(
        own=left,
        shared=shared,
        level=_role_level(seconds, places),
        noise=noise,
        p=robust_tail(left / noise, np.full(len(left), count)),
        lasting=_lasting(left, rest),
        varies=varies,
        apart=apart,
    )


def _apart(shared: Floats, varies: float, steps: int, places: Places) -> float:
    """The range of the pipelines' levels, less that of as many medians of so many steps (2 sigma sqrt(2 ln n))."""
    if places.cells_of is None:
        return 0.0
    chance = 1.2533 * varies / np.sqrt(max(steps, 1)) * 2.0 * np.sqrt(2.0 * np.log(max(len(places.cells_of), 2)))
    return float(np.sqrt(max(float(np.ptp(shared)) ** 2 - float(chance) ** 2, 0.0)))


def _answers(rest: Floats, together: Floats, places: Places) -> Floats:
    """By what power each role's work grows with what its pipelines share, from how both vary; 1 where little varies.

    Attention grows with a sequence's square and a loss layer does not: a stage that grows more is not slow for it.
    """
    left = float(np.mean(np.nan_to_num(rest - together) ** 2))
    if float(np.mean(together**2)) <= _CLEARLY**2 * left:
        return np.ones(len(rest))
    both = np.nan_to_num(rest * together).sum(axis=1, keepdims=True)
    own = (together**2).sum(axis=1, keepdims=True)
    power = places.role.over(both, total) / np.maximum(places.role.over(own, total), 1e-30)
    return np.nan_to_num(np.clip(power[:, 0], *_POWERS), nan=1.0)


def _spread(own: Floats, places: Places) -> tuple[float, int]:
    """Robust standard deviation between ranks of one role, pooled over roles, and from how many ranks."""
    column = own[:, None]
    centre = places.role.over(column, median)[:, 0]
    size = places.role.over(np.isfinite(column).astype(np.float64), total)[:, 0]
    # Deviations from a centre made of the same n values are too small by sqrt((n - 1)/n)
    apart = np.where(size > 1, (own - centre) * np.sqrt(size / np.maximum(size - 1, 1)), np.nan)
    pooled = apart[np.isfinite(apart)]
    if not pooled.size:
        return float("nan"), 0
    # A pipeline's lower median makes one of its ranks zero by construction, which says nothing about spread
    forced = 0 if places.cells_of is None else min(len(places.cells_of), len(pooled) // 2)
    telling = np.sort(np.abs(pooled))[forced:]
    return max(1.4826 * float(np.median(telling)), _SPREAD_FLOOR), len(pooled)


def _standard_error(rest: Floats) -> Floats:
    """Of each rank's median over steps; steps that follow one another are alike: their lag-1 correlation widens it."""
    count = np.maximum(np.isfinite(rest).sum(axis=1), 1)
    spread = 1.4826 * median(np.abs(rest), axis=1)
    filled = np.nan_to_num(np.clip(rest, -3 * spread[:, None], 3 * spread[:, None]))
    power = np.maximum((filled**2).sum(axis=1), 1e-30)
    alike_ = np.clip((filled[:, 1:] * filled[:, :-1]).sum(axis=1) / power, 0.0, _MOST_CORRELATED)
    return np.asarray(1.2533 * spread * np.sqrt((1 + alike_) / (1 - alike_)) / np.sqrt(count), dtype=np.float64)


def _lasting(own: Floats, rest: Floats) -> Floats:
    known = np.isfinite(rest).sum(axis=1)
    there = (rest + own[:, None] >= own[:, None] / 2).sum(axis=1)
    return np.where(known > 0, there / np.maximum(known, 1), np.nan)


def _role_level(seconds: Floats, places: Places) -> Floats:
    """How much longer each rank's role computes than the lower median role, in log units; NaN where there is one."""
    levels = places.reference(median(log_of(np.where(np.isfinite(seconds), seconds, np.nan)), axis=1))
    if len(places.role) < 2:
        return np.full(len(levels), np.nan)
    return np.asarray(levels - lower_median(levels[places.role.rows[:, 0]]), dtype=np.float64)


def alike(parts: Floats, noise: Floats, least: float, surely: float) -> Bools:
    """Whether the excess of all parts of the work (parts × ranks) is near equal: the smallest is at least ``surely`` of
    the largest, less twice the noise, but never under ``least`` of it."""
    low, high = parts.min(axis=0), np.maximum(parts.max(axis=0), 1e-9)
    return np.asarray(low >= high * np.maximum(least, surely - 2.0 * noise / high), dtype=np.bool_)
