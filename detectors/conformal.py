"""From scores to p-values, and from many p-values to a list."""

from __future__ import annotations

import numpy as np
from scipy import special

from graynode.detectors.frames import Bools, Floats, Ints


def p_values(calibration: Floats, scores: Floats) -> Floats:
    """Split-conformal p = (1 + #{calibration ≥ score}) / (n + 1): exact for exchangeable healthy scores.

    Never below 1/(n + 1): a small calibration set cannot say "one in a million", and does not.
    """
    healthy = np.sort(calibration[~np.isnan(calibration)])
    at_least = len(healthy) - np.searchsorted(healthy, scores, side="left")
    return np.where(np.isnan(scores), np.nan, (1.0 + at_least) / (len(healthy) + 1.0))


def benjamini_hochberg(p: Floats, q: float = 0.05) -> Bools:
    """Which to list so that at most a share ``q`` of the list is false, on average (Benjamini, Hochberg 1995)."""
    known = ~np.isnan(p)
    ordered = np.sort(p[known])
    limits = q * np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    passing = np.flatnonzero(ordered <= limits)
    return known & (p <= (ordered[passing[-1]] if passing.size else -1.0))


def robust_tail(z: Floats, peers: Ints) -> Floats:
    """P(Z ≥ z) for a z made with median and MAD of so many healthy peers.

    The MAD of few peers is unsure, so the tail is Student's with 0.37·n + 1 degrees (0.37 is the MAD's efficiency
    under a normal law): a fixed limit of 3.5 would be passed by 1 in 90 healthy GPUs among 8, 1 in 3,400 among 512.
    """
    return np.asarray(special.stdtr(0.37 * peers + 1.0, -z), dtype=np.float64)


def negative_binomial_tail(count: Floats, shape: Floats, rate: Floats, exposure: Floats) -> Floats:
    """P(X ≥ count) in ``exposure`` when the rate is Gamma(shape, rate): the negative binomial's upper tail."""
    tail = np.ones(len(count))
    some = np.flatnonzero(~(count <= 0))  # of most counters there is nothing to judge
    share = exposure[some] / (rate[some] + exposure[some])
    tail[some] = special.betainc(count[some], shape[some], share)
    return tail
