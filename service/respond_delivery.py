"""Brings incidents to one receiver: in order, as patiently as it takes, every outcome a row of table ``action``.

An offset moves when the incident has been told, finally refused, or held with a row that says so. What is held, a
reminder, or a digest goes out between new incidents. A receiver that forgets is told all of the state every minute.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import structlog

from graynode.collectors.base import utc_now
from graynode.pipeline.bus import BusUnavailable, Consumer, OffsetGone, Partition, Received
from graynode.pipeline.codec import Unreadable, decode
from graynode.pipeline.schema import stable_id
from graynode.responders.base import Incident, Outcome, Responder, Standing
from graynode.responders.message import moment
from graynode.service import respond_metrics as metrics
from graynode.service.incident_bus import Publisher, from_message
from graynode.service.respond_desk import Desk, Errand

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
_BEAT_S: Final = 20.0
"""A member that polls less often than a broker's limit (minutes) loses its partitions; this is well below."""
_SAY_AGAIN_S: Final = 3600.0
_CANARY_LATE_S: Final = 600.0
"""An older heartbeat proves nothing any more; it is passed over."""
_KINDS: Final = {"revision": "notify", "reminder": "remind", "bundle": "bundle"}


@dataclass(slots=True)
class Trouble:
    """A receiver that does not take the present message."""

    attempts: int = 0
    said_at: datetime | None = None
    wait_s: float = _FIRST_S


