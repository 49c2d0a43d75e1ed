"""Spare memory rows: which banks run out, and in how many days at the pace so far.

A bank's spare rows are told by the driver in five classes (all, most, some, few, none left). A GPU is as well as its
worst bank, because a row can be remapped within its bank only. The forecast is Theil and Sen's: the median of the
slopes between all pairs of changes, which one odd jump does not move, with the rank interval of Sen (1968).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors.frames import Floats

BANKS: Final = ("max", "high", "partial", "low", "none")
LEFT: Final = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Share of a bank's spare rows that each class stands for. The vendor gives words, no numbers: the quarters are an
assumption, and forecasts say "about"."""
POINTS: Final = 8
DAY_S: Final = 86_400.0
FORGET_S: Final = 400 * DAY_S
"""Changes of spare rows are months apart: a GPU's are kept for more than a year."""
_FEWEST: Final = 3
_Z90: Final = 1.645


def worst(banks: Sequence[Floats]) -> Floats:
    """Share of spare rows left in the worst bank, by the classes' counts in order of ``BANKS``; NaN where unknown."""
    counts = np.vstack(banks)
    found = np.full(counts.shape[1], np.nan)
    for count, left in zip(counts, LEFT, strict=True):
        found = np.where(count > 0, left, found)
    return np.asarray(found, dtype=np.float64)


def columns() -> tuple[str, ...]:
    """Names under which a GPU's changes are remembered: when, and what was left."""
    return tuple(f"{what}.{i}" for what in ("t", "left") for i in range(POINTS))


def note(t_s: Floats, left: Floats, now_s: float, now_left: float) -> tuple[Floats, Floats]:
    """The changes with one more, the oldest going where there is no room. Unset places are NaN, at the end."""
    known = ~np.isnan(t_s)
    times, lefts = np.append(t_s[known], now_s)[-POINTS:], np.append(left[known], now_left)[-POINTS:]
    pad = np.full(POINTS - len(times), np.nan)
    return np.append(times, pad), np.append(lefts, pad)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Days until the worst bank has no spare row, and the 90 % interval; ``high`` is ``None`` where it may never be."""

    days: float
    low: float
    high: float | None

    def words(self) -> str:
        """For a person."""
        upto = "no end" if self.high is None else f"{self.high:.0f}"
        return f"about {self.days:.0f} days at this pace (90 % interval {self.low:.0f} to {upto})"


def forecast(t_s: Floats, left: Floats, now_s: float) -> Forecast | None:
    """From the changes so far; ``None`` for fewer than three, or where spare rows do not go."""
    known = ~np.isnan(t_s)
    days, values = t_s[known] / DAY_S, left[known]
    if len(days) < _FEWEST:
        return None
    pairs = itertools.combinations(range(len(days)), 2)
    slopes = sorted((values[j] - values[i]) / (days[j] - days[i]) for i, j in pairs if days[j] > days[i])
    if not slopes:
        return None
    middle = float(np.median(slopes))
    now_left = float(values[-1])
    if middle >= 0 or now_left <= 0:
        return None
    passed = now_s / DAY_S - float(days[-1])

    def remaining(slope: float) -> float:
        return max(0.0, now_left / -slope - passed)

    n = len(days)
    off = int(_Z90 * np.sqrt(n * (n - 1) * (2 * n + 5) / 18.0) / 2.0 + 0.5)
    half = len(slopes) // 2
    steep, flat = slopes[max(0, half - off)], slopes[min(len(slopes) - 1, half + off)]
    return Forecast(remaining(middle), remaining(min(steep, middle)), remaining(flat) if flat < 0 else None)
