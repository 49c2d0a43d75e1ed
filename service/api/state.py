"""What every handler and every page has at hand: the lake, the fleet as it is now, the clock.

Handlers are plain functions that Litestar runs in worker threads (``sync_to_thread=True``), so ``rows`` blocks its
thread and never the event loop. Each question has its own cursor and a deadline, and only so many run at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Protocol

import polars as pl

from graynode.collectors.base import utc_now
from graynode.pipeline.lake import Lake
from graynode.service.api.bounded import Bounded, lake_problems
from graynode.service.api.kept import Kept
from graynode.service.api.problems import Problem
from graynode.service.config import Config
from graynode.service.fleet_now import UNREAD, FleetNow
from graynode.service.wiring import make_lake

_CLUSTERS_S: Final = 300.0
_CLUSTERS: Final = """
SELECT DISTINCT cluster FROM (SELECT cluster FROM inventory UNION ALL SELECT cluster FROM event
  UNION ALL SELECT cluster FROM incident UNION ALL SELECT cluster FROM node_state) WHERE cluster IS NOT NULL LIMIT 3
"""


class Fleet(Protocol):
    """Gives the newest picture and never waits for it (``service/fleet_now.py``)."""

    def now(self) -> FleetNow:
        """The newest picture that has been made."""
        ...


class Served:
    """The server's parts. ``queries`` may be handed to whatever reads the lake: each question through it is bounded;
    ``reports`` are those that reckon over weeks, one at a time and with more patience.

    A plain class, for Litestar looks into the fields of a dataclass and knows no locks.
    """

    def __init__(
        self, config: Config, lake: Lake, queries: Bounded, fleet: Fleet, *, reports: Bounded | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:  # fmt: skip
        self.config = config
        self.lake = lake
        self.queries = queries
        self.reports = reports or queries
        self.fleet = fleet
        self.clock = clock
        self.kept = Kept()

    @classmethod
    def open(cls, config: Config, fleet: Fleet, clock: Callable[[], datetime] = utc_now) -> Served:
        """Open the configured lake; it need not be there yet."""
        lake = make_lake(config)
        queries = Bounded(lake, memory_limit=config.serve.memory, deadline_s=config.serve.deadline_s)
        patience = config.serve.report_deadline_s
        reports = Bounded(
            lake, memory_limit=config.serve.memory, deadline_s=patience, at_once=1, wait_s=patience
        )  # fmt: skip
        return cls(config, lake, queries, fleet, reports=reports, clock=clock)

    def at(self) -> datetime:
        """Time of the newest data; the clock's where there is none yet."""
        return self.fleet.now().at or self.clock()

    def read_at(self) -> datetime:
        """The same for what is kept. ``Problem`` 503 before the lake was read for the first time: what is not reckoned
        yet must not look like nothing.
        """
        if self.fleet.now().problem == UNREAD:
            raise Problem(503, "being reckoned: the lake is read for the first time; ask again", {"Retry-After": "5"})
        return self.at()

    def cluster(self) -> str:
        """The configured cluster; the only one of the lake, where that one has nothing (as ``graynode nodes``)."""
        names = self.kept.get("clusters", _CLUSTERS_S, lambda: [row["cluster"] for row in self.rows(_CLUSTERS)])
        return str(names[0]) if len(names) == 1 else self.config.cluster

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The answer as rows. ``Problem`` 503 where the lake cannot be asked now, 504 after the deadline."""
        with lake_problems():
            return self.queries.rows(sql)

    def reckoned(self, sql: str) -> list[dict[str, Any]]:
        """The same of a question that reckons over weeks: in its turn among ``reports``."""
        with lake_problems():
            return self.reports.rows(sql)

    def frame(self, sql: str) -> pl.DataFrame:
        """The answer as a frame with its times in UTC."""
        with lake_problems():
            return self.queries.frame(sql)

    def break_off(self) -> None:
        """The process is about to end: questions that run end now, and none begins."""
        self.queries.break_off()
        self.reports.break_off()

    def close(self) -> None:
        """Let the databases go, and wait for what is being made: a thread in them must not outlive the interpreter."""
        self.break_off()
        self.kept.close()
        self.queries.close()
        self.reports.close()
