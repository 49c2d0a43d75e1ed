"""Hardware, application or unknown: made jobs whose slow rank, and why it is slow, are known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.detectors.straggler import Limits, Straggler
from graynode.detectors.stragglers import judge, of_steps
from graynode.detectors.work import Work

PIPELINES, STAGES, STEPS = 8, 4, 20


def job(seed: int = 1, *, lengths: float = 0.0) -> Work:
    """Eight pipelines of four stages, the last with more work; ranks differ by 0.3 %. ``lengths`` moves data."""
    rng = np.random.default_rng(seed)
    pipeline, stage = np.tile(np.arange(PIPELINES), STAGES), np.repeat(np.arange(STAGES), PIPELINES)
    data = np.exp(rng.normal(0, lengths, (PIPELINES, STEPS)))[pipeline]
    own = np.exp(rng.normal(0, 0.003, len(stage)))[:, None]

    def seconds(each: float) -> np.ndarray:
        return each * data * own * np.exp(rng.normal(0, 0.005, data.shape))

    more = np.where(stage == STAGES - 1, 1.3, 1.0)[:, None]
    return Work(
        rank=np.arange(len(stage)),
        node=np.arange(len(stage)) // 2,
        busy={"forward": seconds(4.0) * more, "backward": seconds(8.0)},
        optimizer=0.02 * own * np.exp(rng.normal(0, 0.005, data.shape)),
        wait=np.full(data.shape, 1.0),
        wall=np.full(data.shape, 20.0),
        role=stage,
        pipeline=pipeline,
    )


def slower(work: Work, ranks: list[int], forward: float, backward: float, optimizer: float = 0.0) -> Work:
    busy = {part: seconds.copy() for part, seconds in work.busy.items()}
    busy["forward"][ranks] *= 1 + forward
    busy["backward"][ranks] *= 1 + backward
    assert work.optimizer is not None
    other = work.optimizer.copy()
    other[ranks] *= 1 + optimizer
    return replace(work, busy=busy, optimizer=other)


def hardware(said: list[Straggler]) -> list[tuple[str, tuple[int, ...]]]:
    return [(s.where, s.ranks) for s in said if s.cause == "hardware"]


def causes(said: list[Straggler]) -> set[tuple[str, str]]:
    return {(s.cause, s.reason) for s in said}


@pytest.mark.parametrize("rank", [0, 9, 21, 31])
def test_a_rank_slow_in_all_it_computes_is_hardware(rank: int) -> None:
    """Five percent in forward, backward and optimizer: this rank, with its excess, and nobody else."""
    said = judge(slower(job(), [rank], 0.05, 0.05, 0.05))
    assert hardware(said) == [("rank", (rank,))]
    assert said[0].excess == pytest.approx(0.05, abs=0.015)
    assert said[0].confidence > 0.8


def test_both_ranks_of_a_node_are_the_node() -> None:
    """What is slow as a whole is named as a whole."""
    said = judge(slower(job(), [10, 11], 0.2, 0.2, 0.2))
    assert hardware(said) == [("node", (10, 11))]
    assert said[0].nodes == (5,)


def test_a_healthy_job_names_nobody() -> None:
    """The last stage's extra forward is the application's, in words that say so."""
    said = judge(job())
    assert causes(said) <= {("application", "stage_imbalance")}
    assert hardware(judge(job(seed=7))) == []


def test_other_work_is_no_slow_hardware() -> None:
    """Forward is half as long again and backward is not: the rank has other work to do."""
    said = judge(slower(job(), [9], 0.5, 0.0))
    assert ("application", "other_work") in causes(said)
    assert hardware(said) == []
    assert hardware(judge(slower(job(), [9], 0.5, 0.0), split=False)) == [("rank", (9,))]


def test_a_whole_stage_is_the_applications() -> None:
    """All ranks of a stage are 30 % slower, forward and backward alike."""
    said = judge(slower(job(), list(range(8, 16)), 0.3, 0.3))
    assert ("application", "stage_imbalance") in causes(said)
    assert hardware(said) == []


def test_long_sequences_of_one_pipeline_are_the_applications() -> None:
    """Every stage of pipeline 3 is 20 % slower: they share their data, not their machine."""
    said = judge(slower(job(), [3, 11, 19, 27], 0.2, 0.2))
    assert ("application", "shared_data") in causes(said)
    assert hardware(said) == []


def test_lengths_that_vary_hide_no_slow_rank() -> None:
    """Steps differ by 20 % between pipelines; the rank that is 5 % slow on top is found, and the data is named."""
    said = judge(slower(job(lengths=0.2), [13], 0.05, 0.05, 0.05))
    assert hardware(said) == [("rank", (13,))]
    assert ("application", "data_varies") in causes(said)


def test_slow_now_and_then_is_not_hardware_for_sure() -> None:
    """Sixty percent of the steps at +20 %: unknown."""
    work = job()
    busy = {part: seconds.copy() for part, seconds in work.busy.items()}
    for seconds in busy.values():
        seconds[9, : int(0.6 * STEPS)] *= 1.2
    said = judge(replace(work, busy=busy))
    assert ("unknown", "not_lasting") in causes(said)
    assert hardware(said) == []


def test_without_pipelines_the_optimizer_tells_data_from_hardware() -> None:
    """One stage, one role: a rank with longer sequences computes longer, but its optimizer does not."""
    work = replace(job(), role=np.zeros(32, dtype=np.int64), pipeline=None)
    work = replace(work, busy={part: s / s.mean(axis=1, keepdims=True) for part, s in work.busy.items()})
    assert hardware(judge(slower(work, [9], 0.2, 0.2, 0.2))) == [("rank", (9,))]
    assert causes(judge(slower(work, [9], 0.2, 0.2, 0.0))) == {("unknown", "own_data")}


def test_wall_seconds_name_a_place_and_no_cause() -> None:
    """Worker 4 is 30 % slower in the middle of the run: located to the steps, cause unknown."""
    rng = np.random.default_rng(3)
    wall = np.exp(rng.normal(0, 0.01, (10, 100)))
    wall[4, 40:60] *= 1.3
    said = judge(Work(rank=np.arange(10), node=np.arange(10), wall=wall))
    assert {s.cause for s in said} == {"unknown"}
    assert said[0].ranks == (4,)
    assert abs(said[0].evidence["first_step"] - 40) <= 3
    assert abs(said[0].evidence["last_step"] - 59) <= 3


def test_everybody_waits_and_nobody_computes_longer() -> None:
    """A collective that takes half of the step is nobody's fault that could be told."""
    work = replace(job(), busy={"busy": np.ones((32, STEPS))}, optimizer=None, wait=np.ones((32, STEPS)))
    said = judge(work)
    assert causes(said) == {("unknown", "all_wait")}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31))
