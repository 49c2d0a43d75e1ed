"""Answers that take long are made before anybody asks: the first page after a start must not wait for a week's sums."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import structlog

from graynode.service.api import fleet, money, reliability
from graynode.service.api.paging import Paging
from graynode.service.api.problems import Problem
from graynode.service.api.spans import Span
from graynode.service.api.state import Served

_EVERY_S: Final = 300.0
_FIRST_S: Final = 1.0
_END_S: Final = 20.0


class Warm:
    """Asks, in a thread between ``with`` and its end, what the overview pages and dashboards ask first."""

    def __init__(self, served: Served, every_s: float = _EVERY_S) -> None:
        self._served, self._every_s = served, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="graynode-warm", daemon=True)

    def __enter__(self) -> Warm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread; what it asks just now was broken off before (``Served.break_off``)."""
        self._stop.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while self._served.fleet.now().problem and not self._stop.wait(_FIRST_S):
            pass
        while not self._stop.is_set():
            for ask in self._asked():
                if self._stop.is_set():
                    return
                try:
                    ask()
                except Problem as problem:
                    structlog.get_logger().info("not made ahead", reason=problem.detail)
            self._stop.wait(self._every_s)

    def _asked(self) -> tuple[Callable[[], object], ...]:
        served, now = self._served, self._served.clock()
        span = Span(now - timedelta(days=1), now, said=False)
        return (
            lambda: fleet.read_fleet(served, span),
            lambda: fleet.read_history(served, span),
            lambda: money.read_lemons(served, Paging()),
            lambda: reliability.read_reliability(served, span),
            lambda: money.read_cost(served, span),
            lambda: money.read_capacity(served, "waiting"),
        )
