"""From polled messages to committed tables; no configuration, no thread, no sleep.

``assigned`` says where to read from, ``take`` turns messages into rows in memory, ``commit`` writes what is ready,
each table with the offsets that its rows stand for. A table that could not be written keeps its rows and is tried
again at the next commit; what is in memory at a death is read again from the bus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import polars as pl
import structlog

from graynode.pipeline import land_metrics as metrics
from graynode.pipeline import snapshot
from graynode.pipeline.bus import Consumer, Partition, Received
from graynode.pipeline.decode import SOURCE, decode
from graynode.pipeline.flood import FloodStop
from graynode.pipeline.hourly import make_hours
from graynode.pipeline.lake import CLOSED_THROUGH, Lake, LakeError
from graynode.pipeline.lake_format import conform, frame_schema
from graynode.pipeline.normalise import quality_frame
from graynode.pipeline.partition import Owned, landed_tables
from graynode.pipeline.rejects import Rejects, tell
from graynode.pipeline.window_order import Bools, Ints
from graynode.pipeline.windows import WINDOWED, Source

_log = structlog.get_logger()


HOLD_BYTES: Final = 512 << 20
"""Rows in memory above which nothing more is read until the lake takes them."""
_SNAPSHOT_MS: Final = 30_000
_IDLE_MARGIN_MS: Final = 5_000
"""How far this machine's clock and the bus's may differ where only this one's can be asked."""


