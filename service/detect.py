"""The ``detect`` role: rounds over the lake and hard events from the bus, in one process, telling one set of incidents.

One thread reads events and never waits for a window; this one scores windows as they close. Both speak through one
publisher and one ``Incidents`` under a lock. Nothing is written to the lake here: findings, rounds and states go to
the bus, and the pipeline lands them.
"""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl
import prometheus_client
import structlog

from graynode.collectors.base import utc_now
from graynode.detectors import make
from graynode.detectors.incidents import Incidents
from graynode.detectors.policy import Policy, shipped
from graynode.pipeline.bus import Bus, BusRefused, BusUnavailable
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.lock_file import LockFile, Taken
from graynode.pipeline.schema import INCIDENTS, SAMPLES
from graynode.service import attribution, canary, detect_terms, hard_events, incident_bus, places_file
from graynode.service.config import Config, ConfigError
from graynode.service.detect_bus import OneAtATime, Outbox, round_row, when_there
from graynode.service.detector_state import StateWriter, restore
from graynode.service.process import serve_metrics
from graynode.service.rounds import Result, Rounds
from graynode.service.site_watch import SiteWatch
from graynode.service.wiring import make_bus, make_lake

CHUNK: Final = 60
"""Windows read from the lake at once while catching up."""
STATE_EVERY: Final = 10
"""Rounds from one writing of the state to the next."""
CATCH_UP: Final = timedelta(hours=6)
"""How far back rounds are made up for; what is older is history, learned from and not judged."""
_NODE_ID: Final = "detect"
_ROWS: Final = 5000
"""Rows of a message at most: a large fleet ends its day with a hundred thousand."""

ROUNDS = prometheus_client.Counter("graynode_detect_rounds_total", "Detection rounds")
SECONDS = prometheus_client.Histogram("graynode_detect_round_seconds", "Time of the detectors per round")
FOUND = prometheus_client.Counter("graynode_detect_findings_total", "Findings stored", ["detector", "severity"])
PAGES = prometheus_client.Gauge("graynode_detect_pages_in_shift", "Incidents that paged by themselves in this shift")
LAG = prometheus_client.Gauge("graynode_detect_lag_seconds", "From the end of the last scored window to now")


def run(config: Config, stop: threading.Event) -> int:
    """Detect until ``stop``. ``ConfigError`` where another detect of this cluster runs or a detector is unknown."""
    with ExitStack() as held:
        held.enter_context(only_one(config))
        bus, lake = make_bus(config), make_lake(config)
        serve_metrics("detect", config.detect.metrics_listen)
        try:
            detect = Detect(config, bus, lake)
            held.callback(detect.close)
            return detect.run(stop)
        except BusRefused as error:
            structlog.get_logger().error("detect stops: no waiting puts this right", reason=str(error))
            return 1


def only_one(config: Config) -> LockFile:
    """The lock of the one active ``detect`` of a cluster; the kernel frees it at any death."""
    folder = Path(config.lake.path) if "://" not in config.lake.path else Path(tempfile.gettempdir())
    path = folder / f"detect-{config.cluster}.lock"
    try:
        return LockFile(path)
    except Taken as taken:
        raise ConfigError(
            f"another graynode detect of cluster {config.cluster!r} is running (process {taken.owner}, {path}); "
            "stop it first, or give this one another cluster"
        ) from taken


