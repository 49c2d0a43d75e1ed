"""Detection rounds over the lake: which windows are due, what a round sees, and every detector's turn.

Nothing here publishes. Given the same lake, state and windows, the same findings with the same ids come out: a replay
is this class over the past.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.detectors import make
from graynode.detectors.base import Detector, Learner, Recaller, Round, Scored, State
from graynode.detectors.findings import none
from graynode.detectors.node_days import NodeDays
from graynode.detectors.thresholds import Thresholds, shipped
from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import WINDOW_S
from graynode.service import maintenance_nodes
from graynode.service.detector_state import Keeper
from graynode.service.places_file import NONE, PlacesFile
from graynode.service.step_rows import StepRows
from graynode.service.turns import turns

_TABLES: Final = ("gpu", "link", "host")
_KEYS: Final = {
    "gpu": ("ts", "cluster", "node_id", "node", "boot_id", "gpu_uuid", "mig_instance", "samples"),
    "link": ("ts", "cluster", "node_id", "node", "boot_id", "link", "samples"),
    "host": ("ts", "cluster", "node_id", "node", "boot_id", "samples"),
}
_ORDER: Final = {"gpu": ("gpu_uuid",), "link": ("node_id", "link"), "host": ("node_id",)}
HISTORY_D: Final = 35


@dataclass(slots=True)
class Result:
    """One round's findings, and what its ``round`` row says. ``seconds`` is the detectors' own time."""

    start: datetime
    window_s: int
    findings: pl.DataFrame
    machines: set[str]
    late: int
    seconds: float
    node_days: list[dict[str, Any]] = field(default_factory=list)
    """Rows of table ``node_day``, where this round was the first of a new day."""


@dataclass(slots=True)
class Rounds:
    """The detectors of one cluster with their memory, over windows of one length (``30s`` or ``1h``)."""

    lake: Lake
    cluster: str
    detectors: Mapping[str, Detector]
    window: str = "30s"
    shadow: bool = False
    silent: Sequence[str] = ()
    """Detectors that stay in shadow whatever the others do."""
    thresholds: Thresholds = field(default_factory=shipped)
    states: dict[str, State] = field(default_factory=dict)
    node_days: NodeDays = field(default_factory=NodeDays)
    places: PlacesFile = NONE
    planned: maintenance_nodes.Planned = maintenance_nodes.NONE
    """Maintenance windows as they were known when rounds were read last."""
    _machines: set[str] = field(default_factory=set)
    _probes: int = -1
    _versions: dict[str, int] = field(default_factory=dict)

    @property
    def window_s(self) -> int:
        """Length of a window."""
        return WINDOW_S[self.window]

    @property
    def keepers(self) -> dict[str, Keeper]:
        """Everything whose memory is in ``states``."""
        return {**self.detectors, NodeDays.name: self.node_days}

    def use(self, thresholds: Thresholds) -> None:
        """Decide by other thresholds from the next round on. Memory stays: sums are in units of effect."""
        self.thresholds = thresholds
        self.detectors = {name: make(name, thresholds) for name in self.detectors}

    def prime(self, before: datetime, days: int = HISTORY_D) -> int:
        """Learn what is normal from hour windows of past days, a day at a time; gives how many days had any."""
        learners = {n: d for n, d in self.detectors.items() if isinstance(d, Learner)}
        known, jobs, repairs = 0, self._jobs(before), self._repairs(before)
        self.planned = self._maintenance(self._placed(self._read("inventory", None, before), [], before), before)
        for day in range(days, 0, -1):
            since = before - timedelta(days=day)
            read = {t: self._history(t, since, learners.values()) for t in _TABLES}
            frames = {t: self.planned.cut(rows, WINDOW_S["1h"]) for t, rows in read.items()}
            if all(f.is_empty() for f in frames.values()):
                continue
            known += 1
            empty = pl.DataFrame()
            past = Round(
                since,
                WINDOW_S["1h"],
                **frames,
                events=empty,
                probes=empty,
                inventory=empty,
                quality=empty,
                jobs=jobs,
                repairs=repairs,
            )
            for name, detector in learners.items():
                if day > detector.leaves_out_d:
                    self.states[name] = detector.learn(past, self.states.get(name, {}))
                elif day == 1 and isinstance(detector, Recaller):
                    self.states[name] = detector.recent(past, self.states.get(name, {}))
        return known

    def first(self, since: datetime, until: datetime) -> datetime | None:
        """Start of the oldest window that the lake has in ``[since, until)``."""
        starts = [
            self._read(f"{t}_{self.window}", since, until, ["ts", "cluster"]).get_column("ts").min() for t in _TABLES
        ]
        found = [s for s in starts if isinstance(s, datetime)]
        return min(found).astimezone(UTC) if found else None

    def due_through(self, partitions: Sequence[str], now: datetime, patience_s: float = 90.0) -> datetime | None:
        """Up to which moment windows may be scored: all partitions closed, or ``patience_s`` after the end.

        Tables that do not exist and partitions that never had a message hold nothing up. ``None``: no windows at all.
        """
        closed = []
        for table in (f"{t}_{self.window}" for t in _TABLES):
            if self.lake.exists(table):
                closed.append([c for c in self.lake.closed_through(table, partitions).values() if c is not None])
        if not closed:
            return None
        waited = now - timedelta(seconds=patience_s)
        known = [c for group in closed for c in group]
        return max(min(known), waited) if known else waited

    def rounds(self, since: datetime, until: datetime) -> Iterator[Round]:
        """All whole windows in ``[since, until)``, read from the lake at once and split here."""
        step = timedelta(seconds=self.window_s)
        count = int((until - since) / step)
        until = since + count * step
        self._versions = {t: self.lake.version(t) for t in (f"{t}_{self.window}" for t in _TABLES)}
        frames = {t: self._split(self._read(f"{t}_{self.window}", since, until), _ORDER[t]) for t in _TABLES}
        events = self._read("event", since, until) if self.lake.exists("event") else pl.DataFrame()
        valid = {t: self._read(t, None, until) for t in ("inventory", "quality")}
        valid["inventory"] = self._placed(valid["inventory"], list(frames["host"][0].values()), until)
        self.planned = self._maintenance(valid["inventory"], until)
        probes, jobs, repairs = self._new_probes(until), self._jobs(until), self._repairs(until)
        steps = StepRows(lambda a, b, columns: self._read("step", a, b, columns), until, self.lake.exists("step"))
        for w in range(count):
            start = since + w * step
            seen = {t: by_start.get(start, empty) for t, (by_start, empty) in frames.items()}
            now = events.filter((pl.col("ts") >= start) & (pl.col("ts") < start + step)) if events.height else events
            yield Round(
                start,
                self.window_s,
                **seen,
                events=now,
                probes=probes if w == 0 else probes.clear(),
                jobs=jobs,
                repairs=repairs,
                steps=steps.of(start, start + step),
                **valid,
            )

    def _placed(self, inventory: pl.DataFrame, hosts: list[pl.DataFrame], now: datetime) -> pl.DataFrame:
        """The inventory, with the places that the site has told of; silent machines are known from the inventory."""
        if self.places.rows.is_empty():
            return inventory
        known = [f.select("cluster", "node", "node_id") for f in (inventory, *hosts)]
        return pl.concat([inventory, self.places.inventory(pl.concat(known), now)], how="diagonal_relaxed")

    def score(self, round_: Round) -> Result:
        """Every detector's turn; findings of statistics are not live while in shadow, those of ``rules`` always are."""
        began = time.perf_counter()
        found = []
        seen = self.planned.without(round_)
        for name, scored in self._turns(round_, seen).items():
            self.states[name] = scored.state
            if scored.findings.height:
                live = name == "rules" or not (self.shadow or name in self.silent)
                found.append(scored.findings.with_columns(live=pl.lit(live)))
        machines = _machines(round_)
        late = len(self._machines - machines)
        self._machines = machines or self._machines
        findings = pl.concat(found) if found else none()
        kept = self.states.get(NodeDays.name, {})
        self.states[NodeDays.name], ended = self.node_days.take(seen, self.states, findings, self.thresholds, kept)
        seconds = time.perf_counter() - began
        return Result(round_.start, round_.window_s, findings, machines, late, seconds, ended)

    def _turns(self, round_: Round, seen: Round) -> dict[str, Scored]:
        """Of nodes in maintenance only those see rows that say facts."""
        if seen is round_:
            return turns(self.detectors, round_, self.states)
        facts = {name: d for name, d in self.detectors.items() if name in maintenance_nodes.SEE_ALL}
        others = {name: d for name, d in self.detectors.items() if name not in facts}
        scored = turns(facts, round_, self.states) | turns(others, seen, self.states)
        return {name: scored[name] for name in self.detectors}

    def _maintenance(self, inventory: pl.DataFrame, now: datetime) -> maintenance_nodes.Planned:
        return maintenance_nodes.read(self.lake, self.cluster, inventory, now)

    def versions(self) -> dict[str, int]:
        """Versions of the window tables when the rounds at hand were read."""
        return dict(self._versions)

    def _history(self, table: str, since: datetime, learners: Iterable[Learner]) -> pl.DataFrame:
        wanted = dict.fromkeys(_KEYS[table])
        extra = dict.fromkeys(c for d in learners for c in d.reads.get(table, ()))
        if not extra:
            return pl.DataFrame()
        return self._read(f"{table}_1h", since, since + timedelta(days=1), list(wanted | extra))

    def _jobs(self, until: datetime) -> pl.DataFrame:
        """The kind of work of each job of the last weeks."""
        since = until - timedelta(days=HISTORY_D + 7)
        rows = self._read("job", since, until, ["cluster", "job_id", "work"])
        return rows.select("job_id", "work").drop_nulls().unique().sort("job_id", "work")

    def _repairs(self, until: datetime) -> pl.DataFrame:
        """Logged repairs of the weeks that history reaches back; before them a GPU was another."""
        columns = ["ts", "cluster", "node_id", "gpu_uuid"]
        return self._read("repair", until - timedelta(days=HISTORY_D + 7), until, columns)

    def _new_probes(self, until: datetime) -> pl.DataFrame:
        """All probe results when there are new ones, whatever their age: an import brings old ones."""
        version = self.lake.version("probe")
        if version == self._probes:
            return pl.DataFrame()
        self._probes = version
        return self._read("probe", None, until)

    def _read(
        self, table: str, since: datetime | None, until: datetime | None, columns: list[str] | None = None
    ) -> pl.DataFrame:
        rows = self.lake.read(table, since, until, columns)
        return rows.filter(pl.col("cluster") == self.cluster)

    @staticmethod
    def _split(rows: pl.DataFrame, order: tuple[str, ...]) -> tuple[dict[datetime, pl.DataFrame], pl.DataFrame]:
        """Windows by their start, as slices of one frame in the order that detectors want."""
        ordered = rows.sort("ts", *order)
        counts = ordered.get_column("ts").rle().struct.unnest() if ordered.height else None
        split: dict[datetime, pl.DataFrame] = {}
        offset = 0
        if counts is not None:
            for length, ts in counts.iter_rows():
                split[ts.astimezone(UTC)] = ordered.slice(offset, length)
                offset += length
        return split, ordered.clear()


def _machines(round_: Round) -> set[str]:
    found: set[str] = set()
    for frame in (round_.gpu, round_.link, round_.host):
        if "node_id" in frame.columns:
            found.update(frame.get_column("node_id").to_list())
    return found - {None}
