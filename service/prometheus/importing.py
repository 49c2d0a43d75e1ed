"""``graynode import --format prometheus``: what a Prometheus or VictoriaMetrics has kept, into the lake.

dcgm-exporter series become ``gpu`` rows, node-exporter series ``host`` and ``link`` rows, and both their windows. A
chunk of time of some instances is asked field by field, stored, and marked as done with the last of its
transactions; a killed import does that chunk again, finds what it had stored by entity and time, and doubles nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import TABLES
from graynode.service.imports.landing import land, land_rows
from graynode.service.imports.windows import make_windows
from graynode.service.prometheus.answer import Answer, Series
from graynode.service.prometheus.client import PrometheusClient
from graynode.service.prometheus.grid import Grid
from graynode.service.prometheus.identity import GROUPED, Homes, Whose
from graynode.service.prometheus.plan import Chunk, chunks, matchers, shards
from graynode.service.prometheus.refusals import Away, TooMuch
from graynode.service.prometheus.wanted import GPU, GPU_NAMES, NODE, NODE_NAMES, Wanted, known, last_of
from graynode.service.prometheus.xid import NAMES, events

_LATE_SPLITS: Final = 2
"""A query that does not end in time is halved twice; if that does not help, the server hangs."""
_MOST_KNOWN: Final = 100_000
"""Label sets of which is remembered whose they are; pods come and go."""
_LABELS: Final = ("instance", "Hostname", "node")
"""By which series are taken apart, the first that they have."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Series of one exporter: how its metrics are found, what is asked of it, and which tables that fills."""

    name: str
    metrics: str
    wanted: tuple[Wanted, ...]
    tables: tuple[str, ...]


KINDS: Final = (
    Kind("dcgm-exporter", GPU_NAMES, GPU, ("gpu",)),
    Kind("node-exporter", NODE_NAMES, NODE, ("host", "link")),
)


@dataclass(frozen=True, slots=True)
class Found:
    """What a server has of one kind. ``label`` takes its series apart."""

    kind: Kind
    wanted: list[Wanted]
    label: str
    xids: tuple[Wanted, ...] = ()

    @property
    def anchors(self) -> str:
        """A selector of series that every instance has at least one of."""
        names = dict.fromkeys(name for w in self.wanted for name in w.needs)
        return "|".join(list(names)[:40])


