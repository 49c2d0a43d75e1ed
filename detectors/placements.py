"""Which job had a GPU at a moment, from rows of table ``job`` as they come; unknown where it is not sure."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.pipeline.schema import JOB_ENDED

_PER_NODE: Final = 64
"""Enough for what runs or has just ended, where rows come as they are told."""
_NODES: Final = 50_000
_TEARDOWN: Final = timedelta(minutes=5)
"""The kernel's last words on a job come while its processes are torn down, after the scheduler has called it ended."""


@dataclass(slots=True)
class Placed:
    """One job on one node. ``gpus`` is ``None`` where the scheduler does not say which."""

    job_id: str
    user: str | None
    gpus: frozenset[str] | None
    start: datetime
    end: datetime | None = None


class Placements:
    """The latest jobs of each node, so many at most."""

    def __init__(self, per_node: int = _PER_NODE) -> None:
        self._per_node = per_node
        self._nodes: OrderedDict[str, OrderedDict[str, Placed]] = OrderedDict()

    def note(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take placements, changes and ends in, in any order."""
        for row in rows:
            node_id, job_id, ts = row.get("node_id"), row.get("job_id"), row.get("ts")
            if not node_id or not job_id or ts is None or row.get("state") == "queued":
                continue
            jobs = self._nodes.setdefault(str(node_id), OrderedDict())
            self._nodes.move_to_end(str(node_id))
            start = row.get("allocated_ts") or ts
            placed = jobs.setdefault(str(job_id), Placed(str(job_id), row.get("user"), _gpus(row), start))
            placed.user, placed.start = placed.user or row.get("user"), min(placed.start, start)
            placed.gpus = placed.gpus or _gpus(row)
            if row.get("end_ts") is not None or row.get("state") in JOB_ENDED or row.get("state") == "requeued":
                placed.end = row.get("end_ts") or ts
            while len(jobs) > self._per_node:
                jobs.popitem(last=False)
        while len(self._nodes) > _NODES:
            self._nodes.popitem(last=False)

    def at(self, node_id: str, gpu_uuid: str | None, ts: datetime) -> Placed | None:
        """The job that had this GPU then; ``None`` where none did, or where more than one may have."""
        then = [
            p
            for p in self._nodes.get(node_id, {}).values()
            if p.start <= ts and (p.end is None or ts <= p.end + _TEARDOWN)
        ]
        named = [p for p in then if p.gpus is not None and gpu_uuid in p.gpus]
        found = named or [p for p in then if p.gpus is None]
        running = [p for p in found if p.end is None or ts <= p.end] or found
        return running[0] if len(running) == 1 else None


def _gpus(row: Mapping[str, Any]) -> frozenset[str] | None:
    raw = row.get("gpu_uuids")
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except ValueError:
            return None
    return frozenset(str(g) for g in raw) or None if isinstance(raw, list) else None
