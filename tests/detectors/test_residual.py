"""Peers, leave-one-out medians and robust z."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_rounds import START, Cluster

from graynode.detectors import capability, conformal, residual
from graynode.detectors.frames import codes, gpus, keys_by_work

VALUES = st.lists(
    st.tuples(st.integers(-1, 3), st.one_of(st.just(float("nan")), st.floats(-1e6, 1e6, allow_nan=False))), max_size=40
)


@settings(deadline=None)
@given(VALUES)
def test_leave_one_out_median_is_the_median_of_the_others(rows: list[tuple[int, float]]) -> None:
    """Compared with the definition, for any groups, missing values and ties."""
    groups = np.array([g for g, _ in rows], dtype=np.int64)
    values = np.array([v for _, v in rows], dtype=np.float64)
    median, others = residual.leave_one_out_median(values, groups)
    for i, (g, v) in enumerate(rows):
        rest = [w for j, (h, w) in enumerate(rows) if j != i and h == g and not np.isnan(w)]
        if np.isnan(v) or g < 0 or not rest:
            assert np.isnan(median[i])
            continue
        assert others[i] == len(rest)
        assert np.isclose(median[i], np.median(rest))


def test_one_slow_gpu_does_not_move_its_own_measure() -> None:
    """With itself in the median of four, half of its slowness would vanish; left out, none does."""
    x = np.log([1000.0, 1000.0, 1000.0, 900.0])
    excess = residual.against_peers(x, residual.Peers(np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64))).excess
    assert np.isclose(excess[3], np.log(0.9))
    assert np.allclose(excess[:3], 0)


def test_peers_are_job_and_role_and_where_no_job_is_known_the_node_with_a_warning() -> None:
    """Without jobs the comparison stays on the node, and says that it is weak."""
    with_jobs, without = Cluster(nodes=4, nodes_per_job=2), Cluster(nodes=4, with_jobs=False)
    view = gpus(next(with_jobs.rounds(1)).gpu, ("sm_clock_mhz_mean",))
    r = residual.against_peers(view.x["sm_clock_mhz_mean"], residual.peers(view))
    assert set(r.peers) == {15}
    assert not r.wide.any()
    view = gpus(next(without.rounds(1)).gpu, ("sm_clock_mhz_mean",))
    r = residual.against_peers(view.x["sm_clock_mhz_mean"], residual.peers(view))
    assert set(r.peers) == {7}
    assert r.wide.all()


def test_a_small_job_is_not_compared_with_other_jobs_on_its_node() -> None:
    """Two GPUs of a notebook beside six of a training run do other work: cannot tell."""
    c = Cluster(nodes=1, nodes_per_job=1)
    frame = next(c.rounds(1)).gpu.with_columns(
        job_id_last=pl.when(pl.col("gpu_uuid").str.ends_with("-0")).then(pl.lit("notebook")).otherwise("job_id_last")
    )
    view = gpus(frame, ("sm_clock_mhz_mean",))
    r = residual.against_peers(view.x["sm_clock_mhz_mean"], residual.peers(view))
    assert np.isnan(r.excess[0])
    assert not np.isnan(r.excess[1:]).any()


def test_who_shares_the_job_does_not_matter_once_baselines_are_known() -> None:
    """A GPU among three that always clock lower looks fast; less their baselines it is what it always was."""
    groups = residual.Peers(np.zeros(4, dtype=np.int64), np.full(4, -1))
    base = np.array([0.0, 0.03, 0.03, 0.03])
    r, own = residual.against_own_and_peers(base + np.array([0.05, 0.0, 0.0, 0.0]), base, groups)
    assert np.allclose(r.excess, [0.05, 0.0, 0.0, 0.0])
    assert np.allclose(own, [0.05, 0.03, 0.03, 0.03])


def test_without_an_own_baseline_there_is_no_residual_but_something_to_learn() -> None:
    """It is neither judged nor a measure for others, and learns from all."""
    groups = residual.Peers(np.zeros(6, dtype=np.int64), np.full(6, -1))
    base = np.array([np.nan, 0, 0, 0, 0, 0])
    r, own = residual.against_own_and_peers(np.array([0.05, 0.0, 0.0, 0.0, 0.0, 0.0]), base, groups)
    assert np.isnan(r.excess[0])
    assert np.isclose(own[0], 0.05)
    assert np.allclose(r.excess[1:], 0)
    assert set(r.peers[1:]) == {4}


def test_baselines_of_a_node_whose_half_runs_cooler_add_up() -> None:
    """Four GPUs at 35 °C and four at 46: less their own baselines all are the same, and none is odd."""
    x = np.array([35.0, 36.0, 35.0, 36.0, 46.0, 47.0, 46.0, 47.0])
    groups = residual.Peers(np.zeros(8, dtype=np.int64), np.full(8, -1))
    base = residual.from_centre(x, groups)
    assert np.allclose(x - base, 41.0)
    r, _ = residual.against_own_and_peers(x, base, groups)
    assert np.allclose(r.excess, 0)


@settings(deadline=None)
@given(VALUES)
def test_the_centre_is_the_median_of_the_group(rows: list[tuple[int, float]]) -> None:
    """Compared with the definition; groups with too few peers have none."""
    groups = np.array([g for g, _ in rows], dtype=np.int64)
    values = np.array([v for _, v in rows], dtype=np.float64)
    said = residual.from_centre(values, residual.Peers(groups, np.full(len(rows), -1)))
    for i, (g, v) in enumerate(rows):
        group = [w for h, w in rows if h == g and not np.isnan(w)]
        if np.isnan(v) or g < 0 or len(group) <= residual.MIN_PEERS:
            assert np.isnan(said[i])
        else:
            assert np.isclose(said[i], v - np.median(group))


def test_where_peers_are_weak_only_what_is_beyond_the_band_counts() -> None:
    """Both ways, and strong peers keep the whole excess."""
    excess, wide = np.array([0.06, -0.06, 0.01, 0.06]), np.array([True, True, True, False])
    r = residual.Residual(excess, excess, np.full(4, 7), wide)
    assert np.allclose(residual.widened(r, 0.025), [0.035, -0.035, 0.0, 0.06])


def test_an_entity_without_a_past_learns_from_those_who_have_one() -> None:
    """Among three that always clock 3 % lower it is measured against what they are less their own, not against them."""
    groups = residual.Peers(np.zeros(5, dtype=np.int64), np.full(5, -1))
    base = np.array([np.nan, 0.03, 0.03, 0.03, 0.03])
    assert np.allclose(residual.levels(np.array([0.01, 0.03, 0.03, 0.03, 0.03]), base, groups), [0.01, *[0.03] * 4])
    unknown = residual.levels(np.array([0.01, 0.03, 0.03, 0.03, 0.03]), np.full(5, np.nan), groups)
    assert np.allclose(unknown, [-0.02, 0, 0, 0, 0])


def test_small_jobs_of_changing_gpus_give_baselines_that_agree() -> None:
    """Four GPUs at a time, another four in each window: in a few rounds of polish the true levels come out.

    The distance from the centre of each four is off by as much as the GPUs differ.
    """
    rng = np.random.default_rng(5)
    true, windows = rng.normal(0, 0.02, 16), 60
    gpu = np.concatenate([rng.permutation(16) for _ in range(windows)])
    job = np.repeat(np.arange(4 * windows), 4)
    x = true[gpu] + rng.normal(0, 0.1, 4 * windows)[job]
    groups = residual.Peers(job, np.full(len(job), -1))
    found = [np.full(16, np.nan)]
    for _ in range(8):
        own = residual.polished(x, found[-1][gpu], groups, gpu)
        found.append(np.array([np.median(own[gpu == g]) for g in range(16)]))
    plain = residual.from_centre(x, groups)
    naive = np.array([np.median(plain[gpu == g]) for g in range(16)])
    naive_off, once_off, off = (np.abs(b - b.mean() - true + true.mean()).max() for b in (naive, found[1], found[-1]))
    assert max(off, once_off) < 0.003 < naive_off


def test_only_windows_with_one_job_throughout_teach() -> None:
    """The first window of a job may hold another job's work; so may the first that is known of a GPU."""
    rows = [("a", "1"), ("a", "1"), ("a", "2"), ("a", "2"), ("b", "2"), ("b", None), ("b", None)]
    frame = pl.DataFrame({
        "ts": [START + timedelta(hours=i) for i in range(len(rows))],
        "node_id": "n1",
        "gpu_uuid": [g for g, _ in rows],
        "job_id_last": [j for _, j in rows],
    })  # fmt: skip
    whole = capability.throughout(gpus(frame, ()))
    assert whole.tolist() == [False, True, False, True, False, False, True]