@dataclass(slots=True)
class Tally:
    """What became of everything that was asked for."""

    samples: int = 0
    duplicates: int = 0
    done: int = 0
    skipped: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    there: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    partial: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``match`` are further label matchers of every selector (``cluster="a"``); ``now`` ends the last whole hour.

    ``samples`` keeps rows of any age. Without it rows that are older than their table's retention are not stored, for
    the next maintenance would take them away; their windows are.
    """

    cluster: str
    step_s: int
    now: datetime
    match: str = ""
    samples: bool = False


class Importer:
    """One import from one server into one lake."""

    def __init__(self, client: PrometheusClient, lake: Lake, settings: Settings) -> None:
        self._client, self._lake, self._settings = client, lake, settings
        self._at_once = 1 << 30
        self._homes = Homes(settings.cluster)
        self._known: dict[tuple[str, bool, frozenset[tuple[str, str]]], Whose | str] = {}
        self.tally = Tally()

    def discover(self, start_s: int, end_s: int) -> list[Found]:
        """What of all that is known the server has in that time."""
        found = []
        for kind in KINDS:
            selector = self._selector(f'__name__=~"{kind.metrics}"')
            names = self._client.names("__name__", selector, start_s, end_s)
            there = known(kind.wanted, names)
            if there:
                xids = tuple(last_of("event", "code", name) for name in NAMES if name in names and kind is KINDS[0])
                found.append(Found(kind, there, self._label(there, start_s, end_s), xids))
        return found

    def run(self, found: Sequence[Found], start_s: int, end_s: int, told: Callable[[Chunk, float], None]) -> None:
        """All chunks in order of time. ``told`` hears the chunk at work and the share that is done."""
        plan = chunks(start_s, end_s)
        for number, chunk in enumerate(plan):
            self._meet(found, chunk)
            for kind_number, one in enumerate(found):
                parts = list(self._shards(one, chunk))
                for shard_number, shard in enumerate(parts):
                    told(chunk, (number + (kind_number + shard_number / len(parts)) / len(found)) / len(plan))
                    self._shard(one, chunk, shard)
        if plan:
            told(plan[-1], 1.0)

    def _meet(self, found: Sequence[Found], chunk: Chunk) -> None:
        """Learn which exporters of GPUs there were and what their hosts are called: node-exporter's series need it."""
        if len(found) < len(KINDS):
            return
        anchor, length_s = found[0].wanted[0].needs[0], chunk.end_s - chunk.start_s
        inside = f"last_over_time({anchor}{self._selector('')}[{length_s}s])"
        query = f"count by ({', '.join(GROUPED)}) ({inside})"
        for series in self._client.matrix(query, chunk.end_s, chunk.end_s, self._settings.step_s).series:
            self._homes.note(series.labels)
        self._known.clear()

    def _label(self, there: Sequence[Wanted], start_s: int, end_s: int) -> str:
        anchor = there[0].needs[0]
        for label in _LABELS:
            if self._client.names(label, self._selector(f'__name__="{anchor}"'), start_s, end_s):
                return label
        return _LABELS[0]

    def _shards(self, found: Found, chunk: Chunk) -> Iterator[list[str]]:
        selector = self._selector(f'__name__=~"{found.anchors}"')
        instances = self._client.names(found.label, selector, chunk.start_s, chunk.end_s)
        return shards([name for name in instances if name], chunk.points(self._settings.step_s))

    def _selector(self, first: str) -> str:
        return "{" + ",".join(filter(None, (first, self._settings.match))) + "}"

    # --- one chunk of some instances ---------------------------------------------------------------------

    def _shard(self, found: Found, chunk: Chunk, shard: list[str]) -> None:
        table, mark = f"{found.kind.tables[0]}_1h", self._mark(found, chunk, shard)
        if (self._lake.offset(table, mark) or 0) >= chunk.end_s:
            self.tally.skipped += 1
            return
        grids = self._read(found, chunk, shard)
        if grids is None:
            return
        for name, grid in grids.items():
            self._store(name, grid, f"{mark}/{name}", chunk)
        self._store_xids(found, chunk, shard, mark)
        self._lake.write(table, pl.DataFrame(schema=frame_schema(table)), offsets={mark: chunk.end_s})
        self.tally.done += 1

    def _mark(self, found: Found, chunk: Chunk, shard: list[str]) -> str:
        """The application id of this piece: the same only where the same would be asked."""
        s = self._settings
        asked = "\0".join(
            [
                found.kind.name,
                s.match,
                str(s.step_s),
                str(s.samples),
                *sorted(w.expression for w in found.wanted),
                *shard,
            ]
        )
        return f"import/prometheus/{s.cluster}/{chunk.start_s}/{hashlib.sha256(asked.encode()).hexdigest()[:20]}"

    def _read(self, found: Found, chunk: Chunk, shard: list[str]) -> dict[str, Grid] | None:
        """All fields of these instances; ``None`` where some answer was partial."""
        grids = {name: Grid(name, chunk, self._settings.step_s) for name in found.kind.tables}
        for wanted in found.wanted:
            for answer in self._ask(wanted, chunk, found.label, shard, _LATE_SPLITS):
                if answer.partial:
                    self.tally.partial[answer.partial] += 1
                    return None
                for series in sorted(answer.series, key=lambda s: sorted(s.labels.items())):
                    self._put(grids[wanted.table], wanted, series)
        return grids

    def _store_xids(self, found: Found, chunk: Chunk, shard: list[str], mark: str) -> None:
        """Changes of the last Xid; the evaluation before the chunk's first says what it was."""
        step_s = self._settings.step_s
        whole = Chunk(chunk.start_s - step_s, chunk.end_s)
        owned = []
        for wanted in found.xids:
            for answer in self._ask(wanted, whole, found.label, shard, _LATE_SPLITS):
                for series in answer.series:
                    whose = self._whose(wanted, series.labels)
                    if not isinstance(whose, str):
                        owned.append((whose, series))
        landed = land_rows(self._lake, "event", events(owned), f"{mark}/event", chunk.end_s)
        self.tally.rows["event"] += landed.stored
        self.tally.there["event"] += landed.there

    def _put(self, grid: Grid, wanted: Wanted, series: Series) -> None:
        whose = self._whose(wanted, series.labels)
        if isinstance(whose, str):
            self.tally.refused[f"{wanted.field}: {whose}"] += len(series.values)
            return
        number = grid.entity(whose.who)
        grid.put(number, wanted, series)
        for name, word in whose.words.items():
            grid.label(number, name, series, word)

    def _whose(self, wanted: Wanted, labels: Mapping[str, str]) -> Whose | str:
        """Whose a series is; asked once for all fields of an entity."""
        key = wanted.table, wanted.of_instance, frozenset(item for item in labels.items() if item[0] != "__name__")
        known = self._known.get(key)
        if known is None:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._homes.whose(wanted.table, labels, of_instance=wanted.of_instance)
        return known

    def _ask(
        self, wanted: Wanted, chunk: Chunk, label: str, instances: Sequence[str], late_splits: int
    ) -> Iterator[Answer]:
        """One field, in as few queries as the server allows: what is too much for it is asked in halves."""
        step_s = self._settings.step_s
        for some in _pieces(instances, self._at_once):
            # A millisecond less than the step: a sample exactly on the boundary belongs to the step before only.
            query = wanted.query(matchers(label, some, self._settings.match), step_s * 1000 - 1)
            try:
                yield self._client.matrix(query, chunk.start_s + step_s, chunk.end_s, step_s)
                continue
            except TooMuch as much:
                left = late_splits - int(much.late)
                if left < 0:
                    raise Away(
                        query, much.said, "is the server overloaded? Run again later: what is done is kept"
                    ) from much
                halves = self._halves(chunk, some)
                if halves is None:
                    raise
            for part, fewer in halves:
                yield from self._ask(wanted, part, label, fewer, left)

    def _halves(self, chunk: Chunk, instances: Sequence[str]) -> list[tuple[Chunk, Sequence[str]]] | None:
        """The same in two questions: half of the instances each, half of the time each, or not at all."""
        if len(instances) > 1:
            self._at_once = min(self._at_once, -(-len(instances) // 2))
            return [(chunk, instances)]
        halves = chunk.halves()
        return None if halves is None else [(part, instances) for part in halves]

    def _store(self, table: str, grid: Grid, mark: str, chunk: Chunk) -> None:
        frame, s = grid.frame(), self._settings
        self.tally.samples += grid.samples
        self.tally.duplicates += grid.duplicates
        self.tally.refused += grid.refused
        if not frame.height:
            return
        kept_d = TABLES[table].retention_d
        if s.samples or kept_d is None or chunk.end_s > (s.now - timedelta(days=kept_d)).timestamp():
            landed = land(self._lake, table, frame, mark, chunk.end_s)
            self.tally.rows[table] += landed.stored
            self.tally.there[table] += landed.there
        made = make_windows(self._lake, s.cluster, frame, float(s.step_s), table=table, now=s.now)
        self.tally.rows.update(made.stored)
        self.tally.there[f"{table}_1h"] += made.there


def _pieces(instances: Sequence[str], most: int) -> Iterable[Sequence[str]]:
    return (instances[at : at + most] for at in range(0, len(instances), most))
