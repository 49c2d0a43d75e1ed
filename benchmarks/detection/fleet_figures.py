"""Figures of the fleet track: rates, shares and delays with one-sided bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from graynode.benchmarks.detection import delays
from graynode.benchmarks.detection.delays import Floats
from graynode.benchmarks.detection.result import Figure, Figures
from graynode.detectors.exact_bounds import clopper_pearson, poisson_rate

ONE_SIDED: Final = "one-sided 95 % bounds"


def rate(events: int, node_days: float, note: str = "") -> Figure:
    """Events per node-day."""
    low, high = poisson_rate(events, node_days, one_sided=True)
    return Figure(events / node_days, low, high, round(node_days), _joined(f"{events} events; {ONE_SIDED}", note))


def share(hits: int, trials: int, note: str = "") -> Figure:
    """A share of ``trials``; no value where there was none."""
    if not trials:
        return Figure(None, n=0, note=_joined("nothing to measure it on", note))
    low, high = clopper_pearson(hits, trials, one_sided=True)
    return Figure(hits / trials, low, high, trials, _joined(ONE_SIDED, note))


def of_delays(name: str, delay_min: Floats, rng: np.random.Generator, note: str = "") -> Figures:
    """Recall within the horizon, and the median and 95th percentile of the delay with misses as infinite."""
    found = int(np.isfinite(delay_min).sum())
    return {
        f"{name}.recall": share(found, len(delay_min), note),
        f"{name}.delay_min_median": _delay(delay_min, 0.5, rng, note),
        f"{name}.delay_min_p95": _delay(delay_min, 0.95, rng, note),
    }


def _delay(delay_min: Floats, of: float, rng: np.random.Generator, note: str) -> Figure:
    value = delays.quantile(delay_min, of)
    low, high = delays.bounds(delay_min, of, rng)
    never = "" if math.isfinite(value) else "never: too many were missed within the horizon"
    bound = "" if math.isfinite(high) else "no upper bound"
    return Figure(
        _finite(value), _finite(low), _finite(high), len(delay_min), _joined("two-sided bounds", never, bound, note)
    )


def precision(recall: Figure, false: Figure, per_1000_node_days: float) -> Figure:
    """Computed: found / (found + false) at a rate of faults. Its lower bound takes recall's lower and the rate's upper.

    Both at their worst at once, so it is further down than a bound of 95 %.
    """
    faults = per_1000_node_days / 1000.0
    note = f"computed from recall and false rate at {per_1000_node_days:g} faults per 1,000 node-days"
    if recall.value is None or false.value is None:
        return Figure(None, note=note)
    value = _precision(recall.value, false.value, faults)
    low = _precision(recall.ci_low or 0.0, false.ci_high or 1.0, faults)
    return Figure(value, low, None, recall.n, note)


def _precision(recall: float, false: float, faults: float) -> float:
    right = recall * faults
    return right / (right + false) if right + false > 0 else 0.0


def pooled(events: Sequence[int], node_days_each: float) -> Figure:
    """The rate over all seeds, with each seed's own count beside it."""
    per_seed = ", ".join(str(e) for e in events)
    return rate(
        sum(events), node_days_each * len(events), f"by seed: {per_seed} of {node_days_each:.0f} node-days each"
    )


def _joined(*parts: str) -> str:
    return "; ".join(p for p in parts if p)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
