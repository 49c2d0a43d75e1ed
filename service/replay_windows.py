"""Replay of a history that is there as windows: what an import made of months whose samples are no longer kept.

The rounds read the history's own lake, which is not changed; findings and incidents go into a lake of the replay's.
Baselines grow as the days pass, as they would have: nothing is learned from later days.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.detectors import make
from graynode.detectors.event_rules import EventRules
from graynode.detectors.incidents import Incidents
from graynode.detectors.policy import shipped
from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import TABLES
from graynode.service import detect_terms
from graynode.service.config import ConfigError
from graynode.service.imports.landing import land_rows
from graynode.service.replay_paths import Revision
from graynode.service.rounds import Rounds

WINDOW: Final = "1h"
_RAW: Final = ("gpu", "link", "host")
_HOURS: Final = 24
_PLACED: Final = ("ts", "cluster", "node_id", "job_id", "user", "state", "allocated_ts", "end_ts", "gpu_uuids")
_FURTHER: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class History:
    """Hour windows of one cluster from ``since`` to ``until``."""

    lake: Lake
    cluster: str
    since: datetime
    until: datetime


def history(lake: Lake, cluster: str, since: datetime | None, until: datetime | None) -> History | None:
    """The hour windows, if they reach further back than raw samples do; ``None``: replay the samples.

    ``ConfigError`` where the lake holds several clusters and ``cluster`` is none of them.
    """
    spans = [s for t in _RAW if (s := _span(lake, f"{t}_{WINDOW}", since, until)) is not None]
    if not spans:
        return None
    first, last = min(s[0] for s in spans), max(s[1] for s in spans)
    raw = [s[0] for t in _RAW if (s := _span(lake, t, since, until)) is not None]
    if raw and min(raw) - first < _FURTHER:
        return None
    return History(lake, _cluster(lake, cluster, since, until), first, last + timedelta(hours=1))


def _span(lake: Lake, table: str, since: datetime | None, until: datetime | None) -> tuple[datetime, datetime] | None:
    uris = lake.files(table, since, until) if lake.exists(table) else []
    if not uris:
        return None
    ts = pl.col("ts")
    rows = lake.scan(table, uris).select(ts)
    if since is not None:
        rows = rows.filter(ts >= since)
    if until is not None:
        rows = rows.filter(ts < until)
    first, last = rows.select(ts.min().alias("a"), ts.max().alias("b")).collect().row(0)
    return (first.astimezone(UTC), last.astimezone(UTC)) if first is not None else None


def _cluster(lake: Lake, wanted: str, since: datetime | None, until: datetime | None) -> str:
    names: set[str] = set()
    for table in _RAW:
        with suppress(KeyError):
            names |= set(lake.read(f"{table}_{WINDOW}", since, until, ["cluster"]).get_column("cluster").unique())
    if wanted in names:
        return wanted
    if len(names) == 1:
        return names.pop()
    raise ConfigError(
        f"the lake holds clusters {', '.join(sorted(names))}: say which with GRAYNODE_CLUSTER, or cluster in --config"
    )


@dataclass(slots=True)
class WindowPath:
    """Rounds of an hour over a history, in order of time."""

    past: History
    out: Lake
    cluster: str
    detectors: Sequence[str]
    resolve_s: float
    windows: int = 0
    _rules: EventRules = field(init=False)

    def __post_init__(self) -> None:
        self._rules = detect_terms.event_rules(shipped(), self.past.lake, self.past.cluster, self.past.since)

    def go(self) -> Iterator[tuple[datetime, list[Revision]]]:
        """The end of each hour, and what would have been told by then."""
        made = {name: make(name) for name in self.detectors}
        rounds = Rounds(self.past.lake, self.past.cluster, made, window=WINDOW)
        incidents = Incidents(self.cluster, max(self.resolve_s, 2.0 * 3600))
        at = self.past.since
        while at < self.past.until:
            end = min(at + timedelta(hours=_HOURS), self.past.until)
            for round_ in rounds.rounds(at, end):
                over = round_.start + timedelta(hours=1)
                self.windows += round_.gpu.height + round_.host.height + round_.link.height
                events = round_.events.to_dicts() if round_.events.height else []
                found = self._ours(self._rules.replayed(events, self._jobs(round_.start, over)))
                scored = self._ours(rounds.score(round_).findings.to_dicts())
                incidents.see(round_)
                told: list[Revision] = [*incidents.add([*found, *scored], over), *incidents.tick(over)]
                self._keep("finding", scored, over)
                self._keep("incident", [dict(revision) for revision in told], over)
                yield over, told
            at = end

    def _jobs(self, since: datetime, until: datetime) -> list[dict[str, Any]]:
        """Job rows that were told in [``since``, ``until``)."""
        rows = self.past.lake.read("job", since, until, _PLACED)
        return rows.filter(pl.col("cluster") == self.past.cluster).to_dicts() if rows.height else []

    def _ours(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "cluster": self.cluster} for row in rows]

    def _keep(self, table: str, rows: list[dict[str, Any]], end: datetime) -> None:
        if rows:
            names = TABLES[table].names
            known = [{name: row[name] for name in names if name in row} for row in rows]
            land_rows(self.out, table, known, f"replay/{table}", int(end.timestamp()))
