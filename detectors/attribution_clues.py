"""Clues: what was seen around the end of a job, each with its side, its weight and when it can have happened.

What an Xid, SXid or kernel line means is said by ``event_rules`` and the policy behind it; here it is only weighed as a
reason for a job to end. Weights: 3 ends a job by itself, 2 can, 1 is worth knowing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.detectors.event_rules import from_events, is_clearing
from graynode.detectors.policy import Policy

SKEW: Final = timedelta(seconds=2)
"""Two machines' clocks agree no better than this where nothing is known of them; what lies closer is "at once"."""
_SAME: Final = timedelta(seconds=5)
"""Two sources that tell of one Xid of one GPU within so much speak of one episode, as in ``event_rules``."""
INFRASTRUCTURE: Final = "infrastructure"
APPLICATION: Final = "application"
SCHEDULER: Final = "scheduler"
CASCADE: Final = "cascade"
CONTEXT: Final = "context"

KIND_OF_CAUSE: Final[Mapping[str, str]] = {
    "gpu_lost": "gpu", "recovery_requested": "gpu", "slow_gpu": "gpu", "thermal": "gpu", "power_brake": "gpu",
    "memory_errors": "memory", "memory_degraded": "memory", "nvlink_fault": "nvlink", "driver_fault": "driver",
    "pcie_errors": "pcie", "pcie_degraded": "pcie", "link_flap": "network", "link_down": "network",
    "link_errors": "network", "link_degraded": "network", "network_fault": "network", "host_fault": "host",
}  # fmt: skip
"""What an incident's cause is called where a job fell to it; causes that are not here never end one."""
_SLOWS_ONLY: Final = frozenset({
    "slow_gpu", "thermal", "power_brake", "pcie_degraded", "link_degraded", "link_errors",
})  # fmt: skip
"""Causes that make a job slow and do not end it."""
_BREAKS: Final = frozenset({"memory_errors", "memory_degraded", "nvlink_fault", "gpu_lost"})
_FOLLOWS: Final = frozenset({43, 45})
"""Xids with which the driver cleans up after a process that has ended, however it ended."""
_HOST: Final[Mapping[str, tuple[str, int]]] = {
    "mount_hung": ("storage", 3), "mount_failing": ("storage", 3), "mount_read_only": ("storage", 2),
    "disk_full": ("storage", 2), "nvme_dead": ("storage", 2), "nvme_critical_warning": ("storage", 1),
    "edac_ue": ("host", 2), "mce": ("host", 2), "ipmi_sel": ("host", 1), "service_failed": ("host", 1),
    "service_restarted": ("host", 1),
}  # fmt: skip
_NEEDED: Final = ("nvidia-fabricmanager", "slurmd", "kubelet")
"""Services without which a job on the node cannot go on."""
_OUTAGE_S: Final = (7.5, 30.0)
"""One contiguous outage of a port that no collective survives: of NCCL 2.14 to 2.22, and of any (``NCCL_IB_TIMEOUT`` 18
and 20)."""


@dataclass(frozen=True, slots=True)
class Clue:
    """One thing seen. ``at`` is its time with the machine's known skew taken off, ``ts`` as the machine wrote it.

    It may have happened up to ``slack`` before ``at`` (a log is read every ten seconds). ``clock_s`` is how far the
    machine's clock is known to be ahead, null where nothing tells. ``cause`` is one of ``schema.CAUSES``.
    """

    at: datetime
    side: str
    kind: str
    detail: str
    weight: int
    source: str
    message: str
    ts: datetime
    slack: timedelta = timedelta(0)
    node_id: str | None = None
    node: str | None = None
    gpu_uuid: str | None = None
    pci_bus_id: str | None = None
    link: str | None = None
    rank: int | None = None
    count: int = 1
    raw: str | None = None
    cause: str | None = None
    severity: str | None = None
    action: str | None = None
    owner: str | None = None
    clock_s: float | None = None
    role: str = ""

    @property
    def earliest(self) -> datetime:
        """Before this it cannot have happened, clocks' disagreement aside."""
        return self.at - self.slack

    @property
    def order(self) -> tuple[datetime, str, str, str, str, str]:
        """Time first, then what makes any order of rows the same."""
        return (
            self.at,
            self.node_id or "",
            self.detail,
            self.gpu_uuid or self.pci_bus_id or "",
            self.source,
            self.message,
        )

    @property
    def place(self) -> tuple[str | None, str | None]:
        """Machine and GPU."""
        return self.node_id, self.pci_bus_id or self.gpu_uuid

    def surely_before(self, other: Clue) -> bool:
        """Whether it happened before the other, whatever the clocks' disagreement. On one machine there is none."""
        apart = timedelta(0) if self.node_id is not None and self.node_id == other.node_id else SKEW
        return self.at + apart < other.earliest


