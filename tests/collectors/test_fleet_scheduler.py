"""What a simulated scheduler says of nodes: planned, while no job is there, and following from the seed."""

from __future__ import annotations

import numpy as np
from small_fleet import fleet

from graynode.collectors.simulated.load import HBM_BYTES
from graynode.collectors.simulated.scheduler import node_states

WEEK_S = 20 * 86_400.0


def test_every_node_is_told_and_nothing_planned_touches_a_job() -> None:
    """A row for each at the start; maintenance and reservations only where the whole node is empty."""
    of = fleet()
    since, until = of.now_s - WEEK_S, of.now_s
    rows = node_states(of, since, until)
    first = rows[: of.spec.nodes]
    assert {row["node"] for row in first} == set(of.node_names)
    assert {row["scheduler_state"] for row in first} == {"IDLE"}
    held = dict.fromkeys(of.node_names)
    for row in rows:
        t, node = of.seconds(row["ts"]), of.node_names.index(row["node"])
        begun, held[row["node"]] = held[row["node"]], None
        if begun is not None:
            there = [j for j in of.jobs if node in {g // of.spec.per_node for g in j.gpus}]
            assert not [j for j in there if j.start < t - 1e-3 and j.end > begun + 1e-3]
        if row["scheduler_state"] != "IDLE":
            held[row["node"]] = t
    assert {row["scheduler_state"] for row in rows} == {"IDLE", "IDLE+DRAIN", "IDLE+RESERVED"}
    assert rows == node_states(of, since, until)


def test_some_notebooks_leave_their_memory_behind() -> None:
    """No job, no work, nine gigabytes: what a program forgets. Most leave nothing."""
    columns = fleet().load.columns
    idle = columns["job"] < 0
    left = columns["mem_bytes"][idle] > 2e9
    assert 0 < np.mean(left) < 0.1
    assert np.all(columns["busy"][idle] == 0)
    assert np.all(columns["mem_bytes"] < HBM_BYTES)