@dataclass(slots=True)
class Detect:
    """The role. ``clock`` is this machine's time; only when a window is due and the ``sent`` of messages follow it.

    ``retry_s`` is the pause before it looks again for windows, or for a bus or lake that is away.
    """

    config: Config
    bus: Bus
    lake: Lake
    clock: Callable[[], datetime] = utc_now
    retry_s: float = 2.0
    _rounds: Rounds = field(init=False)
    _site: SiteWatch = field(init=False)
    _incidents: Incidents = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _producer: OneAtATime = field(init=False)
    _outbox: Outbox = field(init=False)
    _publish: incident_bus.Publisher = field(init=False)
    _writer: StateWriter = field(init=False)
    _next: datetime | None = None
    _since_state: int = 0
    _log: Any = field(default_factory=structlog.get_logger)

    def __post_init__(self) -> None:
        try:
            detectors = {name: make(name) for name in self.config.detect.detectors}
        except KeyError as error:
            raise ConfigError(f"detect.detectors: {error.args[0]}") from error
        cluster = self.config.cluster
        section = self.config.detect
        self._rounds = Rounds(self.lake, cluster, detectors, shadow=section.shadow, silent=section.shadow_detectors)
        self._rounds.places = places_file.read(section.places_file)
        self._site = SiteWatch(self.config, self.lake, self.clock)
        self._incidents = detect_terms.incidents(self.config, self.lake)
        self._producer = OneAtATime(self.bus.producer())
        # Rounds wait with it: nothing is scored while the bus is away, so little can gather.
        self._outbox = Outbox(self._producer, cluster, _NODE_ID, self.clock)
        self._publish = incident_bus.Publisher(self._producer, cluster, self.clock)
        self._writer = StateWriter(cluster)

    def run(self, stop: threading.Event) -> int:
        """Both loops until ``stop``; 1 where one of them has failed for good."""
        restored = when_there(self._restore_incidents, stop, self.retry_s, self._log)
        if restored is None:
            return 0
        self._log.info("detect starts", shadow=self.config.detect.shadow, revisions_read=restored)
        failed = threading.Event()
        events = threading.Thread(target=self._hard_events, args=(stop, failed), name="hard-events")
        events.start()
        of_jobs = (self.config, self._policy(), self._producer, self._tell_of_jobs, self.clock, stop)
        jobs = threading.Thread(target=attribution.watch, args=of_jobs, name="attribution")
        jobs.start()
        try:
            self._loop(stop)
        except (BusRefused, LakeTooNew) as error:
            self._log.error("detect stops: no waiting puts this right", reason=str(error))
            failed.set()
        except Exception:
            self._log.exception("detection rounds have failed")
            failed.set()
        finally:
            stop.set()
            events.join()
            jobs.join()
        return 1 if failed.is_set() else 0

    def close(self) -> None:
        """Flush and let go of the bus."""
        try:
            self._publish.flush()
        except (BusUnavailable, BusRefused) as error:
            self._log.warning(
                "the bus is away; unsent findings are computed again at the next start", reason=str(error)
            )
        self._producer.close()

    def step(self) -> int:
        """Score what is due, at most a chunk of windows; gives how many. ``LakeError``, ``BusUnavailable``: again."""
        self._outbox.flush()
        self._publish.flush()
        now = self.clock()
        until = self._rounds.due_through([f"{p.topic}/{p.number}" for p in self.bus.partitions(SAMPLES)], now)
        if until is None or (self._next is None and not self._begin(until)):
            return 0
        assert self._next is not None  # noqa: S101 (_begin has set it)
        self._outbox.put("finding", self._site.look(self._rounds))
        step = timedelta(seconds=self._rounds.window_s)
        count = min(CHUNK, int((until - self._next) / step))
        if count < 1:
            return 0
        for round_ in self._rounds.rounds(self._next, self._next + count * step):
            result = self._rounds.score(round_)
            self._next = round_.start + step
            with self._lock:
                self._incidents.see(round_)
                self._incidents.planned = self._rounds.planned.said
            self._tell(result)
        LAG.set((now - self._next).total_seconds())
        self._keep_state(self._next - step, count)
        return count

    def _loop(self, stop: threading.Event) -> None:
        away = ""
        while not stop.is_set():
            try:
                done = self.step()
                if away:
                    self._log.info("rounds go on")
                away = ""
            except (LakeError, BusUnavailable) as error:
                done = 0
                if str(error) != away:
                    self._log.warning("rounds wait", reason=str(error))
                away = str(error)
            if done < CHUNK:
                stop.wait(self.retry_s)

    def _begin(self, until: datetime) -> bool:
        """Where to go on: after the stored state, or at the first window of the last six hours. False: nothing yet."""
        oldest = until - CATCH_UP
        found = restore(self._stored_states, oldest, self._rounds.window_s, self._rounds.keepers)
        if found is not None:
            self._rounds.states = dict(found.states)
            self._writer.took(found.states, found.parts)
            self._next = found.start + timedelta(seconds=self._rounds.window_s)
            self._log.info("state restored", round=found.start.isoformat())
            return True
        first = self._rounds.first(oldest, until)
        if first is None:
            return False
        days = self._rounds.prime(first)
        self._next = first
        self._log.info("primed from history", days=days, first_round=first.isoformat())
        return True

    def _stored_states(self, since: datetime, until: datetime | None, columns: list[str]) -> pl.DataFrame:
        rows = self.lake.read("state", since, until, [*columns, "cluster"])
        return rows.filter(pl.col("cluster") == self.config.cluster).drop("cluster")

    def _tell(self, result: Result) -> None:
        """Findings, then incidents; the round's own row goes with the findings.

        All of it is queued before anything is sent, so that a bus that goes away loses nothing and doubles nothing.
        """
        ROUNDS.inc()
        SECONDS.observe(result.seconds)
        found = result.findings.to_dicts()
        for row in found:
            FOUND.labels(row["detector"], row["severity"]).inc()
        end = result.start + timedelta(seconds=result.window_s)
        self._outbox.put("finding", found)
        self._outbox.put("round", [round_row(_NODE_ID, self.config.cluster, result, self._rounds.versions())])
        for at in range(0, len(result.node_days), _ROWS):
            rows = [{"cluster": self.config.cluster, **row} for row in result.node_days[at : at + _ROWS]]
            self._outbox.put("node_day", rows)
        with self._lock:
            revisions = self._incidents.add(found, end) + self._incidents.tick(end)
            PAGES.set(self._incidents.pages_within(end))
            try:
                self._outbox.flush()
            finally:
                self._publish(revisions)

    def _keep_state(self, start: datetime, rounds: int) -> None:
        self._since_state += rounds
        if self._since_state < STATE_EVERY:
            return
        for row in self._writer.rows(start, self._rounds.window_s, self._rounds.keepers, self._rounds.states):
            self._outbox.put("state", [row])
        self._since_state = 0
        self._outbox.flush()

    def _restore_incidents(self) -> int:
        self.bus.partitions(INCIDENTS)  # a topic that is not there yet would read as one without incidents
        return incident_bus.restore(self.bus, self._incidents)

    def _policy(self) -> Policy:
        own = {int(code): severity for code, severity in self.config.detect.xid_severity.items()}
        return shipped().for_site(own)

    def _tell_of_jobs(self, found: Sequence[Mapping[str, Any]]) -> None:
        with self._lock:
            self._publish(self._incidents.add(found, self.clock()), found)

    def _hard_events(self, stop: threading.Event, failed: threading.Event) -> None:
        try:
            join = functools.partial(self.bus.consumer, hard_events.TOPICS, hard_events.GROUP)
            consumer = when_there(join, stop, self.retry_s, self._log)
            if consumer is None:
                return
            lake, cluster = make_lake(self.config), self.config.cluster
            rules = functools.partial(detect_terms.event_rules, self._policy(), lake, cluster, self.clock())
            path = hard_events.HardEvents(
                consumer, self._incidents, self._publish, self.clock, rules=rules, lock=self._lock,
                each_step=canary.sender(self.config, self._publish.canary, self.clock),
            )  # fmt: skip
            path.run(stop)
        except BusRefused as error:
            self._log.error("detect stops: no waiting puts this right", reason=str(error))
            failed.set()
            stop.set()
        except Exception:
            self._log.exception("the hard-event path has failed")
            failed.set()
            stop.set()
