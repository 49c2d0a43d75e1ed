"""A maintenance window as a row of table ``maintenance`` says it, and what it covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

SCOPES: Final = ("node", "rack", "partition", "all")


@dataclass(frozen=True, slots=True)
class Window:
    """One window as it was said last."""

    maintenance_id: str
    cluster: str
    scope: str
    name: str
    since: datetime
    until: datetime
    ts: datetime
    why: str = ""
    who: str = ""
    node: str = ""

    @property
    def of(self) -> str:
        """What it is of, as people call it."""
        return self.scope if self.scope == "all" else f"{self.scope} {self.node or self.name}"

    def holds(self, now: datetime) -> bool:
        """Whether it is now."""
        return self.since <= now < self.until

    def covers(self, incident: Mapping[str, Any], place: Mapping[str, str]) -> bool:
        """Whether an incident is about a node of it; ``place`` has rack and partition, as far as known."""
        if str(incident.get("cluster")) != self.cluster:
            return False
        if self.scope == "node":
            return self.name in (incident.get("node_id"), incident.get("node"))
        return self.scope == "all" or (self.scope in SCOPES and place.get(self.scope) == self.name)

    def said(self) -> str:
        """In words."""
        return f"maintenance of {self.of} until {self.until:%Y-%m-%d %H:%M} UTC, says {self.who or 'somebody'}"


def window_of(row: Mapping[str, Any]) -> Window | None:
    """A row of table ``maintenance``; none where it says no window."""
    times = [row.get(name) for name in ("since", "until", "ts")]
    since, until, ts = (t.astimezone(UTC) if isinstance(t, datetime) else None for t in times)
    if since is None or until is None or ts is None or row.get("scope") not in SCOPES:
        return None
    texts = {k: str(row.get(k) or "") for k in ("maintenance_id", "cluster", "scope", "name", "why", "who", "node")}
    return Window(**texts, since=since, until=until, ts=ts)
