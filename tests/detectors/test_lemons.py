"""Fault histories, the lemon rank, re-fault probability and probation."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.detectors.fault_history import Faults, down, returns
from graynode.detectors.lemon_rates import HALF_LIVES_D, outlook
from graynode.detectors.lemons import HISTORY_SCHEMA, RANKED_SCHEMA, rank
from graynode.detectors.refault import hazard, probation_until

T0 = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def faults(nodes: int, *rows: tuple[int, float, float]) -> Faults:
    """Faults of one class from (node, start, end)."""
    ordered = sorted(rows, key=lambda r: r[1])
    node, start, end = (np.array([r[i] for r in ordered], dtype=np.float64) for i in range(3))
    return Faults(nodes, node.astype(np.int64), start, end, np.zeros(len(ordered), dtype=np.int64))


def history(*rows: tuple[str, float, float | None, str]) -> pl.DataFrame:
    """A history frame from (node, start day, end day, class)."""
    told = [(n, T0 + s * DAY, None if e is None else T0 + e * DAY, k) for n, s, e, k in rows]
    return pl.DataFrame(told, schema=HISTORY_SCHEMA, orient="row")


histories = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 1000), st.integers(0, 60)).map(
        lambda t: (t[0], t[1] / 10, (t[1] + t[2]) / 10)
    ),
    max_size=25,
)


# --- what is known when ---


def test_an_end_to_come_is_not_known() -> None:
    """At day 5 a fault from 4 to 6 is open and one of day 7 does not exist."""
    past = faults(3, (0, 4, 6), (1, 1, 2), (2, 7, 8)).known(5)
    assert past.node.tolist() == [1, 0]
    assert np.isinf(past.end_d).tolist() == [False, True]
    assert down(past).tolist() == [True, False, False]


@settings(max_examples=60, deadline=None)
@given(rows=histories, at=st.floats(0, 100))
def test_the_future_changes_nothing_of_the_past(rows: list[tuple[int, float, float]], at: float) -> None:
    """Whatever happens after a moment, rank and re-fault risk at that moment stay what they were."""
    with_future = faults(5, *rows, (0, at + 1.0, at + 2.0), (3, at, np.inf))
    without = faults(5, *[(n, s, e if e <= at else np.inf) for n, s, e in rows if s < at])
    one, other = outlook(with_future, at, 7.0), outlook(without, at, 7.0)
    assert np.array_equal(one.rate_per_day, other.rate_per_day)
    assert np.array_equal(one.p_fault, other.p_fault)
    assert np.array_equal(hazard(with_future, at).per_day, hazard(without, at).per_day)


@settings(max_examples=60, deadline=None)
@given(rows=histories, apart=st.sampled_from([0.0, 1.0, 3.0]))
def test_merging_leaves_gaps_only(rows: list[tuple[int, float, float]], apart: float) -> None:
    """After merging, the faults of a node are further apart than asked; starts and last ends are kept."""
    told = faults(5, *rows)
    merged = told.merged(apart)
    for node in range(5):
        start, end = merged.start_d[merged.node == node], merged.end_d[merged.node == node]
        assert (start[1:] - end[:-1] > apart).all()
        if len(start):
            assert start[0] == told.start_d[told.node == node].min()
            assert end[-1] == told.end_d[told.node == node].max()
    assert (np.diff(merged.start_d) >= 0).all()


def test_overlapping_faults_return_once() -> None:
    """Two faults of one outage are one return; the chain counts outages that followed a return within a week."""
    back = returns(faults(2, (0, 1, 4), (0, 2, 3), (0, 6, 7), (0, 30, 31), (1, 5, np.inf)))
    assert back.at_d.tolist() == [4, 7, 31]
    assert back.next_d.tolist() == [2, 23, np.inf]
    assert back.chain.tolist() == [0, 1, 0]


# --- the rank ---


def test_no_history_is_the_same_for_all() -> None:
    """Without faults every node has one and the same small rate, at any time."""
    for at in (0.0, 3.0, 100.0):
        ahead = outlook(faults(4), at, 7.0)
        assert len(set(ahead.rate_per_day.tolist())) == 1
        assert (ahead.p_fault >= 0).all()
        assert (ahead.p_fault < 1).all()


def test_memory_is_learned_from_the_site() -> None:
    """Where bursts pass, a recent fault outweighs old ones; where lemons last, many old ones outweigh a recent one."""
    rng = np.random.default_rng(5)
    bursts = [
        (int(n), s + i * 0.7, s + i * 0.7 + 0.1)
        for n, s in zip(rng.integers(0, 60, 60), rng.uniform(0, 190, 60), strict=True)
        for i in range(4)
    ]
    lasting = [(int(n), s, s + 0.1) for n, s in zip(rng.integers(0, 6, 150), rng.uniform(0, 200, 150), strict=True)]
    strays = [(int(n), s, s + 0.1) for n, s in zip(rng.integers(6, 60, 40), rng.uniform(0, 200, 40), strict=True)]
    short = outlook(faults(60, *bursts), 200.0, 7.0).weight.sum(axis=1)
    long = outlook(faults(60, *lasting, *strays), 200.0, 7.0).weight.sum(axis=1)
    assert HALF_LIVES_D[short.argmax()] <= 7.0
    assert HALF_LIVES_D[long.argmax()] >= 56.0


def test_a_burst_ranks_before_an_old_fault_and_a_clean_node() -> None:
    """Order: two faults last week, one a month ago, none; equal nodes share a rank; the reason says why."""
    told = history(("b", 90, 91, "fan"), ("b", 92, 93, "fan"), ("a", 60, 61, "gpu"), ("c", 10, 12, "gpu"))
    ranking = rank(told, ["a", "b", "c", "d", "e"], T0 + 95 * DAY, T0)
    rows = {r["node_id"]: r for r in ranking.nodes.to_dicts()}
    assert ranking.nodes.columns == list(RANKED_SCHEMA)
    assert ranking.nodes.get_column("node_id").to_list()[:2] == ["b", "a"]
    assert rows["d"]["rank"] == rows["e"]["rank"]
    assert rows["d"]["reason"] == "no fault known"
    assert (rows["b"]["faults_7d"], rows["b"]["faults_28d"], rows["b"]["faults_90d"]) == (2, 2, 2)
    assert rows["b"]["kind_again"]
    assert rows["b"]["probation_until"] == T0 + 100 * DAY
    assert rows["a"]["probation_until"] is None
    assert "the repair before did not hold a week" in rows["b"]["reason"]
    assert "on probation until 2026-04-11" in rows["b"]["reason"]
    assert rows["b"]["p_fault_7d"] > rows["a"]["p_fault_7d"] > rows["d"]["p_fault_7d"]


def test_a_node_that_is_down_is_said_to_be() -> None:
    """An open fault gives no return and no probation."""
    row = rank(history(("a", 1, 2, "x"), ("a", 5, None, "y")), [], T0 + 6 * DAY).nodes.row(0, named=True)
    assert row["down"]
    assert row["last_return"] is None
    assert row["probation_until"] is None
    assert "the last one has not ended" in row["reason"]


def test_several_witnesses_of_one_fault_count_once() -> None:
    """An incident, an event in it, and the drain a minute after its end are one fault."""
    told = history(("a", 1, 2, "x"), ("a", 1.5, 1.5, "gpu_lost"), ("a", 2.0007, 3, "quarantined"))
    assert rank(told, [], T0 + 5 * DAY).faults == 1


@pytest.mark.parametrize("rows", [[], [("a", 1.0, 1.0, "x")]])
def test_little_history_is_said(rows: list[tuple[str, float, float | None, str]]) -> None:
    """Nothing, or one fault, is ranked but not enough; no error."""
    ranking = rank(history(*rows), [], T0 + 5 * DAY)
    assert not ranking.enough
    assert ranking.nodes.height == len(rows)


def test_a_doubtful_history() -> None:
    """Null nodes and starts are left out; an end before its start is the start; order and doubles change nothing."""
    told = history(("a", 3, 2, "x"), ("b", 1, 2, "x"), ("b", 1, 2, "x"))
    nulls = pl.DataFrame([(None, T0, None, "x"), ("c", None, None, None)], schema=HISTORY_SCHEMA, orient="row")
    one = rank(pl.concat([told, nulls]), [], T0 + 9 * DAY, T0)
    other = rank(pl.concat([nulls, told]).reverse(), [], T0 + 9 * DAY, T0)
    assert one.nodes.equals(other.nodes)
    assert one.faults == 2
    assert one.nodes.get_column("node_id").sort().to_list() == ["a", "b"]


# --- re-faults ---


def test_the_risk_falls_after_a_return() -> None:
    """Where half of the returns last minutes only, an hour's holding lowers the risk, and a longer chain raises it."""
    rows = [(n, 40.0 * i, 40.0 * i + 1) for n in range(20) for i in range(10)]
    again = [(n, 40.0 * i + 1.05, 40.0 * i + 2) for n in range(10) for i in range(10)]
    fitted = hazard(faults(20, *rows, *again), 400.0)
    now, later = fitted.p_refault(np.zeros(2), np.array([0.0, 3.0]), 7.0)
    assert now > 2 * later
    chained, fresh = fitted.p_refault(np.array([2.0, 0.0]), np.zeros(2), 7.0)
    assert (chained > fresh) == (fitted.chain > 0)


