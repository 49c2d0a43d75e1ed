"""What the scheduler says of a job's end: a word that decides (preempted, memory), one that points, or none.

An exit code says nothing of whose fault it was, and is never a clue (``docs/attribution.md``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import polars as pl

from graynode.detectors.attribution_clues import APPLICATION, INFRASTRUCTURE, SCHEDULER, Clue
from graynode.detectors.attribution_job import Placement

_PREEMPTED: Final = re.compile(r"PREEMPT|PreemptionByScheduler|Preempting", re.IGNORECASE)
_MEMORY: Final = re.compile(r"OUT_OF_MEMORY|OutOfMemory|OOMKilled|OOM[-_ ]?kill", re.IGNORECASE)
_EVICTED: Final = re.compile(r"Evicted|TerminationByKubelet|ephemeral|DiskPressure", re.IGNORECASE)
_LAUNCH: Final = re.compile(
    r"LAUNCH_FAILED|launch failure|Prolog|BOOT_FAIL|UnexpectedAdmissionError|CreateContainer|ContainerCannotRun"
    r"|ImagePull|ErrImage",
    re.IGNORECASE,
)
_LOST: Final = re.compile(r"NODE_FAIL|NodeFail|node failure", re.IGNORECASE)
_DOWN: Final = re.compile(r"\b(?:DOWN|FAIL|NOT_RESPONDING|NO_RESPOND|NotReady)\b|DOWN\*", re.IGNORECASE)
_Reading = tuple[str, str, str, int, str]


def of_scheduler(placed: Placement, states: pl.DataFrame) -> list[Clue]:
    """Clues of the placement's state and reason, and of its nodes' states around its end."""
    clues = [*_of_nodes(states)]
    if placed.end is not None:
        told = _reading(placed)
        if told is not None:
            clues.append(_clue(placed, placed.end, *told))
    return clues


def _reading(placed: Placement) -> _Reading | None:
    """Side, kind, detail, weight and words of state and reason; the first that applies."""
    reason, state = placed.reason or "", placed.state
    if _PREEMPTED.search(reason):
        return SCHEDULER, "preempted", "preempted", 3, f"the scheduler preempted it ({reason})"
    if _MEMORY.search(reason):
        return APPLICATION, "resources", "host_out_of_memory", 3, f"the scheduler ended it for memory ({reason})"
    if state == "node_fail" or _LOST.search(reason):
        return INFRASTRUCTURE, "node", "node_fail", 2, f"the scheduler lost a node of it{_told(reason)}"
    if _EVICTED.search(reason):
        return APPLICATION, "resources", "evicted", 2, f"the node put it out for what it used ({reason})"
    if _LAUNCH.search(reason):
        return INFRASTRUCTURE, "node", "launch_failed", 1, f"it could not be started ({reason})"
    return _BY_STATE[state](reason) if state in _BY_STATE else None


_BY_STATE: Final[dict[str | None, Callable[[str], _Reading]]] = {
    "timeout": lambda r: (SCHEDULER, "time_limit", "time_limit", 2, f"its time limit was reached{_told(r)}"),
    "cancelled": lambda r: (SCHEDULER, "cancelled", "cancelled", 2, f"it was cancelled{_told(r)}"),
    "completed": lambda r: (SCHEDULER, "completed", "completed", 2, "it ran to its end"),
    "requeued": lambda r: (SCHEDULER, "requeued", "requeued", 1, f"the scheduler put it back into the queue{_told(r)}"),
}


def _told(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _clue(placed: Placement, at: datetime, side: str, kind: str, detail: str, weight: int, said: str) -> Clue:
    by_machine = side == INFRASTRUCTURE
    return Clue(
        at=at, ts=at, side=side, kind=kind, detail=detail, weight=weight, source="scheduler", message=said,
        cause="host_fault" if by_machine else None, severity="ticket" if by_machine else None,
        owner="platform" if by_machine else None, raw=placed.reason,
    )  # fmt: skip


def _of_nodes(states: pl.DataFrame) -> list[Clue]:
    """Nodes that the scheduler called down. A drain that somebody ordered is not their failure."""
    if states.is_empty() or not {"ts", "node_id", "scheduler_state"} <= set(states.columns):
        return []
    rows = states.sort("ts", "node_id").iter_rows(named=True)
    return [_down(row) for row in rows if _DOWN.search(row["scheduler_state"] or "")]


def _down(row: dict[str, Any]) -> Clue:
    return Clue(
        at=row["ts"], ts=row["ts"], side=INFRASTRUCTURE, kind="node", detail="node_down", weight=2,
        source="scheduler's nodes", node_id=row["node_id"], node=row.get("node"), cause="host_fault",
        message=f"the scheduler calls the node {row['scheduler_state']}{_told(str(row.get('reason') or ''))}",
        severity="ticket", owner="platform",
    )  # fmt: skip
