"""Accumulate: the one sequential layer between a window's score and a decision.

S = max(0, S + clip(r, ±1.2 τ) − τ/2): a CUSUM (Page 1954) tuned to a shift of τ, its input clipped so that one
wild window counts little more than one shifted one. S is in the units of r. NaN is "cannot tell" and changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors.frames import Bools, Floats
from graynode.detectors.memory import Arrays

TAU: Final = 0.05
"""The slowdown worth a person's time: 5 % of one GPU is 5 % of its whole synchronous job."""
_CLIP: Final = 1.2


def cusum(before: Floats, residual: Floats, tau: float = TAU) -> Floats:
    """One step. ``before`` NaN starts at zero; ``residual`` NaN leaves the sum as it is."""
    start = np.where(np.isnan(before), 0.0, before)
    step = np.clip(residual, -_CLIP * tau, _CLIP * tau) - tau / 2
    return np.where(np.isnan(residual), start, np.maximum(0.0, start + np.where(np.isnan(step), 0.0, step)))


@dataclass(frozen=True, slots=True)
class Run:
    """A sum that is above zero, since when, and the mean residual of the windows since."""

    sum: Floats
    since_s: Floats
    mean: Floats

    @staticmethod
    def columns(signal: str) -> tuple[str, ...]:
        """Names under which a signal's run is remembered."""
        return tuple(f"{signal}.{part}" for part in ("sum", "since", "total", "windows"))


def advance(
    memory: Arrays, signal: str, residual: Floats, now_s: Floats, tau: float = TAU, limit: float = np.inf
) -> Run:
    """Advance a signal's run in ``memory`` (in place) by one window. The sum stays within twice the ``limit``.

    So that what has ended is over within the hour, however long it lasted.
    """
    total_name, windows_name = f"{signal}.total", f"{signal}.windows"
    after = np.minimum(cusum(memory[f"{signal}.sum"], residual, tau), 2.0 * limit)
    running = after > 0
    counted = running & ~np.isnan(residual)
    since = np.where(running, np.where(np.isnan(memory[f"{signal}.since"]), now_s, memory[f"{signal}.since"]), np.nan)
    total = _restart(memory[total_name], running) + np.where(counted, residual, 0.0)
    windows = _restart(memory[windows_name], running) + counted
    memory.update({f"{signal}.sum": after, f"{signal}.since": since, total_name: total, windows_name: windows})
    mean = np.divide(total, windows, out=np.full(len(total), np.nan), where=windows > 0)
    return Run(after, since, mean)


def forget(memory: Arrays, signal: str, where: Bools) -> None:
    """Start a signal's run anew for some entities: what it was measured against no longer holds."""
    for column in Run.columns(signal):
        memory[column] = np.where(where, np.nan, memory[column])


def strikes(before: Floats, bad: Bools, known: Bools) -> Floats:
    """Windows in a row that were bad: one more, zero after a good one, unchanged where nothing is known."""
    start = np.where(np.isnan(before), 0.0, before)
    return np.where(~known, start, np.where(bad, start + 1.0, 0.0))


def strike(memory: Arrays, signal: str, bad: Bools, known: Bools, now_s: Floats) -> tuple[Floats, Floats]:
    """``strikes`` of a signal in ``memory`` (in place): the count, and since when it runs."""
    count = strikes(memory[f"{signal}.strikes"], bad, known)
    before = memory[f"{signal}.since"]
    since = np.where(count > 0, np.where(np.isnan(before), now_s, before), np.nan)
    memory.update({f"{signal}.strikes": count, f"{signal}.since": since})
    return count, since


def _restart(values: Floats, running: Bools) -> Floats:
    return np.where(running & ~np.isnan(values), values, 0.0)
