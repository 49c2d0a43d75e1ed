"""A whole simulated site through the whole of detection: windows, every detector, incidents.

The healthy windows are those of the simulated fleet (``collectors.simulated``: load, jobs and noise from published
data); what is put in changes what is measured. Detectors are primed with three weeks of hours and then see rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.benchmarks.detection.window_faults import Measured
from graynode.collectors.simulated.faults import Plan
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.collectors.simulated.jobs import Job
from graynode.collectors.simulated.windows import history
from graynode.detectors import NAMES, make
from graynode.detectors.base import TOLD, Detector, Learner, Round, State
from graynode.detectors.incidents import Incidents

WINDOW_S: Final = 30
PRIMED_D: Final = 21
CLUSTER: Final = "evaluation"
_END: Final = datetime(2026, 11, 2, 9, tzinfo=UTC)
_ROOM: Final = timedelta(hours=6)
_EMPTY: Final = pl.DataFrame()
Put = Callable[[Measured, float], None]
"""Changes one window, given the seconds since the run began."""


@dataclass(frozen=True, slots=True)
class Told:
    """One finding or incident that names something: seconds from the run's start to the end of its window."""

    after_s: float
    detector: str
    signal: str
    cause: str
    node_id: str
    entity: str
    message: str


@dataclass(slots=True)
class Run:
    """What was told in one run of rounds."""

    findings: list[Told] = field(default_factory=list)
    incidents: list[Told] = field(default_factory=list)
    rounds: int = 0


class Site:
    """One site, primed once (or not). ``run`` starts from the same memory each time and leaves it as it is."""

    def __init__(
        self, nodes: int, seed: int, detectors: Mapping[str, Detector] | None = None, *, primed: bool = True
    ) -> None:
        self.fleet = Fleet(Spec(_END, nodes, 8, seed, 1.0, ahead_d=0.5, cluster=CLUSTER), Plan())
        self.detectors = dict(detectors or {name: make(name) for name in NAMES})
        self.start = _END - _ROOM
        self.start_s = self.fleet.seconds(self.start)
        self.works = pl.DataFrame(
            {"job_id": [str(j.number) for j in self.fleet.jobs], "work": [j.kind.name for j in self.fleet.jobs]}
        )
        self._states: dict[str, State] = {name: {} for name in self.detectors}
        if primed:
            self._prime()

    @property
    def node_ids(self) -> list[str]:
        """The machines."""
        return list(self.fleet.node_ids)

    def at_work(self, seconds: float) -> list[Job]:
        """Synchronous jobs that run from a quarter of an hour before the start for so long and longer."""
        first, last = self.start_s - 900.0, self.start_s + seconds
        return [j for j in self.fleet.jobs if j.start <= first and j.end >= last and j.kind.synchronous]

    def run(self, rounds: int, put: Put | None = None, *, works: pl.DataFrame | None = None) -> Run:
        """``rounds`` windows from the start on. ``works`` are jobs that ``put`` has made."""
        states, told, incidents = dict(self._states), Run(), Incidents(CLUSTER)
        known = self.works if works is None else pl.concat([self.works, works])
        for number, frames in enumerate(self._windows(rounds)):
            if put is not None:
                measured = Measured(frames)
                put(measured, float(number * WINDOW_S))
                frames = measured.frames()
            start = self.start + timedelta(seconds=number * WINDOW_S)
            self._score(self._round(start, WINDOW_S, frames, known), states, told, incidents)
        return told

    def _score(self, round_: Round, states: dict[str, State], told: Run, incidents: Incidents) -> None:
        end = round_.start + timedelta(seconds=WINDOW_S)
        after_s, found = (end - self.start).total_seconds(), []
        for name, detector in self.detectors.items():
            scored = detector.score(round_, states[name])
            states[name] = scored.state
            if scored.findings.height:
                found += scored.findings.to_dicts()
                told.findings += [_told(r, after_s, name) for r in scored.findings.filter(TOLD).to_dicts()]
        incidents.see(round_)
        for revision in [*incidents.add(found, end), *incidents.tick(end)]:
            if revision["state"] == "open" and revision["revision"] == 0:
                told.incidents.append(_told(revision, after_s, "incident"))
        told.rounds += 1

    def _prime(self) -> None:
        for day in range(PRIMED_D, 0, -1):
            since = self.start - timedelta(days=day)
            parts: dict[str, list[pl.DataFrame]] = {}
            for table, frame in history(self.fleet, since, since + timedelta(days=1), 3600):
                parts.setdefault(table.partition("_")[0], []).append(frame)
            past = self._round(since, 3600, {t: pl.concat(f) for t, f in parts.items()}, self.works)
            for name, detector in self.detectors.items():
                if isinstance(detector, Learner) and day > detector.leaves_out_d:
                    self._states[name] = detector.learn(past, self._states[name])

    def _windows(self, rounds: int) -> Iterator[dict[str, pl.DataFrame]]:
        """Tables of one window after the other."""
        held: dict[str, dict[datetime, pl.DataFrame]] = {}
        until = self.start + timedelta(seconds=rounds * WINDOW_S)
        for table, frame in history(self.fleet, self.start, until, WINDOW_S):
            name = table.partition("_")[0]
            held[name] = {part["ts"][0]: part for part in frame.partition_by("ts", maintain_order=True)}
            if len(held) == 3:
                for ts in sorted(held["host"]):
                    yield {t: by_ts.get(ts, frame.clear()) for t, by_ts in held.items()}
                held = {}

    @staticmethod
    def _round(start: datetime, window_s: int, frames: dict[str, pl.DataFrame], works: pl.DataFrame) -> Round:
        return Round(
            start, window_s, frames["gpu"], frames["link"], frames["host"],
            events=_EMPTY, probes=_EMPTY, inventory=_EMPTY, quality=_EMPTY, jobs=works,
        )  # fmt: skip


def _told(row: Mapping[str, Any], after_s: float, detector: str) -> Told:
    entity = row.get("gpu_uuid") or row.get("link") or ""
    return Told(
        after_s, detector, row.get("signal") or "", row["cause"], row.get("node_id") or "", entity,
        row.get("message") or row.get("title") or "",
    )  # fmt: skip
