"""What becomes of each revision at one receiver: told now, held for later, refused, or none of its business.

Pure but for what people say (``Quiet``): no bus, no receiver, no clock. Nothing that is held is lost: it goes into one
message about many (the digest, the end of quiet hours, what was beyond the bound of an hour), or is told by itself when
a mute or a maintenance window is over and it is still open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from graynode.responders.base import Incident, Kind
from graynode.responders.hours import next_digest
from graynode.responders.routes import Decision, Routes
from graynode.service.quiet import Place, Quiet
from graynode.service.respond_book import Book, last_of
from graynode.service.respond_ledger import Ledger
from graynode.service.respond_tables import Receiver

Group = Literal["digest", "quiet", "people", "many"]
_GATHER: Final = timedelta(minutes=1)
"""What is beyond the bound waits so long for others like it."""
_PER_LOOK: Final = timedelta(milliseconds=20)
"""From one look at an incident that waits for people to the next, times their number."""
_WHY: Final[Mapping[Group, str]] = {
    "digest": "the digest of {at}", "quiet": "quiet hours are over", "people": "no longer muted",
    "many": "more than the bound of messages an hour",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """``tell``, ``hold``, ``refuse`` (with ``reason``: a row of ``action``), or ``pass``: not this receiver's."""

    what: Literal["tell", "hold", "refuse", "pass"]
    reason: str = ""


@dataclass(slots=True)
class Held:
    """One incident that waits, in its latest revision."""

    incident: Incident
    group: Group
    until: datetime


@dataclass(frozen=True, slots=True)
class Errand:
    """Something to be told that no new revision asks for: one incident, a reminder, or many in one message."""

    incidents: tuple[Incident, ...]
    kind: Kind | Literal["bundle"]
    why: str = ""


