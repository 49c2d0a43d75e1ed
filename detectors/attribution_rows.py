"""A judgement as a row of table ``attribution``, and the findings that follow from it.

Sure hardware is a finding of the cause that the machine showed, so that it joins or opens that machine's incident in
the normal way. An unknown cause leaves the job's machines in doubt: one finding of severity ``digest`` a machine, which
opens no incident and on which nothing acts. It is not a ``node_state``: that has no end of its own, and a doubt must
fade by itself (``docs/attribution.md``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from graynode.detectors.attribution import VERSION, Judgement
from graynode.detectors.attribution_clues import INFRASTRUCTURE, Clue
from graynode.detectors.attribution_job import Placement
from graynode.detectors.attribution_words import action, owner, sentence
from graynode.pipeline.schema import stable_id

DETECTOR: Final = "attribution"
UNEXPLAINED: Final = "job_unexplained"
MOST_KEPT: Final = 60
"""Clues that a row keeps: the initiating ones and those nearest to them in time. A flood has thousands."""
_MOST_FINDINGS: Final = 4


def identity(placed: Placement) -> str:
    """The id of its judgement: the same placement in the same phase has the same, whenever it is judged."""
    start = placed.start.isoformat() if placed.start else ""
    return stable_id("attribution", placed.cluster, placed.job_id, placed.attempt, start, phase(placed))


def phase(placed: Placement) -> str:
    """``ended`` or ``hung``."""
    return "ended" if placed.end is not None else "hung"


def row(judged: Judgement, now: datetime, revision: int = 0) -> dict[str, Any]:
    """The row of table ``attribution``."""
    p, first = judged.placement, judged.first
    return {
        "ts": now, "cluster": p.cluster, "node_id": (first.node_id if first else None) or f"job:{p.job_id}",
        "node": first.node if first else None,
        "attribution_id": identity(p), "revision": revision, "version": VERSION,
        "job_id": p.job_id, "job_alias": p.job_alias, "attempt": p.attempt, "user": p.user, "account": p.account,
        "partition": p.partition, "work": p.work, "job_state": p.state, "phase": phase(p), "start_ts": p.start,
        "end_ts": p.end, "window_since": judged.window[0], "window_until": judged.window[1], "nodes": p.size,
        "verdict": judged.verdict, "kind": judged.kind, "detail": judged.detail, "confidence": judged.confidence,
        "gpu_uuid": first.gpu_uuid if first else None, "link": first.link if first else None,
        "pci_bus_id": first.pci_bus_id if first else None, "since": first.at if first else None,
        "message": sentence(judged), "action": action(judged), "owner": owner(judged),
        "evidence": _dumped([_clue(c) for c in _kept(judged)]), "suspects": _dumped(list(judged.suspects)),
        "elsewhere": _dumped(judged.elsewhere.as_json(p.machines)), "missing": _dumped(list(judged.missing)),
        "notes": _dumped(list(judged.notes)),
        "finding_ids": _dumped([f["finding_id"] for f in findings(judged)]),
    }  # fmt: skip


def findings(judged: Judgement) -> list[dict[str, Any]]:
    """What follows for the machines: none where the program or nobody is to blame, or the machine is not known."""
    if judged.verdict == INFRASTRUCTURE and judged.confidence == "high":
        return [_of_machine(judged, clue) for clue in _causes(judged)]
    return [_in_doubt(judged, node_id) for node_id in judged.suspects if ":" not in node_id]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether two rows of one placement say something different."""
    return any(
        before.get(k) != after.get(k) for k in ("verdict", "kind", "detail", "confidence", "node_id", "gpu_uuid")
    )


def _causes(judged: Judgement) -> list[Clue]:
    """The first clue of each machine that had one at once; none where many did: they share something else."""
    by_machine: dict[str, Clue] = {}
    for clue in (judged.first, *judged.beside):
        if clue is not None and clue.node_id and clue.cause:
            by_machine.setdefault(clue.node_id, clue)
    return list(by_machine.values()) if len(by_machine) <= _MOST_FINDINGS else []


