"""Windows of 30 s of one partition: which sample is in time, when a window is whole, what it says.

Event time, with a watermark per machine. A window closes 15 s after its end by its machine's newest sample, or 60 s
after its end by the bus's clock; a spooled backlog, whose windows ended long ago, closes them by its own samples as
it passes, or 60 s after its last message. A closed window never changes: later samples are counted.

Decisions are made message by message in the partition's order, so that polls of any size give the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import polars as pl

from graynode.pipeline.decode import SOURCE
from graynode.pipeline.schema import TABLES
from graynode.pipeline.window_counters import carry_of_windows, no_carry
from graynode.pipeline.window_math import aggregate
from graynode.pipeline.window_order import Bools, Ints
from graynode.pipeline.window_pieces import WINDOW_US, Pieces, pieces_of, window_start

WINDOWED: Final = ("gpu", "link", "host")
"""Raw tables that have windows."""
_GRACE_US: Final = 15_000_000
_ARRIVAL_MS: Final = 60_000
_AHEAD_MS: Final = 3_600_000
"""A sample further ahead of its arrival takes part in no window: it would close all windows up to its time."""
CARRY_FOR: Final = timedelta(hours=24)
"""A counter's difference across a longer silence is not said: nobody could tell when it happened."""
_FORGET_AFTER: Final = timedelta(days=40)

Machine = str
"""``cluster/node_id``, the key of a message."""


