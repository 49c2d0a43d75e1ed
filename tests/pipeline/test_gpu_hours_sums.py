"""Whatever happened, the hours of a GPU sum to the hours that it was owned: none is negative, none counts twice."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from owned_gpus import Owned, at

from graynode.pipeline.gpu_hours import CATEGORIES

SPAN = 8
MOMENTS = st.integers(0, SPAN * 12).map(lambda n: n / 12)
STATES = ("IDLE", "DOWN*", "MIXED+DRAIN", "IDLE+RESERVED", "IDLE+MAINTENANCE+RESERVED", None)


@dataclass(frozen=True)
class Node:
    """What happened to one node of two GPUs: ``gone`` is an hour at which its first GPU moves to another node."""

    jobs: tuple[tuple[float, float, int, bool], ...]
    states: tuple[tuple[float, str | None], ...]
    seen: tuple[tuple[int, float, int], ...]
    since: float
    gone: float | None
    mig: frozenset[int]


def nodes() -> st.SearchStrategy[Node]:
    """Overlapping jobs without ends, states in any order, hours missing or half seen, MIG on and off, moves."""
    job = st.tuples(MOMENTS, st.floats(0.05, 4.0), st.sampled_from((1, 2, 3)), st.booleans())
    hour = st.tuples(st.sampled_from((0, 1, 1800, 3599, 3600, 7200)), st.sampled_from((0.0, 0.01, 0.3, 0.9)),
                     st.sampled_from((0, 1)))  # fmt: skip
    return st.builds(
        Node, jobs=st.lists(job, max_size=4).map(tuple),
        states=st.lists(st.tuples(MOMENTS, st.sampled_from(STATES)), max_size=3).map(tuple),
        seen=st.lists(hour, min_size=SPAN, max_size=SPAN).map(tuple), since=st.sampled_from((0.0, 0.0, 2.5)),
        gone=st.sampled_from((None, None, 3.0, 5.25)), mig=st.frozensets(st.integers(0, SPAN - 1), max_size=3),
    )  # fmt: skip


def _put(fleet: Owned, name: str, node: Node) -> dict[str, float]:
    """The rows of a node; hours that each of its GPUs is owned."""
    gpus = [f"{name}-0", f"{name}-1"]
    for gpu in gpus:
        fleet.gpu(gpu, name, node.since)
    if node.gone is not None and node.gone > node.since:
        fleet.gpu(gpus[0], f"{name}-other", node.gone)
        fleet.hour(gpus[0], SPAN - 1, f"{name}-other", sm=0.3)
    for i, (start, lasts, which, ended) in enumerate(node.jobs):
        on = [gpu for bit, gpu in zip((1, 2), gpus, strict=True) if which & bit]
        fleet.job(f"{name}/{i}", on, start, start + lasts if ended else None, node=name)
    for moment, state in node.states:
        fleet.put("node_state", moment, name, scheduler_state=state, reason="r")
    for hour, (samples, sm, held) in enumerate(node.seen):
        more = {"samples": samples, "mem_used_bytes_mean": int(9e9) * held}
        for gpu in gpus if samples and hour >= node.since else []:
            fleet.hour(gpu, hour, name, sm=sm, **more)
            for instance in ("1", "2") if hour in node.mig else ():
                part = {"mig_instance": instance, "mig_profile_last": "3g.40gb", "job_id_last": f"{name}/0"}
                fleet.hour(gpu, hour, name, sm=sm, **(more | part))
    fleet.put("host_1h", SPAN - 1, name, samples=3600, samples_expected=3600)
    return dict.fromkeys(gpus, SPAN - node.since)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(some=st.lists(nodes(), min_size=8, max_size=14), cut=st.integers(1, SPAN * 4 - 1))
def test_hours_sum_to_the_inventory_for_any_mixture(some: list[Node], cut: int) -> None:
    """By GPU, in hours that are split at a job's, a state's or an owner's change; and two stretches are their union."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = Owned(Path(folder))
        owned = {gpu: h for i, node in enumerate(some) for gpu, h in _put(fleet, f"n{i}", node).items()}
        fleet.gpu("clock", "n-clock")
        fleet.hours("clock", 0, SPAN, "n-clock")
        rows = fleet.told(0, SPAN)
        both = fleet.told(0, cut / 4) + fleet.told(cut / 4, SPAN)
        fleet.queries.close()
    assert all(row["hours"] > 0 and row["category"] in CATEGORIES for row in rows)
    by_gpu: dict[str, float] = {}
    by_hour: dict[tuple[str, object], float] = {}
    for row in rows:
        by_gpu[row["gpu_uuid"]] = by_gpu.get(row["gpu_uuid"], 0.0) + row["hours"]
        key = (row["gpu_uuid"], row["ts"])
        by_hour[key] = by_hour.get(key, 0.0) + row["hours"]
    assert {gpu: round(h, 6) for gpu, h in by_gpu.items()} == owned | {"clock": SPAN}
    assert max(by_hour.values()) <= 1 + 1e-9
    assert abs(sum(row["hours"] for row in both) - sum(by_gpu.values())) < 1e-6
    assert {row["ts"] for row in rows} <= {at(hour) for hour in range(SPAN)}
