"""Rack and partition of nodes, for routes, labels and maintenance windows: read from the lake now and then.

A thread of its own: telling never waits for the lake. Until it has been read, and where it cannot be, nothing is known,
and routes say what then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import structlog

from graynode.collectors.base import utc_now
from graynode.service.config import Config

_FIELDS: Final = ("rack", "partition")

Table = Mapping[tuple[str, str], Mapping[str, str]]
"""By cluster and node id."""


class Places:
    """What is known of where nodes are. ``read`` gives all of it anew; a test gives its own."""

    def __init__(self, read: Callable[[], Table], every_s: float = 600.0) -> None:
        self._read, self._every_s = read, every_s
        self._table: Table = {}
        self._stop = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="places", daemon=True)

    def __call__(self, incident: Mapping[str, Any]) -> Mapping[str, str]:
        """Rack and partition of an incident's node; of what is about a rack, that rack."""
        node_id = str(incident.get("node_id"))
        if incident.get("subject") == "rack":
            return {"rack": node_id.removeprefix("rack:")}
        return self._table.get((str(incident.get("cluster")), node_id), {})

    def start(self, wait_s: float = 5.0) -> None:
        """Begin to read; returns once it was read the first time, or after ``wait_s``."""
        self._thread.start()
        self._first.wait(wait_s)

    def stop(self) -> None:
        """Read no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        said = ""
        while not self._stop.is_set():
            try:
                self._table = self._read()
                said = ""
            except Exception as error:  # whatever the lake's libraries raise: telling goes on without
                if repr(error) != said:
                    structlog.get_logger().warning("racks and partitions cannot be read", reason=str(error)[:300])
                said = repr(error)
            self._first.set()
            self._stop.wait(self._every_s)


def from_lake(config: Config, clock: Callable[[], datetime] = utc_now) -> Callable[[], Table]:
    """A reader of the configuration's lake, and of the site's file of places."""

    def read() -> Table:
        from graynode.pipeline.queries import Queries
        from graynode.service import places_file
        from graynode.service.fleet_now_facts import FactReader
        from graynode.service.wiring import make_lake

        lake = make_lake(config)
        queries = Queries(lake, memory_limit="512MB", threads=1)
        try:
            nodes = FactReader(lake, queries, places_file.read(config.detect.places_file)).read(clock()).nodes
        finally:
            queries.close()
        return {
            (str(row["cluster"]), str(row["node_id"])): {k: str(row[k]) for k in _FIELDS if row[k]}
            for row in nodes.select("cluster", "node_id", *_FIELDS).iter_rows(named=True)
        }

    return read
