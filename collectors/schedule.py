"""When rounds are: a fixed grid on the monotonic clock, so that neither work nor a stepped clock shifts it."""

from __future__ import annotations

from collections.abc import Iterable

from graynode.collectors.base import CADENCES_S


class Schedule:
    """Ticks at ``start + n · tick_s``. A tick that was slept through is left out, never made up for.

    A reading class is due at the first tick taken at or after each of its own multiples, so leaving out ticks
    postpones a slow class and does not lose it. Cadences are in ticks; a tick is a second but in tests.
    """

    def __init__(self, start: float, tick_s: float = 1.0, cadences: Iterable[int] = CADENCES_S) -> None:
        self._start, self._tick_s, self._cadences = start, tick_s, tuple(cadences)
        self._taken = -1

    @property
    def next_at(self) -> float:
        """Monotonic time of the next tick."""
        return self._start + (self._taken + 1) * self._tick_s

    def take(self, now: float) -> frozenset[int]:
        """The classes due at ``now``, which is at or after ``next_at``; the first time all of them."""
        before = self._taken
        # a thousandth of a tick: a sleep may end a hair early by this clock's resolution
        self._taken = max(before + 1, int((now - self._start) / self._tick_s + 1e-3))
        if before < 0:
            return frozenset(self._cadences)
        return frozenset(c for c in self._cadences if self._taken // c > before // c)
