from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from small_fleet import fleet

from graynode.collectors.simulated.faults import Fault
from graynode.collectors.simulated.jobs import WORKS, schedule

DAY = 86400.0


@pytest.mark.parametrize("nodes", [1, 3, 16])
def test_no_gpu_works_for_two(nodes: int) -> None:
    """A GPU has one job at a time, a job keeps its GPUs to its end, and none starts before it was queued."""
    jobs = schedule(3, nodes, 8, 10 * DAY, [])
    busy: dict[int, list[tuple[float, float]]] = {}
    for job in jobs:
        assert job.queued <= job.start < job.end
        assert all(0 <= g < nodes * 8 for g in job.gpus)
        for g in job.gpus:
            busy.setdefault(g, []).append((job.start, job.end))
    for times in busy.values():
        times.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(times))


def test_a_longer_horizon_only_adds() -> None:
    """What is known of a queue stays true when it is looked at further ahead."""
    short, long = schedule(5, 8, 8, 6 * DAY, []), schedule(5, 8, 8, 9 * DAY, [])
    assert short == [j for j in long if j.start < 6 * DAY][: len(short)]
    assert len(short) > 50


def test_the_mix_of_work() -> None:
    """A fleet is busy but not full, most of its time is held by few large jobs, and some of each kind run."""
    jobs = schedule(1, 32, 8, 30 * DAY, [])
    held = np.zeros(len(WORKS))
    for job in jobs:
        held[job.work] += len(job.gpus) * (min(job.end, 30 * DAY) - job.start)
    share = held.sum() / (32 * 8 * 30 * DAY)
    assert 0.6 < share < 0.98
    assert held[0] / held.sum() > 0.4
    assert (held > 0).all()
    assert any(len(job.gpus) >= 32 for job in jobs)


def test_a_lost_gpu_ends_its_job_and_closes_its_node() -> None:
    """The job on a node whose GPU is lost fails soon after and is queued again; the node takes none until repaired."""
    plain = schedule(2, 8, 8, 8 * DAY, [])
    victim = next(j for j in plain if j.start > DAY and j.end - j.start > 7200 and len(j.gpus) >= 8)
    lost = Fault("gpu_lost", victim.gpus[0] // 8, victim.gpus[0], -1, victim.start + 3600, victim.start + 2 * DAY, 1.0)
    jobs = schedule(2, 8, 8, 8 * DAY, [lost])
    hit = next(j for j in jobs if j.number == victim.number and j.requeues == 0)
    assert (hit.state, hit.end) == ("node_fail", lost.start + 30.0)
    again = [j for j in jobs if j.number == victim.number and j.requeues == 1]
    assert len(again) == 1
    for job in jobs:
        if lost.node in {g // 8 for g in job.gpus}:
            assert not lost.start <= job.start < lost.end


def test_jobs_end_in_several_ways() -> None:
    """Completed jobs are more than half, failures are common, as in published clusters."""
    states = [j.state for j in fleet().jobs]
    assert 0.5 < states.count("completed") / len(states) < 0.7
    assert states.count("failed") > states.count("cancelled") > 0
