"""How long the NVML collector waits before it tries something again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. ``start_s``: a driver without persistence takes seconds a GPU to attach; ``probe_for_s`` is how long a
    try of a GPU that hung may take, its start included. The pairs are first and
    longest pause, doubling: between children that fail, between tries of a GPU that hung, between looks for GPUs
    that NVML does not list."""

    start_s: float = 60.0
    again_s: tuple[float, float] = (1.0, 60.0)
    probe_s: tuple[float, float] = (60.0, 3600.0)
    probe_for_s: float = 60.0
    relist_s: tuple[float, float] = (60.0, 600.0)


class Pause:
    """A pause that doubles up to a longest one; ``over`` says whether it has passed."""

    def __init__(self, bounds: tuple[float, float]) -> None:
        self._bounds, self._next_s, self._until = bounds, bounds[0], float("-inf")

    def begin(self, now: float) -> None:
        """Wait from now, twice as long as the time before."""
        self._until = now + self._next_s
        self._next_s = min(self._next_s * 2, self._bounds[1])

    def over(self, now: float) -> bool:
        """True when it has passed."""
        return now >= self._until

    def reset(self) -> None:
        """The next one is the shortest again."""
        self._next_s, self._until = self._bounds[0], float("-inf")
