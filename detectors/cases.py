"""One incident's memory, and what makes two findings one incident: the same node and cause, or the same fault's faces.

A port that goes bad flaps, is down, loses packets and trains lower: four causes, one cable. So findings of causes of
one family about one link or GPU join the incident that is open there, and the worst of them speaks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from graynode.detectors import evidence as ev
from graynode.detectors.incident_words import also_pages

Revision = dict[str, Any]
"""A row of table ``incident``."""
Key = tuple[str, str]
"""Subject and cause."""

_TIMES: Final = ("ts", "since", "opened_ts", "updated_ts", "resolved_ts", "due_ts")
NODE_SUBJECTS: Final = ("node", "gpu", "link", None, "")
"""Subjects that are their node's; a switch without a name is the node's own NVSwitch."""
SHARED: Final = frozenset({"rack", "domain", "switch", "rail", "job", "driver", "cluster"})
_FAMILIES: Final = (
    frozenset({"link_flap", "link_down", "link_degraded", "link_errors"}),
    frozenset({"memory_errors", "memory_degraded"}),
    frozenset({"pcie_degraded", "pcie_errors"}),
)
_FAMILY: Final[Mapping[str, frozenset[str]]] = {cause: family for family in _FAMILIES for cause in family}


@dataclass(slots=True)
class Case:
    """What was told last, and what has come since. ``nodes`` are those of a shift; ``also`` are other incidents
    (id → title) that this page speaks for."""

    told: Revision
    entries: list[ev.Entry]
    last: datetime
    count: int = 0
    reopened: int = 0
    seen: dict[str, None] = field(default_factory=dict)
    restored: bool = False
    spread: float = 0.0
    nodes: dict[str, None] = field(default_factory=dict)
    also: dict[str, str] = field(default_factory=dict)

    @property
    def resolved(self) -> bool:
        """Whether it is over."""
        return bool(self.told.get("state") == "resolved")

    @property
    def is_open(self) -> bool:
        """Told, and not over."""
        return bool(self.told["revision"] >= 0) and not self.resolved

    @property
    def held(self) -> bool:
        """Whether silence is no proof of health."""
        return any(e["hold"] for e in self.entries)

    @property
    def latest(self) -> datetime:
        """The newest evidence."""
        latest: datetime = max(e["last"] for e in self.entries)
        return latest

    @property
    def since(self) -> datetime:
        """The oldest evidence."""
        since: datetime = min(e["since"] for e in self.entries)
        return since

    @property
    def causes(self) -> set[str]:
        """Its cause, and those of its family that have joined."""
        return {str(self.told["cause"])} | {str(e["cause"]) for e in self.entries if e.get("cause")}

    @property
    def of_causes(self) -> set[str]:
        """Of a shift: what it is that many have."""
        return {str(e["of_cause"]) for e in self.entries if e.get("of_cause")}


def key(row: Mapping[str, Any]) -> Key:
    """Subject and cause. What is in a node is the node's; a larger subject goes by its own name."""
    subject, node_id = row.get("subject"), row.get("node_id")
    own = subject in NODE_SUBJECTS or (subject == "switch" and not str(node_id).startswith("switch:"))
    if own and node_id:
        return f"node/{node_id}", str(row["cause"])
    if subject in SHARED and (row.get("of_cause") or ev.details(row).get("of_cause")):
        return f"{subject}/{name(row)}", f"{row['cause']}/{row.get('of_cause') or ev.details(row)['of_cause']}"
    return f"{subject}/{name(row)}", str(row["cause"])


def relatives(finding: Mapping[str, Any]) -> list[Key]:
    """Keys of incidents of the same family on the same node, where the finding names a GPU or link."""
    own = key(finding)
    if not own[0].startswith("node/") or not (finding.get("link") or finding.get("gpu_uuid")):
        return []
    family = _FAMILY.get(str(finding.get("cause")), frozenset())
    return [(own[0], cause) for cause in sorted(family) if cause != own[1]]


def name(row: Mapping[str, Any]) -> str:
    """What an incident's subject goes by."""
    return str(row.get("node_id") or row.get("node") or row.get("link") or row.get("subject"))


