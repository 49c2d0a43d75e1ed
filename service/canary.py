"""graynode's own heartbeat through the alert path: ``detect`` sends it where incidents go, every few minutes.

It rides in the thread that judges hard events, so it stops when that thread hangs, the bus does not take messages, or
``respond`` or a receiver is away. ``respond`` tells it to receivers with ``canary = true`` and measures its age. It is
no incident: nothing counts it, and who reads incidents passes it over. Table ``canary`` keeps what was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from graynode.pipeline.bus import BusUnavailable
from graynode.pipeline.schema import stable_id
from graynode.service.config import Config

_NODE_ID: Final = "detect"


def sender(
    config: Config, send: Callable[[Mapping[str, Any]], None], clock: Callable[[], datetime]
) -> Callable[[], None]:
    """What ``detect`` calls at each step: nothing, where no receiver of the configuration wants a heartbeat."""
    if not any(receiver.canary for receiver in config.respond.receivers.values()):
        return lambda: None
    return Canary(config.cluster, send, clock, config.respond.canary_s)


class Canary:
    """Calls ``send`` with a row of table ``canary`` once in ``every_s``, the first time at once."""

    def __init__(
        self,
        cluster: str,
        send: Callable[[Mapping[str, Any]], None],
        clock: Callable[[], datetime],
        every_s: float = 300.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._send, self._clock = cluster, send, clock
        self._every_s, self._monotonic = every_s, monotonic
        self._due = monotonic()

    def __call__(self) -> None:
        """Send one, if it is time. A bus that is away has it afterwards, with what else waits for it."""
        if self._monotonic() < self._due:
            return
        self._due = self._monotonic() + self._every_s
        now = self._clock()
        row = {"ts": now, "cluster": self._cluster, "node_id": _NODE_ID}
        row["canary_id"] = stable_id("canary", self._cluster, now.isoformat())
        try:
            self._send(row)
        except BusUnavailable:
            return
