"""Faults as changes of what is measured. Nothing here knows a detector, so that none can be suited to it.

A family says what a fault does to a GPU's capability t seconds after it began: the log of how much slower it is than
it was (0.0513 is 5 % slower). ``CHANGES`` below says the same of whole windows of an instrumented node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Course = Callable[[Floats, float], Floats]
"""Seconds since onset and severity (share of speed lost) to the log of the slowdown."""
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Family:
    """One way to become slow. ``test_only``: never run before thresholds and method were frozen."""

    name: str
    course: Course
    severities: tuple[float, ...]
    test_only: bool = False


def lost(share: Floats | float) -> Floats:
    """The log of a slowdown by ``share`` of the speed."""
    return np.asarray(-np.log1p(-np.asarray(share, dtype=np.float64)))


def constant(since_s: Floats, severity: float) -> Floats:
    """Slower by ``severity`` from one moment to the next, and so it stays."""
    return np.where(since_s >= 0, lost(severity), 0.0)


def intermittent(since_s: Floats, severity: float) -> Floats:
    """Three minutes slow of every thirty, as a thermal or power limit that comes and goes: 10 % duty."""
    return np.where((since_s >= 0) & (np.mod(since_s, 1800.0) < 180.0), lost(severity), 0.0)


def ramp(since_s: Floats, severity: float) -> Floats:
    """Steadily worse over two hours, then it stays: dust, a drying thermal interface."""
    return lost(severity * np.clip(since_s / (2 * HOUR_S), 0.0, 1.0))


def stairs(since_s: Floats, severity: float) -> Floats:
    """Worse in four equal steps, twenty minutes apart: lanes or units that are lost one after the other."""
    steps = np.clip(np.floor(since_s / 1200.0) + 1.0, 0.0, 4.0)
    return lost(severity * steps / 4.0)


FAMILIES: Final = (
    Family("slow", constant, (0.02, 0.05, 0.10, 0.20)),
    Family("intermittent", intermittent, (0.10, 0.20)),
    Family("ramp", ramp, (0.05, 0.10, 0.20)),
    Family("stairs", stairs, (0.10, 0.20), test_only=True),
)
SEVERE_5PCT: Final = 0.05
"""The slowdown that the figures to reach are about."""


def windows(course: Course, severity: float, first_s: float, count: int, window_s: int = 30) -> Floats:
    """Mean effect in each of ``count`` windows; ``first_s`` is how long before the first one's end the fault began.

    Ten points a window: a fault that begins inside a window weakens that window only in part.
    """
    inside = (np.arange(10) + 0.5) / 10.0 * window_s
    starts = np.arange(count) * float(window_s) - (window_s - first_s)
    return np.asarray(course(starts[:, None] + inside, severity).mean(axis=1))
