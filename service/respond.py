"""``graynode respond``: one consumer group and one thread per receiver, over ``graynode.incidents``.

A slow or dead receiver holds nobody but itself: its group stays where it is and goes on from there. An offset moves
when the incident has been told or finally refused, so an incident is told at least once, in order per node, whatever
dies in between. Every outcome is a row of table ``action``.
"""

from __future__ import annotations

import base64
import binascii
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import prometheus_client
import structlog

from graynode.collectors.base import utc_now
from graynode.pipeline.bus import Bus, BusRefused, BusUnavailable, Consumer, OffsetGone, Partition, Received
from graynode.pipeline.codec import Unreadable
from graynode.pipeline.schema import INCIDENTS, SEVERITIES, stable_id
from graynode.responders.base import Outcome, Responder
from graynode.responders.address import UnsafeUrl
from graynode.responders.webhook import Webhook
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import Webhook as WebhookSection
from graynode.service.incident_bus import Publisher, from_message
from graynode.service.process import serve_metrics
from graynode.service.quiet import Quiet
from graynode.service.wiring import make_bus

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
_BEAT_S: Final = 20.0
"""A member that polls less often than a broker's limit (minutes) loses its partitions; this is well below."""
_SAY_AGAIN_S: Final = 3600.0

TOLD = prometheus_client.Counter(
    "graynode_respond_outcomes", "Attempts to tell an incident, by outcome", ("receiver", "outcome")
)
WAITING = prometheus_client.Gauge(
    "graynode_respond_failing", "Attempts at the incident that a receiver does not take now; 0 is well", ("receiver",)
)


@dataclass(slots=True)
class _Trouble:
    """A receiver that does not take the present incident."""

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
    least: str = "ticket"
    clock: Callable[[], datetime] = utc_now
    jitter: Callable[[], float] = random.random
    queue: deque[Received] = field(default_factory=deque)
    trouble: _Trouble = field(default_factory=_Trouble)
    done: dict[Partition, int] = field(default_factory=dict)
    quiet: Quiet | None = None
    """Mutes and acks of people; without it nobody has said any."""

    def step(self, timeout_s: float = 0.5) -> float:
        """Tell what is there; gives the seconds to wait before the next step. ``BusUnavailable``: call again."""
        if not self.queue:
            self.queue += self.consumer.poll(timeout_s)
        while self.queue:
            first = self.queue[0]
            known = first.offset < self.done.get(first.partition, 0)  # the group was joined anew in between
            if first.partition in self.consumer.assigned() and not known:
                wait_s = self._tell(first)
                if wait_s > 0:
                    return wait_s
                self.done[first.partition] = first.offset + 1
            if first.partition in self.consumer.assigned():
                self.consumer.commit({first.partition: first.offset + 1})
            self.queue.popleft()
        return 0.0

    def run(self, stop: threading.Event) -> None:
        """``step`` until ``stop``. While a receiver is waited for, the group's membership is kept alive."""
        log = structlog.get_logger().bind(receiver=self.label)
        away = False
        while not stop.is_set():
            try:
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
        if self.quiet is not None:
            self.quiet.close()

    def _wait(self, wait_s: float, stop: threading.Event) -> None:
        while wait_s > 0 and not stop.wait(min(wait_s, _BEAT_S)):
            wait_s -= _BEAT_S
            self.queue += self.consumer.poll(0.0, max_messages=1)

    def _tell(self, received: Received) -> float:
        """0 once told or finally refused, else the seconds until the next attempt."""
        try:
            incident = from_message(received.message)
        except Unreadable:
            return 0.0  # the pipeline keeps it among the dead letters
        if _rank(incident.get("severity")) > _rank(self.least):
            return 0.0
        because = self.quiet.because(incident, self.clock()) if self.quiet is not None else ""
        if because:
            TOLD.labels(self.label, "refused").inc()
            self._note(incident, Outcome("refused", because, 0))
            return 0.0
        outcome = self.responder.respond(incident)
        TOLD.labels(self.label, outcome.outcome).inc()
        if outcome.outcome != "failed":
            self._note(incident, outcome)
            if self.quiet is not None:
                self.quiet.told(incident)
            self.trouble = _Trouble()
            WAITING.labels(self.label).set(0)
            return 0.0
        return self._again(incident, outcome)

    def _again(self, incident: Mapping[str, Any], outcome: Outcome) -> float:
        trouble, now = self.trouble, self.clock()
        trouble.attempts += 1
        WAITING.labels(self.label).set(trouble.attempts)
        if trouble.said_at is None or (now - trouble.said_at).total_seconds() >= _SAY_AGAIN_S:
            trouble.said_at = now
            self._note(incident, outcome)
        wait_s = trouble.wait_s * (0.5 + self.jitter() / 2)
        trouble.wait_s = min(trouble.wait_s * 2, _LONGEST_S)
        return max(wait_s, outcome.retry_after_s or 0.0, 0.001)

    def _note(self, incident: Mapping[str, Any], outcome: Outcome) -> None:
        """One row of table ``action``; of a failure the first and then one an hour."""
        log = structlog.get_logger().bind(receiver=self.label, incident=incident["incident_id"])
        say = log.info if outcome.outcome == "done" else log.warning
        say("incident told" if outcome.outcome == "done" else "incident not told", outcome=outcome.outcome,
            reason=outcome.reason, revision=incident["revision"], attempts=outcome.attempts)  # fmt: skip
        identity = (incident["incident_id"], incident["revision"], self.label, outcome.outcome, outcome.attempts)
        row = {key: incident.get(key) for key in ("cluster", "node_id", "node", "boot_id", "incident_id", "revision")}
        row |= {"ts": self.clock(), "action_id": stable_id("action", *identity), "responder": f"webhook:{self.label}"}
        row |= {"kind": "notify", "outcome": outcome.outcome, "reason": outcome.reason, "who": "graynode respond"}
        self.publisher.actions([row | {"attempts": outcome.attempts}])


