"""The responder contract: incidents out. The caller keeps order, counts, retries later and audits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

Incident = dict[str, Any]
"""One revision as in schema ``incident.v1``: the fields of table ``incident``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of telling one revision. ``retry_after_s`` is set where the receiver asks for patience."""

    outcome: Literal["done", "dry_run", "refused", "failed"]
    reason: str
    attempts: int = 1
    retry_after_s: float | None = None


class Responder(Protocol):
    """Tells one incident revision to one receiver."""

    name: ClassVar[str]

    def respond(self, incident: Incident) -> Outcome:
        """``failed`` asks to be called again with the same revision; ``refused`` is final."""
        ...
