"""The track ``slow`` on made runs in Longhorn's format, where the answer is known by construction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from longhorn_runs import START_S, made

from graynode.benchmarks.detection.baselines import threshold_at
from graynode.benchmarks.detection.slow_corroborated import Rule, corroborated
from graynode.benchmarks.detection.slow_data import Workload, parse
from graynode.benchmarks.detection.slow_inject import slowed
from graynode.benchmarks.detection.slow_methods import Case, ablations, all_baselines, ours
from graynode.benchmarks.detection.slow_protocol import Scored, alarms, figures, folds, limits, score, too_few


def workload(table: pl.DataFrame) -> Workload:
    return parse(table.with_columns(pl.all().cast(pl.String)), "sgemm", "made.csv")


def scored(w: Workload, slowdowns: tuple[float, ...] = (0.02, 0.05), seed: int = 1, earlier: int = 3) -> Scored:
    case = Case(w, "time")
    fold = folds(len(w.ids), 5, seed)
    return score(ours(case, 6.0), case.worse, w.gpu, fold, case.judge().earlier >= earlier, slowdowns)


# What is found


def test_a_slowdown_twenty_times_the_run_to_run_spread_is_always_found_at_the_rate_that_was_asked_for() -> None:
    """2 % against 0.1 %: all found at a nominal 0.5 %, and the realised rate's interval holds 0.5 %."""
    at = figures(scored(workload(made())), 0.005, (0.02, 0.05), 100, 1)
    assert at[0.02].value == at[0.05].value == 1.0
    assert at[0.02].ci_low is not None
    assert at[0.02].ci_low < 0.99, "80 GPUs that all say yes do not certify certainty"
    realised = at[0.0]
    assert realised.value is not None
    assert realised.ci_low is not None
    assert realised.ci_high is not None
    assert realised.ci_low <= 0.005 <= realised.ci_high + 1e-9
    assert abs(realised.value - 0.005) < 0.004


def test_no_slowdown_is_found_as_often_as_there_are_false_alarms() -> None:
    """Zero effect gives chance level: the very same runs."""
    s = scored(workload(made()), (1e-12,))
    at = limits(s, 0.005)
    assert set(alarms(s, at, 1e-12)[0]) == set(alarms(s, at)[0])


def test_values_without_any_structure_are_found_at_chance() -> None:
    """Where a run says nothing about the next, a 1 % slowdown in 10 % noise is found at about the nominal rate."""
    s = scored(workload(made(own=0.1, between=0.0)), (0.01,))
    at = figures(s, 0.005, (0.01,), 50, 1)
    assert at[0.01].value is not None
    assert at[0.01].value < 0.03


def test_what_was_always_slow_is_no_change_and_hides_nobody() -> None:
    """A GPU 20 % slower for ever raises no alarm of ours, and is all that the fleet-wide comparison sees."""
    table = made().with_columns(perf=pl.col("perf") * pl.when(pl.col("uuid") == "GPU-0007").then(1.2).otherwise(1.0))
    w = workload(table)
    s = scored(w)
    assert 7 not in alarms(s, limits(s, 0.005))[1]
    case = Case(w, "time")
    judged = case.judge().earlier >= 3
    level = score(ablations(case)[0], case.worse, w.gpu, folds(len(w.ids), 5, 1), judged, (0.02,))
    assert figures(level, 0.005, (0.02,), 20, 1)[0.02].value < figures(s, 0.005, (0.02,), 20, 1)[0.02].value  # type: ignore[operator]


@pytest.mark.parametrize("signal", ["time", "clock"])
def test_every_method_gives_a_defined_answer_for_every_run(signal: str) -> None:
    """No method fails, and each but those that cannot by design alarms more on runs slowed by half."""
    case = Case(workload(made(gpus=12, runs=12)), signal)
    w = case.workload
    for method in (ours(case, 6.0), *ablations(case), *all_baselines(case, 1)):
        s = score(method, case.worse, w.gpu, folds(12, 3, 1), case.judge().earlier >= 3, (0.5,))
        at = limits(s, 0.05)
        assert len(alarms(s, at, 0.5)[0]) > len(alarms(s, at)[0]), method.name


# No leakage


def test_the_future_changes_nothing_of_the_past() -> None:
    """Shuffling all values after a time leaves every score before it as it was."""
    table = made(gpus=16)
    cut = START_S + 600 * 12
    later = table.filter(pl.col("ts") >= cut)
    shuffled = later.with_columns(perf=later.get_column("perf").shuffle(seed=3) * 3)
    changed = pl.concat([table.filter(pl.col("ts") < cut), shuffled])
    before, after = Case(workload(table), "time"), Case(workload(changed), "time")
    past = before.workload.time_s < cut
    assert past.any()
    for of in ("excess", "squares", "earlier", "shift"):
        assert np.array_equal(getattr(before.judge(), of)[past], getattr(after.judge(), of)[past], equal_nan=True), of


