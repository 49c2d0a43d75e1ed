"""Keeping the lake small and fast: closed hours (days of hour windows) sorted, small files joined, old days dropped,
dead files removed.

One owner per lake, under a lock: two at once double rows silently. Every change is one Delta transaction built on
one version of the table; rows appended meanwhile either stay beside it or make it fail and be tried again later.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl
import pyarrow as pa
import structlog
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from graynode.pipeline import fleet_hours, owned_hours
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.lake_format import HOURLY, lake_schema, to_lake, writer_properties
from graynode.pipeline.schema import TABLES, Table

_log = structlog.get_logger()

CLOSED_AFTER: Final = timedelta(minutes=20)
"""After its end an hour (of hour windows: a day) is rewritten: most of what was late has come by then."""
PARTS: Final = dict.fromkeys(HOURLY, timedelta(hours=1)) | dict.fromkeys(
    ("gpu_1h", "link_1h", "host_1h"), timedelta(days=1)
)
"""How long a stretch of a table is one sorted file; of hour windows a day: a month of one GPU is a few row groups."""
SLICE_ROWS: Final = 1_500_000
"""A part with more rows is sorted in pieces of time, one after the other, so that memory stays bounded."""
_ONE_FILE: Final = 64 << 30
_COMPACT_FILES: Final = 64
_VACUUM_EVERY: Final = timedelta(hours=6)
_VACUUM_KEEPS_H: Final = 6
"""Hours that replaced files stay, for readers that listed them before."""


@dataclass(slots=True)
class Done:
    """What one round of maintenance did."""

    hours: int = 0
    compacted: int = 0
    dropped_days: int = 0
    vacuumed: int = 0
    fleet_hours: int = 0
    owned_days: int = 0

    @property
    def anything(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.hours or self.compacted or self.dropped_days or self.vacuumed or self.made)

    @property
    def made(self) -> int:
        """Hours of the fleet and days of GPU-hours that were made."""
        return self.fleet_hours + self.owned_days


class Maintainer:
    """Maintains a lake; the caller holds the lock (``maintenance_lock``) and calls ``round`` now and then."""

    def __init__(self, lake: Lake, *, clock: Callable[[], float] = time.time, slice_rows: int = SLICE_ROWS) -> None:
        self._lake, self._clock, self._slice_rows = lake, clock, slice_rows
        self._vacuumed = self._now()
        self._owned = owned_hours.OwnedHours(lake, clock=clock)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def round(self, stop: threading.Event | None = None) -> Done:
        """Everything that is due, table by table; what fails is logged and due again next time."""
        done = Done()
        vacuum = self._now() - self._vacuumed >= _VACUUM_EVERY
        for table in TABLES.values():
            if stop is not None and stop.is_set():
                return done
            if not self._lake.exists(table.name):
                continue
            try:
                self._table(table, done, stop)
                if vacuum:
                    done.vacuumed += self.vacuum(table.name)
            except (LakeError, LakeTooNew, DeltaError, OSError, pl.exceptions.PolarsError) as error:
                _log.warning("maintenance put off", table=table.name, reason=" ".join(str(error).split())[:300])
        done.fleet_hours += _put_off("hours of the fleet", lambda: fleet_hours.fill(self._lake, stop))
        done.owned_days += _put_off("GPU-hours by day", lambda: self._owned.fill(stop))
        if vacuum:
            self._vacuumed = self._now()
        return done

    def _table(self, table: Table, done: Done, stop: threading.Event | None) -> None:
        done.dropped_days += self.retain(table)
        if table.name in PARTS:
            for start in self.unsorted(table.name):
                if stop is not None and stop.is_set():
                    return
                done.hours += self.rewrite(table.name, start)
        else:
            done.compacted += self.compact(table.name)

    # --- retention --------------------------------------------------------------------------------------------

    def retain(self, table: Table) -> int:
        """Drop days that lie wholly before the retention; whole partitions, so no file is rewritten."""
        if table.retention_d is None:
            return 0
        first = (self._now() - timedelta(days=table.retention_d)).date().isoformat()
        delta = self._lake.table(table.name)
        old = {str(p["date"]) for p in delta.partitions() if str(p["date"]) < first}
        if not old:
            return 0
        delta.delete(predicate=f"date < '{first}'", commit_properties=_commit())
        _log.info("old days dropped", table=table.name, before=first, days=len(old))
        return len(old)

    # --- sorting ----------------------------------------------------------------------------------------------

    def unsorted(self, table: str) -> list[datetime]:
        """Starts of closed parts that lie in more than one file, oldest first."""
        before = self._now() - CLOSED_AFTER
        files = Counter(file.start for file in _files(self._lake.table(table)))
        return sorted(start for start, count in files.items() if count > 1 and start + PARTS[table] <= before)

    def rewrite(self, table: str, start: datetime) -> int:
        """Sort one part's rows by entity and time into one file; 1 if it was done."""
        delta = self._lake.table(table)  # rows and their replacement are of one version, or the commit fails
        files = [file for file in _files(delta) if file.start == start]
        where = f"date = '{start.date()}'" + (f" and hour = {start.hour}" if table in HOURLY else "")
        uris = delta.file_uris(file_pruning_predicate=where)
        if len(uris) != len(files) or not uris:
            raise LakeError(f"{table}: {len(uris)} files of {start} where the log has {len(files)}")
        slices = max(1, -(-sum(file.rows for file in files) // self._slice_rows))
        try:
            write_deltalake(
                delta,
                pa.RecordBatchReader.from_batches(lake_schema(table), self._in_order(table, uris, start, slices)),
                mode="overwrite",
                predicate=where,
                target_file_size=_ONE_FILE,
                writer_properties=writer_properties(table, in_order=True),
                commit_properties=_commit(),
            )
        except CommitFailedError as error:
            _log.info("a part changed while it was sorted; later again", table=table, reason=str(error)[:200])
            return 0
        return 1

    def _in_order(self, table: str, uris: list[str], start: datetime, slices: int) -> Iterator[pa.RecordBatch]:
        rows = self._lake.scan(table, uris)
        for i in range(slices):
            low, high = (start + PARTS[table] * (i + j) / slices for j in (0, 1))
            some = rows.filter((pl.col("ts") >= low) & (pl.col("ts") < high)).collect()
            ordered = some.sort([*TABLES[table].entity, "ts"], maintain_order=True)
            yield from to_lake(table, ordered).combine_chunks().to_batches()

    # --- joining and removing ---------------------------------------------------------------------------------

    def compact(self, table: str) -> int:
        """Join a table's small files per day once there are many; gives how many went."""
        delta = self._lake.table(table)
        if len(delta.file_uris()) < _COMPACT_FILES + len(delta.partitions()):
            return 0
        found = delta.optimize.compact(writer_properties=writer_properties(table), commit_properties=_commit())
        return int(found["numFilesRemoved"])

    def vacuum(self, table: str) -> int:
        """Remove files that have not been part of the table for hours, and old log entries."""
        delta = self._lake.table(table)
        gone = delta.vacuum(retention_hours=_VACUUM_KEEPS_H, dry_run=False, enforce_retention_duration=False)
        delta.create_checkpoint()
        delta.cleanup_metadata()
        return len(gone)


def _put_off(what: str, fill: Callable[[], int]) -> int:
    """What is derived and missing, or whose machines were late; what fails is due again next time."""
    try:
        return fill()
    except (LakeError, LakeTooNew, DeltaError, OSError, pl.exceptions.PolarsError) as error:
        _log.warning(f"{what} put off", reason=" ".join(str(error).split())[:300])
        return 0


def _commit() -> CommitProperties:
    return CommitProperties(custom_metadata={"graynodeMaintenance": uuid.uuid4().hex}, max_commit_retries=5)


@dataclass(frozen=True, slots=True)
class _File:
    start: datetime
    rows: int


def _files(delta: DeltaTable) -> list[_File]:
    """Start of the part and rows of each live file."""
    actions = delta.get_add_actions(flatten=True)
    days = actions.column("partition.date").to_pylist()
    named = actions.schema.names
    hours = actions.column("partition.hour").to_pylist() if "partition.hour" in named else [0] * len(days)
    return [
        _File(datetime.fromisoformat(f"{day}T{int(hour):02d}:00:00+00:00"), int(rows or 0))
        for day, hour, rows in zip(days, hours, actions.column("num_records").to_pylist(), strict=True)
    ]
