"""The judge of single runs, against what is known by construction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.detectors import run_level
from graynode.detectors.run_level import Judged, Runs

NOBODY = -1


def runs(values: list[list[float]], *, beside: bool = False) -> Runs:
    """One GPU a list, its runs at times 0, 1, 2 …; ``beside`` puts runs of one time side by side."""
    gpu = np.repeat(np.arange(len(values)), [len(v) for v in values])
    time = np.concatenate([np.arange(len(v)) for v in values])
    return Runs(gpu, time if beside else np.full(len(gpu), NOBODY), time.astype(float), np.concatenate(values))


def test_a_run_is_compared_with_the_median_of_its_strictly_earlier_ones() -> None:
    """1, 3, 2, 9: nothing, 1, 2, 2; a run of another GPU is no past, a run of the same time neither."""
    judged = run_level.judge(runs([[1.0, 3.0, 2.0, 9.0], [5.0]]))
    assert np.array_equal(judged.baseline, [np.nan, 1.0, 2.0, 2.0, np.nan], equal_nan=True)
    assert list(judged.earlier) == [0, 1, 2, 3, 0]
    assert np.array_equal(judged.excess, [np.nan, 2.0, 0.0, 7.0, np.nan], equal_nan=True)
    together = Runs(np.zeros(3, np.int64), np.full(3, NOBODY), np.array([0.0, 1.0, 1.0]), np.array([1.0, 2.0, 4.0]))
    assert list(run_level.judge(together).earlier) == [0, 1, 1]


def test_what_all_runs_beside_it_share_is_nobodys_fault() -> None:
    """Five GPUs, all 0.3 worse in their third run and one 0.5 on top: that one's excess is 0.5, the others' none."""
    values = [[g, g, g + 0.3 + (0.5 if g == 2 else 0.0)] for g in (0.0, 1.0, 2.0, 3.0, 4.0)]
    judged = run_level.judge(runs(values, beside=True))
    last = judged.excess.reshape(5, 3)[:, 2]
    assert last == pytest.approx([0, 0, 0.5, 0, 0])
    assert list(judged.peers.reshape(5, 3)[:, 2]) == [4] * 5
    alone = run_level.judge(runs(values, beside=True), peers=False)
    assert alone.excess.reshape(5, 3)[:, 2] == pytest.approx([0.3, 0.3, 0.8, 0.3, 0.3])


def test_too_few_beside_it_are_nobody() -> None:
    """Two others are no peers: their median would be one of them."""
    judged = run_level.judge(runs([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], beside=True))
    assert judged.excess[[1, 3, 5]] == pytest.approx([1.0] * 3)
    assert not judged.peers.any()


def test_an_unsteady_gpu_needs_more_than_a_steady_one() -> None:
    """The same step after the same number of runs, one GPU steady and one not: the steady one's score is higher."""
    rng = np.random.default_rng(3)
    steady, wild = rng.normal(0, 0.001, 30), rng.normal(0, 0.01, 30)
    steady[-1] = wild[-1] = 0.05
    judged = run_level.judge(runs([list(steady), list(wild)]))
    score = judged.score(0.001)
    assert score[29] > 20
    assert score[59] < 6


def test_few_runs_of_its_own_leave_the_usual_spread() -> None:
    """With one run before, the spread is the usual one, widened for the past of one."""
    judged = run_level.judge(runs([[0.0, 0.5, 0.0]]))
    assert judged.spread(0.001)[1] == pytest.approx(0.001 * np.sqrt(1 + np.pi / 2))
    own = 0.5**2 / (1 + np.pi / 2)
    expected = np.sqrt((16 * 0.001**2 + own) / 17 * (1 + np.pi / 4))
    assert judged.spread(0.001)[2] == pytest.approx(expected)


