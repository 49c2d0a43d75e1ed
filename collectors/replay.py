"""``replay``: rows that were recorded, given again with their own times, at their own pace or faster.

Three recordings are read: JSON lines as ``graynode agent --dry-run`` prints them into a pipe (one row a line, its
``table`` beside its fields; may be gzip), Parquet files of contract tables (the table is the file's name up to the
first dot, or the name of a folder above it, as in a lake), and messages of the bus, handed over by the caller.
"""

from __future__ import annotations

import functools
import gzip
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.pipeline.codec import Message, Unreadable, decode
from graynode.pipeline.schema import TABLES

AS_FAST_AS_POSSIBLE: Final = 0.0
_ROWS_A_ROUND: Final = 20_000
"""At most so many rows a round, so that a large recording is carried off in pieces."""
_LINES: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")

Recorded = Iterator[tuple[str, Row]]
"""Table and row, each with its ``ts``."""


class Replay:
    """Recorded rows of ``path`` (a file, or a folder with all below it) or of ``rows``.

    ``pace`` is recorded seconds per second: 1 as it was, 60 an hour in a minute, 0 as fast as possible. Time starts
    with the earliest row at the first round. Rows keep their order within a file; files are merged by time, and
    keep the keys of the machines that they are of, so ``machine`` is not asked.
    ``NoSource`` where there is nothing to replay.
    """

    name: ClassVar[str] = "replay"
    tables: ClassVar[tuple[str, ...]] = tuple(name for name, table in TABLES.items() if table.topic)

    def __init__(
        self, machine: Machine, path: Path | None = None, *, pace: float = 1.0, rows: Recorded | None = None
    ) -> None:
        if pace < 0:
            raise ValueError(f"pace = {pace!r}: seconds of the recording per second, or 0 for as fast as possible")
        if (path is None) == (rows is None):
            raise NoSource("nothing to replay: name one recording")
        self._pace, self.refused = pace, Counter[str]()
        self._rows: Recorded = rows if rows is not None else self._of_path(path or Path())
        self._next = next(self._rows, None)
        self._began: tuple[datetime, datetime] | None = None

    @property
    def finished(self) -> bool:
        """True when every row has been given."""
        return self._next is None

    def collect(self, round_: Round) -> Rows:
        """What was recorded up to the place in time that this round has reached; nothing once it is over."""
        if self._next is None:
            return {}
        if self._began is None:
            self._began = (round_.ts, self._next[1]["ts"])
        upto = None
        if self._pace != AS_FAST_AS_POSSIBLE:
            began, first = self._began
            upto = first + timedelta(seconds=(round_.ts - began).total_seconds() * self._pace)
        given: dict[str, list[Row]] = {}
        for table, row in self._take(upto):
            given.setdefault(table, []).append(row)
        return given

    def _take(self, upto: datetime | None) -> Recorded:
        for _ in range(_ROWS_A_ROUND):
            if self._next is None or (upto is not None and self._next[1]["ts"] > upto):
                return
            yield self._next
            self._next = next(self._rows, None)

    def close(self) -> None:
        """Let go of the recording; what is left of it is not given any more."""
        self._rows, self._next = iter(()), None

    def _of_path(self, path: Path) -> Recorded:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        chosen = [f for f in files if f.name.endswith((*_LINES, ".parquet")) and f.is_file()]
        if not chosen:
            raise NoSource(f"{path}: no recording there; {', '.join(_LINES[:2])} (may be .gz) and .parquet are read")
        return heapq.merge(*(self._of_file(file) for file in chosen), key=lambda entry: entry[1]["ts"])

    def _of_file(self, file: Path) -> Recorded:
        if file.name.endswith(".parquet"):
            table = table_of(file)
            if table is None:
                raise NoSource(f"{file}: neither its name nor a folder above it is a table of the contract")
            return self._known(of_parquet(file), table)
        return self._of_lines(file)

    def _of_lines(self, file: Path) -> Recorded:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            for line in lines:
                try:
                    table, row = of_line(line)
                except Unreadable as reason:
                    self.refused[str(reason)] += 1
                    continue
                yield from self._known([row], table)

    def _known(self, rows: Iterable[Row], table: str) -> Recorded:
        """Rows with a time, without what this contract does not know; both are counted."""
        fields = _names(table)
        for row in rows:
            if not isinstance(row.get("ts"), datetime):
                self.refused[f"{table}: row without ts"] += 1
                continue
            strange = row.keys() - fields
            for name in strange:
                self.refused[f"{table}.{name}: not in the contract"] += 1
            yield table, {name: value for name, value in row.items() if name not in strange and value is not None}


def of_line(line: str) -> tuple[str, Row]:
    """One line of a JSON recording. ``Unreadable`` says what is wrong with it."""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Unreadable("line is not JSON") from error
    table = row.pop("table", None) if isinstance(row, dict) else None
    if not isinstance(table, str) or table not in TABLES or not TABLES[table].topic:
        raise Unreadable(f"line of unknown table {str(table)[:40]!r}")
    for name in _times(table) & row.keys():
        if row[name] is not None:
            row[name] = _moment(row[name], f"{table}.{name}")
    return table, row


def of_parquet(file: Path) -> Iterator[Row]:
    """Rows of one Parquet file, in its order; the partition column of a lake is left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_ROWS_A_ROUND):
                for row in batch.to_pylist():
                    row.pop("date", None)
                    yield row
    except (OSError, pa.ArrowException) as error:
        raise NoSource(f"{file}: not a readable Parquet file: {error}") from error


def of_messages(messages: Iterable[Message], refused: Counter[str]) -> Recorded:
    """Rows of messages as they came over a bus; one that cannot be decoded is counted in ``refused``."""
    for message in messages:
        try:
            rows = decode(message).to_pylist()
        except Unreadable as reason:
            refused[str(reason)] += 1
            continue
        for row in rows:
            yield message.headers["table"], {name: value for name, value in row.items() if value is not None}


def table_of(file: Path) -> str | None:
    """The table that a Parquet file holds, by its name or the nearest folder's; null where none is one."""
    names = (file.name.partition(".")[0], *(part.name for part in file.parents))
    return next((name for name in names if name in TABLES and TABLES[name].topic), None)


def _moment(told: Any, field: str) -> datetime:  # noqa: ANN401 (any JSON)
    try:
        moment = datetime.fromisoformat(told)
    except (TypeError, ValueError) as error:
        raise Unreadable(f"{field} is not a time") from error
    if moment.tzinfo is None:
        raise Unreadable(f"{field} has no zone")
    return moment.astimezone(UTC)


@functools.cache
def _names(table: str) -> frozenset[str]:
    return frozenset(TABLES[table].names)


@functools.cache
def _times(table: str) -> frozenset[str]:
    return frozenset(f.name for f in TABLES[table].fields if f.type == "timestamp")
