"""Laws of error counts: by model, by kind of work, bursts that last for hours, and the last day after a restart."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from window_rounds import START, Cluster, Columns

from graynode.detectors import growth, headroom, work_rates
from graynode.detectors.base import TOLD
from graynode.detectors.ecc import PRIOR, Ecc
from graynode.detectors.frames import gpus
from graynode.detectors.links import Links

SICK = 11


def fresh(n: int) -> dict[str, np.ndarray]:
    return {c: np.full(n, np.nan) for c in growth.columns()}


def days(counts: list[list[int]]) -> tuple[growth.Growth, dict[str, np.ndarray]]:
    """Error-hours per day and entity, from each midnight on; and three error-hours on the last day."""
    memory, n = fresh(len(counts)), len(counts)
    for hour in range(24 * len(counts[0])):
        grew = np.array([1.0 if hour % 24 < of[hour // 24] else 0.0 for of in counts])
        g = growth.advance(memory, grew, np.ones(n), np.full(n, hour * 3600.0), PRIOR)
    return g, memory


def test_bursts_of_several_hours_are_runs_and_not_many_errors() -> None:
    """Where error-days hold four error-hours each, four more are one run; where they hold one, they are news."""
    in_runs = [[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4] if i < 8 else [0] * 11 + [4] for i in range(10)]
    alone = [[1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 4] if i < 8 else [0] * 11 + [4] for i in range(10)]
    runs, _ = days(in_runs)
    single, _ = days(alone)
    assert (runs.cluster[9], single.cluster[9]) == (4.0, 1.0)
    assert runs.p[9] > 1e-6 > single.p[9]


def test_a_few_sick_gpus_do_not_teach_that_full_days_are_ordinary() -> None:
    """The median over entities: two with full days among ten with one error-hour a day change nothing."""
    history = np.array([1.0] * 10 + [24.0 * 20] * 2)
    squares = np.array([1.0] * 10 + [24.0**2 * 20] * 2)
    assert growth.clustered(history, squares) == 1.0
    assert growth.clustered(history[10:], squares[10:]) == 1.0  # two are too few to tell


def test_each_model_has_its_own_law() -> None:
    """A model that often errs does not excuse another that never does."""
    rng = np.random.default_rng(5)
    n = 400
    memory = fresh(2 * n)
    noisy = np.arange(2 * n) < n
    memory["past_hits"] = np.where(noisy, rng.poisson(rng.gamma(0.5, 40.0, 2 * n)), 0.0).astype(np.float64)
    memory["past_hits"][n : n + 6] = 1.0
    memory["past_squares"] = memory["past_hits"].copy()
    memory["past_powered"], memory["hour"] = np.full(2 * n, 600.0), np.zeros(2 * n)
    memory["past_hits"][[0, n + 20]] = memory["past_squares"][[0, n + 20]] = 0.0
    groups = (~noisy).astype(np.int64)
    grew = np.zeros(2 * n)
    grew[[0, n + 20]] = 1.0
    apart = growth.advance(
        {k: v.copy() for k, v in memory.items()}, grew, np.ones(2 * n), np.zeros(2 * n), PRIOR, groups
    )
    as_one = growth.advance({k: v.copy() for k, v in memory.items()}, grew, np.ones(2 * n), np.zeros(2 * n), PRIOR)
    assert apart.p[n + 20] < as_one.p[n + 20] / 3
    assert apart.p[n + 20] < apart.p[0]


def test_work_in_which_errors_are_common_is_a_longer_exposure() -> None:
    """Twice the model's rate after much of it; one day of it explains nothing away."""
    known = pl.DataFrame(
        {"kind": ["H100|inference", "H100|training", "B200|"], "hits": [100.0, 300.0, 0.0], "hours": [9e4, 9e4, 10.0]}
    )
    found = work_rates.ratios(known, pl.Series(["H100|training", "H100|inference", "B200|", "H100|new"]))
    assert found[0] == pytest.approx(320 / 220)
    assert found[1] == pytest.approx(120 / 220)
    assert found[2:].tolist() == [1.0, 1.0]
    little = pl.DataFrame({"kind": ["a|x", "a|y"], "hits": [2.0, 0.0], "hours": [10.0, 1000.0]})
    assert work_rates.ratios(little, pl.Series(["a|x"]))[0] < 1.15