def of_events(events: pl.DataFrame, policy: Policy | None = None) -> list[Clue]:
    """Kernel, NVML and service events, episodes of the rules; outages of ports by their length."""
    if events.is_empty():
        return []
    rows = list(events.drop_nulls(["ts", "node_id"]).iter_rows(named=True))
    once = {str(r.get("event_id") or number): r for number, r in enumerate(rows)}
    clues = [_of_rule(f) for f in from_events(once.values(), policy) if not is_clearing(f)]
    return _joined([*clues, *_outages(rows)])


def _of_rule(finding: Mapping[str, Any]) -> Clue:
    more = json.loads(finding["evidence"])
    cause, signal = finding.get("cause"), str(finding["signal"])
    side, kind, weight = _weighed(signal, cause, str(finding["severity"]), bool(more.get("hold")))
    return Clue(
        at=finding["ts"], ts=finding["ts"], side=side, kind=kind, detail=signal, weight=weight,
        source=str(more.get("source") or "event"), message=str(finding["message"]), node_id=finding["node_id"],
        node=finding.get("node"), gpu_uuid=finding.get("gpu_uuid"), pci_bus_id=more.get("pci_bus_id"),
        count=int(more.get("lines") or 1), raw=more.get("raw"), cause=cause, severity=str(finding["severity"]),
        action=finding.get("action"), owner=more.get("owner"),
    )  # fmt: skip


def _weighed(signal: str, cause: str | None, severity: str, hold: bool) -> tuple[str, str, int]:
    """Side, kind and weight of what a rule says."""
    if cause == "application_error":
        return _of_program(signal)
    kind = KIND_OF_CAUSE.get(cause or "")
    by_host = _of_host(signal) if cause == "host_fault" else None
    if kind is None or severity == "digest":
        return CONTEXT, kind or "other", 1
    if by_host is not None:
        return (INFRASTRUCTURE if by_host[1] > 1 else CONTEXT, *by_host)
    if severity == "page" or (hold and cause in _BREAKS) or signal == "xid_94":
        return INFRASTRUCTURE, kind, 3
    return INFRASTRUCTURE, kind, 1 if cause in _SLOWS_ONLY else 2


def _of_program(signal: str) -> tuple[str, str, int]:
    if signal == "oom_kill":
        return APPLICATION, "resources", 2  # whose process it was, the kernel's line does not say
    code = signal.partition("_")[2]
    if code.isdecimal() and int(code) in _FOLLOWS:
        return CASCADE, "program", 1
    return APPLICATION, "program", 2


def _of_host(signal: str) -> tuple[str, int] | None:
    name = next((n for n in sorted(_HOST, key=len, reverse=True) if signal.startswith(n)), None)
    if name is None:
        return None
    if name == "service_failed" and any(service in signal for service in _NEEDED):
        return "host", 3
    return _HOST[name]


# --- ports ---


def _outages(rows: Iterable[Mapping[str, Any]]) -> list[Clue]:
    """Outages of network ports: from ``link_down`` to the next ``link_up`` of the port, or to no end."""
    ports: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("kind") in ("link_down", "link_up") and row.get("link") and not row.get("gpu_uuid"):
            ports.setdefault((str(row["node_id"]), str(row["link"])), []).append(row)
    clues = []
    for port in ports.values():
        ordered = sorted(port, key=lambda r: (r["ts"], str(r["kind"])))
        for i, row in enumerate(ordered):
            if row["kind"] == "link_down":
                back = next((r["ts"] for r in ordered[i + 1 :] if r["kind"] == "link_up"), None)
                clues.append(_outage(row, back))
    return clues


