"""What every handler and every page has at hand: the lake, the fleet as it is now, the clock.

Handlers are plain functions that Litestar runs in worker threads (``sync_to_thread=True``), so ``rows`` blocks its
thread and never the event loop. Each question has its own cursor and a deadline, and only so many run at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, Protocol

import duckdb
import polars as pl
import pyarrow as pa

from graynode.collectors.base import utc_now
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.queries import Queries, QueryError
from graynode.service.api.problems import Problem, shown
from graynode.service.api.kept import Kept
from graynode.service.config import Config
from graynode.service.fleet_now import FleetNow
from graynode.service.wiring import make_lake

_AT_ONCE: Final = 4
"""Questions that run at a time: DuckDB uses ``threads`` for each, more would only wait for the cores inside of it."""
_WAIT_S: Final = 10.0
_TRIES: Final = 2
_CLUSTERS_S: Final = 300.0
_CLUSTERS: Final = """
SELECT DISTINCT cluster FROM (SELECT cluster FROM inventory UNION ALL SELECT cluster FROM event
  UNION ALL SELECT cluster FROM incident UNION ALL SELECT cluster FROM node_state) WHERE cluster IS NOT NULL LIMIT 3
"""


class Fleet(Protocol):
    """Gives the newest picture and never waits for it."""

    def now(self) -> FleetNow:
        """The newest picture that has been made."""
        ...


class Served:
    """The server's parts. ``deadline_s`` is the longest that one question may take.

    A plain class, for Litestar looks into the fields of a dataclass and knows no locks.
    """

    def __init__(
        self,
        config: Config,
        lake: Lake,
        queries: Queries,
        fleet: Fleet,
        *,
        clock: Callable[[], datetime] = utc_now,
        deadline_s: float = 10.0,
    ) -> None:
        self.config = config
        self.lake = lake
        self.queries = queries
        self.fleet = fleet
        self.clock = clock
        self.deadline_s = deadline_s
        self.kept = Kept()
        self._turns = threading.BoundedSemaphore(_AT_ONCE)

    @classmethod
    def open(cls, config: Config, fleet: Fleet, clock: Callable[[], datetime] = utc_now) -> Served:
        """Open the configured lake; it need not be there yet."""
        lake = make_lake(config)
        queries = Queries(lake, memory_limit=config.serve.memory)
        return cls(config, lake, queries, fleet, clock=clock, deadline_s=config.serve.deadline_s)

    def at(self) -> datetime:
        """Time of the newest data; the clock's where there is none yet."""
        return self.fleet.now().at or self.clock()

    def cluster(self) -> str:
        """The configured cluster; the only one that the lake has, where that one has nothing (as ``graynode nodes``)."""
        mine = self.config.cluster
        names = self.kept.get("clusters", _CLUSTERS_S, lambda: [row["cluster"] for row in self.rows(_CLUSTERS)])
        return names[0] if len(names) == 1 else mine

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The answer as rows. ``Problem`` 503 where the lake cannot be asked now, 504 after the deadline."""
        return self.arrow(sql).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types

    def frame(self, sql: str) -> pl.DataFrame:
        """The answer as a frame with its times in UTC."""
        frame = pl.from_arrow(self.arrow(sql))
        assert isinstance(frame, pl.DataFrame)  # noqa: S101 (a table gives a frame)
        return frame.with_columns(pl.col(pl.Datetime).dt.convert_time_zone("UTC").dt.cast_time_unit("us"))

    def arrow(self, sql: str) -> pa.Table:
        """The answer as an Arrow table."""
        with self.turn(), lake_problems():
            for attempt in range(_TRIES):
                try:
                    return self._ask(sql)
                except duckdb.IOException:
                    # A compaction took a file between naming and reading it: the views are made anew and it goes on.
                    if attempt == _TRIES - 1:
                        raise
        raise AssertionError("unreachable")

    def _ask(self, sql: str) -> pa.Table:
        cursor = self.queries.cursor()
        with cursor, deadline(cursor, self.deadline_s):
            return self.queries.ask(sql, cursor).to_arrow_table()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """A place among the questions that run at a time; ``Problem`` 503 where none gets free."""
        if not self._turns.acquire(timeout=_WAIT_S):
            raise Problem(503, "too many questions at a time; ask again", {"Retry-After": "5"})
        try:
            yield
        finally:
            self._turns.release()

    def close(self) -> None:
        """Let the database go."""
        self.queries.close()


@contextlib.contextmanager
def deadline(cursor: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Interrupt what ``cursor`` runs after so long; ``Problem`` 504."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        cursor.interrupt()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (duckdb.Error, QueryError) as error:
        if late.is_set():
            raise Problem(504, f"no answer within {seconds:g} s: ask for less time or fewer nodes") from error
        raise
    finally:
        timer.cancel()


@contextlib.contextmanager
def lake_problems() -> Iterator[None]:
    """What the lake's own errors are to a caller."""
    try:
        yield
    except LakeTooNew as error:
        raise Problem(503, f"{error}") from error
    except duckdb.OutOfMemoryException as error:
        raise Problem(503, "the question needs more memory than serve has for it: ask for less", {}) from error
    except (LakeError, QueryError, duckdb.Error, OSError) as error:
        raise Problem(503, f"the lake cannot be asked now: {shown(error)}", {"Retry-After": "10"}) from error
