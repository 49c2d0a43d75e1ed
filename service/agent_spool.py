"""The agent's end of the bus: always the spool on this disk; with Kafka a forwarder carries on from there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from graynode.collectors.agent import Agent
from graynode.pipeline import bus_metrics
from graynode.pipeline.bus import Producer
from graynode.pipeline.spool import SpoolBus
from graynode.service.config import Config

_log = structlog.get_logger()

SPOOL_DIR: Final = "spool"
"""Folder in ``agent.state_dir`` where messages wait for Kafka."""
SKEW_S: Final = 15.0
"""A clock this far from the broker's is an event, and the node leaves peer tests (decided with the windows, which
close 15 s after their end)."""
_NOW_S: Final = 5.0
_ONCE_S: Final = 60.0


def _nothing_to_finish(once: bool) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Spool:
    """``producer`` takes the agent's messages; ``size_bytes`` tells what lies on disk.

    ``waiting_bytes`` is what still waits for the bus, ``skew_s`` this machine's clock minus the broker's where there
    is one, and ``finish`` forwards what is left: false if something waits for the next start.
    """

    producer: Producer
    size_bytes: Callable[[], int]
    waiting_bytes: Callable[[], int] = lambda: 0
    skew_s: Callable[[], float | None] = lambda: None
    finish: Callable[[bool], bool] = _nothing_to_finish


def open_spool(config: Config, stack: contextlib.ExitStack) -> Spool:
    """The spool for this configuration, closed with ``stack``.

    ``BusUnavailable`` or ``BusRefused`` say what is wrong with it, or with the files that Kafka needs; a broker
    that is away is no error.
    """
    if config.bus.kind == "spool":
        bus = SpoolBus(config.bus.spool_dir, config.bus.spool_max_bytes)
        return Spool(stack.enter_context(contextlib.closing(bus.producer())), bus.size_bytes)
    return _forwarding(config, stack)


def _forwarding(config: Config, stack: contextlib.ExitStack) -> Spool:
    from graynode.pipeline.kafka import KafkaBus
    from graynode.service.agent_forward import Forwarding, RingingProducer
    from graynode.service.wiring import make_bus

    kafka = make_bus(config)
    assert isinstance(kafka, KafkaBus)  # noqa: S101 (for mypy: the kind was asked before)
    bus = SpoolBus(config.agent.state_dir / SPOOL_DIR, config.agent.spool_max_bytes)
    at = config.bus.kafka
    forwarding = Forwarding(bus, kafka, lambda: kafka.create_topics(at.partitions, at.replication))
    producer = RingingProducer(bus.producer(), forwarding.ring)
    stack.callback(producer.close)

    def finish(once: bool) -> bool:
        done = forwarding.finish(_ONCE_S if once else _NOW_S)
        if not done:
            _log.warning("messages wait in the spool for the next start", because=forwarding.trouble)
        return done or not once

    return Spool(producer, bus.size_bytes, bus.size_bytes, lambda: forwarding.skew_s, finish)


def printing(stop: threading.Event) -> Spool:
    """In place of a spool for a dry run: what would be sent is printed; a reader that has gone ends the run."""
    from graynode.service.agent_print import Printer

    return Spool(Printer(stop.set), lambda: 0)


class BusHealth:
    """Gives the fields of table ``host`` that tell how the bus takes messages, in rounds of the 10 s class."""

    def __init__(self, spool: Spool, agent: Agent) -> None:
        self._spool, self._agent = spool, agent
        self._skewed = False

    def __call__(self, due: frozenset[int]) -> dict[str, Any]:
        """The fields; an event when the clock has come to differ too much, and when it is right again."""
        if 10 not in due:
            return {}
        skew_s = self._spool.skew_s()
        self._judge(skew_s)
        outbox = self._agent.outbox
        return {
            "spool_bytes": self._spool.waiting_bytes() + outbox.held_bytes,
            "spool_dropped": outbox.sent.dropped + _spool_dropped(),
            "clock_skew_s": skew_s,
        }

    def _judge(self, skew_s: float | None) -> None:
        if skew_s is None or (abs(skew_s) > SKEW_S) == self._skewed:
            return
        self._skewed = not self._skewed
        kind = "clock_skew" if self._skewed else "clock_skew_end"
        self._agent.tell(kind, f"this machine's clock differs by {skew_s:+.1f} s from the broker's", skew_s=skew_s)


def _spool_dropped() -> int:
    return int(sum(s.value for m in bus_metrics.DROPPED.collect() for s in m.samples if s.name.endswith("_total")))
