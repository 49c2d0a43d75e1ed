"""An incident as an alert of Alertmanager: labels that stay, annotations that may change.

Labels are what on-call teams route, group and silence by, so nothing that changes with time is among them; Alertmanager
takes an alert with another label for another alert. Where a thing is (node, GPU slot, link, rack, partition) is fixed
when it is first told; cause, severity and owner follow the incident, and the alert that had the old ones is ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from graynode.responders.base import Incident
from graynode.responders.message import Links, clean, moment, title, why

CANARY: Final = "GraynodeCanary"
_OWN_PLACE: Final = frozenset({"node", "gpu", "link"})

Alert = dict[str, Any]


def place_labels(incident: Incident, where: Mapping[str, str]) -> dict[str, str]:
    """The part that is fixed when an incident is first told; ``where`` has rack and partition, if known."""
    subject = clean(incident.get("subject"))
    told = {
        "cluster": clean(incident.get("cluster")),
        "node": clean(incident.get("node")),
        "gpu": clean(incident.get("pci_bus_id") or incident.get("gpu_uuid")),
        "link": clean(incident.get("link")),
        "subject": "" if subject in _OWN_PLACE else f"{subject} {clean(incident.get('node_id'))}".strip(),
        "rack": clean(where.get("rack")),
        "partition": clean(where.get("partition")),
    }
    return {name: value for name, value in told.items() if value}


def labels(incident: Incident, place: Mapping[str, str]) -> dict[str, str]:
    """All labels: the place, and what the incident is now."""
    cause = clean(incident.get("cause"))
    now = {"severity": clean(incident.get("severity")), "owner": clean(incident.get("owner")), "cause": cause}
    name = "Graynode" + "".join(word.capitalize() for word in cause.split("_"))
    return {"alertname": name, **place, **{key: value for key, value in now.items() if value}}


def annotation_texts(incident: Incident, links: Links) -> dict[str, str]:
    """What people read: summary, description, next step, links, and the command to look."""
    told = {
        "summary": title(incident),
        "description": "\n".join(why(incident)),
        "action": clean(incident.get("action")),
        "next_step": clean(incident.get("next_step")),
        "since": clean(incident.get("since")),
        "job": clean(incident.get("job_id")),
        "incident": clean(incident.get("incident_id")),
        "look": f"graynode explain {clean(incident.get('incident_id'))[:8]}",
        "page_url": links.incident(incident),
        "runbook_url": links.runbook(incident),
    }
    return {name: value for name, value in told.items() if value}


def alert(incident: Incident, labels_: Mapping[str, str], links: Links, ends: datetime) -> Alert:
    """The alert as ``POST /api/v2/alerts`` takes it. It ends at ``ends`` unless it is told again before."""
    starts = moment(incident.get("opened_ts")) or moment(incident.get("since")) or ends
    told: Alert = {
        "labels": dict(labels_),
        "annotations": annotation_texts(incident, links),
        "startsAt": iso(min(starts, ends - timedelta(seconds=1))),
        "endsAt": iso(ends),
    }
    page = links.incident(incident)
    return told | ({"generatorURL": page} if page else {})


def canary(row: Incident, ends: datetime) -> Alert:
    """The heartbeat as an alert that always fires: when it stops, the way to here is broken."""
    told = {"alertname": CANARY, "cluster": clean(row.get("cluster")), "severity": "none"}
    said = {"summary": "graynode's own heartbeat; route it to a dead man's switch"}
    starts = iso(min(moment(row.get("ts")) or ends, ends - timedelta(seconds=1)))
    return {"labels": told, "annotations": said, "startsAt": starts, "endsAt": iso(ends)}


def iso(when: datetime) -> str:
    """RFC 3339, UTC."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