def run(config: Config, stop: threading.Event) -> int:
    """Tell incidents until ``stop``. ``ConfigError`` where a receiver is configured wrongly."""
    receivers = {label: make_webhook(label, section) for label, section in config.respond.webhooks.items()}
    serve_metrics("respond", config.respond.metrics_listen)
    if not receivers:
        structlog.get_logger().warning("no receiver is configured: nobody is told", key="respond.webhooks")
        stop.wait()
        return 0
    bus = make_bus(config)
    publisher = Publisher(bus.producer(), config.cluster)
    wanted = {
        label: partial(make_delivery, bus, label, webhook, publisher, config.respond.webhooks[label].least)
        for label, webhook in receivers.items()
    }
    failed = _run_all(wanted, stop)
    for webhook in receivers.values():
        webhook.close()
    return 1 if failed else 0


def _run_all(wanted: Mapping[str, Callable[[], Delivery]], stop: threading.Event) -> bool:
    """One thread a receiver. True where one ended by itself: then all end, and a supervisor starts anew."""
    failed = threading.Event()

    def work(label: str, make: Callable[[], Delivery]) -> None:
        log = structlog.get_logger().bind(receiver=label)
        try:
            delivery = _once_there(make, stop, log)
            if delivery is not None:
                delivery.run(stop)
        except BusRefused as error:
            log.critical("the bus refuses us", reason=str(error))
            failed.set()
        except Exception:
            log.exception("a receiver's thread ended")
            failed.set()
        finally:
            stop.set()

    threads = [threading.Thread(target=work, args=item, name=f"webhook {item[0]}") for item in wanted.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed.is_set()


def _once_there(make: Callable[[], Delivery], stop: threading.Event, log: Any) -> Delivery | None:  # noqa: ANN401 (a structlog logger)
    """The delivery, as soon as the bus lets it join; none where ``stop`` comes first."""
    said = ""
    while not stop.is_set():
        try:
            return make()
        except BusUnavailable as error:
            if str(error) != said:
                log.warning("the bus is away; incidents wait", reason=str(error))
            said = str(error)
            stop.wait(_FIRST_S)
    return None


def make_delivery(bus: Bus, label: str, responder: Responder, publisher: Publisher, least: str) -> Delivery:
    """The delivery of one receiver, with a consumer group of its own."""
    quiet = Quiet(bus, f"graynode-respond-{label}-people")
    consumer = bus.consumer([INCIDENTS], f"graynode-respond-{label}")
    return Delivery(label, consumer, responder, publisher, least, quiet=quiet)


def make_webhook(label: str, section: WebhookSection) -> Webhook:
    """The receiver of a section. ``ConfigError`` names the key."""
    key = f"respond.webhooks.{label}"
    if not label or not all(c.isascii() and (c.isalnum() or c in "._-") for c in label):
        raise ConfigError(f"{key}: a receiver's name is letters, digits, dot, dash and underscore")
    try:
        secret = read_secret(section.secret_file, f"{key}.secret_file")
        return Webhook(
            section.url,
            secret,
            timeout_s=section.timeout_s,
            ca_file=section.ca_file,
            plain_http=section.plain_http,
        )
    except UnsafeUrl as error:
        raise ConfigError(f"{key}.url: {error}") from error
    except OSError as error:  # the CA file; ssl.SSLError is one too
        raise ConfigError(f"{key}.ca_file = {section.ca_file}: {error.strerror or error}") from error


def read_secret(path: Path, key: str) -> str:
    """The ``whsec_…`` secret of a file; a warning where others may read it. ``ConfigError`` where it is none."""
    try:
        secret = path.read_text(encoding="ascii").strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{key} = {path}: cannot be read: {error.strerror}; make it with a whsec_ secret") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} = {path}: not text; a secret is whsec_ and base64") from error
    try:
        long_enough = len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) >= 24
    except binascii.Error:
        long_enough = False
    if not secret.startswith("whsec_") or not long_enough:
        raise ConfigError(f"{key} = {path}: not a secret: whsec_ and the base64 of 24 bytes or more")
    if mode & 0o077:
        structlog.get_logger().warning("others may read a secret", key=key, file=str(path), way_out="chmod 600")
    return secret


def _rank(severity: Any) -> int:  # noqa: ANN401 (from JSON)
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0