def test_kinds_come_from_the_job_table_and_their_memory_is_bounded() -> None:
    """Model and kind of work; a job without a kind is its model's."""
    round_ = next(Cluster(nodes=2, gpus=2, nodes_per_job=1).rounds(1))
    jobs = pl.DataFrame({"job_id": ["job-0"], "work": ["training"]})
    kinds = work_rates.kinds(gpus(round_.gpu, ("samples",)), jobs)
    assert kinds.to_list() == ["NVIDIA H100 80GB HBM3|training"] * 2 + ["NVIDIA H100 80GB HBM3|"] * 2
    many = pl.Series([f"m|{i}" for i in range(900)])
    held = work_rates.learnt(None, many, np.zeros(900), np.arange(900.0))
    assert held.height == 200
    assert held["hours"].min() == 700.0


def errors_each_hour(w: int, c: Columns) -> None:
    c["ecc_sbe_volatile_delta"][SICK] = 5.0
    c["ecc_sbe_aggregate_last"][SICK] = 900.0


def test_a_restart_without_state_knows_the_last_day_from_history() -> None:
    """Errors in three of the last hours, then a start: the next error is told at once, not after two more hours."""
    c = Cluster(nodes=4, gpu_fault=errors_each_hour)
    past = Ecc().learn(Cluster(nodes=4).history(days=30, step_h=4), {})
    hours = [c.round(0, START - timedelta(hours=h), 3600) for h in (3, 2, 1)]
    day = replace(hours[0], gpu=pl.concat([r.gpu for r in hours]), window_s=3600)
    primed = Ecc().recent(day, past)
    first = c.round(0, START)
    cold = Ecc().score(first, past).findings.filter(TOLD)
    warm = Ecc().score(first, primed).findings.filter(TOLD)
    assert cold.filter(pl.col("severity") == "ticket").is_empty()
    assert warm["gpu_uuid"].to_list() == ["GPU-001-3"]
    assert "in 4 clock hours" in warm["message"][0]
    assert warm["since"][0] == START - timedelta(hours=3)


def test_links_remember_the_last_day_too() -> None:
    """Ports and NVLinks alike."""

    def bad(_: int, c: Columns) -> None:
        c["symbol_errors_delta"][2] = 3.0

    hours = [Cluster(nodes=2, link_fault=bad).round(0, START - timedelta(hours=h), 3600) for h in (2, 1)]
    day = replace(hours[0], link=pl.concat([r.link for r in hours]), gpu=pl.concat([r.gpu for r in hours]))
    state = Links().recent(day, {})
    assert set(state) == {"link", "gpu"}
    assert state["link"].height == 4


def test_spare_rows_that_go_steadily_have_a_date() -> None:
    """A quarter every ten days: the half that is left lasts about twenty, with an interval around it."""
    t = np.array([0.0, 10.0, 20.0] + [np.nan] * 5) * headroom.DAY_S
    left = np.array([1.0, 0.75, 0.5] + [np.nan] * 5)
    found = headroom.forecast(t, left, 20.0 * headroom.DAY_S)
    assert found is not None
    assert found.days == pytest.approx(20.0)
    assert found.low <= found.days
    assert found.high is None or found.high >= found.days
    later = headroom.forecast(t, left, 25.0 * headroom.DAY_S)
    assert later is not None
    assert later.days == pytest.approx(15.0)


def test_two_changes_or_none_that_goes_down_make_no_forecast() -> None:
    """A guess is no forecast."""
    t = np.array([0.0, 10.0] + [np.nan] * 6) * headroom.DAY_S
    assert headroom.forecast(t, np.array([1.0, 0.5] + [np.nan] * 6), 0.0) is None
    level = np.array([0.5, 0.5, 0.5] + [np.nan] * 5)
    assert headroom.forecast(np.array([0.0, 1.0, 2.0] + [np.nan] * 5), level, 2.0) is None