def test_names_and_order_do_not_matter(seed: int) -> None:
    """The same job under other rank numbers, in another order: the same machine is named."""
    rng = np.random.default_rng(seed)
    work = slower(job(), [13], 0.1, 0.1, 0.1)
    order = rng.permutation(32)
    renamed = rng.permutation(STAGES)
    assert work.role is not None
    assert work.pipeline is not None
    assert work.optimizer is not None
    other = replace(
        work,
        rank=np.arange(100, 132),
        node=work.node[order],
        role=renamed[work.role[order]],
        pipeline=work.pipeline[order],
        busy={part: s[order] for part, s in work.busy.items()},
        optimizer=work.optimizer[order],
        wait=None,
        wall=None,
    )
    assert [order[r - 100] for _, ranks in hardware(judge(other)) for r in ranks] == [13]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 8))
def test_any_numbers_give_a_defined_answer(seed: int, ranks: int, steps: int) -> None:
    """Nulls, zeros, infinities, one rank, one step: never an error, and the same answer twice."""
    rng = np.random.default_rng(seed)
    seconds = rng.choice([np.nan, 0.0, 1.0, 1.1, np.inf], (ranks, steps))
    work = Work(
        rank=np.arange(ranks), node=rng.integers(0, 3, ranks), busy={"a": seconds, "b": seconds[::-1].copy()},
        role=rng.integers(-1, 2, ranks), pipeline=rng.integers(-1, 2, ranks), wall=seconds, wait=seconds,
    )  # fmt: skip
    assert judge(work) == judge(work)
    assert all(s.cause == "unknown" for s in judge(replace(work, busy={})))


