"""Table ``owned_hours``: what ``gpu_hours`` says of each day, summed by hour, model, category and job; made once.

The lake's one maintainer makes it, so a question over a month reads some thousand rows instead of splitting millions of
GPU-hours again. A day is one file, replaced in one transaction. Its rows are those of ``gpu_hours`` over that whole
UTC day (or as far as it has come), so they sum to the inventory as those do, and hours of it add up.

A day is made again when what it was made of has changed, told by two numbers kept in the same transaction
(application ids ``windows:<date>`` and ``told:<date>``):

- rows of hour windows of that day and the fortnight before, by the log's statistics; joining files changes no count;
- a hash over what jobs, node states, inventory and incidents say of that day and the week before, clipped to the days
  (``OWNED_FACTS``): the end of a long job told a week later changes only the day on which it ended.

The day that is not over is made when an hour of windows has come, and the second number waits until it is over.
Facts told more than ``LOOK_BACK`` late renew nothing. Where the windows of a day are gone, what was made of them stays.
"""

# ruff: noqa: S608 (SQL made of this module's own words and of dates)
from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Final

import structlog
from deltalake import Transaction

from graynode.pipeline.gpu_hours_sources import FACTS
from graynode.pipeline.lake import Lake, LakeError
from graynode.pipeline.lake_format import conform
from graynode.pipeline.queries import Queries, QueryError
from graynode.pipeline.schema import OWNED_MEANS
from graynode.pipeline.whole_days import replace_day

_log = structlog.get_logger()

TABLE: Final = "owned_hours"
WINDOWS: Final = ("gpu_1h", "host_1h")
TOLD: Final = ("job", "node_state", "inventory", "incident")
GROUP: Final = ("cluster", "ts", "gpu_model", "category", "job_id", "user", "account", "partition", "work")
LOOK_BACK: Final = 35
"""Days that are looked at for late facts: a month and some. Windows that come late renew a day of any age."""
MOST_DAYS: Final = 8
"""Days made in one call: of an older lake with two years of windows a few, the newest first, until all are there."""
FACTS_EVERY_S: Final = 600.0
"""Seconds from one look at the facts to the next: a look costs about a second of CPU at 10,000 GPUs."""
_SILENT: Final = 14
_SHAPES: Final = 7
"""Days before a day that count: how long a silent machine is still owned, and whose jobs say which shapes are asked."""
_DAY: Final = timedelta(days=1)
_WINDOWS_ID: Final = "windows:"
_TOLD_ID: Final = "told:"
_MASK: Final = (1 << 62) - 1

SUMS: Final = ", ".join(
    f"sum({m} * hours) AS {m}_h, coalesce(sum(hours) FILTER ({m} IS NOT NULL), 0) AS {m}_of_h" for m in OWNED_MEANS
)
"""A mean times its hours, and the hours in which it was measured: both add up."""
_KEYS: Final = ", ".join(f'"{name}"' for name in GROUP)
_MAKE: Final = (
    f"SELECT {_KEYS}, sum(hours) AS gpu_hours, {SUMS} "
    "FROM gpu_hours(TIMESTAMPTZ '{since}', TIMESTAMPTZ '{until}') GROUP BY ALL"
)


