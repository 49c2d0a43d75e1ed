"""The agent loop: rounds on a fixed grid, sources that hang alone, batches to the bus.

The loop itself only hands out rounds and looks whether one hangs; reading, encoding and sending happen in the
crew's threads, so no source and no bus can make a round late or keep a signal from being heard.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog

from graynode.collectors.base import CADENCES_S, Collector, Machine, Rows, utc_now
from graynode.collectors.batch import Batcher, Misfits
from graynode.collectors.carrier import Carrier
from graynode.collectors.context import JobContext
from graynode.collectors.crew import Crew
from graynode.collectors.health import Health
from graynode.collectors.outbox import Outbox
from graynode.collectors.schedule import Schedule
from graynode.collectors.worker import Worker
from graynode.pipeline.bus import Producer
from graynode.pipeline.schema import stable_id

_log = structlog.get_logger()

_GRACE_S: Final = 3.0
"""How long the end waits for rounds that run. Together with the flush it stays below the 10 s that service
managers grant before they kill."""
_FLUSH_S: Final = 5.0
_GARBAGE: Final = 20_000
"""Objects from one search for cycles to the next. A round's rows are some thousand and none of them is in a cycle."""
_SETTLED_ROUNDS: Final = 12
"""By then every class was read and a batch was sent, so nothing is built for the first time any more."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks: rounds keep to the monotonic one, rows carry the wall clock's time."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now


@dataclass(frozen=True, slots=True)
class Settings:
    """``deadline_s``: a round that runs longer is reported as stuck. ``tick_s`` is 1 but in tests."""

    batch_s: float = 10.0
    deadline_s: float = 10.0
    tick_s: float = 1.0


Listener = Callable[[str, Rows], None]
"""Hears the rows of a collector (by name) before they are sent; it must not keep or change them."""


class Agent:
    """The loop over one machine's collectors. ``run`` or ``once``, then it is spent."""

    def __init__(
        self,
        machine: Machine,
        collectors: Sequence[Collector],
        producer: Producer,
        epoch: int,
        *,
        settings: Settings | None = None,
        driver_load: Callable[[], int | None] = lambda: None,
        clock: Clock | None = None,
        health: Health | None = None,
        listeners: Sequence[Listener] = (),
        context: JobContext | None = None,
    ) -> None:
        self._machine, self._epoch = machine, epoch
        self._settings, self._clock = settings or Settings(), clock or Clock()
        self.misfits, self.outbox, self.rounds = Misfits(), Outbox(producer), 0
        self.batcher = Batcher(machine, epoch, driver_load=driver_load, now=self._clock.now, misfits=self.misfits)
        self._carrier = Carrier(self.batcher, self.outbox, self._settings.batch_s, self._clock.monotonic)
        self._crew = Crew(self._clock.monotonic)
        self._listeners = tuple(listeners)
        self._context = context or JobContext()
        self.workers = [Worker(c, partial(self._deliver, c.name), self._clock.monotonic) for c in collectors]
        self._health = health or Health(self._clock.monotonic)
        self._health.workers = self.workers
        self.stuck: set[str] = set()
        """Collectors whose round runs beyond the deadline."""
        self._told = 0

    def run(self, stop: threading.Event) -> bool:
        """Rounds until ``stop``; then flush and close. False if something could not be sent."""
        self._start()
        schedule = Schedule(self._clock.monotonic(), self._settings.tick_s)
        while not stop.wait(max(0.0, schedule.next_at - self._clock.monotonic())):
            self._round(schedule.take(self._clock.monotonic()))
            if self.rounds == _SETTLED_ROUNDS:
                # what is there by now stays: the garbage collector need not walk it again and again
                gc.collect()
                gc.freeze()
                gc.set_threshold(_GARBAGE)
        return self._end("asked to stop")

    def once(self) -> bool:
        """Two readings of everything, a second apart because rates need two; then flush and close."""
        self._start()
        second = self._clock.monotonic() + self._settings.tick_s
        for _ in range(2):
            self._round(frozenset(CADENCES_S))
            self._crew.wait(self._settings.deadline_s + self._settings.tick_s)
            self._watch()
            time.sleep(max(0.0, second - self._clock.monotonic()))
        return self._end("one round")

    def _start(self) -> None:
        names = [w.name for w in self.workers]
        told = version("graynode")
        _log.info("agent started", version=told, epoch=self._epoch, node_id=self._machine.node_id, collectors=names)
        self.tell(
            "agent_start", f"agent {told} started",
            version=told, epoch=self._epoch, collectors=names, node_id_source=self._machine.node_id_source,
        )  # fmt: skip

    def _deliver(self, collector: str, rows: Rows, ts: datetime) -> None:
        for listener in self._listeners:
            listener(collector, rows)
        self._context.stamp(rows)
        self._carrier.add(rows, ts)

    def _round(self, due: frozenset[int]) -> None:
        ts = self._clock.now()
        self.rounds += 1
        self._health.due = due
        self._watch()
        offered = [worker for worker in self.workers if worker.offer(ts, due)]
        offered.sort(key=lambda worker: worker.last_s)  # who is quick does not wait for who is not
        self._crew.submit([*offered, self._carrier])

    def _watch(self) -> None:
        if self._carrier.busy_s() > self._settings.deadline_s:
            self.batcher.shed()  # the disk hangs in a write: what cannot be handed over must not fill the memory
        for worker in self.workers:
            busy_s = worker.busy_s()
            if busy_s > self._settings.deadline_s and worker.name not in self.stuck:
                self.stuck.add(worker.name)
                self._say(
                    worker, "collector_stuck", f"{worker.name} has been reading for {busy_s:.0f} s", busy_s=busy_s
                )
            elif busy_s <= self._settings.deadline_s and worker.name in self.stuck:
                self.stuck.discard(worker.name)
                self._say(worker, "collector_back", f"{worker.name} answers again", missed=worker.tally.missed)

    def _say(self, worker: Worker, kind: str, message: str, **details: object) -> None:
        _log.warning(message, collector=worker.name, kind=kind, **details)
        self.tell(kind, f"{message}; the other collectors go on", collector=worker.name, **details)

    def tell(self, kind: str, message: str, **attributes: object) -> None:
        """An event of the agent itself; sent with the next round at the latest."""
        self._told += 1
        m, now = self._machine, self._clock.now()
        row = {
            "event_id": stable_id(m.cluster, m.node_id, "agent", self._epoch, self._told),
            "source": "agent", "kind": kind, "message": message, "attributes": json.dumps(attributes),
            "observed_ts": now, "ts_quality": "exact",
        }  # fmt: skip
        self._carrier.add({"event": [row]}, now)

    def _end(self, why: str) -> bool:
        left = [name for name in self._crew.wait(_GRACE_S) if name != self._carrier.name]
        if left:
            _log.warning("collectors still hang in their source; they end with the process", collectors=left)
        self.tell("agent_stop", f"agent stopped: {why}", epoch=self._epoch, rounds=self.rounds, hanging=left)
        sent = self._flush(left)
        if sent:
            # Only now: closing a source keeps its position, and what is lost here must be read again.
            self._crew.submit([_Closing(worker) for worker in self.workers if worker.name not in left])
            self._crew.wait(_GRACE_S, but_for=left)
        self._crew.stop()
        _log.info("agent stopped", why=why, rounds=self.rounds, sent=self.outbox.sent.messages)
        return sent

    def _flush(self, hanging: list[str]) -> bool:
        self._carrier.last = True
        self._crew.submit([self._carrier])
        self._crew.wait(_FLUSH_S, but_for=hanging)
        if not self._carrier.emptied:
            _log.error("the bus takes no messages; what is held in memory is lost", bytes=self.outbox.held_bytes)
        return self._carrier.emptied


class _Closing:
    """Closes a collector, as a job: it may hang like any other."""

    def __init__(self, worker: Worker) -> None:
        self.name, self._worker = worker.name, worker

    def run(self) -> None:
        self._worker.close()
