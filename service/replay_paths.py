"""The ways that replayed rows go, in the recording's own time: as live samples do, or hour by hour.

``LivePath`` is the whole path of a live fleet: batches, bus, landing, 30 s windows, rounds, hard events, incidents.
Samples that are minutes apart make no 30 s windows worth judging; ``HourPath`` takes them as an import does, into hour
windows, and judges those. Both give the incident revisions that people would have been told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from graynode.collectors.base import Machine, Row
from graynode.collectors.batch import Batcher, Misfits
from graynode.collectors.outbox import Outbox
from graynode.detectors import make
from graynode.detectors.event_rules import EventRules
from graynode.detectors.incidents import Incidents
from graynode.pipeline.bus import Consumer
from graynode.pipeline.deadletter import DeadLetters
from graynode.pipeline.lake import Lake
from graynode.pipeline.land import Landing
from graynode.pipeline.schema import EVENTS, SAMPLES, TABLES
from graynode.pipeline.spool import SpoolBus
from graynode.pipeline.spool_writer import SpoolProducer
from graynode.service.hard_events import HardEvents
from graynode.service.imports.landing import land_rows
from graynode.service.imports.windows import make_windows
from graynode.service.incident_bus import Publisher
from graynode.service.pipeline import TOPICS
from graynode.service.rounds import Rounds

Revision = Mapping[str, Any]
Slice = Mapping[str, Sequence[Row]]
"""Rows by table of one piece of recorded time."""

_COMMIT_S: Final = 60
"""Recorded time from one commit to the next: a commit costs the same whether it holds one window or two."""
_SPOOL_BYTES: Final = 8 << 30
_SETTLE: Final = timedelta(minutes=3)
"""After the last sample: by then every window is over, by arrival too."""
_PARTITION: Final = f"{SAMPLES}/0"
_WINDOWED: Final = ("gpu", "link", "host")
_NOBODY: Final = "replay"
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Way(Protocol):
    """Where slices go, in order of time."""

    @property
    def slice_s(self) -> int:
        """Length of the slices that it wants; each ends on a whole one."""
        ...

    @property
    def refused(self) -> Counter[str]:
        """What of the slices was not taken, by the reason."""
        ...

    def take(self, rows: Slice, end: datetime) -> list[Revision]:
        """Rows up to ``end``; gives what would have been told by then."""
        ...

    def finish(self) -> list[Revision]:
        """The recording is over: close what is open; gives what that tells."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


@dataclass(slots=True)
class _Clock:
    """The recording's time, for all parts that ask what time it is."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now

    def epoch_s(self) -> float:
        return self.now.timestamp()


class _Told:
    """A publisher that also keeps what it sends."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.revisions: list[Revision] = []

    def __call__(self, revisions: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, Any]] = ()) -> None:
        self.revisions += revisions
        self._publisher(revisions, findings)

    def flush(self) -> None:
        self._publisher.flush()

    def taken(self) -> list[Revision]:
        taken, self.revisions = self.revisions, []
        return taken


