"""Figures of the report that SQL does not give: intervals, lengths with censoring, and the forecast of failures.

Pure: numbers in, numbers out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from graynode.detectors.exact_bounds import poisson_rate

LEAST_WEEKS: Final = 8
"""With fewer weeks how far they scatter cannot be told: the forecast then says that it is too little."""
_BLOCK: Final = 4
_PRIOR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; null where there is nothing to tell it from."""

    value: float | None
    low: float | None
    high: float | None


def per_1000(failures: int, node_days: float) -> Estimate:
    """Failures per 1,000 node-days with Garwood's exact interval."""
    if node_days <= 0:
        return Estimate(None, None, None)
    low, high = poisson_rate(failures, node_days / 1000)
    return Estimate(1000 * failures / node_days, low, high)


def between(failures: int, days: float) -> Estimate:
    """Mean days between failures: the inverse of the rate and of its exact bounds. No upper bound without a failure."""
    if days <= 0:
        return Estimate(None, None, None)
    low, high = poisson_rate(failures, days)
    return Estimate(days / failures if failures else None, 1 / high, 1 / low if low > 0 else None)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Kaplan and Meier's share of cases over by ``t`` (seconds, ascending), those still running counted as far as seen.

    ``cases`` went in, of which ``over`` had ended.
    """

    t: tuple[float, ...]
    share: tuple[float, ...]
    cases: int
    over: int

    def quantile(self, q: float) -> float | None:
        """The shortest length by which a share ``q`` was over; null where it never got so far."""
        return next((t for t, s in zip(self.t, self.share, strict=True) if s >= q - 1e-12), None)


def lengths(seconds: Sequence[float], over: Sequence[bool]) -> Lengths:
    """The product-limit estimate (Kaplan and Meier, 1958); a case that is not over counts as at risk until then."""
    t, ended = np.asarray(seconds, dtype=float), np.asarray(over, dtype=bool)
    times = np.unique(t[ended])
    at_risk = (t[:, None] >= times).sum(axis=0)
    ends = (t[ended][:, None] == times).sum(axis=0)
    share = 1.0 - np.cumprod(1.0 - ends / np.maximum(at_risk, 1))
    return Lengths(tuple(times.tolist()), tuple(share.tolist()), len(t), int(ended.sum()))


@dataclass(frozen=True, slots=True)
class Forecast:
    """Failures within the horizon: mean, and what they will not exceed with probability 0.95 and 0.99.

    ``down_95`` and ``down_99`` are nodes out at the same time, null where no repair time is known. ``dispersion`` is
    the factor by which weeks scatter more than chance alone, ``weeks`` how many stand behind it.
    """

    mean: float
    failures_95: int
    failures_99: int
    down_mean: float | None
    down_95: int | None
    down_99: int | None
    dispersion: float
    weeks: int
    failures_seen: int


def forecast(
    counts: Sequence[int], node_days: Sequence[float], ahead_node_days: float, nodes: float, repair_d: float | None
) -> Forecast | None:
    """What ``counts`` of past weeks, each with its ``node_days``, foretell for ``ahead_node_days``.

    Failures a node-day have a gamma prior (Jeffreys: shape 1/2, rate 0) and are Poisson, so the number ahead is
    negative binomial with shape Y + 1/2 and probability E/(E+h): Y failures in E node-days were seen, h are ahead.
    Where weeks scatter more (φ > 1: Pearson's dispersion of weeks and of blocks of four, the larger) it has variance
    φ·m·(1 + m/(Y + φ/2)) at mean m (quasi-likelihood); with φ = 1 that is the same law.
    ``nodes`` · rate · ``repair_d`` are out on average (Little's law); their number scatters alike.
    """
    seen, exposure = int(sum(counts)), float(sum(node_days))
    if exposure <= 0 or ahead_node_days <= 0:
        return None
    phi = dispersion(counts, node_days)
    ahead = _Ahead(_PRIOR * phi + seen, exposure, phi)
    down: tuple[float | None, int | None, int | None] = (None, None, None)
    if repair_d is not None and repair_d > 0:
        held = nodes * repair_d
        down = (ahead.mean(held), ahead.most(held, 0.95), ahead.most(held, 0.99))
    most = [ahead.most(ahead_node_days, q) for q in (0.95, 0.99)]
    return Forecast(ahead.mean(ahead_node_days), most[0], most[1], *down, phi, len(counts), seen)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A rate of ``seen`` failures in ``exposure`` node-days whose counts scatter ``phi`` times as wide as Poisson's."""

    seen: float
    exposure: float
    phi: float

    def mean(self, node_days: float) -> float:
        return self.seen / self.exposure * node_days

    def most(self, node_days: float, q: float) -> int:
        """The quantile of the negative binomial of that mean m and of variance φ·m + φ·m²/seen."""
        mean = self.mean(node_days)
        variance = self.phi * mean * (1.0 + mean / self.seen)
        return _quantile(mean**2 / (variance - mean), mean / variance, q)


def dispersion(counts: Sequence[int], node_days: Sequence[float]) -> float:
    """Pearson's chi-square over its degrees of freedom, of single weeks and of blocks of four; at least 1."""
    y, e = np.asarray(counts, dtype=float), np.asarray(node_days, dtype=float)
    found = [1.0]
    for block in (1, _BLOCK):
        n = len(y) // block
        if n < _BLOCK or not y.sum():
            continue
        yb, eb = (a[len(a) - n * block :].reshape(n, block).sum(axis=1) for a in (y, e))
        mean = eb * yb.sum() / eb.sum() if eb.sum() else eb
        there = mean > 0
        if there.sum() > 1:
            found.append(float(((yb - mean)[there] ** 2 / mean[there]).sum() / (there.sum() - 1)))
    return max(found)


def _quantile(shape: float, p: float, q: float) -> int:
    """Smallest k with P(N ≤ k) ≥ q for the negative binomial: its distribution function is a regularised beta."""
    high = 1
    while special.betainc(shape, high + 1, p) < q:
        high *= 2
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if special.betainc(shape, middle + 1, p) >= q else (middle, high)
    return high