@given(st.lists(st.tuples(st.floats(0.0, 1e9), st.sampled_from(headroom.LEFT)), max_size=8))
def test_a_forecast_lies_within_its_interval(changes: list[tuple[float, float]]) -> None:
    """Whatever the changes: no negative days, low ≤ days ≤ high."""
    t, left = np.full(8, np.nan), np.full(8, np.nan)
    for when, share in sorted(changes):
        t, left = headroom.note(t, left, when, share)
    found = headroom.forecast(t, left, 1e9)
    if found is not None:
        assert 0 <= found.low <= found.days
        assert found.high is None or found.high >= found.days


def test_the_worst_bank_counts() -> None:
    """One bank without spare rows among 639 with all of them; nothing known is nothing."""
    banks = [np.array([639.0, np.nan, 640.0])] + [np.array([0.0, np.nan, 0.0])] * 3 + [np.array([1.0, np.nan, 0.0])]
    worst = headroom.worst(banks)
    assert worst[[0, 2]].tolist() == [0.0, 1.0]
    assert np.isnan(worst[1])


def test_banks_that_run_out_soon_are_a_ticket_with_its_time() -> None:
    """Three changes in six days: the forecast makes it a ticket before any bank is low, and due before it ends."""
    detector, state, found = Ecc(), {}, []
    for day, (high, partial) in enumerate([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0)]):

        def wear(_: int, c: Columns, high: float = high, partial: float = partial, day: int = day) -> None:
            c["bank_remap_max_last"][SICK] = 640.0 - high - partial - max(0, day - 2)
            c["bank_remap_high_last"][SICK], c["bank_remap_partial_last"][SICK] = high, partial + max(0, day - 2)

        scored = detector.score(Cluster(nodes=2, gpu_fault=wear).round(0, START + timedelta(days=2 * day)), state)
        state = scored.state
        found.append(scored.findings)
    said = pl.concat(found).filter(pl.col("signal") == "bank_headroom")
    assert said["severity"].to_list() == ["digest", "digest", "ticket"]
    assert "days at this pace" in said["message"][-1]
    assert "due_h" in said["evidence"][-1]


def _told_after_min(errors: np.ndarray, start_s: float) -> float:
    """Minutes from the first error to p ≤ 1e-6, for a GPU that was clean for five weeks. ``errors``: one a minute."""
    memory = fresh(1) | {"past_powered": np.array([840.0])}
    for minute in range(-1440, len(errors)):
        grew = np.array([float(errors[minute]) if minute >= 0 else 0.0])
        t_s = np.array([start_s + 60.0 * minute])
        if growth.advance(memory, grew, np.full(1, 1 / 60), t_s, PRIOR).p[0] <= 1e-6:
            return float(minute)
    return float("inf")


@pytest.mark.parametrize("past_the_hour", [0, 10, 30, 59])
def test_growth_that_begins_is_told_an_hour_later_wherever_the_clock_stands(past_the_hour: int) -> None:
    """An error a minute from then on: the second error-hour is said as it begins, at any minute of the clock."""
    assert _told_after_min(np.ones(300), 86_400.0 * 20_000 + 60.0 * past_the_hour) == 60.0


def test_a_burst_across_the_full_hour_is_one_error_hour() -> None:
    """Twenty minutes that cross the hour, then nothing; and another such burst the next day: neither is growth."""
    burst = np.concatenate([np.ones(20), np.zeros(1420), np.ones(20), np.zeros(600)])
    assert _told_after_min(burst, 86_400.0 * 20_000 + 60.0 * 50) == float("inf")
    memory = fresh(1)
    begins = [
        bool(growth.advance(memory, np.ones(1), np.full(1, 1 / 60), np.array([60.0 * m]), PRIOR).new_hour[0])
        for m in range(50, 120)
    ]
    assert [m for m, new in enumerate(begins) if new] == [0, 60]
