"""The lake: Delta tables of Parquet, partitioned by date (and hour), local or on an S3-compatible store.

What has been read from the bus is kept in the same transaction as the rows it gave: application id
``<topic>/<partition>``, version = next offset. So a message lands exactly once per table, whatever dies when, and a
second writer of the same partition is refused by the transaction log itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from graynode.pipeline.lake_format import (
    CONFIGURATION,
    VERSION_KEY,
    conform,
    frame_schema,
    lake_schema,
    partition_columns,
    to_lake,
)
from graynode.pipeline.lake_writing import LakeError, LakeTooNew, SecondWriter, Writing
from graynode.pipeline.schema import TABLES, VERSION

__all__ = ["CLOSED_THROUGH", "Lake", "LakeError", "LakeTooNew", "SecondWriter"]

CLOSED_THROUGH: Final = "closed_through:"
"""Application ids ``closed_through:<topic>/<partition>`` of window tables: end of the last closed window, epoch
seconds."""
_TRIES: Final = 5


class Lake:
    """Tables by contract name under one folder or bucket prefix. Safe to use from several threads."""

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._path = path.rstrip("/")
        self._storage = dict(storage_options or {})
        self._open: dict[str, DeltaTable] = {}
        self._writing: dict[str, Writing] = {}
        self._lock = threading.RLock()

    @property
    def path(self) -> str:
        """Root folder or ``s3://…``."""
        return self._path

    @property
    def local(self) -> bool:
        """True for a folder of this machine."""
        return "://" not in self._path

    @property
    def storage_options(self) -> dict[str, str]:
        """What the object store needs."""
        return dict(self._storage)

    def uri(self, table: str) -> str:
        """Where a table is."""
        return f"{self._path}/{table}"

    # --- reading ---------------------------------------------------------------------------------------

    def exists(self, table: str) -> bool:
        """True once the table has been made."""
        return self.version(table) >= 0

    def version(self, table: str) -> int:
        """Commit version of a table now, −1 where there is none."""
        current = self._current(table)
        return -1 if current is None else current.version()

    def offset(self, table: str, id_: str) -> int | None:
        """Version of an application id now: the next offset of ``<topic>/<partition>``; ``None`` if never set."""
        current = self._current(table)
        return None if current is None else current.transaction_version(id_)

    def closed_through(self, table: str, partitions: Iterable[str]) -> dict[str, datetime | None]:
        """Per partition (``<topic>/<number>``) the end of the last closed window; ``None`` where none is known."""
        current = self._current(table)
        found: dict[str, datetime | None] = {}
        for name in partitions:
            seconds = None if current is None else current.transaction_version(CLOSED_THROUGH + name)
            found[name] = None if seconds is None else datetime.fromtimestamp(seconds, UTC)
        return found

    def files(self, table: str, since: datetime | None = None, until: datetime | None = None) -> list[str]:
        """Live Parquet files that may hold rows of ``since <= ts < until``."""
        current = self._current(table)
        if current is None:
            return []
        predicate = _pruning(since, until)
        return current.file_uris(file_pruning_predicate=predicate) if predicate else current.file_uris()

    def newest(self, table: str) -> datetime | None:
        """The latest ``ts``, by the log's statistics: no file is opened. ``None`` where there are no rows."""
        current = self._current(table)
        if current is None:
            return None
        told = [ts for ts in current.get_add_actions(flatten=True).column("max.ts").to_pylist() if ts is not None]
        return max(told).astimezone(UTC) if told else None

    def read(
        self,
        table: str,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] | None = None,
        node: str | Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """Rows of ``since <= ts < until``, of machines with these ``node_id`` if given; in no order.

        Columns the files lack (an older contract) are null. Without the table: no rows.
        """
        schema = frame_schema(table)
        wanted = list(columns) if columns is not None else list(schema)
        for attempt in range(_TRIES):
            uris = self.files(table, since, until)
            if not uris:
                break
            try:
                return _only(self.scan(table, uris), since, until, node).select(wanted).collect()
            except (OSError, pl.exceptions.PolarsError) as error:
                if attempt == _TRIES - 1:  # else a file went between listing and reading: list again
                    raise LakeError(f"{self.uri(table)}: {error}") from error
        return pl.DataFrame(schema={name: schema[name] for name in wanted})

    def scan(self, table: str, uris: list[str]) -> pl.LazyFrame:
        """All rows of these files in the contract's columns; those that a file lacks are null."""
        return pl.scan_parquet(
            uris,
            schema=frame_schema(table),
            missing_columns="insert",
            extra_columns="ignore",
            hive_partitioning=False,
            storage_options=self._storage or None,
        )

    def table(self, table: str) -> DeltaTable:
        """A fresh handle for maintenance. ``LakeError`` where there is no such table."""
        opened = self._load(table)
        if opened is None:
            raise LakeError(f"{self.uri(table)}: no such table")
        return opened

    # --- writing ---------------------------------------------------------------------------------------

    def write(
        self,
        table: str,
        frame: pl.DataFrame,
        offsets: Mapping[str, int] | None = None,
        marks: Mapping[str, int] | None = None,
    ) -> int:
        """Append rows in one transaction, with ``offsets`` that may only grow and ``marks`` that may not.

        Gives the version committed. ``SecondWriter``: an offset has been moved by somebody else or would go back;
        nothing was written. ``LakeError``: not now. ``KeyError``/``ValueError``: rows that do not fit.
        """
        if table not in TABLES:
            raise KeyError(f"{table} is not a table of the contract")
        data = to_lake(table, conform(table, frame))
        with self._lock:
            return self._writer(table).commit(data, dict(offsets or {}), dict(marks or {}))

    def committed(self, table: str, id_: str) -> int | None:
        """The offset that this process will build upon; reads the lake at first, and again after ``forget``."""
        with self._lock:
            return self._writer(table).known(id_)

    def forget(self) -> None:
        """Open everything anew at the next use: after partitions were gained or lost."""
        with self._lock:
            self._writing.clear()
            self._open.clear()

    def create(self, table: str) -> DeltaTable:
        """The table, made if need be; an older one gets the columns that it lacks. ``LakeTooNew``."""
        try:
            found = self._load(table)
            if found is not None:
                return _grown(found, table)
            if self.local:
                Path(self._path).mkdir(parents=True, exist_ok=True)
            made = DeltaTable.create(
                self.uri(table),
                lake_schema(table),
                mode="ignore",
                partition_by=partition_columns(table),
                name=table,
                description=TABLES[table].help,
                configuration=CONFIGURATION,
                storage_options=self._storage or None,
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:
            raise LakeError(f"{self.uri(table)}: cannot be made: {error}") from error
        return made

    # --- handles ---------------------------------------------------------------------------------------

    def _writer(self, table: str) -> Writing:
        return self._writing.get(table) or self._writing.setdefault(table, Writing(self, table))

    def _current(self, table: str) -> DeltaTable | None:
        with self._lock:
            held = self._open.get(table)
            try:
                if held is not None:
                    held.update_incremental()
                    return held
            except (DeltaError, OSError):
                self._open.pop(table, None)  # log entries that a cleanup took, or the folder was replaced
            opened = self._load(table)
            if opened is not None:
                self._open[table] = opened
            return opened

    def _load(self, table: str) -> DeltaTable | None:
        if table not in TABLES:
            raise KeyError(f"{table} is not a table of the contract")
        if self.local and not Path(self.uri(table), "_delta_log").is_dir():
            return None
        try:
            opened = DeltaTable(self.uri(table), storage_options=self._storage or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise LakeError(f"{self.uri(table)}: cannot be opened: {error}") from error
        _check_version(opened, table, self.uri(table))
        return opened


def _only(
    rows: pl.LazyFrame, since: datetime | None, until: datetime | None, node: str | Sequence[str] | None
) -> pl.LazyFrame:
    if since is not None:
        rows = rows.filter(pl.col("ts") >= since)
    if until is not None:
        rows = rows.filter(pl.col("ts") < until)
    if node is not None:
        rows = rows.filter(pl.col("node_id").is_in([node] if isinstance(node, str) else list(node)))
    return rows


def _pruning(since: datetime | None, until: datetime | None) -> str:
    parts: list[str] = []
    if since is not None:
        parts += [f"date >= '{_day(since)}'", f"ts >= '{_instant(since)}'"]
    if until is not None:
        parts += [f"date <= '{_day(until - timedelta(microseconds=1))}'", f"ts < '{_instant(until)}'"]
    return " and ".join(parts)


def _day(ts: datetime) -> date:
    return ts.astimezone(UTC).date()


def _instant(ts: datetime) -> str:
    return ts.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _check_version(opened: DeltaTable, table: str, uri: str) -> None:
    text = opened.metadata().configuration.get(VERSION_KEY, "")
    major = text.partition(".")[0]
    if major.isdecimal() and int(major) > VERSION[0]:
        raise LakeTooNew(
            f"{uri}: table {table} was written by contract version {text}, this graynode speaks "
            f"{VERSION[0]}.{VERSION[1]}; update graynode, or name another folder as lake.path"
        )


def _grown(opened: DeltaTable, table: str) -> DeltaTable:
    """Add the columns that an older contract lacked, and say which version writes now."""
    have = set(opened.schema().to_arrow().names)
    missing = [field for field in Schema.from_arrow(lake_schema(table)).fields if field.name not in have]
    if missing:
        opened.alter.add_columns(missing)
    text = opened.metadata().configuration.get(VERSION_KEY, "0.0")
    if _older(text):
        opened.alter.set_table_properties({VERSION_KEY: f"{VERSION[0]}.{VERSION[1]}"}, raise_if_not_exists=False)
    return opened


def _older(text: str) -> bool:
    try:
        major, minor = (int(part) for part in text.split("."))
    except ValueError:
        return True
    return (major, minor) < VERSION
