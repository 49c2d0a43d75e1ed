"""Jobs one after another in one thread, and a thread apart for the one that does not come back.

Every wake-up of a thread costs a guest process 0.1 to 0.3 ms of cold caches, and six of them a second were more
than half of the agent's budget. So there is one thread for all sources, and isolation is made when it is needed: a
job that still runs when the next round comes keeps the thread it is in, the others go on in a new one, and from
then on that job has a thread of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

import structlog

_log = structlog.get_logger()

_TOGETHER: Final = ""


class Job(Protocol):
    """Something to run again and again; at most one run at a time."""

    name: str

    def run(self) -> None:
        """Do what is to be done now. It catches its own errors."""
        ...


class _Lane:
    """A thread that runs what is put before it. All lanes of a crew share one lock."""

    def __init__(self, lock: threading.Lock, idle: threading.Condition, monotonic: Callable[[], float]) -> None:
        self._idle, self._monotonic = idle, monotonic
        self._wake = threading.Condition(lock)
        self.waiting: deque[Job] = deque()
        self.current: Job | None = None
        self.since = 0.0
        self.leaving = False
        self._thread = threading.Thread(target=self._run, name="collect", daemon=True)
        self._thread.start()

    def put(self, jobs: Iterable[Job]) -> None:
        """Run these too; the lock is held."""
        self.waiting.extend(job for job in jobs if job not in self.waiting)
        self._wake.notify()

    def leave(self) -> None:
        """End after the job that runs, without the others. The lock is held."""
        self.leaving = True
        self.waiting.clear()
        self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self.current = None
                if not self.waiting:
                    self._idle.notify_all()
                while not self.waiting and not self.leaving:
                    self._wake.wait()
                if not self.waiting:
                    return
                self.current, self.since = self.waiting.popleft(), self._monotonic()
            try:
                self.current.run()
            except Exception as error:  # a lane that ended would silently end its jobs
                _log.error("a job failed", job=self.current.name, error=f"{type(error).__name__}: {error}")


class Crew:
    """Runs jobs by rounds. ``submit`` from one thread only."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._lanes: dict[str, _Lane] = {}
        self.apart: set[str] = set()
        """Names of the jobs that once did not come back in time and have a thread of their own."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Begin a round. A job that is still waiting since the last one is not put twice; one that runs may be:
        it runs again afterwards."""
        with self._lock:
            rest = self._part_from_late()
            self._lane(_TOGETHER).put([*rest, *(j for j in jobs if j.name not in self.apart)])
            for job in jobs:
                if job.name in self.apart:
                    self._lane(job.name).put([job])

    def wait(self, timeout_s: float, but_for: Collection[str] = ()) -> list[str]:
        """Wait until nothing runs, but for jobs that are known to hang; gives the names of what still does after so
        long, those among them."""
        with self._idle:
            self._idle.wait_for(lambda: not set(self._running()).difference(but_for), timeout_s)
            return self._running()

    def stop(self) -> None:
        """End the threads. One that is stuck ends with the process."""
        with self._lock:
            for lane in self._lanes.values():
                lane.leave()
            self._lanes = {name: lane for name, lane in self._lanes.items() if lane.current}

    def _running(self) -> list[str]:
        running = [job.name for lane in self._lanes.values() for job in (lane.current, *lane.waiting) if job]
        return sorted(set(running))

    def _part_from_late(self) -> list[Job]:
        """If the common thread is still at a job, leave it that job; the others that waited are given back."""
        lane = self._lanes.get(_TOGETHER)
        if lane is None or lane.current is None:
            return []
        self.apart.add(lane.current.name)
        self._lanes[lane.current.name] = lane
        rest = list(lane.waiting)
        lane.waiting.clear()
        del self._lanes[_TOGETHER]
        return rest

    def _lane(self, name: str) -> _Lane:
        if name not in self._lanes:
            self._lanes[name] = _Lane(self._lock, self._idle, self._monotonic)
        return self._lanes[name]
