"""``graynode respond``: one consumer group and one thread per receiver, over ``graynode.incidents``.

A slow or dead receiver holds nobody but itself: its group stays where it is and goes on from there. An offset moves
when the incident has been told, finally refused or held for later, so an incident is told at least once, in order per
node, whatever dies in between. Who is told of what, and when, is in ``respond_desk``; every outcome is a row of table
``action``, and a start takes up what those rows say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import structlog

from graynode.collectors.base import utc_now
from graynode.pipeline.bus import Bus, BusRefused, BusUnavailable
from graynode.pipeline.schema import INCIDENTS
from graynode.responders.base import Responder, Standing
from graynode.responders.routes import Routes
from graynode.service.config import Config
from graynode.service.incident_bus import Publisher
from graynode.service.process import serve_metrics
from graynode.service.quiet import Place, Quiet
from graynode.service.respond_book import Book
from graynode.service.respond_config import make_routes, unrouted
from graynode.service.respond_delivery import Delivery
from graynode.service.respond_desk import Desk
from graynode.service.respond_make import make_receivers
from graynode.service.respond_metrics import CanaryWatch
from graynode.service.respond_picture import picture
from graynode.service.respond_places import Places, from_lake
from graynode.service.respond_tables import Receiver
from graynode.service.wiring import make_bus

_FIRST_S: Final = 1.0
_PLACES_S: Final = 5.0
"""How long a start waits for racks and partitions, where routes ask for them or alerts are labelled by them."""


def run(config: Config, stop: threading.Event) -> int:
    """Tell incidents until ``stop``. ``ConfigError`` where a receiver or a route is configured wrongly."""
    respond, log = config.respond, structlog.get_logger()
    places = Places(from_lake(config), respond.places_every_s)
    routes = make_routes(respond)
    receivers = make_receivers(respond, places, picture)
    serve_metrics("respond", respond.metrics_listen)
    if not receivers:
        log.warning("no receiver is configured: nobody is told", key="respond.webhooks")
        stop.wait()
        return 0
    for name in unrouted(respond):
        log.warning("no route names this receiver: it hears only pages that no route fits", receiver=name)
    with ExitStack() as held:
        for receiver in receivers.values():
            held.callback(receiver.close)
        asked = {key for route in routes.routes for key in route.wanted} & {"rack", "partition"}
        places.start(_PLACES_S if asked or respond.alertmanagers else 0.0)
        held.callback(places.stop)
        bus = make_bus(config)
        producer = bus.producer()
        held.callback(producer.close)
        publisher = Publisher(producer, config.cluster)
        library = _Library(bus)
        wanted = {
            name: partial(join, bus, name, receiver, publisher, respond.receivers[name], routes, places, library.book)
            for name, receiver in receivers.items()
        }
        return 1 if _run_all(wanted, stop) else 0


class _Library:
    """The book that all receivers of a process begin with, read once, by whoever comes first."""

    def __init__(self, bus: Bus) -> None:
        self._bus, self._lock = bus, threading.Lock()
        self._book: Book | None = None

    def book(self) -> Book:
        """``BusUnavailable``: call again."""
        with self._lock:
            if self._book is None:
                self._book = Book.read(self._bus, utc_now())
            return self._book


def join(
    bus: Bus, label: str, responder: Responder, publisher: Publisher, terms: Receiver, routes: Routes, place: Place,
    book: Callable[[], Book] = Book,
) -> Delivery:  # fmt: skip
    """The delivery of one receiver, with a consumer group of its own, at the place where the last one ended."""
    known = book()
    quiet = Quiet(bus, f"graynode-respond-{label}-people", place=place)
    standing = isinstance(responder, Standing)
    desk = Desk(label, terms, routes, quiet, place, bundles=not standing)
    desk.restore(known, f"{getattr(responder, 'name', 'webhook')}:{label}", utc_now())
    if isinstance(responder, Standing):
        told = [known.stories[identity] for identity in desk.ledger.told if identity in known.stories]
        responder.restore(revision for story in told for revision in (story.first, story.latest))
    canary = CanaryWatch(label, utc_now) if terms.canary else None
    consumer = bus.consumer([INCIDENTS], f"graynode-respond-{label}")
    return Delivery(label, consumer, responder, publisher, desk, canary=canary)


def make_delivery(bus: Bus, label: str, responder: Responder, publisher: Publisher, least: str) -> Delivery:
    """The delivery of one receiver that has no routes: it hears of everything from ``least`` on."""
    routes = Routes((), {label: least}, frozenset({label}))
    return join(bus, label, responder, publisher, Receiver(), routes, lambda _: {}, lambda: Book.read(bus, utc_now()))


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

    threads = [threading.Thread(target=work, args=item, name=f"receiver {item[0]}") for item in wanted.items()]
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
