"""What the scheduler says of a node that should have no work: sources that disagree are shown, both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from graynode.detectors.cases import Case

_KEPT: Final = 100_000
_TAKES_WORK: Final = frozenset({"idle", "mixed", "allocated", "alloc", "completing", "ready", "schedulable"})
_TAKES_NONE: Final = frozenset({"drain", "drained", "draining", "down", "fail", "maint", "unschedulable", "notready"})
"""Slurm's and Kubernetes' words for a node's state."""


class SchedulerView:
    """The scheduler's latest word on each node."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}

    def note(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of table ``node_state``, in their order."""
        for row in rows:
            if row.get("node_id") and row.get("scheduler_state"):
                self._states[str(row["node_id"])] = str(row["scheduler_state"])
        while len(self._states) > _KEPT:
            del self._states[next(iter(self._states))]

    def otherwise(self, case: Case) -> dict[str, str]:
        """What it says where an incident is held, and the node may still be given work; empty elsewhere."""
        state = self._states.get(str(case.told["node_id"]), "")
        words = set(state.lower().replace("*", "").replace("+", " ").replace(",", " ").split())
        if not case.held or not words & _TAKES_WORK or words & _TAKES_NONE:
            return {}
        return {"scheduler": f"calls the node {state}: it may still place work there"}
