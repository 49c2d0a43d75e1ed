"""Tells incidents to an HTTP receiver, signed by the Standard Webhooks convention (``docs/webhook.md``).

One call is one attempt; what its answer means is said in ``graynode.responders.answers``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import msgspec
from standardwebhooks.webhooks import Webhook as Signer

from graynode.responders.base import Incident, Kind, Outcome
from graynode.responders.post import Post

TYPES: Final = {"open": "incident.opened", "updated": "incident.updated", "resolved": "incident.resolved"}
_KINDS: Final = {"reminder": "incident.reminder", "canary": "graynode.canary"}


class Webhook:
    """One receiver. ``secret`` is ``whsec_`` and base64; ``options`` are those of ``Post``."""

    name: ClassVar[str] = "webhook"

    def __init__(self, url: str, secret: str, **options: Any) -> None:  # noqa: ANN401 (those of Post)
        self._post = Post(url, **options)
        self._signer = Signer(secret)

    def respond(self, incident: Incident, kind: Kind = "revision") -> Outcome:
        """One attempt. ``failed`` asks to be called again with the same revision; ``refused`` is final."""
        return self._send(webhook_id(incident, kind), payload(incident, kind))

    def bundle(self, incidents: Sequence[Incident], why: str) -> Outcome:
        """One attempt at all of them in one message of type ``incident.bundle``."""
        ids = "|".join(webhook_id(i) for i in incidents)
        data = {"why": why, "incidents": list(incidents)}
        newest = max((str(i.get("ts")) for i in incidents), default=None)
        body = msgspec.json.encode({"type": "incident.bundle", "timestamp": newest, "data": data})
        return self._send(f"bundle_{hashlib.sha256(ids.encode()).hexdigest()[:32]}", body)

    def close(self) -> None:
        """Let go of connections."""
        self._post.close()

    def _send(self, identity: str, body: bytes) -> Outcome:
        def signed(now: datetime) -> Mapping[str, str]:
            return {
                "webhook-id": identity,
                "webhook-timestamp": str(int(now.timestamp())),
                "webhook-signature": self._signer.sign(identity, now.astimezone(UTC), body.decode()),
            }

        return self._post.send(identity, body, signed)


def webhook_id(incident: Incident, kind: Kind = "revision") -> str:
    """The same for every attempt at one revision, so that a receiver can drop what it has."""
    if kind == "canary":
        return f"canary_{incident['canary_id']}"
    suffix = f"_r{incident.get('reminder', 0)}" if kind == "reminder" else ""
    return f"{incident['incident_id']}_{incident['revision']}{suffix}"


def payload(incident: Incident, kind: Kind = "revision") -> bytes:
    """The body: ``type``, ``timestamp`` (of the revision) and ``data`` (``incident.v1``)."""
    type_ = _KINDS.get(kind) or TYPES.get(str(incident.get("state")), "incident.updated")
    told: dict[str, Any] = {"type": type_, "timestamp": incident.get("ts"), "data": incident}
    return msgspec.json.encode(told)
