"""Many nodes with one cause within minutes are one event: a driver roll-out, a rack's power, a switch.

Findings of one round are grouped by the detectors themselves (``shifts``); this is for what comes one by one, hard
events and nodes that cross their thresholds in different rounds. From the third node of a rack, domain or switch on
that is concerned by half, the fifth of a job or driver, or the tenth with something sudden, what would open another
node's incident joins one about the place.
Faults that single GPUs have by their own nature (lost, memory) are never grouped; of hosts' faults only those of
what many share: a file server, a service that a roll-out broke, each by its name.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.detectors.cases import SHARED, Case
from graynode.detectors.context import Context
from graynode.detectors.evidence import Finding, details, moment
from graynode.detectors.places import Place
from graynode.detectors.shifts import NAMED_NODES, SUDDEN, about

NODES: Final = 10
"""So many nodes by chance within five minutes is implausible at any fleet's fault rate (6.5 in 1,000 node-days)."""
_FEW: Final = 3
WITHIN: Final = timedelta(minutes=5)
WITH_IT: Final = timedelta(minutes=30)
"""What began half an hour before a shift or later is a part of it: sums reach their thresholds at different times."""
CAUSES: Final = frozenset({
    "monitoring_blind", "driver_fault", "nvlink_fault", "link_down", "link_flap", "link_errors", "link_degraded",
    "network_fault", "clock_skew", "thermal", "power_brake", "slow_gpu", "unusual",
})  # fmt: skip
_SHARED_HOST: Final = ("mount_hung_", "mount_failing_", "service_failed_", "service_restarted_")
"""Signals of ``host_fault`` that many nodes have for one reason; their ends name the mount or the service."""
_KEPT: Final = 100_000
_NAMES_KEPT: Final = 1_000


class Storms:
    """Remembers which nodes have opened an incident, of what and when."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._opened: OrderedDict[str, OrderedDict[str, tuple[datetime, Finding]]] = OrderedDict()

    def opening(self, finding: Finding, now: datetime, context: Context) -> Finding:
        """The finding as it is, or, in a storm, as one about the place."""
        if not _groupable(finding):
            return finding
        opened = self._opened.setdefault(_kind(finding), OrderedDict())
        while len(self._opened) > _NAMES_KEPT:
            self._opened.popitem(last=False)
        for old in [n for n, (when, _) in opened.items() if now - when > WITHIN]:
            del opened[old]
        node_id = str(finding["node_id"])
        opened[node_id] = (now, finding)
        opened.move_to_end(node_id)
        while len(opened) > _KEPT:
            opened.popitem(last=False)
        if len(opened) < _FEW:
            return finding
        place = context.best([(n, "") for n in opened], str(finding["cause"]))
        if place is not None and node_id in place.nodes:
            return _about([f for n, (_, f) in opened.items() if n in place.nodes], finding, place)
        began = _since(finding)
        with_it = [f for _, f in opened.values() if abs(_since(f) - began) <= WITHIN]
        if len(with_it) < NODES or not (finding["cause"] in SUDDEN or _kind(finding) != finding["cause"]):
            return finding
        whole = Place("cluster", self._cluster, frozenset((str(f["node_id"]), "") for f in with_it))
        return _about(with_it, finding, whole)


def _since(finding: Mapping[str, Any]) -> datetime:
    since: datetime = moment(finding.get("since")) or finding["ts"]
    return since


def covers(shift: Case, finding: Mapping[str, Any], context: Context) -> bool:
    """Whether a finding, or an incident of a node, is a part of a shift that is open."""
    subject = str(shift.told.get("subject"))
    if subject not in SHARED or finding.get("subject") in SHARED:
        return False
    if _kind(finding) not in _kinds(shift):
        return False
    since = _since(finding)
    if since < shift.since - WITH_IT or finding["ts"] < shift.since - WITH_IT:
        return False
    node_id = str(finding.get("node_id"))
    if subject == "cluster" or node_id in shift.nodes:
        return True
    place = str(shift.told["node_id"]).partition(":")[2]
    if subject == "rail" and finding.get("link") != place:
        return False
    return node_id in context.nodes(subject, place)


def contains(shift: Case, other: Case, context: Context) -> bool:
    """Whether another shift, of the same kind of trouble, is a part of this one: a rack of the driver that rolls."""
    if other.told.get("subject") not in SHARED or not other.nodes or len(other.nodes) >= len(shift.nodes):
        return False
    if not (_kinds(shift) & _kinds(other)) or other.since < shift.since - WITH_IT:
        return False
    subject, place = str(shift.told["subject"]), str(shift.told["node_id"]).partition(":")[2]
    return subject == "cluster" or other.nodes.keys() <= shift.nodes.keys() | context.nodes(subject, place)


def joined(shift: Case, finding: Finding) -> dict[str, Any]:
    """The finding as one about the shift that it is a part of."""
    shift.nodes[str(finding["node_id"])] = None
    worst = shift.entries[0]
    names = list(shift.nodes)
    more = {"hold": False, "nodes": names[:NAMED_NODES], "nodes_told": len(names)}
    more |= {k: worst[k] for k in ("of_cause", "title", "owner", "next_step", "shared") if worst.get(k) is not None}
    return _shared(finding, shift.told, {"value": float(len(names)), "unit": "nodes"}, more) | {
        "message": f"{len(names)} nodes within minutes: {finding.get('message')}",
        "action": worst.get("action"),
    }


def _kind(finding: Mapping[str, Any]) -> str:
    """What makes two findings one storm: the cause, and of a host's faults the mount or service."""
    signal = str(finding.get("signal"))
    return signal if finding.get("cause") == "host_fault" and signal.startswith(_SHARED_HOST) else str(finding["cause"])


def _kinds(shift: Case) -> set[str]:
    return {_kind({"cause": e.get("of_cause"), "signal": e["signal"]}) for e in shift.entries}


def _groupable(finding: Finding) -> bool:
    kind = _kind(finding)
    shared = kind in CAUSES or kind.startswith(_SHARED_HOST)
    return shared and finding.get("subject") not in SHARED and bool(finding.get("node_id"))


def _about(group: Sequence[Finding], finding: Finding, place: Place) -> dict[str, Any]:
    said = about([dict(finding), *(dict(f) for f in group if f is not finding)], place, len(place.nodes))
    more = details(finding)
    more.pop("pci_bus_id", None)
    names = [str(f["node_id"]) for f in group]
    more |= said.pop("evidence") | {"hold": False, "nodes": names[:NAMED_NODES], "action_source": "graynode"}
    more["nodes_told"] = len(names)
    return _shared(finding, said, {"value": float(len(names)), "unit": "nodes"}, more) | {
        "cause": said["cause"],
        "message": f"{len(names)} nodes within minutes: {finding.get('message')}",
        "action": said["action"],
    }


def _shared(
    finding: Finding, place: Mapping[str, Any], value: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        **finding,
        **value,
        "subject": place["subject"],
        "node_id": place["node_id"],
        "node": place["node"],
        "cause": place["cause"],
        "gpu_uuid": None,
        "link": None,
        "severity": "page" if finding.get("severity") == "page" else "ticket",
        "evidence": json.dumps(more, ensure_ascii=False, sort_keys=True, default=str),
    }
