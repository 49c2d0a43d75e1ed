"""Rows of table ``step`` for detection rounds, window by window, without ever holding many windows of them.

A thousand ranks at a step a second are 86 million rows a day, so a replay reads them in slices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from graynode.detectors.step_memory import COLUMNS

_SLICE: Final = timedelta(minutes=10)
Read = Callable[[datetime, datetime, list[str]], pl.DataFrame]
"""Columns of the rows of ``since <= ts < until``."""


@dataclass(slots=True)
class StepRows:
    """Steps with busy seconds, of windows asked for in order, up to ``until``; nothing is read without the table."""

    read: Read
    until: datetime
    there: bool = True
    _rows: pl.DataFrame = field(default_factory=pl.DataFrame)
    _through: datetime | None = None

    def of(self, start: datetime, end: datetime) -> pl.DataFrame:
        """Rows of ``start <= ts < end``."""
        if not self.there:
            return self._rows
        if self._through is None or end > self._through:
            self._through = max(end, min(start + _SLICE, self.until))
            rows = self.read(start, self._through, list(COLUMNS))
            self._rows = rows.filter(pl.col("busy_s").is_not_null())
        return self._rows.filter((pl.col("ts") >= start) & (pl.col("ts") < end)) if self._rows.height else self._rows
