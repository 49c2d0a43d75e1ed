"""Whether a node that has come back from repair will fault again soon, and for how long it is on probation.

The risk falls with the time since the return (a constant hazard in each of a few spans), rises with the number of
repairs in a row that did not hold, and moves with the fleet: a week of bad repairs is bad for all. The first two are
fitted to all returns of the past (Poisson likelihood of faults per day at risk, weak priors); the last is the ratio of
faults seen to faults expected on probation, discounted with a half-life of two horizons. Returns younger than the
horizon count for the days that they have been seen, so that no outcome is known before its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from graynode.detectors.fault_history import Faults, Floats, Returns, returns

PROBATION_D: Final = 7.0
"""Seven days after a return hold 31 % of all faults in 2.1 % of the node-days (``graynode evaluate lemons`` on
InfiniteHBD's trace); fourteen hold 36 % in 4 %."""
_EDGES_D: Final = np.array([0.0, 0.25, 1.0, 3.0, 7.0, 14.0])
_SPANS_D: Final = np.diff(_EDGES_D)
_ON_PROBATION: Final = _EDGES_D[:-1] < PROBATION_D
_LEVEL_HALF_LIFE_D: Final = 14.0
_LEVEL_PRIOR: Final = 2.0
"""Faults seen and expected that the level begins with: one."""
_SPAN_PRIOR: Final = 0.5
"""Faults that each span begins with, at the rate of all spans together, and these together at the fleet's own."""
_CHAIN_PRECISION: Final = 1.0
_STEPS: Final = 25


@dataclass(frozen=True, slots=True)
class Hazard:
    """Faults per day after a return: ``per_day`` in each span, times exp(``chain`` · log(1 + repairs in a row))."""

    per_day: Floats
    chain: float

    def p_refault(self, chain: Floats, age_d: Floats, horizon_d: float) -> Floats:
        """Probability of a fault within ``horizon_d`` from now on, the return ``age_d`` ago. The last span goes on."""
        edges = np.append(_EDGES_D[:-1], np.inf)
        spent = _within(edges, age_d)
        ahead = _within(edges, age_d + horizon_d) - spent
        return np.asarray(-np.expm1(-(ahead @ self.per_day) * np.exp(self.chain * np.log1p(chain))), dtype=np.float64)


def hazard(faults: Faults, at_d: float, *, chain: bool = True, level: bool = True) -> Hazard:
    """Fitted to what is known at ``at_d``; with no return yet it is the fleet's own rate.

    ``chain`` and ``level`` leave a part out, to measure what it is worth.
    """
    past = faults.known(at_d)
    back = returns(past)
    fleet = max(len(past), 0.5) / (past.nodes * max(at_d, 1.0))
    if not len(back.at_d):
        return Hazard(np.full(len(_SPANS_D), fleet), 0.0)
    seen, at_risk = _at_risk(back, at_d)
    z = np.log1p(back.chain) if chain else np.zeros(len(back.chain))
    per_day, weight = _fit(seen, at_risk, z, fleet)
    if not level:
        return Hazard(per_day, weight)
    expected = at_risk * per_day * np.exp(weight * z)[:, None]
    recent = 0.5 ** ((at_d - (back.at_d[:, None] + _EDGES_D[:-1])) / _LEVEL_HALF_LIFE_D)
    recent = np.where((at_risk > 0) & _ON_PROBATION, recent, 0.0)
    ratio = (_LEVEL_PRIOR + (recent * seen).sum()) / (_LEVEL_PRIOR + (recent * expected).sum())
    return Hazard(per_day * np.where(_ON_PROBATION, ratio, 1.0), weight)


def probation_until(returned: datetime | None, length_d: float = PROBATION_D) -> datetime | None:
    """When a node that came back at ``returned`` has proved itself; ``None`` for one that never was in repair."""
    return None if returned is None else returned + timedelta(days=length_d)


def _within(edges: Floats, until_d: Floats) -> Floats:
    """Days of each span that lie before ``until_d``, shape (nodes, spans)."""
    return np.asarray(np.clip(until_d[:, None], edges[:-1], edges[1:]) - edges[:-1], dtype=np.float64)


def _at_risk(back: Returns, at_d: float) -> tuple[Floats, Floats]:
    """Faults seen and days at risk of each return in each span."""
    watched = np.minimum(back.next_d, at_d - back.at_d)
    at_risk = _within(_EDGES_D, watched)
    span = np.searchsorted(_EDGES_D, back.next_d, side="right") - 1
    seen = np.zeros_like(at_risk)
    hit = np.isfinite(back.next_d) & (span < len(_SPANS_D))
    seen[np.flatnonzero(hit), span[hit]] = 1.0
    return seen, at_risk


def _fit(seen: Floats, at_risk: Floats, z: Floats, fleet: float) -> tuple[Floats, float]:
    """Hazard of each span and weight of the chain: Newton steps on the weight, the hazards in closed form."""
    chain = 0.0
    overall = (seen.sum() + _SPAN_PRIOR) / (at_risk.sum() + _SPAN_PRIOR / fleet)
    for _ in range(_STEPS):
        tilted = at_risk * np.exp(chain * z)[:, None]
        per_day = (seen.sum(axis=0) + _SPAN_PRIOR) / (tilted.sum(axis=0) + _SPAN_PRIOR / overall)
        expected = tilted * per_day
        slope = ((seen - expected) * z[:, None]).sum() - _CHAIN_PRECISION * chain
        curve = (expected * z[:, None] ** 2).sum() + _CHAIN_PRECISION
        step = float(np.clip(slope / curve, -1.0, 1.0))
        chain += step
        if abs(step) < 1e-9:
            break
    return per_day, chain
