"""What one receiver was told of each incident, and how many messages it had in the last hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

_HOUR: Final = timedelta(hours=1)
_RESERVE: Final = 12
"""Messages of an hour that are kept for those about many: one every five minutes, so that nothing waits longer."""


@dataclass(slots=True)
class Told:
    """Of one incident: the last revision that was told, when, and how often it was a reminder since then."""

    revision: int
    at: datetime
    reminders: int = 0
    over: bool = False


@dataclass(slots=True)
class Ledger:
    """``most_per_hour`` messages at most. Made anew from rows of table ``action`` at a start, in order of time."""

    most_per_hour: int
    told: dict[str, Told] = field(default_factory=dict)
    _sent: deque[datetime] = field(default_factory=deque)
    _bundled: datetime | None = None

    def note(self, row: Mapping[str, Any], *, over: bool) -> None:
        """A row of ``action``; only what was told counts. ``over``: the revision said that it is over."""
        if row.get("outcome") != "done" or row.get("kind") not in ("notify", "remind", "bundle"):
            return
        identity, at, revision = str(row["incident_id"]), row["ts"], int(row.get("revision") or 0)
        before = self.told.get(identity)
        if row["kind"] == "remind" and before is not None:
            before.at, before.reminders = at, before.reminders + 1
        else:
            self.told[identity] = Told(revision, at, over=over)
        if not (row["kind"] == "bundle" and self._sent and self._sent[-1] == at):
            self.sent(at, bundle=row["kind"] == "bundle")

    def sent(self, at: datetime, *, bundle: bool = False) -> None:
        """One message more."""
        self._sent.append(at)
        if bundle:
            self._bundled = at

    def has(self, identity: str) -> bool:
        """Whether the receiver knows of the incident and not yet of its end."""
        told = self.told.get(identity)
        return told is not None and not told.over

    def room(self, now: datetime, *, urgent: bool) -> bool:
        """Whether a message about one incident may go now; ``urgent`` ones may use what is kept for bundles."""
        self._forget(now)
        return len(self._sent) < self.most_per_hour - (0 if urgent else self._reserve)

    def bundle_at(self, now: datetime) -> datetime:
        """When a message about many may go."""
        self._forget(now)
        full = len(self._sent) >= self.most_per_hour
        spaced = self._bundled + _HOUR / max(self._reserve, 1) if self._bundled is not None else now
        return max(now, spaced, self._sent[0] + _HOUR if full else now)

    @property
    def _reserve(self) -> int:
        return min(_RESERVE, self.most_per_hour // 2)

    def _forget(self, now: datetime) -> None:
        while self._sent and now - self._sent[0] >= _HOUR:
            self._sent.popleft()
