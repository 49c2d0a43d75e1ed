"""The hard-event path: events on the bus → rules → incidents on the bus. No window, no lake, no wait.

What an event means is decided in milliseconds after it arrives; the agent's batch (seconds) is the larger part of
the way from kernel line to webhook.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Final, Protocol

import structlog

from graynode.detectors.event_rules import EventRules, is_clearing
from graynode.detectors.incidents import Incidents
from graynode.pipeline.bus import BusUnavailable, Consumer, OffsetGone, Partition, Received
from graynode.pipeline.codec import Unreadable, decode
from graynode.pipeline.schema import EVENTS, PEOPLE

GROUP: Final = "graynode-detect-events"
TOPICS: Final = (EVENTS, PEOPLE)
_SEEN: Final = 200_000
_TABLES: Final = ("event", "repair", "job", "node_state")


class Publish(Protocol):
    """Sends revisions and findings (``graynode.service.incident_bus.Publisher``)."""

    def __call__(self, revisions: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, Any]] = ()) -> None:
        """``BusUnavailable``: they are kept and go first at the next call."""
        ...

    def flush(self) -> None:
        """Send what waits."""
        ...


class HardEvents:
    """One reader of ``graynode.events``. ``lock`` guards ``incidents`` where others use them too.

    Offsets move only after what was said about the events is on the bus; an event that is read again says nothing
    new. Rows of table ``repair``, where the consumer reads them too, end what was known of the machine; rows of ``job``
    say whose error an application's Xid was.
    """

    def __init__(
        self,
        consumer: Consumer,
        incidents: Incidents,
        publish: Publish,
        clock: Callable[[], datetime],
        *,
        rules: Callable[[], EventRules] = EventRules,
        lock: AbstractContextManager[Any] | None = None,
        each_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._consumer, self._incidents, self._publish, self._clock = consumer, incidents, publish, clock
        self._new_rules, self._each_step = rules, each_step
        self._rules = rules()
        self._lock = lock or nullcontext()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._read: dict[Partition, int] = {}
        self._log = structlog.get_logger()

    def step(self, timeout_s: float = 0.5) -> int:
        """Take what is there; gives how many new events. ``BusUnavailable``: call again later, nothing is lost."""
        self._settle()
        self._each_step()
        received = self._consumer.poll(timeout_s)
        if not received:
            return 0
        events, repairs, jobs, states = self._rows(received)
        for r in received:
            self._read[r.partition] = r.offset + 1
        self._rules.placed(jobs)
        found = self._judged(events)
        now = self._clock()
        with self._lock:
            self._incidents.scheduler_says(states)
            revisions = self._incidents.add(found, now)
            for repair in repairs:
                node_id, gpu_uuid = str(repair["node_id"]), repair.get("gpu_uuid")
                revisions += self._incidents.repaired(node_id, now, gpu_uuid, repair.get("ts"))
            self._publish(revisions, [f for f in found if not is_clearing(f)])
        self._settle()
        return len(events)

    def run(self, stop: threading.Event, retry_s: float = 1.0) -> None:
        """``step`` until ``stop``; a bus that is away is waited for."""
        away = False
        while not stop.is_set():
            try:
                self.step()
                if away:
                    self._log.info("the bus is back")
                away = False
            except BusUnavailable as error:
                if not away:
                    self._log.warning("the bus is away; events wait", reason=str(error))
                away = True
                stop.wait(retry_s)
            except OffsetGone as error:
                self._log.warning("events have left the bus before they were read", reason=str(error))
                self._consumer.seek(error.partition, error.first)
        self._consumer.close()

    def _judged(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Findings of the events; one that no rule can bear costs itself only, and is said.

        Otherwise whoever may send events could end detection for all: it would be met again at every start.
        """
        try:
            return self._rules.findings(events)
        except Exception:
            self._rules = self._new_rules()  # a part of these events is in the memory of the one that failed
            return self._rules.findings([event for event in events if self._bearable(event)])

    def _bearable(self, event: dict[str, Any]) -> bool:
        try:
            self._new_rules().findings([event])
        except Exception as error:
            who = {name: str(event.get(name))[:100] for name in ("event_id", "node_id", "kind")}
            self._log.error("an event cannot be judged and is passed over", reason=repr(error)[:200], **who)
            return False
        return True

    def _settle(self) -> None:
        """Offsets after everything said is durable."""
        if self._read:
            self._publish.flush()
            held = self._consumer.assigned()
            self._consumer.commit({p: offset for p, offset in self._read.items() if p in held})
            self._read = {}

    def _rows(self, received: Sequence[Received]) -> tuple[list[dict[str, Any]], ...]:
        events: list[dict[str, Any]] = []
        repairs: list[dict[str, Any]] = []
        jobs: list[dict[str, Any]] = []
        states: list[dict[str, Any]] = []
        for r in received:
            table = r.message.headers.get("table")
            if table not in _TABLES:
                continue
            try:
                rows = decode(r.message).to_pylist()
            except Unreadable:
                continue  # the pipeline counts it and keeps it among the dead letters
            if table == "repair":
                repairs += rows
            elif table == "job":
                jobs += rows
            elif table == "node_state":
                states += rows
            else:
                events += [row for row in rows if self._is_new(row)]
        return events, repairs, jobs, states

    def _is_new(self, event: Mapping[str, Any]) -> bool:
        identity = event.get("event_id")
        if event.get("ts") is None or event.get("node_id") is None or identity in self._seen:
            return False
        if identity is not None:
            self._seen[identity] = None
            if len(self._seen) > _SEEN:
                self._seen.popitem(last=False)
        return True
