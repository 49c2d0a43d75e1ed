"""Odd hosts: quiet before it knows, one finding for a shift of all, a digest with a conformal p-value."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from window_rounds import Change, Cluster, Columns

from graynode.detectors.base import TOLD, State
from graynode.detectors.hosts import EVERY, Hosts


def fleet(fault: Change | None = None) -> Cluster:
    return Cluster(nodes=256, gpus=1, nodes_per_job=8, **({"host_fault": fault} if fault else {}))


def play(c: Cluster, windows: int, *, learned: bool = True) -> tuple[pl.DataFrame, State]:
    hosts = Hosts()
    state: State = hosts.learn(fleet().history(days=7, step_h=12), {}) if learned else {}
    found = []
    for w in range(0, windows, EVERY):
        scored = hosts.score(replace(c.round(w, c.start_of(w)), gpu=pl.DataFrame()), state)
        state = scored.state
        found.append(scored.findings)
    return pl.concat(found), state


def test_a_broken_relation_is_told_as_a_digest() -> None:
    """A host whose load no longer follows its CPU: one node, severity digest, values in the evidence."""

    def apart(w: int, c: Columns) -> None:
        if w >= 20:
            c["load1_mean"][7] *= 1.5
            c["cpu_util_percent_mean"][7] /= 1.5

    found, _ = play(fleet(apart), 200)
    told = found.filter(TOLD)
    assert set(told["node_id"]) == {"id-node007"}
    assert set(told["severity"]) == {"digest"}
    assert set(told["cause"]) == {"unusual"}
    assert "load1" in told["evidence"][0]
    assert told["p_value"].min() >= 1 / 200


def test_a_shift_of_all_hosts_is_one_finding() -> None:
    """A new image on every host accuses nobody by name."""

    def everywhere(w: int, c: Columns) -> None:
        if w >= 20:
            c["cpu_util_percent_mean"] *= 3.0

    found, _ = play(fleet(everywhere), 200)
    told = found.filter(TOLD)
    assert told.group_by("ts").len()["len"].max() == 1
    assert set(told["cause"]) == {"fleet_shift"}


def test_an_odd_host_teaches_nothing() -> None:
    """While its sum is high, neither its mean nor the calibration moves."""

    def apart(w: int, c: Columns) -> None:
        if w >= 20:
            c["cpu_util_percent_mean"][7] *= 4.0

    _, early = play(fleet(apart), 120)
    _, late = play(fleet(apart), 240)
    mean = [s["host"].filter(pl.col("key") == "id-node007")["cpu_util_percent_mean"][0] for s in (early, late)]
    assert mean[0] == mean[1]


def test_between_its_turns_nothing_changes() -> None:
    """Nine of ten rounds give nothing and hand the state back."""
    hosts, c, state = Hosts(), Cluster(nodes=4), {}
    for w, round_ in enumerate(c.rounds(21)):
        scored = hosts.score(round_, state)
        assert (scored.state is state) == (w % EVERY != 0)
        state = dict(scored.state) if w % EVERY == 0 else state


def test_history_in_pieces_is_the_history_whole() -> None:
    """A day at a time or all at once give the same own means."""
    hosts, whole = Hosts(), Cluster(nodes=4, gpus=1).history(days=4, step_h=6)
    once, state = hosts.learn(whole, {}), {}
    for day in sorted(whole.host["ts"].dt.date().unique()):
        state = dict(hosts.learn(replace(whole, host=whole.host.filter(pl.col("ts").dt.date() == day)), state))
    numbers = pl.selectors.numeric().exclude("seen")
    a, b = (s["host"].sort("key").select(numbers).to_numpy() for s in (once, state))
    assert np.allclose(a, b, equal_nan=True)


@pytest.mark.parametrize("windows", [100])
def test_without_history_it_waits(windows: int) -> None:
    """An hour must pass before a host's own mean is trusted."""
    found, state = play(fleet(), windows, learned=False)
    assert found.is_empty()
    assert state["history"].is_empty()


def test_importing_it_imports_no_scikit_learn() -> None:
    """A second and 130 MiB, only where there is something to fit."""
    code = "import sys; import graynode.detectors.hosts; assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
