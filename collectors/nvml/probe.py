"""Trying a GPU that hung: in a child of its own, so that what is found costs nobody a sample."""

from __future__ import annotations

from typing import Final, Protocol

from graynode.collectors.nvml import wire
from graynode.collectors.nvml.child import Child, ChildEnded
from graynode.collectors.nvml.patience import Patience, Pause

ABANDONED_MAX: Final = 3
"""No further child is started while so many hang in the driver: each holds memory and device files."""


class Home(Protocol):
    """What the probe needs of the session."""

    @property
    def abandoned(self) -> int:
        """Children that hang in the driver."""
        ...

    def begin(self, only: list[str], skip: list[int]) -> Child:
        """A new child."""
        ...

    def leave(self, child: Child) -> None:
        """Kill a child without waiting."""
        ...

    def to_probe(self) -> str | None:
        """The next GPU to try."""
        ...

    def returned(self, bus: str) -> None:
        """It answers again."""
        ...


class Probe:
    """A child that tries one GPU that hung, while the others are read by theirs. Never waits."""

    def __init__(self, session: Home, patience: Patience) -> None:
        self._session, self._for_s = session, patience.probe_for_s
        self._child: Child | None = None
        self._bus = ""
        self._pause = Pause(patience.probe_s)

    def wait(self, now: float) -> None:
        """Something has hung: not again before the pause is over."""
        self._pause.begin(now)

    def step(self, now: float) -> list[str]:
        """Go on with it; the addresses of GPUs that answer again."""
        try:
            return self._step(now)
        except (ChildEnded, OSError):
            self._give_up(now)
            return []

    def stop(self) -> None:
        """End it."""
        child, self._child = self._child, None
        if child is not None:
            self._session.leave(child)

    def _step(self, now: float) -> list[str]:
        if self._child is None:
            bus = self._session.to_probe() if self._pause.over(now) else None
            if bus is None or self._session.abandoned >= ABANDONED_MAX:
                return []
            self._bus = bus
            self._child = self._session.begin([bus] if bus else [], [])
            return []
        message = self._child.receive(now)
        if isinstance(message, wire.Hello) and not message.code and message.gpus:
            self._child.send(wire.Ask(1, [1, 10, 60]))
        elif isinstance(message, wire.Answer) and not any(r.trouble for r in message.reads):
            self.stop()
            self._pause.reset()
            self._session.returned(self._bus)
            return [self._bus]
        elif message is not None or now - self._child.started_at > self._for_s:
            self._give_up(now)
        return []

    def _give_up(self, now: float) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._session.leave(child)
        self._pause.begin(now)