class Landing:
    """Carries the partitions that this process owns."""

    def __init__(
        self,
        lake: Lake,
        rejects: Rejects,
        *,
        idle_commit_s: float = 300.0,
        clock: Callable[[], float] = time.time,
        hold_bytes: int = HOLD_BYTES,
    ) -> None:
        self._lake, self._rejects, self._clock = lake, rejects, clock
        self._idle_commit_s, self._hold_bytes = idle_commit_s, hold_bytes
        self._owned: dict[Partition, Owned] = {}
        self._rows: dict[tuple[str, Partition], list[pl.DataFrame]] = {}
        self._last_commit: dict[str, float] = {}
        self._failing: set[str] = set()
        self._snapshot_ms = 0
        self._held_bytes = 0

    # --- partitions come and go ----------------------------------------------------------------------------

    def assigned(self, partitions: frozenset[Partition]) -> Mapping[Partition, int | None]:
        """Where to read from (``bus.OnAssigned``). State of partitions no longer held is dropped, uncommitted."""
        gained = partitions - self._owned.keys()
        for gone in self._owned.keys() - partitions:
            del self._owned[gone]
            for key in [key for key in self._rows if key[1] == gone]:
                del self._rows[key]
        if gained:
            self._lake.forget()
            now = datetime.fromtimestamp(self._clock(), UTC)
            for partition in sorted(gained):
                self._owned[partition] = owned = Owned(self._lake, partition, now)
                _log.info(
                    "partition taken", partition=owned.id, from_offset=owned.start, tables_at=owned.least_committed
                )
        return {p: (o.start if p in gained else o.position) for p, o in self._owned.items()}

    def skip_to(self, partition: Partition, first: int) -> None:
        """What lies below ``first`` has left the bus unread."""
        owned = self._owned[partition]
        lost = first - max(owned.position, owned.least_committed)
        if lost > 0:
            metrics.LOST.labels(partition.topic).inc(lost)
            _log.error("messages left the bus before they were read", partition=owned.id, lost=lost, first=first)
        owned.position = max(owned.position, first)

    @property
    def full(self) -> bool:
        """True while so much waits for the lake that nothing more should be read."""
        return self._held_bytes >= self._hold_bytes

    # --- messages in -----------------------------------------------------------------------------------------

    def take(self, received: Sequence[Received]) -> None:
        """Take messages of a poll, in the partition's order. Partitions not held are passed over."""
        by_partition: dict[Partition, list[Received]] = {}
        for message in received:
            by_partition.setdefault(message.partition, []).append(message)
        for partition, some in by_partition.items():
            if partition in self._owned:
                self._take(self._owned[partition], some)

    def _take(self, owned: Owned, received: list[Received]) -> None:
        received = [r for r in received if r.offset >= owned.position]
        if not received:
            return
        topic = owned.partition.topic
        metrics.MESSAGES.labels(topic).inc(len(received))
        fresh = [owned.seen.first_time(r) for r in received]
        metrics.REPEATS.labels(topic).inc(fresh.count(False))
        self._tell_events(owned, owned.clones.repeats(received, fresh), received)
        owned.position = received[-1].offset + 1
        owned.meet({r.message.key for r in received})
        wanted = [new and r.offset >= _needed_from(owned, r) for new, r in zip(fresh, received, strict=True)]
        wanted = [yes and not self._rejects.skips(r) for yes, r in zip(wanted, received, strict=True)]
        decoded = decode(received, wanted)
        try:
            tell(self._rejects, received, wanted, decoded)
        except FloodStop:
            owned.position = received[0].offset  # nothing of this poll is taken; the process is about to end
            raise
        for column, count in decoded.unknown_columns.items():
            metrics.UNKNOWN.labels(column.partition(".")[0]).inc(count)
        offsets = np.array([r.offset for r in received], np.int64)
        frames = {
            table: self._normalised(owned, table, frame, received, offsets) for table, frame in decoded.frames.items()
        }
        repeats = self._windows(owned, frames, received, offsets) if owned.samples else {}
        for table, frame in frames.items():
            keep = offsets[frame[SOURCE].to_numpy()] >= owned.committed[table]
            if table in repeats:
                metrics.ROWS_DROPPED.labels(table, "duplicate").inc(int((repeats[table] & keep).sum()))
                keep &= ~repeats[table]
            self._add(table, owned, frame.filter(pl.Series(keep)) if not keep.all() else frame)

    def _normalised(
        self, owned: Owned, table: str, frame: pl.DataFrame, received: Sequence[Received], offsets: Ints
    ) -> pl.DataFrame:
        done = owned.normaliser.normalise(table, frame, [r.arrived_ms for r in received])
        for reason, count in done.dropped.items():
            if count:
                metrics.ROWS_DROPPED.labels(table, reason).inc(count)
        for name, count in done.nulled.items():
            metrics.NULLED.labels(table, name.partition(".")[2]).inc(count)
        if done.quality:
            new = [row for row in done.quality if offsets[row[SOURCE]] >= owned.committed["quality"]]
            self._add("quality", owned, quality_frame(new))
        if table in WINDOWED:
            told = owned.skew.events(done.frame, received) + owned.clones.events(done.frame, received)
            self._tell_events(owned, told, received)
        return done.frame

    def _tell_events(
        self, owned: Owned, told: Sequence[tuple[int, dict[str, Any]]], received: Sequence[Received]
    ) -> None:
        """Events that the pipeline itself has seen, each once whatever is read again."""
        rows = [row for index, row in told if received[index].offset >= owned.committed["event"]]
        if rows:
            kinds = [row["kind"] for row in rows]
            _log.warning("seen on the way", kinds=sorted(set(kinds)), machines=[r["node_id"] for r in rows][:10])
            metrics.SKEWED.inc(kinds.count("clock_skew"))
            metrics.CLONES.inc(kinds.count("identity_conflict"))
            self._add("event", owned, pl.DataFrame(rows, schema_overrides=frame_schema("event")))

    def _windows(
        self, owned: Owned, frames: Mapping[str, pl.DataFrame], received: Sequence[Received], offsets: Ints
    ) -> dict[str, Bools]:
        """Feed what the window tables have not committed; gives repeated rows, over the frames as they are."""
        sources = [Source(r.message.key, r.message.headers.get("table", ""), r.offset, r.arrived_ms) for r in received]
        before, masks, feeds = dict(owned.windows.late), {}, {}
        for table in WINDOWED:
            if table in frames:
                frame = frames[table]
                masks[table] = offsets[frame[SOURCE].to_numpy()] >= owned.committed[f"{table}_30s"]
                feeds[table] = frame if masks[table].all() else frame.filter(pl.Series(masks[table]))
        found = owned.windows.take(feeds, sources)
        for table, late in owned.windows.late.items():
            metrics.LATE.labels(table).inc(late - before.get(table, 0))
        repeats: dict[str, Bools] = {}
        for table, again in found.items():
            repeats[table] = np.zeros(frames[table].height, bool)
            repeats[table][np.flatnonzero(masks[table])[again]] = True
        return repeats

    def _add(self, table: str, owned: Owned, frame: pl.DataFrame) -> None:
        if frame.height:
            kept = frame.drop(SOURCE) if SOURCE in frame.columns else frame
            self._rows.setdefault((table, owned.partition), []).append(kept)
            self._held_bytes += int(kept.estimated_size())

    # --- rows out ----------------------------------------------------------------------------------------------

    def commit(self, end_offsets: Mapping[Partition, int] | None = None, *, everything: bool = False) -> bool:
        """Write what is ready; true if every table took its rows. ``everything``: idle tables too, for a stop.

        ``end_offsets`` tells which partitions are read to their end, where only a clock can close windows.
        """
        began = time.perf_counter()
        self._tick(end_offsets or {})
        hours_kept = self._close_windows()
        done = [self._commit_table(t, everything) for t in self._tables() if t not in hours_kept]  # all are tried
        self._held_bytes = sum(int(f.estimated_size()) for some in self._rows.values() for f in some)
        metrics.HELD.set(self._held_bytes)
        metrics.COMMIT_S.observe(time.perf_counter() - began)
        return all(done) and not hours_kept

    def _tick(self, end_offsets: Mapping[Partition, int]) -> None:
        for partition, end in end_offsets.items():
            owned = self._owned.get(partition)
            if owned is None:
                continue
            metrics.LAG.labels(partition.topic, str(partition.number)).set(max(0, end - owned.position))
            if owned.position >= end:
                owned.windows.tick(int(self._clock() * 1000) - _IDLE_MARGIN_MS)

    def _close_windows(self) -> set[str]:
        """Take rows of closed windows; gives ``_30s`` tables that must wait because their hours could not be kept."""
        kept: set[str] = set()
        for owned in self._owned.values():
            if not owned.samples:
                continue
            for table, rows in owned.windows.close().items():
                self._add(f"{table}_30s", owned, rows)
                if table == "gpu" and (still := owned.still.note(rows)):
                    self._add("quality", owned, pl.DataFrame(still, schema_overrides=frame_schema("quality")))
                late = owned.hours[table].note(rows)
                metrics.LATE_HOURS.labels(table).inc(late)
            labels = (owned.partition.topic, str(owned.partition.number))
            metrics.PENDING.labels(*labels).set(owned.windows.pending_rows)
            for table in WINDOWED:
                waiting = self._rows.get((f"{table}_30s", owned.partition), [])
                try:
                    make_hours(self._lake, owned, table, waiting)
                    self._works(f"{table}_1h")
                except LakeError as error:
                    self._fails(f"{table}_1h", error)
                    kept.add(f"{table}_30s")
        return kept

    def _tables(self) -> list[str]:
        return list(dict.fromkeys(t for owned in self._owned.values() for t in landed_tables(owned.partition.topic)))

    def _commit_table(self, table: str, everything: bool) -> bool:
        owners = [o for o in self._owned.values() if table in o.committed]
        parts = [frame for o in owners for frame in self._rows.get((table, o.partition), [])]
        offsets = {o.id: o.next_offset(table) for o in owners if o.next_offset(table) > o.committed[table]}
        marks = self._marks(table, owners)
        now = self._clock()
        idle = now - self._last_commit.setdefault(table, now) >= self._idle_commit_s
        if not parts and not (offsets and (idle or everything)) and not marks:
            return True
        frame = (
            pl.concat([conform(table, part) for part in parts]) if parts else pl.DataFrame(schema=frame_schema(table))
        )
        try:
            self._lake.write(table, frame, offsets, marks)
        except LakeError as error:
            self._fails(table, error)
            return False
        self._works(table)
        self._last_commit[table] = now
        for o in owners:
            self._rows.pop((table, o.partition), None)
            if o.id in offsets:
                o.advanced(table, offsets[o.id])
            if CLOSED_THROUGH + o.id in marks:
                o.said_closed[table] = marks[CLOSED_THROUGH + o.id]
        metrics.ROWS.labels(table).inc(frame.height)
        if table in WINDOWED:
            metrics.VALUES.labels(table).inc(sum(frame.height - c.null_count() for c in frame))
        return True

    def _marks(self, table: str, owners: Sequence[Owned]) -> dict[str, int]:
        if table.removesuffix("_30s") == table:
            return {}
        marks = {CLOSED_THROUGH + o.id: o.windows.closed_through() for o in owners}
        new = {o.id: marks[CLOSED_THROUGH + o.id] != o.said_closed.get(table) for o in owners}
        return {CLOSED_THROUGH + o.id: m for o in owners if new[o.id] and (m := marks[CLOSED_THROUGH + o.id])}

    def _fails(self, table: str, error: LakeError) -> None:
        metrics.FAILURES.labels(table).inc()
        if table not in self._failing:
            _log.error("the lake does not take rows; they are kept and tried again", table=table, reason=str(error))
        self._failing.add(table)

    def _works(self, table: str) -> None:
        if table in self._failing:
            self._failing.discard(table)
            _log.info("the lake takes rows again", table=table)

    # --- what the bus may forget ---------------------------------------------------------------------------------

    def keep_place(self, consumer: Consumer) -> None:
        """Write snapshots that have become true for every table, and let the bus forget what lies before them."""
        now_ms = int(self._clock() * 1000)
        due = now_ms - self._snapshot_ms >= _SNAPSHOT_MS
        for owned in self._owned.values():
            waiting = owned.waiting_snapshot
            if waiting is not None and waiting[0] <= owned.least_committed:
                try:
                    snapshot.save(self._lake, owned.partition, *waiting)
                except LakeError as error:
                    self._fails("_graynode", error)
                    continue
                self._works("_graynode")
                owned.waiting_snapshot, owned.snapshot_offset = None, waiting[0]
                consumer.commit({owned.partition: waiting[0]})
            if owned.waiting_snapshot is None and due and owned.position > owned.snapshot_offset:
                owned.waiting_snapshot = (owned.position, owned.seen.frame())
        if due:
            self._snapshot_ms = now_ms


def _needed_from(owned: Owned, received: Received) -> int:
    """The lowest offset from which any table still wants a message of this kind."""
    table = received.message.headers.get("table", "")
    if table in WINDOWED and owned.samples:
        return min(owned.committed[name] for name in (table, f"{table}_30s", "quality", "event"))
    return owned.committed.get(table, owned.least_committed)
