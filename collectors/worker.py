"""One collector in its own thread with room for one round: a source that hangs hangs alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from graynode.collectors.base import Collector, NoSource, Round, Rows

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
    """Runs a collector's rounds. ``offer`` is called by one thread; everything else happens in the worker's own.

    A class that was due in a round that could not be taken, or failed, is due in the next one. ``elapsed_s`` is
    counted from the last round that succeeded: that is when the source's previous values were read.
    """

    def __init__(
        self, collector: Collector, deliver: Callable[[Rows, datetime], None], monotonic: Callable[[], float]
    ) -> None:
        self.collector, self.name, self.tally = collector, collector.name, Tally()
        self.gone = ""
        """Why this machine has no such source; the collector is not asked again."""
        self._deliver, self._monotonic = deliver, monotonic
        self._wake = threading.Condition()
        self._job: tuple[datetime, frozenset[int]] | None = None
        self._busy_since: float | None = None
        self._owed: frozenset[int] = frozenset()
        self._stopping = False
        self._failures, self._not_before, self._last_error = 0, 0.0, ""
        self._last_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"collect-{self.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def offer(self, ts: datetime, due: frozenset[int]) -> bool:
        """Have a round taken. False if it is not: the one before still runs, a back-off, or no such source."""
        if self.gone:
            return False
        with self._wake:
            self.tally.expected += 1
            self._owed |= due
            if self._busy_since is not None:
                self.tally.missed += 1
                return False
            if self._monotonic() < self._not_before:
                self.tally.skipped += 1
                return False
            self._job, self._owed = (ts, self._owed), frozenset()
            self._busy_since = self._monotonic()
            self._wake.notify_all()
            return True

    def busy_s(self) -> float:
        """How long the running round has been running; 0 when none is."""
        since = self._busy_since
        return 0.0 if since is None else self._monotonic() - since

    def take_max_ms(self) -> float:
        """The slowest of the rounds that have ended since this was last called."""
        with self._wake:
            slowest, self.tally.max_ms = self.tally.max_ms, 0.0
        return slowest

    def wait_idle(self, timeout_s: float) -> bool:
        """True as soon as no round runs; false if one still does after so long."""
        with self._wake:
            return self._wake.wait_for(lambda: self._busy_since is None, timeout_s)

    def stop(self) -> None:
        """Ask the thread to close the collector and end, after the round that runs."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()

    def join(self, timeout_s: float) -> bool:
        """True if the thread has ended. A round stuck in a driver cannot be ended: it is left to the process."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._job is not None or self._stopping)
                job, self._job = self._job, None
            if job is None:
                break
            started = self._monotonic()
            try:
                self._collect(*job, started)
            finally:
                with self._wake:
                    took = self._monotonic() - started
                    self.tally.seconds += took
                    self.tally.max_ms = max(self.tally.max_ms, took * 1e3)
                    self._busy_since = None
                    self._wake.notify_all()
        self._close()

    def _collect(self, ts: datetime, due: frozenset[int], started: float) -> None:
        elapsed = None if self._last_at is None else started - self._last_at
        try:
            rows = self.collector.collect(Round(ts, due, elapsed))
            self._deliver(rows, ts)
        except NoSource as none:
            self.gone = str(none) or "no such source"
            _log.info("no such source on this machine; not asked again", collector=self.name, reason=self.gone)
        except Exception as error:
            with self._wake:
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

    def _close(self) -> None:
        try:
            self.collector.close()
        except Exception as error:
            _log.warning("collector did not close", collector=self.name, error=f"{type(error).__name__}: {error}")
