"""Bringing an older lake forward: columns that a newer contract has, and layouts of an older major version.

Columns are added in place, one small transaction a table. Another layout (partition columns, types, names) cannot be:
its rows are written anew under the table's own folder, an hour or a day at a time, each in one transaction that says
which, so that a run that was killed goes on where it was. Only when all are there does the table take the new shape and
take them in; its bus offsets stay, because its log goes on. The old files remain until the next vacuum.

Nobody else may write meanwhile: the maintenance lock is held, and ``must_be_current`` keeps a pipeline from starting on
a lake that is not whole. A lake of a newer major version is refused, never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.lake_format import (
    CONFIGURATION,
    HOURLY,
    VERSION_KEY,
    conform,
    frame_schema,
    lake_schema,
    partition_columns,
    to_lake,
    writer_properties,
)
from graynode.pipeline.schema import TABLES, VERSION

State = Literal["absent", "current", "columns", "layout", "unfinished", "newer"]
Renamed = Mapping[str, Mapping[str, str]]
"""By table: today's name of a column by the name that an older major version gave it."""
RENAMED: Final[Renamed] = {}
"""No major version before 1 was ever released, so there is nothing to rename yet."""
_STAGED: Final = f"forward-{VERSION[0]}"
"""Folder below a table, and application id of the transaction that took its files in."""


@dataclass(frozen=True, slots=True)
class Found:
    """How one table stands against this contract. ``why`` is for a person."""

    table: str
    state: State
    why: str = ""

    @property
    def due(self) -> bool:
        """Whether there is something to bring forward."""
        return self.state in ("columns", "layout", "unfinished")


@dataclass(slots=True)
class Forward:
    """Looks at a lake and brings it forward. ``LakeError`` where it cannot be read or written now.

    ``stepped`` is called after each transaction, with the table and which hour, day or step it was.
    """

    lake: Lake
    renamed: Renamed = field(default_factory=lambda: RENAMED)
    stepped: Callable[[str, str], None] = lambda table, step: None

    def look(self) -> list[Found]:
        """Every table of the contract, in its order. Nothing is changed."""
        return [self._look(name) for name in TABLES]

    def run(self) -> list[Found]:
        """Bring forward what is due and give it. ``LakeTooNew``: a table is, and nothing was touched."""
        found = self.look()
        for table in found:
            if table.state == "newer":
                raise LakeTooNew(table.why)
        due = [table for table in found if table.due]
        for table in due:
            try:
                self._bring(table)
            except (DeltaError, OSError, pl.exceptions.PolarsError) as error:
                raise LakeError(f"{self.lake.uri(table.table)}: {' '.join(str(error).split())[:400]}") from error
        return due

    # --- looking -----------------------------------------------------------------------------------------------

    def _look(self, name: str) -> Found:
        try:
            if not self.lake.exists(name):
                return Found(name, "absent")
            delta = self.lake.table(name)
        except LakeTooNew as error:
            return Found(name, "newer", str(error))
        if self._unfinished(name, delta):
            return Found(name, "unfinished", "a migration was broken off before its rows were taken in")
        why = _layout(name, delta, self.renamed.get(name, {}))
        if why:
            return Found(name, "layout", why)
        return _columns(name, delta)

    def _unfinished(self, name: str, delta: DeltaTable) -> bool:
        """The table has its new shape already and its rows are still in the staging: killed in between."""
        if delta.transaction_version(_STAGED) is not None or delta.metadata().partition_columns != partition_columns(
            name
        ):
            return False
        return self._staged(name) is not None and not delta.file_uris()

    def _staged(self, name: str) -> DeltaTable | None:
        try:
            return DeltaTable(f"{self.lake.uri(name)}/{_STAGED}", storage_options=self.lake.storage_options or None)
        except TableNotFoundError:
            return None

    # --- bringing ----------------------------------------------------------------------------------------------

    def _bring(self, table: Found) -> None:
        name = table.table
        if table.state == "layout":
            self._stage(name)
            _reshape(self.lake.table(name), name)
            self.stepped(name, "new shape")
        if table.state in ("layout", "unfinished"):
            self._take_in(name)
            self.stepped(name, "rows taken in")
        self.lake.forget()
        opened = self.lake.create(name)
        settings = {key: str(value) for key, value in CONFIGURATION.items()}
        opened.alter.set_table_properties(settings, raise_if_not_exists=False)
        self.lake.forget()
        self.stepped(name, "done")

    def _stage(self, name: str) -> None:
        """All rows in the new layout below the table's folder, piece by piece."""
        old, where = self.lake.table(name), f"{self.lake.uri(name)}/{_STAGED}"
        options = self.lake.storage_options or None
        staged = self._staged(name) or DeltaTable.create(
            where, lake_schema(name), partition_by=partition_columns(name), storage_options=options
        )
        for piece, rows in _pieces(old, name, options):
            if staged.transaction_version(piece) is None and not (some := rows.collect()).is_empty():
                write_deltalake(
                    staged,
                    _today(name, some, self.renamed.get(name, {})),
                    mode="append",
                    writer_properties=writer_properties(name),
                    commit_properties=CommitProperties(app_transactions=[Transaction(piece, 1)]),
                )
                self.stepped(name, piece)

    def _take_in(self, name: str) -> None:
        """The staged files become the table's, in one transaction that says so."""
        staged = self._staged(name)
        assert staged is not None  # noqa: S101 (it was just written, or found)
        self.lake.table(name).create_write_transaction(
            list(_adds(staged)),
            "append",
            staged.schema(),
            partition_columns(name),
            commit_properties=CommitProperties(app_transactions=[Transaction(_STAGED, 1)]),
        )


