"""Baselines over days: what they are made of, and that a fault does not become one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from graynode.detectors import accumulate, baseline
from graynode.detectors.accumulate import TAU, Run

S = ("clock",)
KEYS = pl.Series("key", ["a"])
H = 0.6


def fresh() -> dict[str, np.ndarray]:
    return {c: np.full(1, np.nan) for c in (*baseline.columns(S), *Run.columns("clock"))}


def play(excess: list[float], windows: int = 20, *, protect: bool = True) -> list[tuple[float, float]]:
    """A day's excess each: sum and baseline at the end of the day."""
    memory, history, seen = fresh(), None, []
    for day, x in enumerate(excess):
        for w in range(windows):
            now = np.full(1, day * 86_400.0 + w * 30.0)
            suspect = memory["clock.sum"] >= H / 2 if protect else None
            history = baseline.roll(memory, history, KEYS, S, float(now[0]), suspect)
            r = np.full(1, x) - memory["clock.base"]
            run = accumulate.advance(memory, "clock", r, now, TAU, H)
            healthy = run.sum < H / 2 if protect else np.ones(1, dtype=np.bool_)
            baseline.learn(memory, "clock", np.full(1, x), healthy, 3 * TAU)
        seen.append((float(memory["clock.sum"][0]), float(memory["clock.base"][0])))
    return seen


def test_the_median_of_days_28_to_7_is_the_baseline() -> None:
    """One wild day among them moves nothing; the last week is not in it."""
    days = [0.01] * 20 + [0.2] + [0.01] * 10 + [0.04] * 6
    assert play(days)[-1][1] == pytest.approx(0.01)


def test_a_fault_that_lasts_for_months_is_still_against_the_old_normal() -> None:
    """After 70 days of 8 % no day of the old normal is in reach; the baseline stands, and the sum at its bound."""
    seen = play([0.0] * 20 + [0.08] * 70)
    assert seen[-1][1] == pytest.approx(0.0, abs=1e-6)
    assert seen[-1][0] == pytest.approx(2 * H)
    assert play([0.0] * 20 + [0.08] * 70, protect=False)[-1][1] == pytest.approx(0.08)  # what protection prevents


@pytest.mark.parametrize(("per_day", "by_day"), [(0.002, 20), (0.004, 12), (0.01, 7)])
def test_a_ramp_is_found_before_it_is_normal_and_stays_found(per_day: float, by_day: int) -> None:
    """0.2 %, 0.4 % and 1 % a day after thirty days without: told by the day said, and on the sixtieth still."""
    seen = play([0.0] * 30 + [per_day * d for d in range(60)], windows=120)
    told = [s >= H for s, _ in seen]
    first = told.index(True)
    assert 30 < first <= 30 + by_day
    assert all(told[first:])


def test_when_all_days_are_out_of_reach_the_last_normal_serves_and_is_not_firm() -> None:
    """A GPU that stood idle for two months is compared with what it was, with wider bands."""
    memory, history = fresh(), None
    for day in [*range(20), 90]:
        history = baseline.roll(memory, history, KEYS, S, day * 86_400.0)
        for _ in range(12):
            baseline.learn(memory, "clock", np.full(1, 0.02), np.ones(1, dtype=np.bool_), 0.15)
    assert memory["clock.base"][0] == pytest.approx(0.02)
    assert memory["clock.firm"][0] == 0.0


def test_the_history_is_bounded_by_five_weeks() -> None:
    """Days out of reach leave it, and a day said twice stands as last said."""
    memory, history = fresh(), None
    for day in range(80):
        history = baseline.roll(memory, history, KEYS, S, day * 86_400.0)
        for _ in range(12):
            baseline.learn(memory, "clock", np.full(1, 0.02), np.ones(1, dtype=np.bool_), 0.15)
    assert history is not None
    assert history.height == baseline.KEPT_D
    again = history.tail(1).with_columns(clock=pl.lit(0.5, dtype=pl.Float32))
    joined = baseline.join(history, again, 79.0)
    assert joined.height == history.height
    assert joined.filter(pl.col("day") == 78.0)["clock"].to_list() == [0.5]
