"""The pipeline as a process: bus to lake until it is told to stop."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import structlog

from graynode.pipeline.bus import Bus, BusRefused, BusUnavailable, Consumer, OffsetGone
from graynode.pipeline.deadletter import DeadLetters, FloodStop
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew, SecondWriter
from graynode.pipeline.lake_migration import OldLayout, must_be_current
from graynode.pipeline.land import Landing
from graynode.pipeline.maintenance import Maintainer
from graynode.pipeline.maintenance_lock import AlreadyMaintained, maintenance_lock
from graynode.pipeline.schema import ACTIONS, EVENTS, FINDINGS, INCIDENTS, PEOPLE, SAMPLES, TABLES
from graynode.service.config import Config
from graynode.service.process import serve_metrics
from graynode.service.wiring import make_bus, make_lake

_log = structlog.get_logger()

TOPICS: Final = (SAMPLES, EVENTS, FINDINGS, INCIDENTS, ACTIONS, PEOPLE)
_POLL_S: Final = 0.5
_MESSAGES: Final = 2000
_AWAY_S: Final = (1.0, 30.0)
"""Between tries while bus or lake are away: first and longest wait."""
_MAINTAIN_S: Final = 300.0
_MOST_CLASHES: Final = 3
_IDLE_SAID_S: Final = 10.0
"""A member that has been given nothing for so long says it; a group takes a few seconds to share out."""


def run(config: Config, stop: threading.Event) -> int:
    """Carry until ``stop`` is set, then write what is ready. 0 if it ended as told, 1 with the reason logged."""
    serve_metrics("pipeline", config.pipeline.metrics_listen)
    lake = make_lake(config)
    with ExitStack() as stack:
        try:
            if not _prepare(config, lake, stop):
                return 0
            if config.pipeline.maintain:
                stack.callback(_maintain(lake, stop).join)
            carry(config, lambda: make_bus(config), lake, stop)
        except (LakeTooNew, OldLayout, SecondWriter, BusRefused, FloodStop) as error:
            _log.error("the pipeline stops", reason=str(error))
            stop.set()
            return 1
    return 0


def _prepare(config: Config, lake: Lake, stop: threading.Event) -> bool:
    """Make every topic and table, so that each can be asked and holds its offsets; waits for what is away."""

    def make() -> None:
        if config.bus.kind == "kafka":
            _make_topics(config)
        must_be_current(lake)
        for name in TABLES:
            lake.create(name)

    return _until_done(make, stop)


def _make_topics(config: Config) -> None:
    from graynode.pipeline.kafka import KafkaBus

    bus, kafka = make_bus(config), config.bus.kafka
    try:
        made = bus.create_topics(kafka.partitions, kafka.replication) if isinstance(bus, KafkaBus) else []
    except BusRefused as error:
        _log.warning("topics are left to whoever runs the broker", reason=str(error))
    else:
        if made:
            _log.info("topics made", topics=made)


def _until_done(work: Callable[[], None], stop: threading.Event) -> bool:
    wait = _AWAY_S[0]
    while not stop.is_set():
        try:
            work()
        except (LakeError, BusUnavailable) as error:
            _log.error("not ready; trying again", reason=str(error), wait_s=wait)
            stop.wait(wait)
            wait = min(wait * 2, _AWAY_S[1])
        else:
            return True
    return False


def _maintain(lake: Lake, stop: threading.Event) -> threading.Thread:
    """Maintenance beside the loop, on handles of its own; refused while somebody else maintains the lake."""
    own = Lake(lake.path, lake.storage_options)
    thread = threading.Thread(target=maintain, args=(own, stop), name="maintenance", daemon=True)
    thread.start()
    return thread


def maintain(lake: Lake, stop: threading.Event, every_s: float = _MAINTAIN_S) -> None:
    """Rounds of maintenance while the lock is held; without it, ask again now and then."""
    lock, maintainer, held, said = maintenance_lock(lake), Maintainer(lake), False, ""
    while not stop.is_set():
        try:
            lock.renew() if held else lock.take()
            held, said = True, ""
            done = maintainer.round(stop)
            if done.anything:
                _log.info("maintained", hours=done.hours, compacted=done.compacted, days=done.dropped_days)
        except (AlreadyMaintained, LakeError, LakeTooNew) as error:
            held = held and isinstance(error, LakeError)
            if type(error).__name__ != said:
                _log.warning("the lake is not maintained from here", reason=str(error))
            said = type(error).__name__
        stop.wait(every_s)
    lock.release()


def carry(config: Config, make: Callable[[], Bus], lake: Lake, stop: threading.Event) -> None:
    """Sessions one after the other: a bus or lake that went away ends one, the next begins at the lake's offsets."""
    clashes = 0

    def session() -> None:
        nonlocal clashes
        try:
            Session(config, make(), lake).run(stop)
        except SecondWriter as error:
            clashes += 1
            if clashes >= _MOST_CLASHES or config.bus.kind == "spool":
                raise
            # A group that just gave the partition to another member looks like this once.
            raise LakeError(str(error)) from error

    _until_done(session, stop)


class _Idle:
    """Says it once where this member of the group is given nothing to read: a second pipeline, as a rule."""

    def __init__(self, group: str, say_at: float) -> None:
        self._group, self._say_at = group, say_at

    def look(self, busy: bool, now: float) -> None:
        """``busy``: it holds partitions."""
        if busy:
            self._say_at = math.inf
        elif now >= self._say_at:
            self._say_at = math.inf
            way_out = "it takes over when they end; if it is not meant as their stand-by, stop it"
            _log.warning("other members of the group read everything", group=self._group, way_out=way_out)


class Session:
    """One membership of the group: from taking partitions to leaving them."""

    def __init__(
        self,
        config: Config,
        bus: Bus,
        lake: Lake,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._bus, self._lake, self._clock, self._wall = config, bus, lake, clock, wall

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``; ``BusUnavailable``/``LakeError`` end it early and nothing is lost by that."""
        pipeline = self._config.pipeline
        with ExitStack() as stack:
            producer = self._bus.producer()
            stack.callback(producer.close)
            rejects, idle_s = DeadLetters(producer), pipeline.idle_commit_s
            landing = Landing(self._lake, rejects, idle_commit_s=idle_s, clock=self._wall)
            consumer = self._bus.consumer(TOPICS, pipeline.group, landing.assigned)
            stack.callback(consumer.close)
            due = self._clock() + pipeline.commit_s
            idle = _Idle(pipeline.group, self._clock() + _IDLE_SAID_S)
            while not stop.is_set():
                idle.look(bool(consumer.assigned()), self._clock())
                if landing.full:
                    stop.wait(_POLL_S)
                else:
                    self._poll(consumer, landing, max(0.0, min(_POLL_S, due - self._clock())))
                if self._clock() >= due or landing.full:
                    self._commit(consumer, landing)
                    due = self._clock() + pipeline.commit_s
            landing.commit(everything=True)
            landing.keep_place(consumer)

    def _poll(self, consumer: Consumer, landing: Landing, timeout_s: float) -> None:
        try:
            landing.take(consumer.poll(timeout_s, _MESSAGES))
        except OffsetGone as gone:
            landing.skip_to(gone.partition, gone.first)
            consumer.seek(gone.partition, gone.first)

    def _commit(self, consumer: Consumer, landing: Landing) -> None:
        landing.commit(consumer.end_offsets())
        landing.keep_place(consumer)