def must_be_current(lake: Lake) -> None:
    """``OldLayout`` naming the way out where a table has an older layout or a migration was broken off; ``LakeError``
    where the lake cannot be looked into now.
    """
    try:
        tables = Forward(lake).look()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise LakeError(f"{lake.path}: cannot be looked into: {why}; check its owner and rights") from error
    for found in tables:
        if found.state in ("layout", "unfinished"):
            raise OldLayout(
                f"{lake.uri(found.table)}: {found.why}; stop whatever writes this lake, and say: "
                "graynode lake migrate --yes"
            )


class OldLayout(Exception):
    """The lake has the layout of an older major version; rows must not be added before it is brought forward."""


def _columns(name: str, delta: DeltaTable) -> Found:
    missing = [column for column in lake_schema(name).names if column not in delta.schema().to_arrow().names]
    said = delta.metadata().configuration.get(VERSION_KEY, "")
    if missing:
        few = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        return Found(name, "columns", f"lacks {few} (contract {said or 'unknown'})")
    if not said or _version(said) < VERSION:
        return Found(name, "columns", f"says contract {said or 'none'}, this is {VERSION[0]}.{VERSION[1]}")
    return Found(name, "current")


def _layout(name: str, delta: DeltaTable, renamed: Mapping[str, str]) -> str:
    """Why the table's layout is an older one; empty where it is today's."""
    parts, wanted = delta.metadata().partition_columns, partition_columns(name)
    if parts != wanted:
        return f"its folders are named by {', '.join(parts) or 'nothing'}, today by {', '.join(wanted)}"
    have = {column.name: column.type for column in pa.schema(delta.schema().to_arrow())}
    old_names = [old for old in renamed if old in have]
    if old_names:
        return f"{old_names[0]} is called {renamed[old_names[0]]} today"
    for column in lake_schema(name):
        if column.name in have and not _same(have[column.name], column.type):
            return f"{column.name} is {have[column.name]}, today {column.type}"
    return ""


def _same(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Types as Delta keeps them: it knows no large or view strings, and one kind of timestamp."""
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if any(test(wanted) for test in text):
        return bool(any(test(there) for test in text))
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(there))
    return bool(there.equals(wanted))


def _version(text: str) -> tuple[int, int]:
    try:
        major, minor = (int(part) for part in text.split("."))
    except ValueError:
        return (0, 0)
    return major, minor


def _pieces(old: DeltaTable, name: str, options: dict[str, str] | None) -> Iterator[tuple[str, pl.LazyFrame]]:
    """The rows by UTC day, those of large tables by hour, so that memory stays that of one piece."""
    days = sorted({str(part["date"]) for part in old.partitions()}) if _by_date(old) else [""]
    for day in days:
        uris = old.file_uris(file_pruning_predicate=f"date = '{day}'") if day else old.file_uris()
        if not uris:
            continue
        rows = pl.scan_parquet(
            uris, hive_partitioning=False, missing_columns="insert", schema=_stored(old), storage_options=options
        )
        for hour in range(24) if name in HOURLY else (None,):
            some = rows if hour is None else rows.filter(pl.col("ts").dt.hour() == hour)
            yield f"{day or 'all'}" + ("" if hour is None else f"T{hour:02d}"), some


def _by_date(old: DeltaTable) -> bool:
    return "date" in old.metadata().partition_columns


def _stored(old: DeltaTable) -> pl.Schema:
    """Columns of the old files themselves: those that name folders are not in them."""
    parts = set(old.metadata().partition_columns)
    kept = [column for column in pa.schema(old.schema().to_arrow()) if column.name not in parts]
    empty = pl.from_arrow(pa.schema(kept).empty_table())
    assert isinstance(empty, pl.DataFrame)  # noqa: S101 (a table gives a frame; narrows the type)
    return empty.schema


def _today(name: str, rows: pl.DataFrame, renamed: Mapping[str, str]) -> pa.Table:
    """Old rows with today's names and types; a column that the contract no longer has is left behind."""
    named = rows.rename({old: new for old, new in renamed.items() if old in rows.columns})
    return to_lake(name, conform(name, named.select(c for c in named.columns if c in frame_schema(name))))


def _reshape(delta: DeltaTable, name: str) -> None:
    """Today's columns and folders, without rows; in the same log, so that bus offsets stay known."""
    write_deltalake(
        delta, lake_schema(name).empty_table(), mode="overwrite", schema_mode="overwrite",
        partition_by=partition_columns(name),
    )  # fmt: skip


def _adds(staged: DeltaTable) -> Iterator[AddAction]:
    for row in pa.table(staged.get_add_actions(flatten=False)).to_pylist():
        values: dict[str, Any] = row["partition"]
        yield AddAction(
            f"{_STAGED}/{row['path']}", row["size_bytes"], {key: str(value) for key, value in values.items()},
            row["modification_time"], True, _statistics(row),
        )  # fmt: skip


def _statistics(row: Mapping[str, Any]) -> str:
    """Counts, and the range of ``ts`` by which files are skipped; the rest is only ever a hint."""
    low, high = (row[side].get("ts") if row.get(side) else None for side in ("min", "max"))
    if low is None or high is None:
        return f'{{"numRecords":{row["num_records"]}}}'
    span = ",".join(
        f'"{side}Values":{{"ts":"{value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}"}}'
        for side, value in (("min", low), ("max", high))
    )
    return f'{{"numRecords":{row["num_records"]},{span},"nullCount":{{"ts":0}}}}'