def _outage(row: Mapping[str, Any], back: datetime | None) -> Clue:
    lasted = (back - row["ts"]).total_seconds() if back is not None else None
    weight = 3 if lasted is None or lasted >= _OUTAGE_S[1] else 2 if lasted >= _OUTAGE_S[0] else 1
    how = "and did not come back" if lasted is None else f"for {lasted:.0f} s"
    note = {2: " (ends a collective of NCCL up to 2.22, not of later ones)", 1: " (too short to end a collective)"}
    return Clue(
        at=row["ts"], ts=row["ts"], side=INFRASTRUCTURE if weight > 1 else CONTEXT, kind="network", detail="link_down",
        weight=weight, source=str(row.get("source") or "event"), node_id=row["node_id"], node=row.get("node"),
        link=row["link"], message=f"port {row['link']} went down {how}{note.get(weight, '')}", raw=row.get("raw"),
        cause="link_down", severity="ticket", owner="network",
    )  # fmt: skip


# --- findings and what two sources say of one thing ---


def of_findings(findings: pl.DataFrame, since: datetime) -> list[Clue]:
    """Findings of the detectors on these machines, the rules' own on events left out: those are clues already.

    What was known before ``since`` did not begin now, so it is context.
    """
    needed = {"ts", "node_id", "cause", "severity", "signal", "detector"}
    if findings.is_empty() or not needed <= set(findings.columns):
        return []
    clues = []
    for row in findings.iter_rows(named=True):
        kind = KIND_OF_CAUSE.get(row["cause"] or "")
        if kind is None or row["node_id"] is None or _is_of_event(row) or not _is_told(row):
            continue
        began = row.get("since") or row["ts"]
        can_end = row["severity"] != "digest" and row["cause"] not in _SLOWS_ONLY and began >= since
        clues.append(_of_finding(row, kind, began, can_end))
    return clues


def _of_finding(row: Mapping[str, Any], kind: str, began: datetime, can_end: bool) -> Clue:
    more = _details(row.get("evidence"))
    return Clue(
        at=began, ts=began, side=INFRASTRUCTURE if can_end else CONTEXT, kind=kind,
        detail=f"{row['detector']}_{row['signal']}", weight=2 if can_end else 1, source=f"detector {row['detector']}",
        message=str(row.get("message") or row["signal"]), node_id=row["node_id"], node=row.get("node"),
        gpu_uuid=row.get("gpu_uuid"), pci_bus_id=more.get("pci_bus_id"), link=row.get("link"), cause=row["cause"],
        severity=row["severity"], action=row.get("action"),
    )  # fmt: skip


def _is_of_event(row: Mapping[str, Any]) -> bool:
    """A finding that the hard-event path or an earlier judgement made: its events are looked at themselves."""
    return row["detector"] == "attribution" or (row["detector"] == "rules" and row.get("threshold") is None)


def _is_told(row: Mapping[str, Any]) -> bool:
    score, threshold = row.get("score"), row.get("threshold")
    return threshold is None or (score is not None and score >= threshold)


def _details(evidence: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    try:
        read = json.loads(evidence or "{}")
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _joined(clues: list[Clue]) -> list[Clue]:
    """One clue where kernel log and NVML tell of one thing; the one with the raw line speaks."""
    groups: dict[tuple[str | None, ...], list[Clue]] = {}
    for clue in sorted(clues, key=lambda c: c.order):
        kept = groups.setdefault((clue.node_id, clue.detail, clue.link), [])
        twin = _twin(kept, clue)
        if twin is None:
            kept.append(clue)
        else:
            kept[twin] = _one(kept[twin], clue)
    return [clue for kept in groups.values() for clue in kept]


def _twin(kept: list[Clue], clue: Clue) -> int | None:
    """Where among these, in order of time, one lies close enough that is of the same GPU or may be."""
    for i in range(len(kept) - 1, -1, -1):
        if clue.at - kept[i].at > _SAME:
            return None
        if _may_be_one(kept[i], clue):
            return i
    return None


def _may_be_one(one: Clue, other: Clue) -> bool:
    pairs = ((one.gpu_uuid, other.gpu_uuid), (one.pci_bus_id, other.pci_bus_id))
    return any(a and a == b for a, b in pairs) or not any(a and b for a, b in pairs)


def _one(first: Clue, second: Clue) -> Clue:
    speaker, silent = (second, first) if second.raw and not first.raw else (first, second)
    heard = speaker.source if silent.source in speaker.source.split(" + ") else f"{speaker.source} + {silent.source}"
    return replace(
        speaker,
        at=first.at,
        ts=first.ts,
        source=heard,
        count=max(first.count, second.count),
        gpu_uuid=speaker.gpu_uuid or silent.gpu_uuid,
        pci_bus_id=speaker.pci_bus_id or silent.pci_bus_id,
    )