def test_the_usual_spread_of_normal_runs_is_their_standard_deviation_and_never_below_half_a_step() -> None:
    """Twenty thousand normal runs; runs that never differ; runs told in steps; no run with a past."""
    rng = np.random.default_rng(5)
    judged = run_level.judge(runs([list(v) for v in rng.normal(0, 0.01, (400, 50))]))
    assert run_level.usual_spread(judged) == pytest.approx(0.01, rel=0.03)
    equal = run_level.judge(runs([[1.0] * 5] * 3))
    assert 0 < run_level.usual_spread(equal) < 1e-5
    assert run_level.usual_spread(equal, 0.006) == 0.003
    assert np.isnan(run_level.usual_spread(run_level.judge(runs([[1.0], [2.0]]))))


def test_the_step_of_a_signal_is_seen_where_values_repeat() -> None:
    """A clock in steps of 7.5 MHz has one of 0.53 %; a finely told time has none, nor has a constant."""
    clock = np.log(1400 + 7.5 * np.random.default_rng(1).integers(-5, 5, 500))
    assert run_level.resolution(clock) == pytest.approx(np.log(1407.5 / 1400), rel=0.02)
    assert run_level.resolution(np.random.default_rng(1).normal(size=500)) == 0.0
    assert run_level.resolution(np.full(5, 2.0)) == 0.0
    assert run_level.resolution(np.array([np.nan])) == 0.0


def test_unknown_values_and_nothing_at_all_have_no_score_and_take_no_part() -> None:
    """NaN is no run: the next one's past is as if it had not been; no runs, no answers."""
    judged = run_level.judge(runs([[1.0, np.nan, 1.0, 2.0]]))
    assert np.isnan(judged.score(0.1)[[0, 1]]).all()
    assert list(judged.earlier) == [0, 0, 1, 2]
    empty = run_level.judge(Runs(*(np.empty(0, np.int64),) * 2, np.empty(0), np.empty(0)))
    assert not len(empty.score(0.1))
    assert np.isnan(run_level.usual_spread(empty))


def by_hand(r: Runs) -> Judged:
    """The same by loops, for small cases."""
    n = len(r.worse)
    before = [
        [j for j in range(n) if r.history[j] == r.history[i] and r.time_s[j] < r.time_s[i] and r.worse[j] == r.worse[j]]
        for i in range(n)
    ]
    known = [r.worse[i] == r.worse[i] for i in range(n)]
    base = np.array([np.median(r.worse[b]) if b and known[i] else np.nan for i, b in enumerate(before)])
    earlier = np.array([len(b) if known[i] else 0 for i, b in enumerate(before)], dtype=np.int64)
    shift, peers = np.zeros(n), np.zeros(n, dtype=np.int64)
    off = r.worse - base
    for i in range(n):
        others = [off[j] for j in range(n) if j != i and r.beside[j] == r.beside[i] >= 0 and off[j] == off[j]]
        if len(others) >= 3 and off[i] == off[i]:
            shift[i], peers[i] = np.median(others), len(others)
    widening = 1 + np.pi / 2 / np.maximum(earlier, 1) + np.where(peers > 0, np.pi / 2 / np.maximum(peers, 1), 0)
    u = (off - shift) ** 2 / widening
    past = [[u[j] for j in range(n) if r.history[j] == r.history[i] and r.time_s[j] < r.time_s[i]] for i in range(n)]
    squares = np.array([np.nansum(p) if p else 0.0 for p in past])
    return Judged(
        r.worse, base, earlier, shift, peers, squares, np.array([np.sum(~np.isnan(p)) for p in past], np.int64)
    )


@given(st.integers(1, 40), st.integers(0, 10_000))
def test_it_is_what_loops_over_runs_give_in_any_order(n: int, seed: int) -> None:
    """Random small cases with ties and holes, against the definition written out."""
    rng = np.random.default_rng(seed)
    worse = np.where(rng.random(n) < 0.1, np.nan, rng.integers(0, 5, n) / 10)
    r = Runs(rng.integers(0, 3, n), rng.integers(-1, 4, n), rng.integers(0, 6, n).astype(float), worse)
    judged, expected = run_level.judge(r), by_hand(r)
    for name in ("baseline", "earlier", "shift", "peers", "squares", "settled"):
        assert np.allclose(getattr(judged, name), getattr(expected, name), equal_nan=True), name
