"""``graynode sql``: questions to the lake, at a prompt with history and completion, or one with ``-c``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import duckdb
import pyarrow as pa

from graynode.pipeline.lake import LakeError, LakeTooNew
from graynode.pipeline.queries import Queries, QueryError
from graynode.service.config import Config
from graynode.service.wiring import make_lake

if TYPE_CHECKING:
    from rich.console import RenderableType

Format = Literal["table", "csv", "json", "parquet"]
_NO_ANSWER: Final = (QueryError, LakeError, LakeTooNew, duckdb.Error)
_SHOWN_ROWS: Final = 1000
_WIDE_COLUMNS: Final = 24
_HELP: Final = """\
One statement, ended by a semicolon. Every table is a view; TABLE(since, until) reads only those days, for example
  SELECT node, max(temp_c_max) FROM gpu_30s(now() - INTERVAL 1 HOUR, now()) GROUP BY node ORDER BY 2 DESC;
.tables  lists them     .schema TABLE  its columns     .help  this     .quit  or Ctrl-D  leaves
docs/queries.md has the questions that fleets really ask."""


def run(config: Config, command: str | None, fmt: Format, output: Path | None) -> int:
    """Answer ``command``, or ask for commands at a prompt. 0 answered, 1 not."""
    queries = Queries(make_lake(config))
    try:
        if command is None:
            return _prompt(queries)
        return _once(queries, command, fmt, output)
    finally:
        queries.close()


def _once(queries: Queries, command: str, fmt: Format, output: Path | None) -> int:
    try:
        if fmt == "parquet":
            return _to_parquet(queries.ask(command), output)
        if output is None:
            write(queries.ask(command), fmt, sys.stdout)
            return 0
        with output.open("w", encoding="utf-8", newline="") as sink:
            write(queries.ask(command), fmt, sink)
    except _NO_ANSWER as error:
        print(f"graynode sql: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"graynode sql: {output}: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _to_parquet(answer: duckdb.DuckDBPyRelation, output: Path | None) -> int:
    if output is None:
        print("graynode sql: --format parquet needs --output FILE", file=sys.stderr)
        return 1
    import pyarrow.parquet as pq

    reader = answer.to_arrow_reader(100_000)
    with pq.ParquetWriter(output, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
    return 0


def write(answer: duckdb.DuckDBPyRelation, fmt: Format, sink: TextIO) -> None:
    """Write an answer as a table for a person, CSV or JSON lines."""
    if fmt == "table":
        _as_table(answer, sink)
        return
    reader = answer.to_arrow_reader(100_000)
    put = _csv(reader.schema, sink) if fmt == "csv" else _json(sink)
    for batch in reader:
        put(batch)


def _csv(schema: pa.Schema, sink: TextIO) -> Callable[[pa.RecordBatch], None]:
    import csv

    writer = csv.writer(sink)
    writer.writerow(schema.names)
    return lambda batch: writer.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _json(sink: TextIO) -> Callable[[pa.RecordBatch], None]:
    import msgspec

    encode = msgspec.json.Encoder(enc_hook=str).encode
    return lambda batch: sink.writelines(encode(row).decode() + "\n" for row in batch.to_pylist())


def _as_table(answer: duckdb.DuckDBPyRelation, sink: TextIO) -> None:
    from rich.console import Console

    rows = answer.limit(_SHOWN_ROWS + 1).fetchall()
    console = Console(file=sink, width=None if sink.isatty() else 32_000)
    lay_out = _records if len(answer.columns) > _WIDE_COLUMNS else _grid
    console.print(lay_out(answer.columns, rows[:_SHOWN_ROWS]))
    more = f"more than {_SHOWN_ROWS} rows; LIMIT, or --format csv" if len(rows) > _SHOWN_ROWS else f"{len(rows)} rows"
    console.print(f"({more})", style="dim")


def _grid(names: list[str], rows: list[tuple[Any, ...]]) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table as Grid

    grid = Grid(*(escape(name) for name in names), box=None, header_style="bold", pad_edge=False)
    for row in rows:
        grid.add_row(*(escape(_cell(value)) for value in row))
    return grid


def _records(names: list[str], rows: list[tuple[Any, ...]]) -> RenderableType:
    """A wide answer row by row, a line a column, nulls left out: three hundred columns fit no screen."""
    from rich.console import Group

    parts: list[RenderableType] = []
    for number, row in enumerate(rows, 1):
        held = [(name, value) for name, value in zip(names, row, strict=True) if value is not None]
        parts += [f"── row {number}, {len(held)} of {len(row)} columns not null", _grid(["column", "value"], held)]
    return Group(*parts)


def _cell(value: Any) -> str:  # noqa: ANN401 (whatever SQL gives)
    if value is None:
        return "·"
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "isoformat") and hasattr(value, "hour"):
        return str(value.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00"))
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in str(value))


def _prompt(queries: Queries) -> int:
    from graynode.service.sql_prompt import make_reader

    read = make_reader(queries, Path("~/.graynode_history").expanduser())
    print("graynode sql, read-only. .help helps; Ctrl-D leaves.")
    while True:
        try:
            text = read().strip().rstrip(";").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        if text in (".quit", ".exit"):
            return 0
        if text:
            _answer(queries, text)


def _answer(queries: Queries, text: str) -> None:
    if text.startswith("."):
        print(_dot(queries, text))
        return
    try:
        write(queries.ask(text), "table", sys.stdout)
    except _NO_ANSWER as error:
        print(error)
    except KeyboardInterrupt:
        print("stopped")


def _dot(queries: Queries, text: str) -> str:
    word, _, argument = text.partition(" ")
    known = dict(queries.names())
    if word == ".tables":
        return "\n".join(known)
    if word == ".schema" and argument in known:
        return "\n".join(known[argument])
    if word == ".schema":
        return f"no table {argument!r}; .tables lists them"
    return _HELP
