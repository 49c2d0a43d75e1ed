"""Exact confidence bounds of counts: of a share of trials, and of a rate per exposure."""

from __future__ import annotations

from scipy import special


def clopper_pearson(
    hits: int, trials: int, confidence: float = 0.95, *, one_sided: bool = False
) -> tuple[float, float]:
    """Exact bounds of a share (Clopper and Pearson, 1934); one-sided each at ``confidence`` if so asked. 0 to 1 where
    nothing was tried."""
    tail = (1.0 - confidence) / (1.0 if one_sided else 2.0)
    low = 0.0 if hits == 0 else float(special.betaincinv(hits, trials - hits + 1, tail))
    high = 1.0 if hits >= trials else float(special.betaincinv(hits + 1, trials - hits, 1.0 - tail))
    return low, high


def poisson_rate(
    events: int, exposure: float, confidence: float = 0.95, *, one_sided: bool = False
) -> tuple[float, float]:
    """Exact bounds of a rate per unit of ``exposure`` (Garwood, 1936): chi2(a/2; 2x)/2E to chi2(1−a/2; 2x+2)/2E."""
    tail = (1.0 - confidence) / (1.0 if one_sided else 2.0)
    # Half a quantile of chi2 with 2k degrees of freedom is that of the gamma law of shape k.
    low = 0.0 if events == 0 else float(special.gammaincinv(events, tail)) / exposure
    return low, float(special.gammaincinv(events + 1, 1.0 - tail)) / exposure
