"""GPU-hours of a stretch, summed by day: what cost, capacity, budgets and users' views are reckoned from.

Days that the pipeline has stored (table ``owned_hours``) are read, by whole hours. What is not stored, as in a lake
whose pipeline is older or off, is reckoned, a day at a time, which bounds memory whatever the fleet and the stretch.
Either is kept in memory under the lake files that it was made from: a page asks for thirty days and one is read.
"""

# ruff: noqa: S608 (SQL made of this module's own words and of times)

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline.owned_hours import GROUP, SUMS, TABLE
from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import OWNED_MEANS

MEANS: Final = OWNED_MEANS
_KEPT_DAYS: Final = 400
_DAY: Final = timedelta(days=1)
_HOUR: Final = timedelta(hours=1)
_KEYS: Final = tuple("day" if name == "ts" else name for name in GROUP)
_DATE: Final = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/")
_TABLES: Final = ("gpu_1h", "job", "node_state", "inventory", "incident")

_RECKONED: Final = f"""
SELECT date_trunc('day', ts) AS day, {", ".join(f'"{k}"' for k in _KEYS if k != "day")}, sum(hours) AS gpu_hours, {SUMS}
FROM gpu_hours(TIMESTAMPTZ '{{since}}', TIMESTAMPTZ '{{until}}') GROUP BY ALL
"""
_ADDED: Final = ", ".join(f"sum({m}{end}) AS {m}{end}" for m in MEANS for end in ("_h", "_of_h"))
_STORED: Final = f"""
SELECT date_trunc('day', ts) AS day, {", ".join(f'"{k}"' for k in _KEYS if k != "day")},
  sum(gpu_hours) AS gpu_hours, {_ADDED}, max(ts) AS newest
FROM {TABLE}(TIMESTAMPTZ '{{since}}', TIMESTAMPTZ '{{until}}') GROUP BY ALL
"""
SCHEMA: Final[Mapping[str, pl.DataType | type[pl.DataType]]] = {
    **dict.fromkeys(_KEYS, pl.String),
    "day": pl.Datetime("us", "UTC"),
    "gpu_hours": pl.Float64,
    **{f"{m}{end}": pl.Float64 for m in MEANS for end in ("_h", "_of_h")},
}
"""``<mean>_h`` is the value times hours, ``<mean>_of_h`` the hours in which it was measured; ``power_w_h`` is in Wh."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A day of the stretch, or the part of it that was asked for."""

    since: datetime
    until: datetime

    @property
    def date(self) -> date:
        return self.since.date()

    @property
    def whole_hours(self) -> bool:
        return all(not (at.minute or at.second or at.microsecond) for at in (self.since, self.until))


class Days:
    """Sums of days, kept. One for a process; threads may share it."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[object, ...], pl.DataFrame] = OrderedDict()
        self._lock = threading.Lock()

    def between(self, queries: Queries, since: datetime, until: datetime) -> pl.DataFrame:
        """A row a day, model, category and job: columns of ``SCHEMA``. Empty where nothing was owned."""
        stored = _by_date(queries.files(TABLE))
        there = {*_by_date(queries.files("gpu_1h")), *stored}
        if not there:
            return pl.DataFrame(schema=dict(SCHEMA))
        first, last = max(since, _midnight(min(there))), min(until, _midnight(max(there)) + _DAY)
        pieces = list(_pieces(first, last))
        read = self._read(queries, [p for p in pieces if p.date in stored and p.whole_hours], stored)
        frames = [f for p in pieces for f in (read[p] if p in read else [self._reckoned(queries, p)])]
        return pl.concat([pl.DataFrame(schema=dict(SCHEMA)), *frames])

    def _read(
        self, queries: Queries, pieces: list[_Piece], stored: Mapping[date, tuple[str, ...]]
    ) -> dict[_Piece, list[pl.DataFrame]]:
        """Stored days, all that are not in memory by one question; hours that came since are reckoned."""
        keys = {piece: (piece, stored[piece.date]) for piece in pieces}
        with self._lock:
            found = {piece: self._made[key] for piece, key in keys.items() if key in self._made}
        missing = [piece for piece in pieces if piece not in found]
        if missing:
            said = {"since": missing[0].since.isoformat(), "until": missing[-1].until.isoformat()}
            rows = queries.frame(_STORED.format(**said))
            by_day = {day.date(): some for (day,), some in rows.group_by("day") if isinstance(day, datetime)}
            for piece in missing:
                found[piece] = by_day.get(piece.date, rows.clear())
                self._keep(keys[piece], found[piece])
        return {piece: self._whole(queries, piece, some) for piece, some in found.items()}

    def _whole(self, queries: Queries, piece: _Piece, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """What is stored of a day, and what has come after the newest hour of it."""
        newest = rows.get_column("newest").max()
        begin = newest.astimezone(UTC) + _HOUR if isinstance(newest, datetime) else piece.since
        made = [_typed(rows)]
        if begin < piece.until and queries.files("gpu_1h", begin, piece.until):
            made.append(self._reckoned(queries, _Piece(begin, piece.until)))
        return made

    def _reckoned(self, queries: Queries, piece: _Piece) -> pl.DataFrame:
        """The same of a lake that does not have it stored, kept for as long as its files are the same."""
        files = tuple(tuple(queries.files(table, piece.since, piece.until + _DAY)) for table in _TABLES)
        key = (piece, files)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        frame = _typed(queries.frame(_RECKONED.format(since=piece.since.isoformat(), until=piece.until.isoformat())))
        self._keep(key, frame)
        return frame

    def _keep(self, key: tuple[object, ...], frame: pl.DataFrame) -> None:
        with self._lock:
            self._made[key] = frame
            while len(self._made) > _KEPT_DAYS:
                self._made.popitem(last=False)


KEPT: Final = Days()
"""The process's own."""


def _typed(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def _by_date(files: list[str]) -> dict[date, tuple[str, ...]]:
    """Files by the day whose rows they have, by their folders."""
    found: dict[date, tuple[str, ...]] = {}
    for file in sorted(files):
        if told := _DATE.search(file):
            day = date.fromisoformat(told[1])
            found[day] = (*found.get(day, ()), file)
    return found


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _pieces(since: datetime, until: datetime) -> Iterator[_Piece]:
    """The stretch cut at midnights, UTC."""
    at = since.astimezone(UTC)
    while at < until:
        end = min(_midnight(at.date()) + _DAY, until)
        yield _Piece(at, end)
        at = end