class LivePath:
    """Everything that a live sample goes through, on a clock that stands where the recording is."""

    slice_s = 30

    def __init__(self, folder: Path, cluster: str, start: datetime, detectors: Sequence[str], resolve_s: float) -> None:
        self._clock = _Clock(start)
        self._stack = ExitStack()
        bus = SpoolBus(folder / "bus", _SPOOL_BYTES)
        producer = SpoolProducer(folder / "bus", _SPOOL_BYTES, self._clock.epoch_s)
        self._stack.callback(producer.close)
        machine = Machine(cluster, _NOBODY, _NOBODY, "configured", _NOBODY, folder)
        epoch = int(start.timestamp() * 1e9)
        self._misfits = Misfits()
        self._batcher = Batcher(machine, epoch, driver_load=lambda: None, now=self._clock, misfits=self._misfits)
        self._outbox = Outbox(producer)
        self._lake = Lake(str(folder / "lake"))
        self._landing = Landing(self._lake, DeadLetters(producer), clock=self._clock.epoch_s)
        self._consumer: Consumer = bus.consumer(TOPICS, "graynode-replay", self._landing.assigned)
        self._stack.callback(self._consumer.close)
        events = bus.consumer((EVENTS,), "graynode-replay-events")
        self._stack.callback(events.close)
        self._incidents = Incidents(cluster, resolve_s)
        self._told = _Told(Publisher(producer, cluster, self._clock, epoch))
        self._hard = HardEvents(events, self._incidents, self._told, self._clock)
        self._rounds = Rounds(self._lake, cluster, {name: make(name) for name in detectors})
        self._next: datetime | None = None

    def take(self, rows: Slice, end: datetime) -> list[Revision]:
        """Carry the rows, judge events at once and windows as they close."""
        self._clock.now = end
        self._batcher.add({table: list(some) for table, some in rows.items()}, end)
        self._outbox.put(self._batcher.take())
        self._outbox.send()
        while self._hard.step(0.0):
            pass
        if int(end.timestamp()) % _COMMIT_S == 0:
            self._land(everything=False)
            self._judge()
        return self._told.taken()

    @property
    def refused(self) -> Counter[str]:
        """Values that the contract does not take, by field."""
        return Counter({f"values of {table}.{name}": n for (table, name), n in self._misfits.counts.items()})

    def finish(self) -> list[Revision]:
        """Let the windows' time pass, and judge the last ones."""
        self._clock.now += _SETTLE
        self._land(everything=True)
        self._judge()
        self._land(everything=True)
        return self._told.taken()

    def close(self) -> None:
        """Let go of bus and lake."""
        self._stack.close()

    def _land(self, *, everything: bool) -> None:
        while received := self._consumer.poll(0.0):
            self._landing.take(received)
        self._landing.commit(self._consumer.end_offsets(), everything=everything)

    def _judge(self) -> None:
        until = self._rounds.due_through([_PARTITION], self._clock.now)
        if until is None:
            return
        if self._next is None:
            self._next = self._rounds.first(_LONG_AGO, until)
        if self._next is None or until <= self._next:
            return
        step = timedelta(seconds=self._rounds.window_s)
        for round_ in self._rounds.rounds(self._next, until):
            found = self._rounds.score(round_).findings.to_dicts()
            self._next = round_.start + step
            self._incidents.see(round_)
            revisions = self._incidents.add(found, self._next) + self._incidents.tick(self._next)
            self._told(revisions, found)


@dataclass(slots=True)
class HourPath:
    """Samples that are minutes apart: hour windows as an import makes them, and rounds of an hour."""

    folder: Path
    cluster: str
    detectors: Sequence[str]
    resolve_s: float
    step_s: float
    slice_s: int = 3600
    refused: Counter[str] = field(default_factory=Counter)
    _lake: Lake = field(init=False)
    _rounds: Rounds = field(init=False)
    _incidents: Incidents = field(init=False)
    _rules: EventRules = field(default_factory=EventRules)

    def __post_init__(self) -> None:
        self._lake = Lake(str(self.folder / "lake"))
        self._rounds = Rounds(self._lake, self.cluster, {name: make(name) for name in self.detectors}, window="1h")
        self._incidents = Incidents(self.cluster, max(self.resolve_s, 2.0 * self.slice_s))

    def take(self, rows: Slice, end: datetime) -> list[Revision]:
        """One hour: stored, made windows, judged."""
        for table, some in rows.items():
            self._store(table, list(some), end)
        found = self._rules.replayed(rows.get("event", ()), rows.get("job", ()))
        told: list[Revision] = list(self._incidents.add(found, end))
        for round_ in self._rounds.rounds(end - timedelta(seconds=self.slice_s), end):
            found = self._rounds.score(round_).findings.to_dicts()
            self._incidents.see(round_)
            told += self._incidents.add(found, end)
            self._keep("finding", found, end)
        told += self._incidents.tick(end)
        self._keep("incident", [dict(revision) for revision in told], end)
        return told

    def finish(self) -> list[Revision]:
        """Nothing is open: hours are closed as they come."""
        return []

    def close(self) -> None:
        """Nothing is held."""

    def _store(self, table: str, rows: list[Row], end: datetime) -> None:
        try:
            self._keep(table, rows, end)
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            self.refused[f"{table}: {type(error).__name__}: {str(error)[:80]}"] += len(rows)
            return
        if table in _WINDOWED:
            since = end - timedelta(seconds=self.slice_s)
            frame = self._lake.read(table, since, end)
            make_windows(self._lake, self.cluster, frame, self.step_s, table=table, now=end)

    def _keep(self, table: str, rows: list[Row], end: datetime) -> None:
        names = TABLES[table].names
        known = [{name: row[name] for name in names if name in row} for row in rows]
        land_rows(self._lake, table, known, f"replay/{table}", int(end.timestamp()))


def steps_s(rows: Slice) -> Iterator[float]:
    """Spacings of samples of one entity, of those rows."""
    for table in _WINDOWED:
        last: dict[tuple[Any, ...], datetime] = {}
        for row in rows.get(table, ()):
            key = tuple(row.get(name) for name in TABLES[table].entity)
            if key in last and row["ts"] > last[key]:
                yield (row["ts"] - last[key]).total_seconds()
            last[key] = row["ts"]
