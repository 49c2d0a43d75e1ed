"""Small simulated fleets that several suites look at: made once a process, never changed."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

from graynode.collectors.simulated import faults
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.collectors.simulated.jobs import Job

NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)


@functools.cache
def fleet(plan: str = "", nodes: int = 8, seed: int = 1) -> Fleet:
    """A fleet of H100-like nodes of 8 whose history ends at ``NOW``; ``plan`` is the text of a faults file."""
    return Fleet(Spec(NOW, nodes=nodes, seed=seed), faults.parse(plan, "plan", NOW))


def synchronous_job(of: Fleet, before_s: float = 0.0, lasts_s: float = 7200.0) -> Job:
    """A job of several nodes that runs from at least ``lasts_s`` before ``NOW - before_s`` until then."""
    end = of.now_s - before_s
    return next(
        j for j in of.jobs if j.kind.synchronous and len(j.gpus) > 8 and j.start < end - lasts_s and j.end > end
    )


def ago(seconds: float) -> datetime:
    """A moment before the end of history."""
    return NOW - timedelta(seconds=seconds)
