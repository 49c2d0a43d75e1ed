"""Many exporters asked in turn by one thread: spread over the interval, each with its own deadline and connection.

A target that hangs, drips, refuses or answers nonsense holds one connection and one timer, and nobody else waits
for it. Rows wait here until the collector's round takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import ssl
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from graynode.collectors.base import Row, utc_now
from graynode.collectors.dcgm.http import Client
from graynode.collectors.dcgm.node import Node
from graynode.collectors.dcgm.targets import MOST_TARGETS, Target
from graynode.collectors.dcgm.threads import apart

_log = structlog.get_logger()

_HOLD: Final = 256
_JOIN_S: Final = 3.0
_SPARE_FILES: Final = 256

Find = Callable[[], tuple[Sequence[Target], Sequence[str]]]
"""Gives the targets of now, and what is newly wrong with where they come from."""
Scraped = dict[str, list[Row]]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often, and how long at most. ``timeout_s`` is at most the interval."""

    interval_s: float = 10.0
    timeout_s: float = 5.0
    reread_s: float = 5.0
    """How often target files are looked at."""


class Scraper:
    """Runs from ``start`` to ``stop`` in a thread of its own, over ``fixed`` targets and those that ``find`` gives.

    ``make`` gives a target's node.
    """

    def __init__(
        self,
        fixed: Sequence[Target],
        find: Find,
        make: Callable[[Target], Node],
        pace: Pace,
        *,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        authorization: str = "",
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.fixed, self.find, self.make, self._pace, self._now = tuple(fixed), find, make, pace, now
        self._tls, self._authorization = tls, authorization
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._tasks: dict[Target, asyncio.Task[None]] = {}
        self.nodes: dict[Target, Node] = {}
        self._waiting: deque[Scraped] = deque()
        self.pages = 0
        """Attempts that have ended."""
        self.shed = 0
        """Attempts whose rows nobody took in time."""
        self.lags_s: deque[float] = deque(maxlen=4096)
        """How late the last attempts began."""
        self.failed = ""
        """Why the thread has ended by itself."""

    def start(self) -> None:
        """Begin; again is as good as once."""
        if self._thread is None:
            self.failed = ""
            self._thread = threading.Thread(target=self._main, name="scrape", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End; what waits stays to be taken."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            if self._loop is not None and self._stopping is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(_JOIN_S)

    def take(self) -> list[Scraped]:
        """The rows of all attempts that have ended since the last time."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._waiting.popleft())
        return taken

    @property
    def waiting(self) -> int:
        """Attempts whose rows wait."""
        return len(self._waiting)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            _log.error("scraping has ended by itself", error=self.failed)

    async def _run(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        began = self._loop.time()
        try:
            self._scrape(self.fixed, began)
            while not self._stopping.is_set():
                await self._look(began)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), self._pace.reread_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()

    async def _look(self, began: float) -> None:
        """Look for targets; where they are kept may hang, and those that are known go on."""
        found, trouble = await apart(self.find)
        for line in trouble:
            _log.warning("targets cannot be read", reason=line)
        named = {target.instance: target for target in (*found, *self.fixed)}
        self._scrape(list(named.values())[:MOST_TARGETS], began)

    def _scrape(self, found: Sequence[Target], began: float) -> None:
        """Begin with targets that are new, leave those that are gone."""
        wanted = set(found)
        for target in self._tasks.keys() - wanted:
            self._tasks.pop(target).cancel()
            self._hold(self.nodes.pop(target).leave(self._now()))
        _allow_files(len(wanted) + _SPARE_FILES)
        for target in found:
            if target not in self._tasks:
                self.nodes[target] = self.make(target)
                self._tasks[target] = asyncio.create_task(self._watch(target, self.nodes[target], began))

    async def _watch(self, target: Target, node: Node, began: float) -> None:
        loop, interval = asyncio.get_running_loop(), self._pace.interval_s
        client = Client(target.address, self._tls() if target.address.tls else None, self._authorization)
        # its own place in the interval, the same after a restart; this machine's exporter has no need to wait
        place = began + interval * (zlib.crc32(target.instance.encode()) / 2**32)
        due = loop.time() if target.own else place + interval * math.ceil(max(0.0, loop.time() - place) / interval)
        trouble = ""
        try:
            while True:
                due += interval * max(0, -((due - loop.time()) // interval) - 1)  # what was missed stays missed
                await asyncio.sleep(due - loop.time())
                self.lags_s.append(loop.time() - due)
                due += interval
                try:
                    await self._ask(client, node)
                except Exception as error:  # one page that we do not cope with must not end the watching
                    said = f"{type(error).__name__}: {error}"
                    if said != trouble:
                        _log.error("a page could not be made rows", target=target.instance, error=said, exc_info=error)
                    trouble = said
        finally:
            client.close()

    async def _ask(self, client: Client, node: Node) -> None:
        ts, started = self._now(), asyncio.get_running_loop().time()
        fetched = await client.fetch(min(self._pace.timeout_s, self._pace.interval_s))
        took_s = asyncio.get_running_loop().time() - started
        rows = node.take(fetched, ts, started, took_s)
        self.pages += 1
        self._hold(rows)

    def _hold(self, rows: Scraped) -> None:
        if len(self._waiting) >= _HOLD + 3 * len(self._tasks):
            with contextlib.suppress(IndexError):
                self._waiting.popleft()
                self.shed += 1
        self._waiting.append(rows)


def _allow_files(count: int) -> None:
    """Raise the soft limit of open files as far as is wanted and allowed; each target is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
