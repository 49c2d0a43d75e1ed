"""What the scheduler of a simulated fleet says of its nodes: planned maintenance and reservations.

Both lie where a whole node is empty between two jobs, so that neither the jobs nor the telemetry change by them, and
what is planned is no fault: detection sees the same fleet. Which stretches it is follows from the seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from graynode.collectors.base import Row
from graynode.collectors.simulated.fleet import Fleet
from graynode.collectors.simulated.noise import uniform

_LEAST_S: Final = 1800.0
"""Shorter stretches between jobs are left alone."""
_MAINTENANCE, _RESERVED = 0.15, 0.15
"""Shares of the longer ones."""
_STREAM: Final = 15


def node_states(fleet: Fleet, since: float, until: float) -> list[Row]:
    """Rows of table ``node_state`` from ``since`` to before ``until``, in order of time; every node's state first."""
    rows = [_row(fleet, node, since, "IDLE", None) for node in range(fleet.spec.nodes)]
    for node, start, end in _empty(fleet, since, until):
        draw = float(uniform(fleet.spec.seed, _STREAM, np.array([node]), np.array([int(start)]))[0])
        if draw < _MAINTENANCE:
            state, reason = "IDLE+DRAIN", "planned: firmware"
        elif draw < _MAINTENANCE + _RESERVED:
            state, reason = "IDLE+RESERVED", None
        else:
            continue
        rows.append(_row(fleet, node, start, state, reason))
        if end < until:
            rows.append(_row(fleet, node, end, "IDLE", None))
    return sorted(rows, key=lambda row: row["ts"])


def _empty(fleet: Fleet, since: float, until: float) -> Iterator[tuple[int, float, float]]:
    """Node, start and end of stretches in which no GPU of a node has a job."""
    taken: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for job in fleet.jobs:
        for node in {g // fleet.spec.per_node for g in job.gpus}:
            taken[node].append((job.start, job.end))
    for node in range(fleet.spec.nodes):
        at = since
        for start, end in [*sorted(taken[node]), (until, until)]:
            if min(start, until) - at >= _LEAST_S:
                yield node, at, min(start, until)
            at = max(at, end)


def _row(fleet: Fleet, node: int, t: float, state: str, reason: str | None) -> Row:
    boot = int(fleet.boots.columns["boot"][fleet.boots.at(np.array(node), np.array(t))])
    return {
        "ts": fleet.moment(t), "cluster": fleet.spec.cluster, "node": fleet.node_names[node],
        "node_id": fleet.node_ids[node], "boot_id": fleet.boot_id(node, boot), "scheduler_state": state,
        "reason": reason, "who": "sim-admin" if reason else None,
    }  # fmt: skip
