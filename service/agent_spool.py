"""The agent's end of the bus: always the spool on this disk; with Kafka a forwarder carries on from there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from graynode.collectors.outbox import Outbox
from graynode.pipeline import bus_metrics
from graynode.pipeline.bus import Producer
from graynode.pipeline.spool import SpoolBus
from graynode.service.config import Config

SPOOL_DIR: Final = "spool"
"""Folder in ``agent.state_dir`` where messages wait for Kafka."""


@dataclass(frozen=True, slots=True)
class Spool:
    """``producer`` takes the agent's messages; ``size_bytes`` tells what lies on disk; ``skew_s`` this machine's
    clock minus the broker's, where there is one."""

    producer: Producer
    size_bytes: Callable[[], int]
    skew_s: Callable[[], float | None]
    forwards: bool


def open_spool(config: Config, stack: contextlib.ExitStack) -> Spool:
    """The spool for this configuration, closed with ``stack``. ``BusUnavailable`` says what is wrong with it."""
    if config.bus.kind == "spool":
        bus = SpoolBus(config.bus.spool_dir, config.bus.spool_max_bytes)
        producer = stack.enter_context(contextlib.closing(bus.producer()))
        return Spool(producer, bus.size_bytes, lambda: None, forwards=False)
    raise NotImplementedError


def printing(stop: threading.Event) -> Spool:
    """In place of a spool for a dry run: what would be sent is printed; a reader that has gone ends the run."""
    from graynode.service.agent_print import Printer

    return Spool(Printer(stop.set), lambda: 0, lambda: None, forwards=False)


def health_of(spool: Spool, outbox: Outbox) -> Callable[[frozenset[int]], dict[str, Any]]:
    """Gives the fields of table ``host`` that tell how the bus takes messages, in rounds of the 10 s class."""

    def probe(due: frozenset[int]) -> dict[str, Any]:
        if 10 not in due:
            return {}
        waiting = spool.size_bytes() if spool.forwards else 0
        dropped = outbox.sent.dropped + _spool_dropped()
        return {
            "spool_bytes": waiting + outbox.held_bytes,
            "spool_dropped": dropped,
            "clock_skew_s": spool.skew_s(),
        }

    return probe


def _spool_dropped() -> int:
    return int(sum(s.value for m in bus_metrics.DROPPED.collect() for s in m.samples if s.name.endswith("_total")))
