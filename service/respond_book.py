"""What was told to whom, as the bus has it: read once at a start, so that ``respond`` needs no state of its own.

``graynode.incidents`` says what is open and ``graynode.actions`` what each receiver was told of it. Both groups commit
nothing, so a spool keeps what they read, up to its bound, as for ``detect``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.pipeline.bus import Bus
from graynode.pipeline.codec import Message, Unreadable, decode
from graynode.pipeline.schema import ACTIONS
from graynode.responders.message import moment
from graynode.responders.routes import rank
from graynode.service.incident_bus import read_all, read_incidents

_GROUP: Final = "graynode-respond-book"
OVER_KEPT: Final = timedelta(days=2)
"""How long what is over is of interest: it may have to be said yet, or opens again (within a day)."""


@dataclass(slots=True)
class Story:
    """One incident: its first and latest revision that the bus has, and how severe each was."""

    first: dict[str, Any]
    latest: dict[str, Any]
    ranks: dict[int, int] = field(default_factory=dict)

    def over_since(self) -> datetime | None:
        """When it ended; none while it is open."""
        if self.latest.get("state") != "resolved":
            return None
        return moment(self.latest.get("resolved_ts")) or moment(self.latest.get("ts"))

    def no_news(self) -> int:
        """The last revision that nobody new has to hear of: all of what is over, all but the latest of what is open."""
        return int(self.latest["revision"]) - (self.latest.get("state") != "resolved")


@dataclass(slots=True)
class Book:
    """Stories by incident, and rows of ``action`` about them by responder (``webhook:oncall``), in order of time."""

    stories: dict[str, Story] = field(default_factory=dict)
    actions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    past: dict[str, int] = field(default_factory=dict)
    """Up to which revision each incident is no news for a receiver that has just been added."""

    @classmethod
    def read(cls, bus: Bus, now: datetime) -> Book:
        """All of it. ``BusUnavailable``: call again."""
        book = cls()
        for revision in read_incidents(bus, f"{_GROUP}-incidents"):
            book.note(revision)
        book.past = {identity: story.no_news() for identity, story in book.stories.items()}
        book.stories = {
            identity: story
            for identity, story in book.stories.items()
            if (over := story.over_since()) is None or now - over <= OVER_KEPT
        }
        rows = read_all(bus, ACTIONS, f"{_GROUP}-actions", _actions)
        for row in sorted((r for r in rows if r["incident_id"] in book.stories), key=_when):
            book.actions.setdefault(str(row["responder"]), []).append(row)
        return book

    def note(self, revision: Mapping[str, Any]) -> None:
        """One revision, of an incident whose earlier ones were noted before."""
        told, number = dict(revision), int(revision["revision"])
        story = self.stories.setdefault(str(told["incident_id"]), Story(told, told))
        story.ranks[number] = rank(told.get("severity"))
        if number >= int(story.latest["revision"]):
            story.latest = told


def _actions(message: Message) -> list[dict[str, Any]]:
    if message.headers.get("table") != "action":
        raise Unreadable("no action")
    rows = decode(message).to_pylist()
    return [row for row in rows if isinstance(row.get("ts"), datetime) and row.get("incident_id")]


def _when(row: Mapping[str, Any]) -> tuple[datetime, int]:
    return row["ts"], int(row.get("revision") or 0)


def last_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The last row of each incident."""
    return {str(row["incident_id"]): row for row in rows}
