"""A fault that lasts does not become normal: every detector that learns still tells of it after ten days and more."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
import pytest
from window_rounds import START, Cluster, Columns

from graynode.detectors import NAMES, make
from graynode.detectors.base import TOLD, Detector, Learner, State

DAYS = 12
A_DAY = 12
SICK = 11


def slow_clock(_: int, c: Columns) -> None:
    c["sm_clock_mhz_mean"][SICK] *= 0.88


def hot(_: int, c: Columns) -> None:
    c["temp_c_mean"][SICK] += 25.0


def latency(_: int, c: Columns) -> None:
    c["nvml_call_max_ms_mean"][1] *= 6.0


FAULTS = {"slow": ("gpu_fault", slow_clock), "thermal": ("gpu_fault", hot), "blind": ("host_fault", latency)}
ELSEWHERE = {"ecc", "links", "hosts"}
"""Learners of counts: an error-hour is a fact whoever has it, and their own tests say what a steady rate means. And one
that is for the digest only, whose mean of a host forgets by design."""


def test_every_learner_is_here_or_named() -> None:
    """A new detector that learns has to show that it does not learn from what it should find."""
    assert {n for n in NAMES if isinstance(make(n), Learner)} == FAULTS.keys() | ELSEWHERE


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_twelve_days_is_told_on_the_last_as_on_the_first(name: str) -> None:
    """Hour windows, every second hour: more than the week that baselines leave out. The healthy stay quiet."""
    where, fault = FAULTS[name]
    cluster = Cluster(nodes=4, gpus=4, sigma=0.002, **{where: fault})
    detector: Detector = make(name)
    assert isinstance(detector, Learner)
    state: State = detector.learn(cluster.history(), {})
    told: dict[int, set[str]] = {}
    for w in range(DAYS * A_DAY):
        scored = detector.score(cluster.round(w, START + timedelta(hours=2 * w), 3600), state)
        state = scored.state
        found = scored.findings.filter(TOLD & (pl.col("signal") != "level") & (pl.col("severity") != "digest"))
        told.setdefault(w // A_DAY, set()).update(found["node_id"])
    sick = {"id-node001" if name == "blind" else f"id-node{SICK // 4:03}"}
    assert told[1] == sick
    assert told[DAYS - 1] == sick
