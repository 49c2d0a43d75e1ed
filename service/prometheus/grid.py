"""From series to rows: the values of one table's entities in one chunk, a place for each evaluation.

Pure. Two series of the same entity, field and time (a pair of servers that scrape the same, a GPU whose pod label
changed, an old and a new name of one field) fill one place; the first one stays and the others are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from graynode.collectors.dcgm.values import blank
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import TABLES, Field
from graynode.pipeline.values import bad_mask, checked_fields, judge, suspect
from graynode.service.prometheus.answer import Floats, Series
from graynode.service.prometheus.plan import Chunk
from graynode.service.prometheus.wanted import Wanted

Ints = NDArray[np.int64]
Key = tuple[str | None, ...]

JUST_BEFORE_US: Final = 1_000
"""An evaluation speaks of samples up to its moment, so at a full hour it belongs to the hour before."""
_WIDEST: Final = {"int32": 2.0**31, "int64": 9.2e18}
"""From here on a float has no place in the type: an int64 blank of DCGM is one of those."""

_NONE: Final = -1
_SEVERAL: Final = -2
"""In the place of a word's number: nothing was told, and more than one thing was (a GPU that two jobs share)."""


class Grid:
    """Rows of ``table`` in the making. ``entity`` columns identify a row's subject, with the time."""

    def __init__(self, table: str, chunk: Chunk, step_s: int) -> None:
        self._table, self._chunk, self._step_s = table, chunk, step_s
        self._points = chunk.points(step_s)
        self._number: dict[Key, int] = {}
        self._who: list[dict[str, Any]] = []
        self._values: dict[str, dict[int, Floats]] = {}
        self._words: dict[str, dict[int, Ints]] = {}
        self._vocabulary: dict[str, int] = {}
        self.samples, self.duplicates = 0, 0
        self.refused: Counter[str] = Counter()

    def entity(self, who: Mapping[str, Any]) -> int:
        """The number of the entity that these columns describe; what is new of it is noted."""
        key = tuple(who.get(name) for name in TABLES[self._table].entity)
        number = self._number.setdefault(key, len(self._who))
        if number == len(self._who):
            self._who.append(dict(who))
        else:
            self._who[number].update({k: v for k, v in who.items() if v is not None})
        return number

    def put(self, number: int, wanted: Wanted, series: Series) -> None:
        """One series of that entity, as the field that was wanted."""
        place = self._places(series)
        if wanted.words is not None:
            self.tell(number, wanted.field, place, [wanted.words.get(int(v), "unknown") for v in series.values])
            return
        there = self._values.setdefault(wanted.field, {})
        row = there.get(number)
        if row is None:
            row = there[number] = np.full(self._points, np.nan)
        new = self._plausible(wanted, series.values) * wanted.factor
        self.samples += len(new)
        free = np.isnan(row[place])
        self.duplicates += len(new) - int(free.sum()) - int((~free & np.isnan(new)).sum())
        row[place[free]] = new[free]

    def _plausible(self, wanted: Wanted, values: Floats) -> Floats:
        """The values with NaN where one is none: DCGM's blanks, and what the field cannot be. These are counted."""
        good = (values >= wanted.low) & (values <= wanted.high)
        if not good.all():
            for value, count in zip(*np.unique(values[~good], return_counts=True), strict=True):
                why = blank(float(value))
                said = why.reason if why else "not a number" if np.isnan(value) else "outside its range"
                self.refused[f"{wanted.field}: {said}"] += int(count)
            values = np.where(good, values, np.nan)
        return np.sign(values) if wanted.flag else values

    def tell(self, number: int, field: str, place: Ints, words: Iterable[str]) -> None:
        """A text field at these places; where there is a word already, it stays."""
        row = self._words.setdefault(field, {}).setdefault(number, np.full(self._points, _NONE, np.int64))
        codes = np.array([self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words], np.int64)
        free = row[place] < 0
        row[place[free]] = codes[free]

    def label(self, number: int, field: str, series: Series, word: str) -> None:
        """A text that is a label of the series: it holds where the series has a value, and no other one is told."""
        place = self._places(series)
        code = self._vocabulary.setdefault(word, len(self._vocabulary))
        row = self._words.setdefault(field, {}).setdefault(number, np.full(self._points, _NONE, np.int64))
        row[place] = np.where((row[place] == _NONE) | (row[place] == code), code, _SEVERAL)

    def _places(self, series: Series) -> Ints:
        place: Ints = np.rint((series.ts - self._chunk.start_s) / self._step_s).astype(np.int64) - 1
        return np.clip(place, 0, self._points - 1)

    def frame(self) -> pl.DataFrame:
        """All rows in which anything is known, in order of entity and time; what is no measurement is null."""
        seen = np.zeros((len(self._who), self._points), bool)
        for rows in self._values.values():
            for number, values in rows.items():
                seen[number] |= ~np.isnan(values)
        for words in self._words.values():
            for number, codes in words.items():
                seen[number] |= codes >= 0
        entity, place = np.nonzero(seen)
        columns = [self._times(place)]
        schema = frame_schema(self._table)
        for name in dict.fromkeys(name for who in self._who for name in who):
            of_entity = pl.Series(name, [who.get(name) for who in self._who], dtype=schema[name])
            columns.append(of_entity.gather(entity))
        vocabulary = pl.Series([*self._vocabulary, None], dtype=pl.String)
        for name, words in self._words.items():
            code = _stacked(words, seen.shape, _NONE)[seen]
            columns.append(vocabulary.gather(np.where(code < 0, len(self._vocabulary), code)).alias(name))
        columns += [
            self._measured(name, _stacked(rows, seen.shape, np.nan)[seen]) for name, rows in self._values.items()
        ]
        return pl.DataFrame(columns)

    def _measured(self, name: str, values: Floats) -> pl.Series:
        """A field in its own type. Values that are none by its range or DCGM's blanks are null, and counted."""
        field = TABLES[self._table].field(name)
        widest = _WIDEST.get(field.type)
        if widest is not None:
            outside = np.abs(values) >= widest
            if outside.any():
                self.refused[f"{name}: a blank of DCGM, or no number of its type"] += int(outside.sum())
                values = np.where(outside, np.nan, values)
            values = np.rint(values)
        column = pl.Series(name, values, nan_to_null=True).cast(frame_schema(self._table)[name])
        return self._honest(field, column)

    def _honest(self, field: Field, column: pl.Series) -> pl.Series:
        if field not in checked_fields(self._table) or not suspect(field, column):
            return column
        bad = bad_mask(field, column)
        for value, count in column.filter(bad).value_counts().iter_rows():
            verdict = judge(field, value)
            why = verdict.reason if verdict and verdict.state != "implausible" else "outside its range"
            self.refused[f"{field.name}: {why}"] += count
        return column.set(bad, None)

    def _times(self, place: Ints) -> pl.Series:
        us = (self._chunk.start_s + (place + 1) * self._step_s) * 1_000_000 - JUST_BEFORE_US
        return pl.Series("ts", us).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")


def _stacked(rows: Mapping[int, NDArray[Any]], shape: tuple[int, int], none: float) -> NDArray[Any]:
    """Rows by entity as one array; entities without one hold ``none``."""
    some = next(iter(rows.values()))
    made = np.full(shape, none, some.dtype)
    for number, values in rows.items():
        made[number] = values
    return made