def rows(busy: np.ndarray | None, **columns: Any) -> pl.DataFrame:
    """Rows of table ``step``: 16 ranks on 8 nodes, 30 steps."""
    rank, step = np.repeat(np.arange(16), 30), np.tile(np.arange(30), 16)
    table = {
        "ts": datetime(2026, 1, 1, tzinfo=UTC),
        "job_id": "j1",
        "rank": rank,
        "node_id": [f"n{r // 2}" for r in rank],
        "role": None,
        "step": step,
        "seconds": 1.5,
        "busy_s": None if busy is None else busy.ravel(),
        "wait_s": 0.1,
    }
    return pl.DataFrame(table | columns)


def busy_of(slow: list[int], by: float) -> np.ndarray:
    busy = np.exp(np.random.default_rng(5).normal(0, 0.005, (16, 30)))
    busy[slow] *= 1 + by
    return busy


def test_rows_of_the_step_table_name_the_slow_rank() -> None:
    """Busy seconds by rank, no roles told: the odd one of 16 is hardware, less surely than with parts of work."""
    said = of_steps(rows(busy_of([5], 0.1)))["j1"]
    assert hardware(said) == [("rank", (5,))]
    assert 0.5 <= said[0].confidence < 0.7


def test_the_first_rank_may_have_work_of_its_own() -> None:
    """Logs and checkpoints are rank 0's: without roles nobody can tell."""
    assert causes(of_steps(rows(busy_of([0], 0.1)))["j1"]) == {("unknown", "not_told_apart")}


def test_ranks_of_two_nodes_may_be_a_role() -> None:
    """Without roles, ranks on several nodes that are alike may do other work."""
    assert causes(of_steps(rows(busy_of([4, 7], 0.1)))["j1"]) == {("unknown", "not_told_apart")}


def test_wall_seconds_in_the_step_table_say_unknown() -> None:
    """Without busy seconds there is no culprit, whatever the seconds are."""
    seconds = np.ones((16, 30))
    seconds[5, 10:] = 2.0
    said = of_steps(rows(None, seconds=seconds.ravel()))["j1"]
    assert {s.cause for s in said} == {"unknown"}


def test_repeats_and_gaps_change_nothing() -> None:
    """Rows told twice count once; missing columns, nulls and rows without rank are left out."""
    table = rows(busy_of([5], 0.1))
    assert of_steps(pl.concat([table, table])) == of_steps(table)
    assert hardware(of_steps(table.sample(fraction=0.9, seed=1))["j1"]) == [("rank", (5,))]
    assert of_steps(table.with_columns(rank=None)) == {}
    assert of_steps(pl.DataFrame()) == {}


def test_roles_make_the_difference() -> None:
    """Half of the ranks compute 30 % longer: as another role it is the application's, and the slow one stands out."""
    busy = busy_of([9], 0.1)
    busy[8:] *= 1.3
    role = np.repeat(["first"] * 8 + ["last"] * 8, 30)
    said = of_steps(rows(busy, role=role))["j1"]
    assert hardware(said) == [("rank", (9,))]
    assert ("application", "stage_imbalance") in causes(said)


def test_limits_are_the_frozen_ones() -> None:
    """The track measures what the product says: one set of limits."""
    from graynode.benchmarks.detection.frozen import frozen

    assert Limits(**frozen("attribution")[0]["limits"]) == Limits()
