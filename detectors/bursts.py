"""Intermittent faults: windows beyond τ within a day, against how many are expected.

A GPU that is slow in one window of ten has a CUSUM that falls nine times for each time it rises. So windows beyond τ
are counted, with a day's memory, and the count is judged by the tail of a negative binomial: they come in clusters,
because what a window shows is correlated with the next. The expectation is the GPU's own share on days −28 to −7.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from graynode.detectors import conformal
from graynode.detectors.baseline import DAY_S
from graynode.detectors.frames import Floats
from graynode.detectors.memory import Arrays

COLUMNS: Final = ("bursts.count", "bursts.judged", "bursts.total", "bursts.since", "bursts.last")
FLOOR: Final = 0.005
"""Least share expected: five times what noise of sigma 1 %, t4 and lag-one correlation 0.8 puts beyond 5 %."""
DISPERSION: Final = 3.0
"""Variance over mean of the count: that of clusters of three at a time, as that noise makes them."""
_STALE_S: Final = 3 * 3600.0
"""So long after the last one nothing is said any more, though the count remembers the day."""
_MOST: Final = 300.0


def advance(memory: Arrays, excess: Floats, tau: float, now_s: Floats, window_s: int) -> Floats:
    """Count this window, in place; −log10 of the tail: how odd the day's count is. NaN ``excess`` counts nowhere."""
    kept = np.exp(-window_s / DAY_S)
    known, beyond = ~np.isnan(excess), excess > tau
    for part, add in (("count", beyond), ("judged", known), ("total", np.where(beyond, excess, 0.0))):
        before = np.nan_to_num(memory[f"bursts.{part}"])
        memory[f"bursts.{part}"] = before * np.where(known, kept, 1.0) + add
    count = memory["bursts.count"]
    last = np.where(beyond, now_s, memory["bursts.last"])
    running = (count > 0.5) & (now_s - last <= _STALE_S)
    first = np.where(np.isnan(memory["bursts.since"]), now_s, memory["bursts.since"])
    memory.update({"bursts.last": last, "bursts.since": np.where(running, first, np.nan)})
    expected = np.fmax(memory["bursts.base"], FLOOR) * memory["bursts.judged"]
    odd = np.zeros(len(count))
    some = running & (count > expected)
    odd[some] = -np.log10(tail(count[some], expected[some]))
    return odd


def tail(count: Floats, expected: Floats) -> Floats:
    """P(X ≥ count) of a negative binomial with that mean and ``DISPERSION``; never 0."""
    shape = expected / (DISPERSION - 1.0)
    rate = np.full(len(count), 1.0 / (DISPERSION - 1.0))
    p = conformal.negative_binomial_tail(count, shape, rate, np.ones(len(count)))
    return np.asarray(np.maximum(p, 10.0**-_MOST), dtype=np.float64)


def effect(memory: Arrays) -> Floats:
    """Mean excess of the windows beyond τ."""
    count = memory["bursts.count"]
    mean: Floats = np.divide(memory["bursts.total"], count, out=np.full(len(count), np.nan), where=count > 0)
    return mean