def test_a_view_made_again_of_the_same_rows_is_not_made_again() -> None:
    """Detectors of a round read one frame: columns come from one place and nobody can change them for the others."""
    frame = next(Cluster(nodes=2).rounds(1)).gpu
    one, two = gpus(frame, ("power_w_mean",)), gpus(frame, ("power_w_mean", "temp_c_mean"))
    assert one.x["power_w_mean"] is two.x["power_w_mean"]
    assert set(one.x) == {"power_w_mean"}
    with pytest.raises(ValueError, match="read-only"):
        one.x["power_w_mean"][0] = 1.0
    assert gpus(frame.clone(), ("power_w_mean",)).x["power_w_mean"] is not one.x["power_w_mean"]


def test_a_past_that_is_not_firm_is_weak_too() -> None:
    """Half of the slowdown worth telling comes off, as it does with weak peers."""
    r = residual.Residual(np.array([0.05, 0.05, 0.05]), np.zeros(3), np.full(3, 7), np.zeros(3, dtype=np.bool_))
    assert np.allclose(residual.widened(r, 0.025, np.array([0.0, 1.0, np.nan])), [0.025, 0.05, 0.025])


def test_the_kind_of_work_is_part_of_what_a_baseline_belongs_to() -> None:
    """A baseline does not carry over from one kind to another; an unknown kind is none."""
    view = gpus(next(Cluster(nodes=2, nodes_per_job=1).rounds(1)).gpu, ())
    jobs = pl.DataFrame({"job_id": ["job-1"], "work": ["training"]})
    keys = keys_by_work(view, jobs)
    assert keys[0] == "GPU-000-0"
    assert keys[8] == "GPU-001-0|training"
    assert keys_by_work(view, pl.DataFrame()).equals(view.keys)