class OwnedHours:
    """Keeps the table whole. One a process, called by whoever holds the maintenance lock."""

    def __init__(self, lake: Lake, *, clock: Callable[[], float] = time.time, threads: int = 1) -> None:
        self._lake, self._clock, self._threads = lake, clock, threads
        self._looked_s = float("-inf")
        self._versions: tuple[int, ...] = ()
        self._facts: dict[str, int] = {}

    def fill(self, stop: threading.Event | None = None) -> int:
        """Make what is missing or has changed, the newest day first; gives how many days were written.

        ``LakeError``: not now. A day that somebody else changed meanwhile is left for the next call.
        """
        if not self._lake.local:  # questions are asked of local files only
            return 0
        windows = _windows(self._lake)
        if not windows:
            return 0
        queries = Queries(self._lake, threads=self._threads)
        try:
            return self._fill(queries, windows, stop)
        except QueryError as error:
            raise LakeError(f"{self._lake.uri(TABLE)}: {' '.join(str(error).split())[:300]}") from error
        finally:
            queries.close()

    def _fill(self, queries: Queries, windows: Mapping[str, int], stop: threading.Event | None) -> int:
        made = self._lake.create(TABLE)
        self._look(queries, sorted(windows))
        days = 0
        for day in sorted(windows, reverse=True):
            if days >= MOST_DAYS or (stop is not None and stop.is_set()):
                break
            told = self._facts.get(day) if self._over(day) else None
            seen = made.transaction_version(_WINDOWS_ID + day), made.transaction_version(_TOLD_ID + day)
            if seen[0] != windows[day] or (told is not None and seen[1] != told):
                days += self._make(queries, day, windows[day], told)
        return days

    def _over(self, day: str) -> bool:
        return _start(day) + _DAY <= datetime.fromtimestamp(self._clock(), UTC)

    def _look(self, queries: Queries, days: list[str]) -> None:
        """What the facts say of each of the newest days, where they may have changed since the last look."""
        versions = tuple(self._lake.version(table) for table in TOLD)
        now = self._clock()
        known = all(day in self._facts for day in days[-LOOK_BACK:])
        if known and (versions == self._versions or 0 <= now - self._looked_s < FACTS_EVERY_S):
            return
        self._facts = _facts(queries, days[-LOOK_BACK:])
        self._versions, self._looked_s = versions, now

    def _make(self, queries: Queries, day: str, windows: int, told: int | None) -> int:
        start = _start(day)
        rows = queries.frame(_MAKE.format(since=start.isoformat(), until=(start + _DAY).isoformat()))
        frame = conform(TABLE, rows).sort([*GROUP[:5]], nulls_last=True)
        done = [Transaction(_WINDOWS_ID + day, windows)]
        if told is not None:
            done.append(Transaction(_TOLD_ID + day, told))
        handle = self._lake.create(TABLE)
        number = (handle.transaction_version(TABLE) or 0) + 1
        return int(replace_day(handle, TABLE, day, frame, [Transaction(TABLE, number), *done]))


def fill(lake: Lake) -> int:
    """All days of a lake that nobody else writes, as after an import or a simulation; gives how many were written."""
    owned, days = OwnedHours(lake), 0
    while some := owned.fill():
        days += some
    return days


def _start(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(tzinfo=UTC)


def _windows(lake: Lake) -> dict[str, int]:
    """A number by date that has rows of ``gpu_1h``: it changes with rows of the day or the fortnight before, and when
    the first later hour is there, which is what closes a day that ended in silence."""
    rows: Counter[date] = Counter()
    days = set[date]()
    for table in WINDOWS:
        if not lake.exists(table):
            continue
        actions = lake.table(table).get_add_actions(flatten=True)
        dates, counts = (actions.column(name).to_pylist() for name in ("partition.date", "num_records"))
        for text, count in zip(dates, counts, strict=True):
            at = date.fromisoformat(str(text))
            rows[at] += int(count or 0)
            if table == "gpu_1h":
                days.add(at)
    newest = max(rows, default=None)
    return {
        str(day): 2 * sum(rows[day - timedelta(days=i)] for i in range(_SILENT + 1)) + int(newest != day)
        for day in days
    }


def _facts(queries: Queries, days: list[str]) -> dict[str, int]:
    """A hash by day of what was told of it and of the week before it."""
    since, until = _start(days[0]) - _SHAPES * _DAY, _start(days[-1]) + _DAY
    sql = FACTS.format(since=since.isoformat(), until=until.isoformat())
    by_day = {row["day"]: (int(row["told"]), int(row["facts"])) for row in queries.rows(sql)}
    made = {}
    for day in days:
        hashed = 0
        for i in range(_SHAPES + 1):
            some, count = by_day.get(date.fromisoformat(day) - timedelta(days=i), (0, 0))
            # the shift keeps a fact that moved from one day to the next from cancelling out
            hashed ^= (some >> i) + count
        made[day] = hashed & _MASK
    return made
