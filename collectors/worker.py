"""One collector and its rounds: room for one, back-off after failures, what it has done so far."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from graynode.collectors.base import CADENCES_S, Collector, NoSource, Round, Rows

_log = structlog.get_logger()

BACK_OFF_MAX_S: Final = 60.0
"""The slowest class: a source that comes back is seen within the time in which it would have been read."""


@dataclass(slots=True)
class Tally:
    """What one collector has done since the start. ``skipped`` are rounds left out while backing off."""

    expected: int = 0
    taken: int = 0
    missed: int = 0
    skipped: int = 0
    errors: int = 0
    rows: int = 0
    seconds: float = 0.0
    max_ms: float = 0.0
    """Slowest since somebody last asked (``Worker.take_max_ms``)."""


class Worker:
    """Runs a collector's rounds. ``offer`` is called by the loop, ``run`` by a thread of the crew, one at a time.

    There is room for one round: a class that was due in a round that could not be taken, or failed, is due in the
    next one. ``elapsed_s`` is counted from the last round that succeeded: that is when the source's previous values
    were read.
    """

    def __init__(
        self, collector: Collector, deliver: Callable[[Rows, datetime], None], monotonic: Callable[[], float]
    ) -> None:
        self.collector, self.name, self.tally = collector, collector.name, Tally()
        self.gone = ""
        """Why this machine has no such source; the collector is not asked again."""
        self.last_s = 0.0
        """How long the last round took."""
        self._deliver, self._monotonic = deliver, monotonic
        self._lock = threading.Lock()
        self._next: tuple[datetime, frozenset[int]] | None = None
        self._busy_since: float | None = None
        self._owed: frozenset[int] = frozenset()
        self._failures, self._not_before, self._last_error = 0, 0.0, ""
        self._last_at: float | None = None
        every_s = getattr(collector, "every_s", CADENCES_S[0])
        self._wants = frozenset(c for c in CADENCES_S if c >= every_s)

    def offer(self, ts: datetime, due: frozenset[int]) -> bool:
        """Keep a round for ``run``. False if there is nothing to run: the one before still does, a back-off, no such
        source, or a round of classes that the collector does not read. A round that has not been begun gives way to
        the new one."""
        if self.gone:
            return False
        with self._lock:
            self._owed |= due
            if not self._owed & self._wants:
                return False
            self.tally.expected += 1
            if self._busy_since is not None:
                self.tally.missed += 1
                return False
            if self._next is not None:
                self.tally.missed += 1
                self._owed |= self._next[1]
            elif self._monotonic() < self._not_before:
                self.tally.skipped += 1
                return False
            self._next, self._owed = (ts, self._owed), frozenset()
            return True

    def busy_s(self) -> float:
        """How long the running round has been running; 0 when none is."""
        since = self._busy_since
        return 0.0 if since is None else self._monotonic() - since

    def take_max_ms(self) -> float:
        """The slowest of the rounds that have ended since this was last called."""
        with self._lock:
            slowest, self.tally.max_ms = self.tally.max_ms, 0.0
        return slowest

    def run(self) -> None:
        """Take the round that was offered."""
        with self._lock:
            job, self._next = self._next, None
            if job is None:
                return
            started = self._busy_since = self._monotonic()
        try:
            self._collect(*job, started)
        finally:
            with self._lock:
                self.last_s = self._monotonic() - started
                self.tally.seconds += self.last_s
                self.tally.max_ms = max(self.tally.max_ms, self.last_s * 1e3)
                self._busy_since = None

    def close(self) -> None:
        """Close the collector; an error is said."""
        try:
            self.collector.close()
        except Exception as error:
            _log.warning("collector did not close", collector=self.name, error=f"{type(error).__name__}: {error}")

    def _collect(self, ts: datetime, due: frozenset[int], started: float) -> None:
        elapsed = None if self._last_at is None else started - self._last_at
        try:
            rows = self.collector.collect(Round(ts, due, elapsed))
            self._deliver(rows, ts)
        except NoSource as none:
            self.gone = str(none) or "no such source"
            _log.info("no such source on this machine; not asked again", collector=self.name, reason=self.gone)
        except Exception as error:
            with self._lock:
                self._owed |= due
            self._fail(error)
        else:
            self._last_at = started
            self._succeed(sum(map(len, rows.values())))

    def _succeed(self, rows: int) -> None:
        self.tally.taken += 1
        self.tally.rows += rows
        if self._failures:
            _log.info("collector works again", collector=self.name, after_failures=self._failures)
        self._failures, self._last_error = 0, ""

    def _fail(self, error: Exception) -> None:
        self.tally.errors += 1
        self._failures += 1
        delay = min(BACK_OFF_MAX_S, 2.0 ** min(self._failures - 1, 10) - 1)
        self._not_before = self._monotonic() + delay
        said = f"{type(error).__name__}: {error}"
        if said != self._last_error:
            _log.warning("collector failed", collector=self.name, error=said)
            _log.debug("where it failed", collector=self.name, exc_info=error)
        self._last_error = said