def test_with_two_peers_nobody_can_say_who_is_odd() -> None:
    """Three GPUs are too few: the answer is "cannot tell"."""
    groups = residual.Peers(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    assert np.isnan(residual.against_peers(np.array([1.0, 1.0, 5.0]), groups).excess).all()


def test_codes_are_equal_exactly_where_all_columns_are() -> None:
    """Null is a value of its own, save in the first column, where it means "no group"."""
    a, b = pl.Series(["x", "x", "y", None, "x"]), pl.Series(["1", None, "1", "1", "1"])
    code = codes(a, b)
    assert code[0] == code[4]
    assert len({code[0], code[1], code[2]}) == 3
    assert code[3] == -1


def test_robust_z_needs_more_than_a_difference_in_the_last_digit() -> None:
    """Peers that agree exactly do not make a microscopic difference infinite: the MAD has a floor."""
    values = np.array([1.0] * 9 + [1.0001])
    z, excess, peers = residual.robust_z(values, np.zeros(10, dtype=np.int64), floor=0.002)
    assert np.isclose(z[9], 0.6745 * 0.0001 / 0.002)
    assert np.isclose(excess[9], 0.0001)
    assert peers[9] == 9


def test_the_fewer_the_peers_the_less_is_certain() -> None:
    """The same excess over the same spread: one window in 1,000 or so among 7 peers, one in millions among 63."""
    assert np.allclose(conformal.robust_tail(np.array([8.0, 8.0]), np.array([7, 63])), [1.03e-3, 1.44e-8], rtol=0.01)
    rng = np.random.default_rng(8)
    certain = []
    for n in (8, 64):
        x = rng.normal(0, 0.01, n)
        x[0] = 8 * np.median(np.abs(x[1:] - np.median(x[1:]))) / 0.6745 + np.median(x[1:])
        groups = residual.Peers(np.zeros(n, dtype=np.int64), np.full(n, -1))
        certain.append(residual.chance(residual.against_peers(x, groups), groups, 0.002)[0])
    assert 1e-4 < certain[0] < 2e-2
    assert certain[1] < 1e-6
    alone = residual.Peers(np.zeros(3, dtype=np.int64), np.full(3, -1))
    assert np.isnan(residual.chance(residual.against_peers(np.zeros(3), alone), alone, 0.002)).all()
