"""Tells Alertmanagers, by API v2, of everything that is open: now, and again every minute, since they forget.

The state is one alert an incident. A post says all of it; an Alertmanager that was restarted, or joins, knows within a
minute. Each alert ends ``hold_s`` after the post that told it last, so that a restart of graynode resolves nothing.
What is over is told for a while with its end, then forgotten. All Alertmanagers of one cluster are told, as Prometheus
does; one that took it is enough, and the others hear of it within a minute of their return.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Final

import msgspec

from graynode.responders.alert_labels import Alert, alert, canary, labels, place_labels
from graynode.responders.answers import utc_now
from graynode.responders.base import Incident, Kind, Outcome
from graynode.responders.message import Links, moment
from graynode.responders.post import Post
from graynode.responders.silences import Silences

PATH: Final = "/api/v2/alerts"
AGAIN_S: Final = 60.0
RESOLVED_KEPT: Final = timedelta(minutes=15)
"""As long as Prometheus repeats what is resolved."""
_AT_ONCE: Final = 500


@dataclass(slots=True)
class _Told:
    """What an Alertmanager is to know of one incident."""

    incident: Incident
    place: dict[str, str]
    labels: dict[str, str]
    ended: datetime | None = None


class Alertmanager:
    """One cluster of Alertmanagers. ``where`` gives rack and partition of an incident's node, as far as known."""

    name: ClassVar[str] = "alertmanager"

    def __init__(
        self,
        posts: Sequence[Post],
        *,
        links: Links | None = None,
        where: Callable[[Incident], Mapping[str, str]] = lambda _: {},
        hold_s: float = 1800.0,
        clock: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._posts, self._links, self._where = posts, links or Links(), where
        self._hold = timedelta(seconds=hold_s)
        self._clock, self._monotonic = clock, monotonic
        self._told: dict[str, _Told] = {}
        self._silences = Silences(posts, clock)
        self._due = 0.0

    def respond(self, incident: Incident, kind: Kind = "revision") -> Outcome:
        """Tell one at once. A reminder is told as its incident is: repeating is Alertmanager's own work."""
        if kind == "canary":
            return self._post(f"canary_{incident['canary_id']}", [canary(incident, self._clock() + self._hold)])
        return self._post(f"{incident['incident_id']}_{incident['revision']}", self._take(incident))

    def bundle(self, incidents: Sequence[Incident], why: str) -> Outcome:
        """Each is an alert of its own: grouping is Alertmanager's own work."""
        alerts = [alert_ for incident in incidents for alert_ in self._take(incident)]
        return self._post(f"bundle_{why}", alerts)

    def restore(self, revisions: Iterable[Incident]) -> None:
        """Take up the state after a start; the places of an incident are those of its first revision."""
        for revision in revisions:
            self._note(revision)

    def keep(self, spared: Callable[[], Mapping[str, str]]) -> Outcome | None:
        """All of the state again, a minute after the last time; ``spared`` are silenced there, and no others."""
        if self._monotonic() < self._due:
            return None
        self._due = self._monotonic() + AGAIN_S
        now = self._clock()
        for identity, told in list(self._told.items()):
            if told.ended is not None and now - told.ended > RESOLVED_KEPT:
                del self._told[identity]
        self._silences.set({i: t.labels for i, t in self._told.items() if t.ended is None}, spared())
        alerts = [self._alert(told, now) for told in self._told.values()]
        parts = [alerts[i : i + _AT_ONCE] for i in range(0, len(alerts), _AT_ONCE)]
        outcomes = [self._post("state", part) for part in parts]
        return next((o for o in outcomes if o.outcome != "done"), outcomes[0]) if outcomes else None

    def close(self) -> None:
        """Let go of connections."""
        for post in self._posts:
            post.close()

    def _take(self, incident: Incident) -> list[Alert]:
        """Note it; the alerts to post now: it, and the end of the alert that had other labels."""
        before = self._told.get(str(incident["incident_id"]))
        told, now = self._note(incident), self._clock()
        if told.ended is not None:
            self._silences.lift(told.labels)  # Alertmanager says nothing of the end of what it was told to be silent of
        old = []
        if before is not None and before.labels != told.labels and before.ended is None:
            old = [alert(before.incident, before.labels, self._links, now)]
        return [*old, self._alert(told, now)]

    def _note(self, incident: Incident) -> _Told:
        identity = str(incident["incident_id"])
        before = self._told.get(identity)
        place = before.place if before else place_labels(incident, self._where(incident))
        over = incident.get("state") == "resolved"
        ended = (moment(incident.get("resolved_ts")) or self._clock()) if over else None
        self._told[identity] = told = _Told(incident, place, labels(incident, place), ended)
        return told

    def _alert(self, told: _Told, now: datetime) -> Alert:
        ends = min(told.ended, now) if told.ended is not None else now + self._hold
        return alert(told.incident, told.labels, self._links, ends)

    def _post(self, identity: str, alerts: Sequence[Alert]) -> Outcome:
        """To all of them; done where one took it."""
        body = msgspec.json.encode(alerts)
        outcomes = [(post.url, post.send(identity, body, lambda _: {})) for post in self._posts]
        took = [o for _, o in outcomes if o.outcome == "done"]
        missed = "; ".join(f"{url}: {o.reason}" for url, o in outcomes if o.outcome != "done")
        if took:
            reason = f"{took[0].reason} from {len(took)} of {len(outcomes)}"
            return Outcome("done", f"{reason}; {missed}" if missed else reason, took[0].attempts)
        waiting = [o for _, o in outcomes if o.outcome == "failed"]
        last = waiting[0] if waiting else outcomes[0][1]
        asked = [o.retry_after_s for _, o in outcomes if o.retry_after_s is not None]
        return Outcome(last.outcome, missed, last.attempts, min(asked) if len(asked) == len(outcomes) else None)