def _of_machine(judged: Judgement, clue: Clue) -> dict[str, Any]:
    severity = clue.severity if clue.severity in ("page", "ticket") else "ticket"
    subject = "link" if clue.link else "gpu" if clue.gpu_uuid or clue.pci_bus_id else "node"
    said = f"job {judged.placement.job_id} ended by it: {clue.message}"
    return _finding(judged, clue.node_id or "", clue.node, f"ended_a_job_{clue.detail}", clue.at) | {
        "subject": subject, "gpu_uuid": clue.gpu_uuid, "link": clue.link, "cause": clue.cause, "severity": severity,
        "message": said, "action": clue.action, "evidence": _dumped(_about(judged) | {"pci_bus_id": clue.pci_bus_id}),
    }  # fmt: skip


def _in_doubt(judged: Judgement, node_id: str) -> dict[str, Any]:
    p = judged.placement
    at = p.end or judged.window[1]
    first = judged.first if judged.first is not None and judged.first.node_id == node_id else None
    others = judged.elsewhere.failed_here.get(node_id, 0)
    more = f"; {others} other jobs failed on it lately" if others else ""
    what = judged.elsewhere.stays_on or f"one of {p.size} machines of job {p.job_id}, whose end nothing explains"
    return _finding(judged, node_id, p.machines.get(node_id), UNEXPLAINED, at) | {
        "subject": "gpu" if first else "node", "gpu_uuid": first.gpu_uuid if first else None, "cause": "unusual",
        "severity": "digest", "value": float(p.size), "unit": "machines in doubt", "message": f"{what}{more}",
        "action": "Nothing; probe it when it is idle.",
        "evidence": _dumped(_about(judged) | {"other_jobs_failed": others}),
    }  # fmt: skip


def _finding(judged: Judgement, node_id: str, node: str | None, signal: str, at: datetime) -> dict[str, Any]:
    p = judged.placement
    return {
        "ts": at, "cluster": p.cluster, "node_id": node_id, "node": node,
        "finding_id": stable_id("finding", p.cluster, node_id, DETECTOR, VERSION, identity(judged.placement), signal),
        "detector": DETECTOR, "version": VERSION, "signal": signal, "since": at, "live": True,
    }  # fmt: skip


def _about(judged: Judgement) -> dict[str, Any]:
    p = judged.placement
    return {
        "job_id": p.job_id,
        "attribution_id": identity(judged.placement),
        "verdict": judged.verdict,
        "kind": judged.kind,
    }


def _kept(judged: Judgement) -> list[Clue]:
    if len(judged.clues) <= MOST_KEPT:
        return list(judged.clues)
    middle = judged.first.at if judged.first else judged.placement.end or judged.window[1]
    near = sorted(judged.clues, key=lambda c: (c.role != "initiating", abs(c.at - middle), c.order))
    return sorted(near[:MOST_KEPT], key=lambda c: c.order)


def _clue(clue: Clue) -> dict[str, Any]:
    said = {
        "at": clue.at.isoformat(), "local_ts": clue.ts.isoformat() if clue.clock_s else None, "role": clue.role,
        "side": clue.side, "kind": clue.kind, "detail": clue.detail, "weight": clue.weight, "source": clue.source,
        "node_id": clue.node_id, "node": clue.node, "gpu_uuid": clue.gpu_uuid, "pci_bus_id": clue.pci_bus_id,
        "link": clue.link, "rank": clue.rank, "count": clue.count, "message": clue.message, "raw": clue.raw,
        "clock_ahead_s": round(clue.clock_s, 3) if clue.clock_s is not None else None,
        "may_be_earlier_s": clue.slack.total_seconds() or None,
    }  # fmt: skip
    return {k: v for k, v in said.items() if v is not None}


def _dumped(value: Any) -> str:  # noqa: ANN401 (JSON)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
