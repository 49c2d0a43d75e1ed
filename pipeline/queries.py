"""Questions to the lake: a DuckDB in memory with every contract table as a read-only view.

``gpu`` is the whole table; ``gpu(since, until)`` is the same pruned on ``date`` before a file is opened. Tables
that are told at least once (events, findings, incidents) show every id once. A table that has no rows yet is
there too, empty, with its columns.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Protocol, cast

import duckdb
import polars as pl
import pyarrow as pa

from graynode.pipeline import gpu_hours, identity_views, job_views, quality_views, reliability_views
from graynode.pipeline.file_columns import FileColumns
from graynode.pipeline.query_pruning import pruned, without_texts
from graynode.pipeline.schema import TABLES, Table, Type

_SQL_TYPES: Final[Mapping[Type, str]] = {
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "bool": "BOOLEAN",
    "string": "VARCHAR",
    "timestamp": "TIMESTAMPTZ",
}
_ONCE: Final[Mapping[str, str]] = {
    "event": "event_id",
    "finding": "finding_id",
    "incident": "incident_id, revision",
    "action": "action_id",
    "attribution": "attribution_id, revision",
    "probe": "run_id",
    "job": "cluster, node_id, job_id, state, requeues, ts",
    "node_state": "cluster, node_id, scheduler_state, state, reason, ts",
    "node_day": "cluster, node_id, detector, signal, window_s, ts",
    "threshold": "cluster, set_id, state, detector, signal, window_s, ts",
}
"""What makes a row of an at-least-once table the same row."""

_NOW: Final[Mapping[str, tuple[str, str, str]]] = {
    "incident_now": ("incident", "incident_id", "revision"),
    "job_now": ("job", "cluster, job_id, node_id", "ts"),
    "attribution_now": ("attribution", "attribution_id", "revision"),
    "label_now": ("label", "cluster, incident_id, node_id, period", "ts"),
    "mute_now": ("mute", "cluster, node_id", "ts"),
    "maintenance_now": ("maintenance", "cluster, maintenance_id", "ts"),
}
"""Change logs as of their latest row."""

_DERIVED: Final[Mapping[str, str]] = {
    "fields": "",
    **{
        name: f"FROM {table} QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {order} DESC) = 1"
        for name, (table, key, order) in _NOW.items()
    },
    **identity_views.VIEWS,
    **quality_views.VIEWS,
    **job_views.VIEWS,
    **identity_views.MACROS,
    **quality_views.MACROS,
    **gpu_hours.MACROS,
    **reliability_views.MACROS,
}
"""What is made of tables, in the order of making: the table ``fields``, views by name, macros by signature."""
_LISTS: Final = {"show", "tables", "information_schema", "duckdb_views", "duckdb_tables", "duckdb_columns", "pragma"}
"""Words of a statement that asks what there is."""
_PRUNABLE: Final = frozenset(name for name in TABLES if name not in _ONCE)
_WORD: Final = re.compile(r"[a-z_][a-z0-9_]*")

_EXPLAIN: Final = re.compile(r"\s*explain\b\s*(\([^()]*\)\s*)?(analyze\b)?\s*(?=[a-z(])", re.IGNORECASE)
"""What may stand before an explained question. No comments: where one ends is for the database alone to say."""


class QueryError(Exception):
    """The question cannot be answered; the text is for the person who asked."""


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


class Files(Protocol):
    """What a lake tells about its files (``graynode.pipeline.lake.Lake``)."""

    @property
    def path(self) -> str:
        """Root folder."""
        ...

    def version(self, table: str) -> int:
        """Commit version of a table, −1 where there is none."""
        ...

    def files(self, table: str, since: datetime | None = None, until: datetime | None = None) -> list[str]:
        """The table's live Parquet files."""
        ...


