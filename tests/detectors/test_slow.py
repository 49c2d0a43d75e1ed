"""Slow GPUs: change against peers and past, level, context, causes and severities."""

from __future__ import annotations

import json
from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from window_rounds import START, Change, Cluster, Columns

from graynode.detectors.base import TOLD, State
from graynode.detectors.slow import Slow

SICK = 11


def clock(by: float, begins: int = 0, row: int | slice = SICK) -> Change:
    def change(w: int, c: Columns) -> None:
        if w >= begins:
            c["sm_clock_mhz_mean"][row] *= 1 - by

    return change


@pytest.fixture(scope="module")
def past() -> State:
    return Slow().learn(Cluster().history(step_h=12), {})


def play(c: Cluster, windows: int, state: State, first: int = 0) -> tuple[pl.DataFrame, State]:
    found = []
    for round_ in c.rounds(windows, first=first):
        scored = Slow().score(round_, state)
        state = scored.state
        found.append(scored.findings)
    return pl.concat(found), state


def test_five_percent_is_a_ticket_and_twelve_a_page(past: State) -> None:
    """Both are told with value, baseline, peers, effect and since."""
    five, _ = play(Cluster(gpu_fault=clock(0.05)), 45, past)
    twelve, _ = play(Cluster(gpu_fault=clock(0.12)), 45, past)
    assert set(five.filter(TOLD)["severity"]) == {"ticket"}
    assert set(twelve.filter(TOLD)["severity"]) == {"page"}
    last = five.filter(TOLD).tail(1).row(0, named=True)
    assert last["gpu_uuid"] == "GPU-001-3"
    assert last["effect"] == pytest.approx(0.053, abs=0.01)
    assert last["peers"] == 31
    assert last["since"] <= START + timedelta(minutes=3)
    assert last["value"] < 0.98 * last["peer_median"]
    assert last["value"] == pytest.approx(0.95 * last["baseline"], rel=0.01)  # its own normal, in MHz
    assert json.loads(last["evidence"])["baseline_firm"] is True


def test_a_gpu_that_always_was_slower_is_not_a_change() -> None:
    """Seven percent below its peers for 35 days is its own normal: no change is told."""
    always = Cluster()
    always.clock_offset[SICK] = -0.07
    history = Cluster()
    history.clock_offset[SICK] = -0.07
    rounds = [history.round(i, START - timedelta(days=d), 3600) for i, d in enumerate(range(35, 0, -1))]
    frames = {t: pl.concat([getattr(r, t) for r in rounds]) for t in ("gpu", "link", "host")}
    state = Slow().learn(rounds[0].__class__(rounds[0].start, 3600, events=pl.DataFrame(), probes=pl.DataFrame(),
                         inventory=pl.DataFrame(), quality=pl.DataFrame(), **frames), {})  # fmt: skip
    midnight = -2 * 60 * 6
    found, _ = play(always, 45, state, first=midnight)
    told = found.filter(TOLD)
    assert set(told["signal"]) <= {"level"}
    assert told.filter(pl.col("signal") == "level")["severity"].to_list() == ["digest"]
    assert "GEMM benchmark" in told["action"][0]


def test_the_watched_are_stored_below_the_threshold_as_digest(past: State) -> None:
    """From half the threshold on a finding is stored, and its severity says that nobody is told."""
    found, _ = play(Cluster(gpu_fault=clock(0.05)), 45, past)
    watched = found.filter(~TOLD)
    assert watched.height
    assert set(watched["severity"]) == {"digest"}
    assert (watched["score"] >= watched["threshold"] / 2).all()


def test_without_a_job_it_is_a_ticket_at_most() -> None:
    """Peers on one node only: the bands are wider and nobody is woken."""
    state = Slow().learn(Cluster(with_jobs=False).history(step_h=12), {})
    found, _ = play(Cluster(with_jobs=False, gpu_fault=clock(0.12)), 45, state)
    assert set(found.filter(TOLD)["severity"]) == {"ticket"}