@dataclass(slots=True)
class Delivery:
    """Brings the incidents of one consumer group to one receiver, one after the other."""

    label: str
    consumer: Consumer
    responder: Responder
    publisher: Publisher
    desk: Desk
    clock: Callable[[], datetime] = utc_now
    jitter: Callable[[], float] = random.random
    canary: metrics.CanaryWatch | None = None
    queue: deque[Received] = field(default_factory=deque)
    trouble: Trouble = field(default_factory=Trouble)
    done: dict[Partition, int] = field(default_factory=dict)
    errand: Errand | None = None
    _state: str = ""

    def step(self, timeout_s: float = 0.5) -> float:
        """Tell what is there; gives the seconds to wait before the next step. ``BusUnavailable``: call again."""
        wait_s = self._errands() if self.errand is not None else 0.0
        if wait_s > 0:
            return wait_s
        if not self.queue:
            self.queue += self.consumer.poll(timeout_s)
        while self.queue:
            first = self.queue[0]
            known = first.offset < self.done.get(first.partition, 0)  # the group was joined anew in between
            if first.partition in self.consumer.assigned() and not known:
                wait_s = self._take(first)
                if wait_s > 0:
                    return wait_s
                self.done[first.partition] = first.offset + 1
            if first.partition in self.consumer.assigned():
                self.consumer.commit({first.partition: first.offset + 1})
            self.queue.popleft()
        return self._errands()

    def run(self, stop: threading.Event) -> None:
        """``step`` until ``stop``. While a receiver is waited for, the group's membership is kept alive."""
        log = structlog.get_logger().bind(receiver=self.label)
        away = False
        while not stop.is_set():
            try:
                self._keep(log)
                self._wait(self.step(), stop)
                away = False
            except BusUnavailable as error:
                if not away:
                    log.warning("the bus is away; incidents wait", reason=str(error))
                away = True
                stop.wait(_FIRST_S)
            except OffsetGone as error:
                log.warning("incidents have left the bus before they were told", reason=str(error))
                self.consumer.seek(error.partition, error.first)
        self.consumer.close()
        if self.desk.quiet is not None:
            self.desk.quiet.close()

    def _wait(self, wait_s: float, stop: threading.Event) -> None:
        while wait_s > 0 and not stop.wait(min(wait_s, _BEAT_S)):
            wait_s -= _BEAT_S
            self.queue += self.consumer.poll(0.0, max_messages=1)

    def _keep(self, log: Any) -> None:  # noqa: ANN401 (a structlog logger)
        """A receiver that forgets is told all again; only a change of how that goes is said."""
        if not isinstance(self.responder, Standing):
            return
        outcome = self.responder.keep(lambda: self.desk.spared(self.clock()))
        if outcome is not None and outcome.reason != self._state:
            say = log.info if outcome.outcome == "done" else log.warning
            say("all that is open was told again", outcome=outcome.outcome, reason=outcome.reason)
            self._state = outcome.reason
        if outcome is not None:
            metrics.TOLD.labels(self.label, outcome.outcome).inc()

    def _take(self, received: Received) -> float:
        """0 once told, held or finally refused, else the seconds until the next attempt."""
        if received.message.headers.get("table") == "canary":
            self._canary(received)
            return 0.0
        try:
            incident = from_message(received.message)
        except Unreadable:
            return 0.0  # the pipeline keeps it among the dead letters
        verdict = self.desk.judge(incident, self.clock())
        metrics.HELD.labels(self.label).set(len(self.desk.held))
        if verdict.what == "tell":
            return self._send(Errand((incident,), "revision"))
        if verdict.what != "pass":
            outcome = Outcome("held" if verdict.what == "hold" else "refused", verdict.reason, 0)
            metrics.TOLD.labels(self.label, outcome.outcome).inc()
            self._note(incident, outcome, "notify")
        return 0.0

    def _canary(self, received: Received) -> None:
        """Tell a heartbeat, if this receiver wants it; once, for the next one comes soon."""
        if self.canary is None:
            return
        try:
            row = decode(received.message).to_pylist()[0]
        except (Unreadable, IndexError):
            return
        sent = row.get("ts")
        if isinstance(sent, datetime) and (self.clock() - sent).total_seconds() < _CANARY_LATE_S:
            outcome = self.responder.respond({k: v for k, v in row.items() if v is not None}, "canary")
            if outcome.outcome == "done":
                self.canary.took(sent)

    def _errands(self) -> float:
        """What is due beside new revisions, one after the other; the seconds to wait where one is not taken."""
        while True:
            self.errand = self.errand or self.desk.errand(self.clock())
            if self.errand is None:
                return 0.0
            wait_s = self._send(self.errand)
            if wait_s > 0:
                return wait_s
            self.errand = None
            metrics.HELD.labels(self.label).set(len(self.desk.held))

    def _send(self, errand: Errand) -> float:
        first = errand.incidents[0]
        outcome = self._attempt(errand)
        metrics.TOLD.labels(self.label, outcome.outcome).inc()
        if outcome.outcome == "failed":
            return self._again(first, outcome, errand)
        at = self.clock()
        for incident in errand.incidents:
            row = self._note(incident, outcome, _KINDS[errand.kind], at)
            if outcome.outcome == "done":
                self.desk.told(incident, row)
        if outcome.outcome != "done":
            self.desk.refused(errand.incidents)
        elif errand.kind == "bundle":
            metrics.BUNDLED.labels(self.label, errand.why.partition(" of ")[0]).inc(len(errand.incidents))
        elif errand.kind == "reminder":
            metrics.REMINDERS.labels(self.label).inc()
        self.trouble = Trouble()
        metrics.WAITING.labels(self.label).set(0)
        metrics.OLDEST.labels(self.label).set(0)
        return 0.0

    def _attempt(self, errand: Errand) -> Outcome:
        if errand.kind == "bundle":
            return self.responder.bundle(errand.incidents, errand.why)
        if errand.kind == "revision":
            return self.responder.respond(errand.incidents[0])
        return self.responder.respond(errand.incidents[0], errand.kind)

    def _again(self, incident: Incident, outcome: Outcome, errand: Errand) -> float:
        trouble, now = self.trouble, self.clock()
        trouble.attempts += 1
        metrics.WAITING.labels(self.label).set(trouble.attempts)
        since = moment(incident.get("ts")) or now
        metrics.OLDEST.labels(self.label).set(max(0.0, (now - since).total_seconds()))
        if trouble.said_at is None or (now - trouble.said_at).total_seconds() >= _SAY_AGAIN_S:
            trouble.said_at = now
            self._note(incident, outcome, _KINDS[errand.kind], now)
        wait_s = trouble.wait_s * (0.5 + self.jitter() / 2)
        trouble.wait_s = min(trouble.wait_s * 2, _LONGEST_S)
        return max(wait_s, outcome.retry_after_s or 0.0, 0.001)

    def _note(
        self, incident: Mapping[str, Any], outcome: Outcome, kind: str, at: datetime | None = None
    ) -> dict[str, Any]:
        """One row of table ``action``; of a failure the first and then one an hour."""
        log = structlog.get_logger().bind(receiver=self.label, incident=incident["incident_id"])
        say = log.info if outcome.outcome in ("done", "held") else log.warning
        words = {"done": "incident told", "held": "incident held"}
        say(words.get(outcome.outcome, "incident not told"), outcome=outcome.outcome, reason=outcome.reason,
            revision=incident["revision"], attempts=outcome.attempts, kind=kind)  # fmt: skip
        number = outcome.attempts if kind == "notify" else f"{kind}{incident.get('reminder', '')}{outcome.attempts}"
        identity = (incident["incident_id"], incident["revision"], self.label, outcome.outcome, number)
        row = {key: incident.get(key) for key in ("cluster", "node_id", "node", "boot_id", "incident_id", "revision")}
        row |= {"ts": at or self.clock(), "action_id": stable_id("action", *identity), "kind": kind}
        row |= {"responder": f"{getattr(self.responder, 'name', 'webhook')}:{self.label}", "outcome": outcome.outcome}
        row |= {"reason": outcome.reason, "who": "graynode respond", "attempts": outcome.attempts}
        self.publisher.actions([row])
        return row