class Queries:
    """Read-only SQL over a lake. Views follow the lake: those that a question names are made anew before it where their
    tables were committed since. All are there once somebody wants the list (``names``), or a question names an unknown.
    """

    def __init__(self, lake: Files, *, memory_limit: str = "2GB", threads: int = 2, spill: bool = True) -> None:
        """``spill``: what does not fit in ``memory_limit`` may go to disk."""
        self._lake = lake
        self._versions: dict[str, int] = {}
        self._columns: dict[str, tuple[str, ...]] = {}
        self._file_columns = FileColumns()
        self._lock = threading.Lock()
        self._connection = duckdb.connect(
            ":memory:",
            config={"memory_limit": memory_limit, "threads": threads, "autoinstall_known_extensions": False},
        )
        self._connection.execute("SET TimeZone = 'UTC'")
        # Files of a lake never change, and a footer of some hundred columns costs more to read than a GPU's rows.
        # GLOBAL: each question has a cursor of its own
        self._connection.execute("SET GLOBAL parquet_metadata_cache = true")
        if not spill:
            self._connection.execute("SET temp_directory = ''")
        self._connection.execute("SET allowed_directories = [$path]", {"path": lake.path.rstrip("/") + "/"})
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def refresh(self, sql: str | None = None) -> None:
        """Make what ``sql`` names (everything for ``None``) and is not as the lake is, so that answers are never stale.

        A view over many files opens each of them when it is made: only what is asked for is worth that.
        """
        words = None if sql is None else _words(sql)
        if words is not None and words & _LISTS:
            words = None
        with self._lock:
            for table in TABLES.values():
                if words is None or table.name in words:
                    self._follow(table)
            for name, text in _DERIVED.items():
                if name not in self._columns and (words is None or name.partition("(")[0] in words):
                    self._derive(name, text)

    def source(self, table: str, since: datetime, until: datetime) -> str:
        """What to put after ``FROM`` for a table's rows of that time: names its files of that time only, by date and
        statistics. Rows of other times that share a file come along: say ``ts >= … AND ts < …`` too.
        """
        return f"({_source(TABLES[table], self._lake.files(table, since, until), self._file_columns)})"

    def has(self, table: str, since: datetime, until: datetime) -> bool:
        """Whether there are files that may hold rows of that time."""
        return bool(self._lake.files(table, since, until))

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor of its own for ``ask``: whoever holds it can interrupt that question alone."""
        return self._connection.cursor()

    def ask(self, sql: str, cursor: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """The answer of one statement, not yet fetched. ``QueryError`` where it is wrong or would change anything."""
        sql = pruned(sql, _PRUNABLE, self.source)
        self.refresh(sql)
        cursor = cursor or self._connection.cursor()
        try:
            statements = cursor.extract_statements(sql)
            if len(statements) != 1:
                raise QueryError(f"one statement at a time, please; this is {len(statements)}")
            query = statements[0].query
            if (kind := _kind(cursor, statements[0])) != duckdb.StatementType.SELECT:
                raise QueryError(f"the lake is read-only: {kind.name} is refused")
            try:
                return cursor.sql(query)
            except duckdb.CatalogException:
                self.refresh()  # what it names, if it is there under another spelling, or else a hint at what there is
                return cursor.sql(query)
        except duckdb.Error as error:
            raise QueryError(str(error)) from error

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The answer as a list of rows; for small answers."""
        return self.arrow(sql).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types

    def arrow(self, sql: str) -> pa.Table:
        """The answer as an Arrow table."""
        try:
            return self.ask(sql).to_arrow_table()
        except duckdb.Error as error:
            raise QueryError(str(error)) from error

    def frame(self, sql: str) -> pl.DataFrame:
        """The answer as a frame, its times in microseconds and UTC as in the lake."""
        frame = cast(pl.DataFrame, pl.from_arrow(self.arrow(sql)))
        return frame.with_columns(pl.col(pl.Datetime).dt.convert_time_zone("UTC").dt.cast_time_unit("us"))

    def keep(self, name: str, sql: str) -> None:
        """Hold an answer as table ``name`` of this object: what several questions are made of is asked once."""
        answer = self.arrow(sql)
        with self._lock:
            self._connection.register("kept_answer", answer)
            self._connection.execute(f'CREATE OR REPLACE TABLE "{name}" AS FROM kept_answer')
            self._connection.unregister("kept_answer")

    def names(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Views and their columns, for completion and for help."""
        for table in TABLES.values():
            yield table.name, ("date", *table.names)
        self.refresh()
        yield from self._columns.items()

    def files(self, table: str, since: datetime | None = None, until: datetime | None = None) -> list[str]:
        """The table's live files of that stretch: an answer made from them stands while they are the same."""
        return self._lake.files(table, since, until)

    def close(self) -> None:
        """Let the database go."""
        self._connection.close()

    def _follow(self, table: Table) -> None:
        version = self._lake.version(table.name)
        if self._versions.get(table.name) != version:
            self._define(table)
            self._versions[table.name] = version

    def _derive(self, name: str, text: str) -> None:
        """What is made of tables' views: once, for views follow what they are made of."""
        if name == "fields":
            self._connection.register("contract", quality_views.fields())
            self._connection.execute("CREATE TABLE fields AS FROM contract")
            self._connection.unregister("contract")
        elif "(" in name:
            self._connection.execute(f"CREATE OR REPLACE MACRO {name} AS TABLE {text}")
            self._columns[name] = ()
            return
        else:
            self._connection.execute(f"CREATE OR REPLACE VIEW {name} AS {text}")
        self._columns[name] = tuple(self._connection.sql(f"FROM {name} LIMIT 0").columns)

    def _define(self, table: Table) -> None:
        source = _source(table, self._lake.files(table.name), self._file_columns)
        once = _ONCE.get(table.name)
        qualify = f" QUALIFY row_number() OVER (PARTITION BY {once} ORDER BY ts) = 1" if once else ""
        name = f'"{table.name}"'
        self._connection.execute(f"CREATE OR REPLACE VIEW {name} AS FROM ({source}){qualify}")
        self._connection.execute(
            f"CREATE OR REPLACE MACRO {name}(since, until) AS TABLE FROM ({source}) "
            "WHERE date BETWEEN CAST(since AS TIMESTAMPTZ)::DATE AND CAST(until AS TIMESTAMPTZ)::DATE "
            f"AND ts >= CAST(since AS TIMESTAMPTZ) AND ts < CAST(until AS TIMESTAMPTZ){qualify}"
        )


def _kind(cursor: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> duckdb.StatementType:
    """What a statement does; of ``EXPLAIN`` what it explains, for ``EXPLAIN ANALYZE COPY …`` copies."""
    if statement.type != duckdb.StatementType.EXPLAIN:
        return statement.type
    head = _EXPLAIN.match(statement.query)
    inner = cursor.extract_statements(statement.query[head.end() :]) if head else []
    return inner[0].type if len(inner) == 1 else duckdb.StatementType.EXPLAIN


def _words(sql: str) -> set[str]:
    """Words of a statement, and of everything that it names, and so on."""
    found, new = set[str](), set(_WORD.findall(without_texts(sql).lower()))
    while new - found:
        found |= new
        new = {
            word
            for name, text in _DERIVED.items()
            if name.partition("(")[0] in new
            for word in _WORD.findall(text.lower())
        }
    return found


def _source(table: Table, files: list[str], columns_of: FileColumns) -> str:
    """All contract columns, whatever the version of the files: those a file lacks are null."""
    columns = ", ".join(f'NULL::{_SQL_TYPES[f.type]} AS "{f.name}"' for f in table.fields)
    empty = f"SELECT NULL::DATE AS date, {columns} WHERE false"
    if not files:
        return empty
    groups = columns_of.groups(files)
    reads = [
        f"(FROM read_parquet([{', '.join(map(quoted, some))}], hive_partitioning = true, "
        f"hive_types = {{'date': DATE}}{', union_by_name = true' if groups is None else ''}))"
        for some in groups or [files]
    ]
    return " UNION ALL BY NAME ".join([f"({empty})", *reads])