def test_the_test_fold_moves_no_limit() -> None:
    """Making one fold's GPUs ten times as slow leaves that fold's limit as it was."""
    w = workload(made())
    fold = folds(len(w.ids), 5, 1)
    case = Case(w, "time")
    judged = case.judge().earlier >= 3
    in_fold = fold[w.gpu] == 2
    wild = np.where(in_fold, case.worse + np.random.default_rng(1).normal(0, 1, len(w.gpu)), case.worse)
    # A node's GPUs are each other's peers: without peers what a fold does stays within it
    loose = replace(w, beside=np.full(len(w.gpu), -1))
    limit = {}
    for name, worse in (("as it was", case.worse), ("wild", wild)):
        one = Case(replace(loose, worse={**w.worse, "time": worse}), "time")
        limit[name] = limits(score(ours(one, 6.0), one.worse, w.gpu, fold, judged, (0.02,)), 0.005)
    assert limit["as it was"][2] == limit["wild"][2]
    assert limit["as it was"] != limit["wild"]


def test_a_slowed_run_is_judged_by_its_past_and_peers_as_they_were() -> None:
    """The short cut (one run slowed in place) is what judging the whole changed data gives for that run."""
    table = made(gpus=12)
    w = workload(table)
    case = Case(w, "time")
    usual = 0.001
    run = 100
    worse = case.worse.copy()
    worse[run] = slowed(worse[run : run + 1], 0.05)[0]
    whole = Case(replace(w, worse={**w.worse, "time": worse}), "time").judge().score(usual)[run]
    judged = case.judge()
    short = judged.excess_of(worse[[run]], np.array([run]))[0] / judged.spread(usual)[run]
    assert short == pytest.approx(whole)
    assert worse[run] - case.worse[run] == pytest.approx(np.log(1.05))


# Protocol


def test_where_runs_are_too_few_nothing_is_stated() -> None:
    """Fewer than 3/rate training runs: no value, and the note says how many there are."""
    s = scored(workload(made(gpus=10)))
    assert too_few(s, 0.005)
    figure = figures(s, 0.005, (0.05,), 10, 1)[0.05]
    assert figure.value is None
    assert "600" in figure.note
    assert str(s.train_runs) in figure.note


def test_weights_of_one_give_the_limits_without_weights() -> None:
    """The bootstrap's limit and the plain one are one rule."""
    from graynode.benchmarks.detection.slow_protocol import _drawn_limits

    s = scored(workload(made()))
    for rate in (0.005, 0.02, 0.2):
        drawn = _drawn_limits(s, rate, np.ones((1, s.gpus), dtype=np.int64))[:, 0]
        assert list(drawn) == limits(s, rate) == [threshold_at(f.train, rate) for f in s.folds]


def test_folds_are_of_whole_gpus_even_and_drawn_by_the_seed() -> None:
    """Sizes differ by one at most; another seed draws others."""
    first = folds(47, 5, 1)
    assert np.ptp(np.bincount(first)) <= 1
    assert np.array_equal(first, folds(47, 5, 1))
    assert not np.array_equal(first, folds(47, 5, 2))


def test_a_gpu_is_set_aside_by_its_power_and_never_by_its_time() -> None:
    """Power fallen with time: out. Time alone, however slow: stays. For the clock, time may speak."""
    uuid = pl.col("uuid")
    table = made().with_columns(
        perf=pl.col("perf") * pl.when(uuid.is_in(["GPU-0007", "GPU-0009"])).then(1.2).otherwise(1.0),
        pwr=pl.col("pwr") * pl.when(uuid == "GPU-0009").then(0.9).otherwise(1.0),
    )
    w = workload(table)
    assert list(np.flatnonzero(corroborated(w, "time", Rule()))) == [9]
    assert 7 in np.flatnonzero(corroborated(w, "clock", Rule()))


def test_a_gpu_whose_clock_fell_in_its_last_runs_is_set_aside_and_a_healthy_fleet_is_left_alone() -> None:
    """A median over all its runs would not show it; the change against its own past does."""
    late = (pl.col("uuid") == "GPU-0003") & (pl.col("ts") >= START_S + 600 * 20)
    table = made().with_columns(freq=pl.when(late).then(1200.0).otherwise(pl.col("freq")))
    assert list(np.flatnonzero(corroborated(workload(table), "time", Rule()))) == [3]
    healthy = [corroborated(workload(made(seed=seed, runs=8)), "time", Rule()).any() for seed in range(10)]
    assert sum(healthy) <= 1