def test_idle_gpus_are_not_judged(past: State) -> None:
    """A clock that is low because nothing runs is no slowness."""

    def idle(_: int, c: Columns) -> None:
        c["sm_clock_mhz_mean"][SICK], c["gpu_util_percent_mean"][SICK], c["gpu_idle_s"][SICK] = 345.0, 0.0, 30.0

    found, _ = play(Cluster(gpu_fault=idle), 60, past)
    assert found.is_empty()


def test_all_ranks_slow_together_accuse_nobody(past: State) -> None:
    """A whole job that slows down has no slow GPU: its peers slow down as well."""
    found, _ = play(Cluster(gpu_fault=clock(0.2, row=slice(0, 32))), 45, past)
    assert found.filter(TOLD).is_empty()


@pytest.mark.parametrize(("column", "cause"), [("hw_power_brake_s", "power_brake"), ("sw_thermal_s", "thermal")])
def test_what_holds_the_clock_down_is_the_cause(past: State, column: str, cause: str) -> None:
    """A clock that the power brake or heat holds down is that, not a slow GPU."""

    def held(_: int, c: Columns) -> None:
        c["sm_clock_mhz_mean"][SICK] *= 0.9
        c[column][SICK] = 20.0
        c[f"throttle_{column[:-2]}_ns_delta"][SICK] = 20e9

    found, _ = play(Cluster(gpu_fault=held), 45, past)
    assert set(found.filter(TOLD)["cause"]) == {cause}


def test_a_new_power_limit_ends_the_baseline(past: State) -> None:
    """What a GPU was at 700 W says nothing about it at 500 W."""

    def capped(w: int, c: Columns) -> None:
        if w >= 10:
            c["power_limit_enforced_w_last"][SICK] = 500.0
            c["sm_clock_mhz_mean"][SICK] *= 0.85

    found, state = play(Cluster(gpu_fault=capped), 60, past)
    assert found.filter(TOLD).is_empty()
    assert "GPU-001-3" not in state["history"].get_column("key").to_list()
    assert "GPU-001-4" in state["history"].get_column("key").to_list()


def test_a_suspect_does_not_teach_the_baseline(past: State) -> None:
    """Over midnight the slow day does not become the GPU's normal."""
    evening = 2 * 60 * 17  # 23:00
    c = Cluster(gpu_fault=clock(0.08, begins=evening + 30))
    found, state = play(c, 240, past, first=evening)
    centre = state["history"].filter(pl.col("key") == "GPU-001-3").sort("day").tail(1)["clock"][0]
    others = past["history"].filter(pl.col("key") == "GPU-001-3")["clock"].median()
    assert found.filter(TOLD).height
    assert abs(centre - others) < 0.03


def test_recovery_is_forgotten_as_it_came(past: State) -> None:
    """After the clock is back, the sum runs down and the finding ends."""

    def for_a_while(w: int, c: Columns) -> None:
        if w < 40:
            c["sm_clock_mhz_mean"][SICK] *= 0.93

    found, _ = play(Cluster(gpu_fault=for_a_while), 120, past)
    last = found.filter(TOLD)["ts"].max()
    assert START + timedelta(minutes=18) < last < START + timedelta(minutes=40)


def test_without_any_past_only_the_level_can_speak() -> None:
    """A new site: no change is claimed before there are days to compare with."""
    found, _ = play(Cluster(gpu_fault=clock(0.12)), 45, {})
    assert found.is_empty()


def test_lost_windows_change_nothing(past: State) -> None:
    """Two hours without rows leave the sums as they were."""
    c = Cluster(gpu_fault=clock(0.05))
    _, state = play(c, 20, past)
    empty = [c.round(w, c.start_of(w)) for w in range(20, 30)]
    for round_ in empty:
        gone = round_.__class__(round_.start, 30, *(f.clear() for f in (round_.gpu, round_.link, round_.host)),
                                round_.events, round_.probes, round_.inventory, round_.quality)  # fmt: skip
        state = Slow().score(gone, state).state
    found, _ = play(c, 1, state, first=30)
    assert np.isclose(found.filter(pl.col("gpu_uuid") == "GPU-001-3")["score"][0], 0.025 * 21, atol=0.12)
