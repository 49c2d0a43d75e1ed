"""From the collectors' threads to the bus: samples every few seconds, events at once, in one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from graynode.collectors.base import Rows
from graynode.collectors.batch import Batcher
from graynode.collectors.outbox import Outbox

_log = structlog.get_logger()

_RETRY_S: Final = 1.0
"""How soon what the bus did not take is offered again: an event held back must not wait for a whole batch."""


class Carrier:
    """Takes rows from any thread and sends messages from its own: the bus may be slow, sources do not wait."""

    def __init__(
        self,
        batcher: Batcher,
        outbox: Outbox,
        batch_s: float,
        monotonic: Callable[[], float],
        retry_s: float = _RETRY_S,
    ) -> None:
        self._batcher, self.outbox = batcher, outbox
        self._batch_s, self._retry_s, self._monotonic = batch_s, retry_s, monotonic
        self._wake = threading.Condition()
        self._urgent, self._stopping, self._trouble = False, False, ""
        self._thread = threading.Thread(target=self._run, name="carrier", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, rows: Rows, ts: datetime) -> None:
        """Take rows of one round; events among them are sent at once."""
        if self._batcher.add(rows, ts):
            with self._wake:
                self._urgent = True
                self._wake.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Send all there is; false if the bus did not take it, or not in time."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                _log.error("the bus is stuck; what is held in memory is lost", bytes=self.outbox.held_bytes)
                return False
        self._carry(events_only=False)
        if self._carry(events_only=False):  # twice: mending rows may have made rows that say so
            return True
        _log.error("the bus takes no messages; what is held in memory is lost", bytes=self.outbox.held_bytes)
        return False

    def _run(self) -> None:
        whole_at, sent = self._monotonic() + self._batch_s, True
        while not self._stopping:
            until = whole_at if sent else min(whole_at, self._monotonic() + self._retry_s)
            with self._wake:
                self._wake.wait_for(lambda: self._urgent or self._stopping, max(0.0, until - self._monotonic()))
                urgent, self._urgent = self._urgent, False
            whole = self._monotonic() >= whole_at
            if whole:
                whole_at = self._monotonic() + self._batch_s
            if urgent or whole or not sent:
                sent = self._carry(events_only=not whole)

    def _carry(self, *, events_only: bool) -> bool:
        try:
            self.outbox.put(self._batcher.take(events_only=events_only))
            sent = self.outbox.send()
        except Exception as error:  # nothing may end this thread: without it the agent reads and nobody hears
            said = f"{type(error).__name__}: {error}"
            if said != self._trouble:
                _log.error("messages could not be made or sent", error=said)
            self._trouble = said
            return False
        self._trouble = ""
        return sent
