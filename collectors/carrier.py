"""From the collectors to the bus: samples every few seconds, events at the end of the round that brought them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from graynode.collectors.base import Rows
from graynode.collectors.batch import Batcher
from graynode.collectors.outbox import Outbox
from graynode.pipeline.codec import Message
from graynode.pipeline.schema import EVENTS

_log = structlog.get_logger()

NAME: Final = "carrier"
_PIECE: Final = 256
"""Messages put out at a time: a batch of a thousand nodes is more than the outbox may hold, and need not wait in it."""


class Carrier:
    """A job of every round. ``add`` from any thread; ``run`` by one at a time, and it may hang with the disk."""

    def __init__(self, batcher: Batcher, outbox: Outbox, batch_s: float, monotonic: Callable[[], float]) -> None:
        self.name, self.outbox = NAME, outbox
        self.last = False
        """Set for the last run: everything there is goes out."""
        self.emptied = False
        """True if after the last run nothing was left that the bus had not taken."""
        self._batcher, self._batch_s, self._monotonic = batcher, batch_s, monotonic
        self._urgent = threading.Event()
        self._whole_at = monotonic() + batch_s
        self._sent, self._trouble = True, ""
        self._busy_since: float | None = None

    def add(self, rows: Rows, ts: datetime) -> None:
        """Take rows of one round; events among them are sent with the next run."""
        if self._batcher.add(rows, ts):
            self._urgent.set()

    def busy_s(self) -> float:
        """How long the running send has been running; 0 when none is."""
        since = self._busy_since
        return 0.0 if since is None else self._monotonic() - since

    def run(self) -> None:
        """Send what is due: a whole batch at its time, events at once, and again what the bus did not take."""
        self._busy_since = self._monotonic()
        try:
            self._run()
        finally:
            self._busy_since = None

    def _run(self) -> None:
        if self.last:
            self._carry(events_only=False)  # twice: mending rows may have made rows that say so
            self.emptied = self._carry(events_only=False)
            return
        now = self._monotonic()
        whole, urgent = now >= self._whole_at, self._urgent.is_set()
        self._urgent.clear()
        if whole:
            self._whole_at = now + self._batch_s
        if urgent or whole or not self._sent:
            self._sent = self._carry(events_only=not whole)

    def _carry(self, *, events_only: bool) -> bool:
        try:
            sent = self._hand_over(self._batcher.take(events_only=events_only))
        except Exception as error:  # whatever it is, the next batch is tried
            said = f"{type(error).__name__}: {error}"
            if said != self._trouble:
                _log.error("messages could not be made or sent", error=said)
            self._trouble = said
            return False
        self._trouble = ""
        return sent

    def _hand_over(self, taken: list[tuple[str, Message]]) -> bool:
        """Put messages out piece by piece, events first; false if some wait. An error leaves all in the outbox."""
        taken.sort(key=lambda one: one[0] != EVENTS)  # stable: each topic keeps its order
        at = 0
        try:
            sent = self.outbox.send()
            while at < len(taken):
                piece = taken[at : at + _PIECE]
                at += len(piece)
                self.outbox.put(piece)
                sent = sent and self.outbox.send()
        finally:
            self.outbox.put(taken[at:])
        return sent
