"""How often each node will fault: a gamma–Poisson rate that forgets, its memory learned from the past alone.

A node's rate has a gamma prior at the fleet's own rate; its faults and days update it, both discounted by age (the
power-discounted local level of Smith, 1979, and Harvey and Fernandes, 1989). How fast to forget, and how far to
believe the fleet, differ from site to site: unfinished repairs want a memory of a week, lasting lemons one of a year.
So all memories of a grid are kept and weighted by how well each foretold every past week from what was known before
it (Bayesian model averaging over negative binomial forecasts). Nothing is set by hand, and with no history every node
has the fleet's rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import gammaln

from graynode.detectors.fault_history import Faults, Floats

HALF_LIVES_D: Final = np.array([1.75, 3.5, 7.0, 14.0, 28.0, 56.0, 112.0, 3.65e4])
"""Octaves from two days to four months, and for ever."""
PRIOR_D: Final = np.array([7.0, 14.0, 28.0, 56.0, 112.0, 224.0])
"""Node-days of fleet history that a node's own must outweigh."""
_STEP_D: Final = 7.0
_MOST_WEEKS: Final = 104
"""Weeks that are foretold to weigh the memories; two years tell them apart."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of each node the expected faults a day, and the probability of at least one within the horizon.

    ``weight`` says how far each half-life (first axis) and prior (second) is believed.
    """

    rate_per_day: Floats
    p_fault: Floats
    weight: Floats


def outlook(faults: Faults, at_d: float, horizon_d: float, half_lives_d: Floats = HALF_LIVES_D) -> Outlook:
    """The outlook at ``at_d`` from what is known then; what began later is not looked at."""
    past = faults.known(at_d)
    log_weight = np.zeros((len(half_lives_d), len(PRIOR_D)))
    for week in range(1, min(_MOST_WEEKS, int(at_d / _STEP_D) - 1) + 1):
        log_weight += _foretold(past, at_d - week * _STEP_D, half_lives_d)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    a, b = _posterior(past, at_d, half_lives_d)
    nobody = (b / (b + horizon_d)) ** a
    return Outlook(_mean(weight, a / b), 1.0 - _mean(weight, nobody), weight)


def _mean(weight: Floats, values: Floats) -> Floats:
    return np.asarray(np.einsum("hw,hwn->n", weight, values), dtype=np.float64)


def _posterior(faults: Faults, at_d: float, half_lives_d: Floats) -> tuple[Floats, Floats]:
    """Shape and rate of each node's gamma by half-life, prior and node; ``b`` is alike for all nodes."""
    past = faults.start_d < at_d
    age_d, node = at_d - faults.start_d[past], faults.node[past]
    fleet = max(float(past.sum()), 0.5) / (faults.nodes * max(at_d, 1.0))
    kept = 0.5 ** (age_d / half_lives_d[:, None])
    seen = np.array([np.bincount(node, weights=row, minlength=faults.nodes) for row in kept])
    days = half_lives_d / np.log(2.0) * -np.expm1(-np.log(2.0) * at_d / half_lives_d)
    return fleet * PRIOR_D[None, :, None] + seen[:, None, :], (PRIOR_D + days[:, None])[:, :, None]


def _foretold(faults: Faults, since_d: float, half_lives_d: Floats) -> Floats:
    """Log-probability, by half-life and prior, of the week from ``since_d`` on, given what was known at its start."""
    a, b = _posterior(faults, since_d, half_lives_d)
    y = faults.counts(since_d, since_d + _STEP_D).astype(np.float64)
    spoken = (y > 0) | (a[0, 0] > a[0, 0].min())
    silent = np.flatnonzero(~spoken)[:1]  # all silent nodes have one and the same probability
    chosen = np.concatenate([np.flatnonzero(spoken), silent])
    times = np.ones(len(chosen))
    times[-1:] = max(len(y) - int(spoken.sum()), 1)
    a, y = a[:, :, chosen], y[chosen]
    log_p = gammaln(a + y) - gammaln(a) - gammaln(y + 1.0)
    log_p = log_p + a * np.log(b / (b + _STEP_D)) + y * np.log(_STEP_D / (b + _STEP_D))
    return np.asarray((log_p * times).sum(axis=2), dtype=np.float64)