@dataclass(slots=True)
class Desk:
    """One receiver's. ``quiet`` is what people say; none: nobody says anything."""

    receiver: str
    terms: Receiver
    routes: Routes
    quiet: Quiet | None = None
    place: Place = lambda _: {}
    bundles: bool = True
    """False for a receiver that groups by itself: what was held is told one by one."""
    ledger: Ledger = field(init=False)
    open: dict[str, Incident] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    _past: Mapping[str, int] = field(default_factory=dict)
    _looked: datetime | None = None

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.terms.most_per_hour)

    def restore(self, book: Book, responder: str, now: datetime) -> None:
        """Take up where the rows of ``action`` left off: what was told, and what was held and not told since."""
        rows = book.actions.get(responder, [])
        self._past = {} if rows else book.past  # one that was never told anything begins with what is open now
        for row in rows:
            story = book.stories[row["incident_id"]]
            revision = int(row.get("revision") or 0)
            over = story.latest.get("state") == "resolved" and revision >= int(story.latest["revision"])
            self.ledger.note(row, over=over)
            if self.quiet is not None and row.get("outcome") == "done" and not over:
                self.quiet.told({**story.latest, "state": "updated", "severity": _severity(story.ranks.get(revision))})
        for identity, last in last_of(rows).items():
            story = book.stories[identity]
            if story.latest.get("state") != "resolved" and self.ledger.has(identity):
                self.open[identity] = story.latest
            if last.get("outcome") == "held":
                self._hold_again(story.latest, last["ts"], now)

    def _hold_again(self, incident: Incident, since: datetime, now: datetime) -> None:
        """It was held when the process ended: a digest that is due since then goes out now."""
        verdict, identity = self.judge(incident, now), str(incident["incident_id"])
        if verdict.what == "tell":
            self.held[identity] = Held(incident, "quiet", now)
        elif identity in self.held and self.held[identity].group == "digest":
            self.held[identity].until = next_digest(since, self.terms.digest_at, self.terms.timezone)

    def judge(self, incident: Incident, now: datetime) -> Verdict:
        """What becomes of this revision. What is held is kept here."""
        identity = str(incident["incident_id"])
        over, knows = incident.get("state") == "resolved", self.ledger.has(identity)
        waiting = self.held.get(identity)
        if int(incident["revision"]) <= self._past.get(identity, -1):
            return Verdict("pass")
        decision = self._decision(incident, now)
        if over and not knows:
            return self._over_untold(incident, waiting)
        if decision is None and not over:
            return Verdict("pass")
        self._follow(incident)
        told = self.ledger.told.get(identity)
        if told is not None and int(incident["revision"]) <= told.revision and not over:
            return Verdict("pass")  # it went out with others
        held = self._spared(incident, now) or self._later(incident, decision, now)
        if held is not None:
            return held
        self.held.pop(identity, None)
        return Verdict("tell")

    def told(self, incident: Incident, row: Mapping[str, Any]) -> None:
        """The receiver has it: a row of ``action`` that says so."""
        identity, over = str(incident["incident_id"]), incident.get("state") == "resolved"
        self.ledger.note(row, over=over)
        self.held.pop(identity, None)
        if self.quiet is not None:
            self.quiet.told(incident)

    def refused(self, incidents: Iterable[Incident]) -> None:
        """The receiver will never take these."""
        for incident in incidents:
            self.held.pop(str(incident["incident_id"]), None)

    def errand(self, now: datetime) -> Errand | None:
        """What is due now beside new revisions: what was held first, then reminders."""
        for group in ("people", "quiet", "digest", "many"):
            found = self._due(group, now)
            if found is not None:
                return found
        return self._reminder(now)

    def spared(self, now: datetime) -> dict[str, str]:
        """Open incidents that people do not want to hear of now, and why."""
        if self.quiet is None:
            return {}
        found = {}
        for identity, incident in self.open.items():
            spared = self.quiet.spared(incident, now)
            because = spared[0] if spared else self.quiet.because({**incident, "state": "updated"}, now)
            if because:
                found[identity] = because
        return found

    def _decision(self, incident: Incident, now: datetime) -> Decision | None:
        decisions = self.routes.decide(incident, self.place(incident), now)
        return next((d for d in decisions if d.receiver == self.receiver), None)

    def _follow(self, incident: Incident) -> None:
        identity = str(incident["incident_id"])
        if incident.get("state") == "resolved":
            self.open.pop(identity, None)
        else:
            self.open[identity] = incident

    def _over_untold(self, incident: Incident, waiting: Held | None) -> Verdict:
        """It is over, and this receiver was never told that it had begun."""
        self.open.pop(str(incident["incident_id"]), None)
        if waiting is None:
            return Verdict("pass")
        if waiting.group == "people":
            del self.held[str(incident["incident_id"])]
            return Verdict("refuse", "over before anybody was to be told")
        waiting.incident = incident  # the message about many says that it was there and is over
        return Verdict("hold", "over; it is told with the others that wait")

    def _spared(self, incident: Incident, now: datetime) -> Verdict | None:
        """What people do not want to hear of."""
        if self.quiet is None:
            return None
        spared = self.quiet.spared(incident, now)
        if spared is not None:
            return self._hold(incident, "people", spared[1], spared[0])
        because = self.quiet.because(incident, now)
        return Verdict("refuse", because) if because else None

    def _later(self, incident: Incident, decision: Decision | None, now: datetime) -> Verdict | None:
        if decision is not None and decision.deliver == "digest":
            due = next_digest(now, self.terms.digest_at, self.terms.timezone)
            return self._hold(incident, "digest", due, f"for the digest of {due:%Y-%m-%d %H:%M} UTC ({decision.route})")
        if decision is not None and decision.held_until is not None:
            until = decision.held_until
            said = f"quiet hours until {until:%Y-%m-%d %H:%M} UTC ({decision.route})"
            return self._hold(incident, "quiet", until, said)
        urgent = incident.get("severity") == "page"
        if not self.ledger.room(now, urgent=urgent):
            said = f"more than {self.terms.most_per_hour} messages in an hour: told with others"
            return self._hold(incident, "many", max(self.ledger.bundle_at(now), now + _GATHER), said)
        return None

    def _hold(self, incident: Incident, group: Group, until: datetime, reason: str) -> Verdict:
        self.held[str(incident["incident_id"])] = Held(incident, group, until)
        return Verdict("hold", reason)

    def _due(self, group: Group, now: datetime) -> Errand | None:
        if group == "people" and not self._look(now):
            return None
        found = []
        for identity, held in list(self.held.items()):
            if held.group != group or (held.until > now and group != "people"):
                continue
            spared = self.quiet.spared(held.incident, now) if self.quiet is not None else None
            if spared is not None:
                self.held[identity] = Held(held.incident, group, spared[1])
                continue
            found.append(held.incident)
        if not found:
            return None
        if (len(found) == 1 and group in ("quiet", "people")) or not self.bundles:
            return Errand((found[0],), "revision") if self.ledger.room(now, urgent=True) else None
        if self.ledger.bundle_at(now) > now:
            return None
        return Errand(tuple(found), "bundle", _WHY[group].format(at=f"{now:%Y-%m-%d %H:%M} UTC"))

    def _look(self, now: datetime) -> bool:
        """Whether to ask anew what people say of each that waits for them: the more there are, the more seldom."""
        waiting = sum(held.group == "people" for held in self.held.values())
        if self._looked is not None and now - self._looked < waiting * _PER_LOOK:
            return False
        self._looked = now
        return waiting > 0

    def _reminder(self, now: datetime) -> Errand | None:
        if not self.terms.remind_h or not self.terms.reminders:
            return None
        for identity, incident in self.open.items():
            told = self.ledger.told.get(identity)
            if told is None or told.over or told.reminders >= self.terms.reminders:
                continue
            if now - told.at < timedelta(hours=self.terms.remind_h) or identity in self.held:
                continue
            if self._wanted(incident, now) and self.ledger.room(now, urgent=False):
                return Errand(({**incident, "reminder": told.reminders + 1},), "reminder")
        return None

    def _wanted(self, incident: Incident, now: datetime) -> bool:
        """Whether a reminder is due to it: it pages here, nobody has taken it, and it is not muted."""
        decision = self._decision(incident, now)
        if decision is None or decision.deliver != "page" or decision.held_until is not None:
            return False
        return self.quiet is None or not (self.quiet.taken(incident) or self.quiet.spared(incident, now))


def _severity(rank_: int | None) -> str:
    return ("page", "ticket", "digest")[rank_] if rank_ is not None else "ticket"
