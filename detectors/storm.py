"""Many nodes with one cause within minutes are one event: a driver roll-out, a rack's power, a switch.

Findings of rounds are grouped by the detectors themselves (``findings``, ``rules``); this is for what comes one by
one, the hard events. From the tenth node on, what would open another node's incident joins one about the cluster.
Faults that single GPUs have by their own nature (lost, memory) are never grouped; of hosts' faults only those of
what many share: a file server, a service that a roll-out broke, each by its name.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.detectors.evidence import Finding, details

NODES: Final = 10
"""So many nodes by chance within five minutes is implausible at any fleet's fault rate (6.5 in 1,000 node-days)."""
WITHIN: Final = timedelta(minutes=5)
CAUSES: Final = frozenset({
    "monitoring_blind", "driver_fault", "nvlink_fault", "link_down", "link_flap", "network_fault", "clock_skew",
    "thermal", "power_brake", "slow_gpu", "unusual",
})  # fmt: skip
_SHARED: Final = ("mount_hung_", "mount_failing_", "service_failed_", "service_restarted_")
"""Signals of ``host_fault`` that many nodes have for one reason; their ends name the mount or the service."""
_KEPT: Final = 100_000
_NAMES_KEPT: Final = 1_000
_NAMED: Final = 50


class Storms:
    """Remembers which nodes opened or joined what, and when. ``is_open`` says whether a cluster's incident is."""

    def __init__(self, cluster: str, is_open: Callable[[Finding], bool]) -> None:
        self._cluster, self._is_open = cluster, is_open
        self._opened: OrderedDict[str, OrderedDict[str, datetime]] = OrderedDict()

    def opening(self, finding: Finding, now: datetime) -> Finding:
        """The finding as it is, or, in a storm, as one about the cluster."""
        cause, node_id = str(finding.get("cause")), str(finding.get("node_id"))
        signal = str(finding.get("signal"))
        shared = cause == "host_fault" and signal.startswith(_SHARED)
        if not (shared or cause in CAUSES) or finding.get("subject") == "cluster" or not finding.get("node_id"):
            return finding
        opened = self._opened.setdefault(signal if shared else cause, OrderedDict())
        while len(self._opened) > _NAMES_KEPT:
            self._opened.popitem(last=False)
        storm = _about_cluster(finding, self._cluster, opened)
        lasting = self._is_open(storm)
        if not lasting:
            for old in [n for n, when in opened.items() if now - when > WITHIN]:
                del opened[old]
        opened[node_id] = now
        opened.move_to_end(node_id)
        while len(opened) > _KEPT:
            opened.popitem(last=False)
        if len(opened) < NODES:
            return finding
        return _about_cluster(finding, self._cluster, opened)


def _about_cluster(finding: Finding, cluster: str, opened: OrderedDict[str, datetime]) -> dict[str, Any]:
    more = details(finding)
    more.pop("pci_bus_id", None)
    names = list(opened)
    more |= {"hold": False, "nodes": names[:_NAMED], "owner": "platform", "action_source": "graynode"}
    more["next_step"] = "Do not take the nodes out one by one; find what they share first."
    return {
        **finding,
        "subject": "cluster",
        "node_id": None,
        "node": f"cluster {cluster}",
        "gpu_uuid": None,
        "link": None,
        "cause": "monitoring_blind" if finding["cause"] == "monitoring_blind" else "fleet_shift",
        "severity": "page" if finding.get("severity") == "page" else "ticket",
        "value": float(len(names)),
        "unit": "nodes",
        "message": f"{len(names)} nodes within minutes: {finding.get('message')}",
        "action": "Look for what these nodes share: a driver or container roll-out, a rack, a switch, power, a job.",
        "evidence": json.dumps(more, ensure_ascii=False, sort_keys=True),
    }
