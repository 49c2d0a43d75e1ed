"""What ``respond`` counts, for ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from prometheus_client import Counter, Gauge

TOLD: Final = Counter(
    "graynode_respond_outcomes", "Attempts to tell an incident, by outcome; held ones are told later.",
    ("receiver", "outcome"),
)  # fmt: skip
WAITING: Final = Gauge(
    "graynode_respond_failing", "Attempts at the incident that a receiver does not take now; 0 is well.", ("receiver",)
)
HELD: Final = Gauge("graynode_respond_held", "Incidents that wait to be told together or later.", ("receiver",))
BUNDLED: Final = Counter(
    "graynode_respond_bundled", "Incidents told in one message with others, by why.", ("receiver", "why")
)
REMINDERS: Final = Counter("graynode_respond_reminders", "Reminders of open pages.", ("receiver",))
OLDEST: Final = Gauge(
    "graynode_respond_waiting_seconds", "Age of what a receiver does not take now; 0 is well.", ("receiver",)
)
CANARY_TOLD: Final = Counter("graynode_canary_told", "Heartbeats that left for a receiver.", ("receiver",))
CANARY_DELAY: Final = Gauge(
    "graynode_canary_delay_seconds", "From the sending of the last heartbeat to its taking.", ("receiver",)
)
CANARY_AGE: Final = Gauge(
    "graynode_canary_age_seconds", "Age of the last heartbeat that was taken; without one, since the start.",
    ("receiver",),
)  # fmt: skip


class CanaryWatch:
    """How old the last heartbeat is that left for one receiver, whenever somebody asks."""

    def __init__(self, receiver: str, clock: Callable[[], datetime]) -> None:
        self._receiver, self._clock, self._sent = receiver, clock, clock()
        CANARY_AGE.labels(receiver).set_function(self.age_s)

    def age_s(self) -> float:
        """Seconds."""
        return (self._clock() - self._sent).total_seconds()

    def took(self, sent: datetime) -> None:
        """The receiver took the heartbeat that was sent then."""
        self._sent = max(sent, self._sent)
        CANARY_TOLD.labels(self._receiver).inc()
        CANARY_DELAY.labels(self._receiver).set((self._clock() - sent).total_seconds())
