"""The responder contract: incidents out. The caller routes, keeps order, counts, retries later and audits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

Incident = dict[str, Any]
"""One revision as in schema ``incident.v1``: the fields of table ``incident``. A reminder's has ``reminder`` beside
them, which counts from 1; a canary's are those of table ``canary``."""

Kind = Literal["revision", "reminder", "canary"]
"""Something new; an open page that nobody has taken; the heartbeat that proves the way."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of telling one revision. ``retry_after_s`` is set where the receiver asks for patience."""

    outcome: Literal["done", "dry_run", "refused", "failed", "held"]
    reason: str
    attempts: int = 1
    retry_after_s: float | None = None


class Responder(Protocol):
    """Tells incidents to one receiver. One call is one attempt and takes no longer than the receiver's timeout.

    ``failed`` asks to be called again with the same; ``refused`` is final; ``held`` is never a responder's answer.
    """

    name: ClassVar[str]

    def respond(self, incident: Incident, kind: Kind = "revision") -> Outcome:
        """One attempt at one revision, reminder or canary."""
        ...

    def bundle(self, incidents: Sequence[Incident], why: str) -> Outcome:
        """One attempt at many in one message: a digest, or what was held. ``why`` names it and is its identity."""
        ...


@runtime_checkable
class Standing(Protocol):
    """A receiver that forgets what it is not told again and again."""

    def restore(self, revisions: Iterable[Incident]) -> None:
        """Take up the state after a start: revisions of what is open, or was a while ago, the oldest first."""
        ...

    def keep(self, spared: Callable[[], Mapping[str, str]]) -> Outcome | None:
        """Tell all of it again where that is due, else none. ``spared``: incidents not to be heard of now, and why."""
        ...
