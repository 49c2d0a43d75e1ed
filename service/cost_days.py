"""GPU-hours of a stretch, summed by day: what cost, capacity, budgets and users' views are reckoned from.

A day at a time bounds memory whatever the fleet and the stretch. Whole days that are over are kept in memory under the
lake files that they were made from, so a page asks for thirty days and one is computed.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline.queries import Queries

_KEPT_DAYS: Final = 400
_DAY: Final = timedelta(days=1)
_KEYS: Final = ("cluster", "day", "gpu_model", "category", "job_id", "user", "account", "partition", "work")
MEANS: Final = ("util_percent", "sm_active_ratio", "tensor_active_ratio", "power_w")
_DATE: Final = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/")
_TABLES: Final = ("gpu_1h", "job", "node_state", "inventory", "incident")

_SQL: Final = """
SELECT cluster, TIMESTAMPTZ '{day}' AS day, gpu_model, category, job_id, "user", account, "partition", work,
  sum(hours) AS gpu_hours, {sums}
FROM gpu_hours(TIMESTAMPTZ '{since}', TIMESTAMPTZ '{until}') GROUP BY ALL
"""
_SUMS: Final = ", ".join(
    f"sum({m} * hours) AS {m}_h, coalesce(sum(hours) FILTER ({m} IS NOT NULL), 0) AS {m}_of_h" for m in MEANS
)
SCHEMA: Final[Mapping[str, pl.DataType | type[pl.DataType]]] = {
    **dict.fromkeys(_KEYS, pl.String),
    "day": pl.Datetime("us", "UTC"),
    "gpu_hours": pl.Float64,
    **{f"{m}{end}": pl.Float64 for m in MEANS for end in ("_h", "_of_h")},
}
"""``<mean>_h`` is the value times hours, ``<mean>_of_h`` the hours in which it was measured; ``power_w_h`` is in Wh."""


class Days:
    """Sums of days, kept. One for a process; threads may share it."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[object, ...], pl.DataFrame] = OrderedDict()
        self._lock = threading.Lock()

    def between(self, queries: Queries, since: datetime, until: datetime) -> pl.DataFrame:
        """A row a day, model, category and job: columns of ``SCHEMA``. Empty where nothing was owned."""
        there = _dates(queries.files("gpu_1h"))
        if not there:
            return pl.DataFrame(schema=dict(SCHEMA))
        first, last = max(since, min(there)), min(until, max(there) + _DAY)
        frames = [self._of(queries, a, b) for a, b in _days(first, last)]
        return pl.concat([pl.DataFrame(schema=dict(SCHEMA)), *frames])

    def _of(self, queries: Queries, since: datetime, until: datetime) -> pl.DataFrame:
        files = tuple(tuple(queries.files(table, since, until + _DAY)) for table in _TABLES)
        key = (since, until, files)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        sql = _SQL.format(day=since.date(), since=since.isoformat(), until=until.isoformat(), sums=_SUMS)
        frame = queries.frame(sql).select(pl.col(n).cast(t) for n, t in SCHEMA.items())
        with self._lock:
            self._made[key] = frame
            while len(self._made) > _KEPT_DAYS:
                self._made.popitem(last=False)
        return frame


KEPT: Final = Days()
"""The process's own."""


def _dates(files: list[str]) -> set[datetime]:
    """Days that have rows, by the folders of their files."""
    found = (_DATE.search(file) for file in files)
    return {datetime.fromisoformat(m[1]).replace(tzinfo=UTC) for m in found if m}


def _days(since: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    """The stretch cut at midnights, UTC."""
    made, at = [], since
    while at < until:
        midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
        made.append((at, min(midnight, until)))
        at = midnight
    return made