def first(cluster: str, own: Key, finding: ev.Finding, new: ev.Entry) -> Revision:
    """An incident before it is told for the first time."""
    return {
        "cluster": cluster,
        "node_id": name(finding),
        "node": finding.get("node"),
        "boot_id": finding.get("boot_id"),
        "subject": "node" if own[0].startswith("node/") else finding.get("subject"),
        "cause": str(finding["cause"]),
        "severity": new["severity"],
        "revision": -1,
        "state": "new",
        "since": None,
        "count": 0,
    }


def taken_up(row: Revision, reopened: int) -> Case:
    """The memory behind a told revision, as far as the revision tells; ``reopened`` is how often it came back."""
    for column in ("since", "opened_ts", "updated_ts", *(("resolved_ts",) if row["state"] == "resolved" else ())):
        row[column] = row[column] or row["ts"]
    row |= {column: row.get(column) for column in ("node", "boot_id", "severity", "subject", "grouped_under")}
    count = row.get("count")
    row["count"] = count if isinstance(count, int) else 0
    entries, also = also_pages(ev.load(row.get("evidence")))
    if not entries:
        entries = ev.load([{"signal": row["cause"], "since": row["since"], "last": row["since"]}])
    return Case(
        row,
        entries,
        row["ts"],
        row["count"],
        reopened,
        dict.fromkeys(str(i) for i in ev.array(row.get("finding_ids"))),
        restored=True,
        spread=spread(entries),
        nodes=dict.fromkeys(str(n) for e in entries for n in e.get("nodes") or ()),
        also=also,
    )


def from_revisions(revisions: Iterable[Mapping[str, Any]], cluster: str) -> tuple[dict[Key, Case], dict[str, datetime]]:
    """Where revisions of this cluster (others are passed over) left off, and when each incident first paged."""
    latest: dict[str, Revision] = {}
    reopened: dict[str, set[int]] = {}
    paged: dict[str, datetime] = {}
    for raw in revisions:
        row = {**raw, **{name: ev.moment(raw.get(name)) for name in _TIMES}}
        if row.get("cluster") != cluster or row["ts"] is None:
            continue
        identity = row["incident_id"]
        if row["state"] == "open" and row["revision"] > 0:
            reopened.setdefault(identity, set()).add(row["revision"])
        if row.get("severity") == "page":
            paged[identity] = min(paged.get(identity, row["ts"]), row["ts"])
        if identity not in latest or row["revision"] > latest[identity]["revision"]:
            latest[identity] = row
    cases: dict[Key, Case] = {}
    for row in sorted(latest.values(), key=lambda r: (r["ts"], r["incident_id"])):
        case = taken_up(row, len(reopened.get(row["incident_id"], ())))
        cases[key({**row, "of_cause": next(iter(sorted(case.of_causes)), None)})] = case
    return cases, paged


def known(case: Case, identity: str, new: ev.Entry) -> bool:
    """Whether a finding was taken in before: rounds are computed again, and events read again, after a restart.

    Only the latest ids survive a restart; beyond them, what is not newer than its own entry is known.
    """
    if identity in case.seen or (case.resolved and new["last"] <= case.latest):
        return True
    return case.restored and any(
        e["signal"] == new["signal"] and ev.same_entity(e, new) and new["last"] <= e["last"] for e in case.entries
    )


def spread(entries: Iterable[ev.Entry]) -> float:
    """How many nodes it is about, where it is about several."""
    said = [e.get("nodes_told") or (e["value"] if e["unit"] == "nodes" else 0) or 0 for e in entries]
    return max((float(n) for n in said), default=0.0)


def spoken_for(cases: Iterable[Case]) -> dict[str, dict[str, str]]:
    """For whom open incidents speak: of each speaker's id, the ids and titles of those that are grouped under it."""
    spoken: dict[str, dict[str, str]] = {}
    for case in cases:
        if case.is_open and case.told.get("grouped_under"):
            spoken.setdefault(case.told["grouped_under"], {})[case.told["incident_id"]] = str(case.told["title"])
    return spoken
