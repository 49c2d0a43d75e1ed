"""Incidents as they come off the bus, for tests of who tells them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from finding_rows import T0, event

from graynode.detectors.event_rules import from_events
from graynode.detectors.incidents import Incidents
from graynode.service.incident_bus import from_message, to_message


def incident(node: str = "n1", **other: Any) -> dict[str, Any]:
    """The first revision of an incident of a node: a GPU that has fallen off the bus, a page."""
    found = from_events([event(0, code=79, node_id=f"id-{node}", node=node)])
    told = Incidents("test").add(found, T0)[0]
    return from_message(to_message(told | other, 1, 1, T0))


def later(first: dict[str, Any], minutes: float = 5.0, **other: Any) -> dict[str, Any]:
    """The next revision of an incident."""
    at = T0 + timedelta(minutes=minutes)
    said = {"revision": first["revision"] + 1, "state": "updated", "ts": at, "updated_ts": at} | other
    times = {k: v.isoformat() for k, v in said.items() if hasattr(v, "isoformat")}
    return {**first, **said, **times}


def over(first: dict[str, Any], minutes: float = 10.0, **other: Any) -> dict[str, Any]:
    """Its end."""
    return later(first, minutes, **{"state": "resolved", "resolved_ts": T0 + timedelta(minutes=minutes), **other})