def test_without_returns_the_fleets_rate_holds() -> None:
    """No return yet: the probability is that of a Poisson process at the fleet's rate."""
    fitted = hazard(faults(10, (0, 5, np.inf)), 10.0)
    assert fitted.p_refault(np.zeros(1), np.zeros(1), 7.0)[0] == pytest.approx(1 - np.exp(-0.07), rel=1e-6)


def test_a_bad_week_raises_the_level() -> None:
    """The same fleet with re-faults lately is riskier than with the same re-faults long ago."""
    calm = [(n, 3.0 * i, 3.0 * i + 0.1) for n, i in [(n, n) for n in range(30)]]
    late = faults(40, *calm, *[(n, 3.0 * n + 0.5, 3.0 * n + 0.6) for n in range(20, 30)])
    early = faults(40, *calm, *[(n, 3.0 * n + 0.5, 3.0 * n + 0.6) for n in range(10)])
    p = [hazard(f, 95.0).p_refault(np.zeros(1), np.zeros(1), 7.0)[0] for f in (late, early)]
    assert p[0] > 1.5 * p[1]


def test_probation_ends_after_a_week() -> None:
    """Seven days after the return; never for a node that was not in repair."""
    assert probation_until(T0) == T0 + 7 * DAY
    assert probation_until(None) is None
