"""What changes, as it changes: one looker for all listeners. ``stream`` tells it as server-sent events.

An event's id says where in the data it stands (newest incident told, version of the fleet), not where in this process:
a listener that comes back to another process goes on from there. What the looker cannot know is told twice rather than
never: a revision that landed within ``_OVERLAP`` before the id is told again, and says so by its id and revision.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import structlog

from graynode.pipeline.queries import quoted
from graynode.service.api.bounded import lake_problems
from graynode.service.api.problems import Problem
from graynode.service.api.spans import sql_time
from graynode.service.api.state import Served

_OVERLAP: Final = timedelta(minutes=5)
_FIRST_S: Final = 10.0
_MOST: Final = 500
"""Changes kept for listeners that are slow; whoever is further behind is told to load the page anew."""
_ID: Final = re.compile(r"([0-9]{1,19})\.([0-9a-f]{1,64})")
_COLUMNS: Final = """incident_id, revision, state, severity, cause, cluster, node_id, node, gpu_uuid, link, title,
  since, coalesce(opened_ts, since, ts) AS opened_ts, resolved_ts, ts"""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it goes out; ``number`` counts within this process."""

    number: int
    name: str
    id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a listener stands: newest incident revision told, version of the fleet told."""

    told: datetime = _EPOCH
    version: str = "0"

    @property
    def id(self) -> str:
        """As the event's id."""
        return f"{(self.told - _EPOCH) // timedelta(microseconds=1)}.{self.version}"

    @classmethod
    def of(cls, text: str) -> Place | None:
        """From an id; none where it is none of ours."""
        found = _ID.fullmatch(text)
        if not found:
            return None
        with contextlib.suppress(OverflowError):
            return cls(_EPOCH + timedelta(microseconds=int(found[1])), found[2])
        return None


@dataclass(slots=True)
class Feed:
    """Looks every ``every_s`` seconds while the application runs; ``listeners`` counts who hears."""

    served: Served
    every_s: float = 2.0
    most: int = 64
    listeners: int = 0
    closing: bool = False
    place: Place = Place()
    _events: deque[Event] = field(default_factory=lambda: deque(maxlen=_MOST))
    _number: int = 0
    _seen: dict[str, int] = field(default_factory=dict)
    _table: int = -2
    _new: asyncio.Event = field(default_factory=asyncio.Event)
    _looked: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Look until cancelled. A lake that cannot be asked now is asked again."""
        self.closing, self._new = False, asyncio.Event()
        while True:
            try:
                with lake_problems():
                    fleet, rows = await asyncio.to_thread(self._look)
                self._take(fleet, rows)
                self._looked.set()
            except Problem as problem:
                structlog.get_logger().info("the stream waits for the lake", reason=problem.detail)
            await asyncio.sleep(self.every_s)

    def close(self) -> None:
        """Let every listener go; they come back to the next process."""
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        self._new.set()
        self._new = asyncio.Event()

    def _look(self) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """In a thread: the fleet if it changed, and revisions of incidents that are new."""
        fleet = summary(self.served) if self.served.fleet.now().version != self.place.version else None
        table = self.served.lake.version("incident")
        if table == self._table:
            return fleet, []
        first = self._table == -2
        since = self.served.clock() - _OVERLAP if first else self.place.told - _OVERLAP
        rows = changed(self.served, since)
        self._table = table
        if first:  # what was there before this process is for listeners that ask for it by their id
            self._seen = {row["incident_id"]: row["revision"] for row in rows}
            self.place = Place(max((row["ts"] for row in rows), default=since), self.place.version)
            rows = []
        return fleet, rows

    def _take(self, fleet: dict[str, Any] | None, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if self._seen.get(row["incident_id"], -1) < row["revision"]:
                self._seen[row["incident_id"]] = row["revision"]
                self.place = Place(max(self.place.told, row["ts"]), self.place.version)
                self._put("incident", row)
        if fleet is not None:
            self.place = Place(self.place.told, str(fleet["version"]))
            self._put("fleet", fleet)

    def _put(self, name: str, data: dict[str, Any]) -> None:
        self._number += 1
        self._events.append(Event(self._number, name, self.place.id, msgspec.json.encode(data)))
        self._wake()

    # --- listeners ------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Number of the newest event."""
        return self._number

    def after(self, number: int) -> list[Event] | None:
        """Events after that one, of ``fleet`` the newest only; none where they are not kept any more."""
        if self._events and number < self._events[0].number - 1:
            return None
        new = [event for event in self._events if event.number > number]
        newest = max((event.number for event in new if event.name == "fleet"), default=0)
        return [event for event in new if event.name != "fleet" or event.number == newest]

    async def first_look(self) -> None:
        """Wait until it has looked once: what comes later is told, what was before is asked for. Not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                await self._looked.wait()

    async def changes(self, seconds: float) -> None:
        """Wait for the next change, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._new.wait()


def changed(served: Served, since: datetime) -> list[dict[str, Any]]:
    """Latest revisions of incidents that changed from ``since`` on, in order of time."""
    return served.rows(
        f"SELECT {_COLUMNS} FROM incident WHERE ts >= {sql_time(since)} AND cluster = {quoted(served.cluster())} "  # noqa: S608
        f"QUALIFY row_number() OVER (PARTITION BY incident_id ORDER BY revision DESC) = 1 ORDER BY ts LIMIT {_MOST}"
    )


def summary(served: Served) -> dict[str, Any]:
    """The fleet in a few numbers, with its version."""
    now = served.fleet.now()
    return {
        "version": now.version,
        "at": now.at,
        "nodes": counts(now.nodes, "state"),
        "gpus": counts(now.gpus, "state"),
        "incidents": int(now.nodes["open_incidents"].sum() or 0) if "open_incidents" in now.nodes.columns else None,
    }


def counts(frame: Any, column: str) -> dict[str, int]:  # noqa: ANN401 (a polars frame)
    """How many rows of each value."""
    held = frame[column].value_counts(sort=False) if frame.height else None
    return {} if held is None else {str(value): int(n) for value, n in held.iter_rows()}