@dataclass(frozen=True, slots=True)
class Source:
    """A message, as far as windows are concerned."""

    machine: Machine
    table: str
    offset: int
    arrived_ms: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the lake knows of machines: per machine the end (µs) of its last closed window, and the rows behind it."""

    closed_us: Mapping[Machine, int] = field(default_factory=dict)
    carry: pl.DataFrame | None = None


Recover = Callable[[str, Sequence[Machine], datetime], Recovered]
"""Called with a raw table, machines met for the first time and the earliest time of their samples in hand."""


@dataclass(slots=True)
class _Open:
    first_offset: int
    arrived_ms: int


@dataclass(slots=True)
class _MachineState:
    newest_us: int = 0
    closed_us: int = 0
    newest_of: dict[str, int] = field(default_factory=dict)
    floor_us: dict[str, int] = field(default_factory=dict)
    open: dict[tuple[str, int], _Open] = field(default_factory=dict)

    def closed(self, table: str) -> int:
        return max(self.closed_us, self.floor_us.get(table, 0))


class Windows:
    """The open windows of one partition."""

    def __init__(self, recover: Recover = lambda _table, _machines, _since: Recovered()) -> None:
        self._recover = recover
        self._machines: dict[Machine, _MachineState] = {}
        self._numbers: dict[Machine, int] = {}
        self._pending: dict[tuple[str, int], list[tuple[Ints, pl.DataFrame]]] = {}
        self._carry = {table: no_carry(table) for table in WINDOWED}
        self._closed_through: int | None = None
        self._clock_ms = 0
        self.late: Counter[str] = Counter()

    # --- samples in ----------------------------------------------------------------------------------------

    def take(self, frames: Mapping[str, pl.DataFrame], sources: Sequence[Source]) -> dict[str, Bools]:
        """Add samples. ``sources`` are in the partition's order; frames have ``_source``, an index into them.

        Gives per table which rows repeat an entity and time that is in an open window already; only tables that
        have any.
        """
        pieces = {table: pieces_of(frame) for table, frame in frames.items() if frame.height}
        self._meet(pieces, sources)
        late: dict[str, set[tuple[int, int]]] = {table: set() for table in pieces}
        for index, source in enumerate(sources):
            machine = self._machines.setdefault(source.machine, _MachineState())
            self._expire(machine)
            self._clock_ms = max(self._clock_ms, source.arrived_ms)
            piece = pieces[source.table].by_source.get(index) if source.table in pieces else None
            if piece is not None:
                late[source.table] |= self._message(machine, source, index, piece)
        repeats: dict[str, Bools] = {}
        for table, piece_set in pieces.items():
            again = self._repeats(table, frames[table], piece_set, sources)
            if again is not None:
                repeats[table] = again
            self._keep(table, frames[table], piece_set, late[table], sources, again)
        return repeats

    def _repeats(self, table: str, frame: pl.DataFrame, pieces: Pieces, sources: Sequence[Source]) -> Bools | None:
        """Rows that are pending already. Only messages that do not begin after their machine's last are looked at."""
        back: list[int] = []
        for index in pieces.by_source:
            machine = self._machines[sources[index].machine]
            first, last = pieces.span[index]
            if first <= machine.newest_of.get(table, -1):
                back.append(index)
            machine.newest_of[table] = max(machine.newest_of.get(table, last), last)
        held = [
            part.select(_keys(table))
            for start in {start for index in back for start in pieces.by_source[index]}
            for _, part in self._pending.get((table, start), [])
        ]
        if not held:
            return None
        suspects = frame.select(_keys(table)).with_row_index("_row").filter(pl.Series(np.isin(pieces.source, back)))
        found = suspects.join(pl.concat(held), on=_keys(table), how="semi", nulls_equal=True)["_row"]
        again = np.zeros(frame.height, bool)
        again[found.to_numpy()] = True
        return again if again.any() else None

    def _message(
        self, machine: _MachineState, source: Source, index: int, windows: dict[int, int]
    ) -> set[tuple[int, int]]:
        """Judge one message's samples by window start; gives the (message, window) pairs that come too late."""
        late: set[tuple[int, int]] = set()
        ahead_us = (source.arrived_ms + _AHEAD_MS) * 1000
        for start, newest in windows.items():
            if newest > ahead_us or start + WINDOW_US <= machine.closed(source.table):
                late.add((index, start))
                continue
            held = machine.open.setdefault((source.table, start), _Open(source.offset, source.arrived_ms))
            held.arrived_ms = max(held.arrived_ms, source.arrived_ms)
        for newest in windows.values():
            if newest <= ahead_us:
                machine.newest_us = max(machine.newest_us, newest)
        machine.closed_us = max(machine.closed_us, window_start(machine.newest_us - _GRACE_US))
        return late

    def _keep(
        self,
        table: str,
        frame: pl.DataFrame,
        pieces: Pieces,
        late: set[tuple[int, int]],
        sources: Sequence[Source],
        repeats: Bools | None,
    ) -> None:
        if late or repeats is not None:
            too_late = np.zeros(frame.height, bool)
            for index, start in late:
                too_late |= (pieces.source == index) & (pieces.start == start)
            self.late[table] += int(too_late.sum())
            frame = frame.filter(pl.Series(~(too_late if repeats is None else too_late | repeats)))
            pieces = pieces_of(frame)
        if not frame.height:
            return
        numbers = np.array([self._number(source.machine) for source in sources], np.int64)
        machine = numbers[pieces.source]
        starts = np.unique(pieces.start)
        bare = frame.drop(SOURCE)
        for start in starts.tolist():
            if len(starts) == 1:
                self._pending.setdefault((table, start), []).append((machine, bare))
            else:
                mask = pieces.start == start
                self._pending.setdefault((table, start), []).append((machine[mask], bare.filter(pl.Series(mask))))

    def _number(self, machine: Machine) -> int:
        return self._numbers.setdefault(machine, len(self._numbers))

    def _meet(self, pieces: Mapping[str, Pieces], sources: Sequence[Source]) -> None:
        """Ask the lake about machines whose samples of a table are seen for the first time since the start."""
        for table, piece_set in pieces.items():
            earliest: dict[Machine, int] = {}
            for index, windows in piece_set.by_source.items():
                machine = self._machines.setdefault(sources[index].machine, _MachineState())
                if table not in machine.floor_us:
                    key = sources[index].machine
                    earliest[key] = min(earliest.get(key, min(windows)), min(windows))
            if not earliest:
                continue
            since = datetime.fromtimestamp(0, tz=UTC) + timedelta(microseconds=min(earliest.values()))
            found = self._recover(table, list(earliest), since)
            for key in earliest:
                self._machines[key].floor_us[table] = found.closed_us.get(key, 0)
            if found.carry is not None and found.carry.height:
                self._carry[table] = pl.concat([self._carry[table], carry_of_windows(table, found.carry)])

    # --- time passes ---------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """The bus's clock where nothing arrives any more; only for a partition that is read to its end."""
        self._clock_ms = max(self._clock_ms, now_ms)

    def _expire(self, machine: _MachineState) -> None:
        for (_, start), held in machine.open.items():
            end_ms = (start + WINDOW_US) // 1000
            # A clock that runs ahead must not hold its window open: at most 30 s after the sample came it is over.
            over = max(min(end_ms, held.arrived_ms + WINDOW_US // 1000), held.arrived_ms)
            if self._clock_ms >= over + _ARRIVAL_MS:
                machine.closed_us = max(machine.closed_us, start + WINDOW_US)

    # --- windows out ---------------------------------------------------------------------------------------

    def close(self) -> dict[str, pl.DataFrame]:
        """Rows of all windows that are whole now, per raw table, with ``<table>_30s`` columns."""
        closing: dict[tuple[str, int], list[int]] = {}
        for key, machine in self._machines.items():
            self._expire(machine)
            for table, start in [w for w in machine.open if w[1] + WINDOW_US <= machine.closed(w[0])]:
                del machine.open[table, start]
                closing.setdefault((table, start), []).append(self._number(key))
        rows: dict[str, list[pl.DataFrame]] = {}
        for window, numbers in closing.items():
            rows.setdefault(window[0], []).extend(self._drain(window, numbers))
        return {table: self._rows(table, pl.concat(parts)) for table, parts in rows.items() if parts}

    def _drain(self, window: tuple[str, int], numbers: list[int]) -> Iterable[pl.DataFrame]:
        """Take the rows of these machines out of what is pending."""
        closed = np.zeros(len(self._numbers), bool)
        closed[numbers] = True
        kept: list[tuple[Ints, pl.DataFrame]] = []
        for machine, frame in self._pending.pop(window, []):
            mask = closed[machine]
            if mask.all():
                yield frame
                continue
            kept.append((machine[~mask], frame.filter(pl.Series(~mask))))
            if mask.any():
                yield frame.filter(pl.Series(mask))
        if kept:
            self._pending[window] = kept

    def _rows(self, table: str, samples: pl.DataFrame) -> pl.DataFrame:
        who = ["cluster", "node_id"]
        since = samples.group_by(who).agg(pl.col("ts").min().alias("_first"))
        held = self._carry[table]
        near = held.join(since, on=who, how="inner").filter(pl.col("ts") >= pl.col("_first") - CARRY_FOR)
        made, after = aggregate(table, samples, near.drop("_first").select(held.columns))
        others = held.join(since, on=who, how="anti")
        newest = samples["ts"].max()
        if isinstance(newest, datetime):
            others = others.filter(pl.col("ts") >= newest - _FORGET_AFTER)
        self._carry[table] = pl.concat([others, after])
        return made

    # --- where we stand ------------------------------------------------------------------------------------

    def first_open(self, table: str) -> int | None:
        """Offset of the first message of this table that is still in an open window."""
        offsets = (
            held.first_offset
            for machine in self._machines.values()
            for (name, _), held in machine.open.items()
            if name == table
        )
        return min(offsets, default=None)

    def resume_closed_through(self, seconds: int | None) -> None:
        """What was said before the restart; it never goes back."""
        self._closed_through = seconds

    def closed_through(self) -> int | None:
        """Epoch seconds up to which every window of every machine that is not behind is closed."""
        said = self._closed_through
        said_us = 0 if said is None else said * 1_000_000
        starts = [s for m in self._machines.values() for (_, s) in m.open if s >= said_us]
        reached = min(starts, default=None)
        if reached is None and self._clock_ms:
            reached = window_start(self._clock_ms * 1000 - _GRACE_US)
        if reached is not None and reached > said_us:
            self._closed_through = reached // 1_000_000
        return self._closed_through

    def closed_us(self, machine: Machine) -> int:
        """End of the last closed window of a machine, by its own samples and by arrival."""
        held = self._machines.get(machine)
        return 0 if held is None else held.closed_us

    @property
    def clock_ms(self) -> int:
        """The newest arrival in this partition."""
        return self._clock_ms

    @property
    def pending_rows(self) -> int:
        """Samples in open windows."""
        return sum(len(machine) for parts in self._pending.values() for machine, _ in parts)


def _keys(table: str) -> list[str]:
    return [*TABLES[table].entity, "ts"]
