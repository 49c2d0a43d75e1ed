"""The fleet as it is now: one consistent picture of nodes and GPUs, made of the newest windows and what was told.

``FleetWatch`` makes it anew in a thread, so that no request waits for the lake; while the lake cannot be read the last
picture stays and says why (``problem``) and how old it is. A lake whose data has ended (a simulation, a replay, an
outage of the pipeline) is shown at the time of its newest data.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import polars as pl
import structlog

from graynode.collectors.base import utc_now
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.queries import Queries, QueryError
from graynode.service import places_file
from graynode.service.config import Config
from graynode.service.fleet_now_facts import FactReader
from graynode.service.fleet_now_frames import GPUS, NODES, gpus, nodes
from graynode.service.fleet_now_told import ToldReader
from graynode.service.fleet_now_windows import Newest
from graynode.service.wiring import make_lake

_log = structlog.get_logger()

UNREAD: Final = "the lake has not been read yet"
"""The problem of the first picture, which is of nothing."""


@dataclass(frozen=True, slots=True)
class FleetNow:
    """``nodes`` has the columns ``NODES``, ``gpus`` the columns ``GPUS``, a row each.

    ``at``: end of the newest window, ``None`` while there is none. ``made``: when the lake was read. ``version``
    changes when the content does. ``problem``: why the lake could not be read since, empty if it could.
    """

    at: datetime | None
    made: datetime
    version: str
    nodes: pl.DataFrame
    gpus: pl.DataFrame
    problem: str = ""

    def age_s(self, now: datetime) -> float:
        """Seconds since this was read from the lake; the data itself is as old as ``at`` says."""
        return max((now - self.made).total_seconds(), 0.0)


def empty(now: datetime, problem: str = UNREAD) -> FleetNow:
    """A picture of nothing."""
    return FleetNow(None, now, "0", pl.DataFrame(schema=NODES), pl.DataFrame(schema=GPUS), problem)


@dataclass(slots=True)
class FleetReader:
    """Makes pictures one after the other; remembers between them what need not be read again."""

    lake: Lake
    queries: Queries
    places: places_file.PlacesFile = places_file.NONE
    clock: Callable[[], datetime] = utc_now
    _newest: Newest = field(init=False)
    _facts: FactReader = field(init=False)
    _told: ToldReader = field(init=False)

    def __post_init__(self) -> None:
        self._newest = Newest(self.lake)
        self._facts = FactReader(self.lake, self.queries, self.places)
        self._told = ToldReader(self.lake, self.queries)

    def read(self) -> FleetNow:
        """A picture of now. ``LakeError``, ``QueryError``, ``OSError``: the lake cannot be read now."""
        now = self.clock()
        self._newest.read()
        at = self._newest.at
        facts = self._facts.read(at or now)
        told = self._told.read(now)
        machines = nodes(facts, told, self._newest)
        devices = gpus(facts, told, self._newest, machines)
        return FleetNow(at, now, _version(machines, devices), machines, devices)


def _version(*frames: pl.DataFrame) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for frame in frames:
        digest.update(frame.height.to_bytes(8, "big"))
        digest.update(frame.hash_rows(seed=1).to_numpy().tobytes())
    return digest.hexdigest()


class FleetWatch:
    """Keeps a picture of the configured lake fresh, in a thread between ``start`` and ``stop``."""

    def __init__(
        self,
        config: Config,
        *,
        every_s: float = 15.0,
        clock: Callable[[], datetime] = utc_now,
        lake: Lake | None = None,
    ) -> None:
        """``ConfigError`` where ``detect.places_file`` will not do."""
        self._every_s, self._clock = every_s, clock
        self._lake = lake or make_lake(config)
        self._queries = Queries(self._lake)
        places = places_file.read(config.detect.places_file)
        self._reader = FleetReader(self._lake, self._queries, places, clock)
        self._picture = empty(clock())
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> FleetWatch:
        """Begin to look; the first picture is there some seconds later."""
        self._thread = threading.Thread(target=self._look, name="graynode-fleet", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread and let the database go; twice is as good as once."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._queries.close()

    def __enter__(self) -> FleetWatch:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def now(self) -> FleetNow:
        """The newest picture; never waits."""
        return self._picture

    def wait(self, version: str, timeout_s: float) -> FleetNow:
        """The first picture that is not of that version, or the newest one after so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._picture.version != version or self._stop.is_set(), timeout_s)
        return self._picture

    def refresh(self) -> FleetNow:
        """Look now. Errors of the lake are kept in the picture, not raised."""
        try:
            picture = self._reader.read()
        except (LakeError, LakeTooNew, QueryError, OSError, pl.exceptions.PolarsError) as error:
            problem = " ".join(str(error).split())[:300] or type(error).__name__
            if problem != self._picture.problem:
                _log.warning("the fleet's picture stays as it was", reason=problem)
            picture = replace(self._picture, problem=problem)
        with self._changed:
            self._picture = picture
            self._changed.notify_all()
        return picture

    def _look(self) -> None:
        while not self._stop.is_set():
            self.refresh()
            self._stop.wait(self._every_s)
