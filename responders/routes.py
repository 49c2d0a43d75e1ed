"""Who is told of an incident, how, and why: an ordered list of routes, the first that fits decides.

Pure: an incident, what is known of its place, and the time in; decisions out. ``graynode routes test`` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from graynode.pipeline.schema import SEVERITIES
from graynode.responders.base import Incident
from graynode.responders.hours import QuietHours

Delivery = Literal["page", "ticket", "digest"]

_FROM_PLACE: Final = ("partition", "rack")
_FROM_INCIDENT: Final = ("severity", "cause", "cluster", "owner")
MATCHED: Final = (*_FROM_INCIDENT, *_FROM_PLACE)
"""What a route may ask for; patterns as of file names (``memory_*``)."""


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the list. ``wanted`` is patterns by what they are of; what is not named may be anything.

    ``deliver`` is empty for what the incident's severity says. Pages pass quiet hours unless ``quiet_pages``.
    """

    name: str
    receivers: tuple[str, ...]
    wanted: Mapping[str, tuple[str, ...]]
    deliver: Delivery | Literal[""] = ""
    quiet: QuietHours | None = None
    quiet_pages: bool = False
    go_on: bool = False

    def misfit(self, incident: Incident, place: Mapping[str, str]) -> str:
        """Why it is not this route's; empty: it is."""
        for key, patterns in self.wanted.items():
            value = str((place if key in _FROM_PLACE else incident).get(key) or "")
            if not any(fnmatchcase(value, pattern) for pattern in patterns):
                return f"{key} {value or 'unknown'!r} is none of {', '.join(patterns)}"
        return ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One receiver is told of an incident in this way. ``held_until`` is the end of quiet hours."""

    receiver: str
    deliver: Delivery
    route: str
    held_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Routes:
    """``least`` is the least severity that each receiver wants, whatever the routes say; its keys are all receivers.

    ``at_once``: receivers that are programs, to which without routes a digest's incidents are told one by one.
    """

    routes: Sequence[Route]
    least: Mapping[str, str]
    at_once: frozenset[str] = frozenset()

    def decide(self, incident: Incident, place: Mapping[str, str], now: datetime) -> list[Decision]:
        """One decision a receiver, in the routes' order; the first route that names a receiver decides for it."""
        found: dict[str, Decision] = {}
        matched = False
        for route in self.routes:
            if route.misfit(incident, place):
                continue
            matched = True
            for name in route.receivers:
                if name not in found and self._wants(name, incident):
                    found[name] = _decision(route, name, incident, now)
            if not route.go_on:
                break
        if not self.routes:
            return [self._plain(name, incident) for name in self.least if self._wants(name, incident)]
        if not matched and incident.get("severity") not in ("ticket", "digest"):
            said = "no route fits, and a page is told to everybody"
            return [Decision(name, "page", said) for name in self.least]
        return list(found.values())

    def _plain(self, name: str, incident: Incident) -> Decision:
        deliver = _by_severity(incident)
        if deliver == "digest" and name in self.at_once:
            deliver = "ticket"
        return Decision(name, deliver, "no routes: every receiver, from its least severity on")

    def _wants(self, name: str, incident: Incident) -> bool:
        return rank(incident.get("severity")) <= rank(self.least.get(name))


def rank(severity: Any) -> int:  # noqa: ANN401 (from JSON)
    """0 is the most urgent; what is unknown is a page."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


def _by_severity(incident: Incident) -> Delivery:
    known: tuple[Delivery, ...] = ("page", "ticket", "digest")
    return known[rank(incident.get("severity"))]


def _decision(route: Route, name: str, incident: Incident, now: datetime) -> Decision:
    deliver = route.deliver or _by_severity(incident)
    hears = route.quiet is None or (deliver == "page" and not route.quiet_pages)
    return Decision(name, deliver, route.name, None if hears or route.quiet is None else route.quiet.until(now))
