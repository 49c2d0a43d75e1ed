"""From rows of table ``step`` to findings: hardware alone, after several judgements in a row, never as a page."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from window_rounds import Change, Cluster, Columns

from graynode.detectors.base import TOLD, Round, State
from graynode.detectors.stragglers import Stragglers

SICK = 11
WINDOWS = 24


def slow(_: int, c: Columns) -> None:
    c["busy_s"][SICK] *= 1.08


def a_node(_: int, c: Columns) -> None:
    c["busy_s"][8:16] *= 1.08


def lengths(w: int, c: Columns) -> None:
    """Sequences of another length on every rank at every step."""
    c["busy_s"] *= np.exp(np.random.default_rng(w).normal(0, 0.2, c["busy_s"].shape))


def rounds(fault: Change, *, nodes: int = 4, gpus: int = 8, seed: int = 3) -> list[Round]:
    c = Cluster(nodes=nodes, gpus=gpus, nodes_per_job=nodes, steps=8, step_fault=fault, seed=seed)
    return [c.round(w, c.start_of(w)) for w in range(WINDOWS)]


def play(given: list[Round], state: State | None = None) -> tuple[pl.DataFrame, State]:
    found, memory = [], state or {}
    for round_ in given:
        scored = Stragglers().score(round_, memory)
        memory = scored.state
        found.append(scored.findings)
    return pl.concat(found), memory


def changed(given: list[Round], *columns: pl.Expr) -> list[Round]:
    return [replace(r, steps=r.steps.with_columns(*columns)) for r in given]


def test_a_slow_rank_is_a_ticket_about_its_gpu_after_several_judgements() -> None:
    """First watched, then told with the excess; nobody else is, and nobody is paged."""
    found, _ = play(rounds(slow))
    told = found.filter(TOLD)
    assert set(found["gpu_uuid"]) == {"GPU-001-3"}
    assert set(told["severity"]) == {"ticket"}
    assert set(told["cause"]) == {"slow_gpu"}
    assert told["effect"][0] == pytest.approx(0.08, abs=0.015)
    assert told["ts"].min() > found["ts"].min()
    assert "rank 11 of job job-0" in told["message"][0]


def test_a_slow_node_is_told_as_the_node() -> None:
    """All eight ranks of a node: one finding about the node, none about a GPU of it."""
    told = play(rounds(a_node, nodes=8))[0].filter(TOLD)
    assert set(told["subject"]) == {"node"}
    assert set(told["node_id"]) == {"id-node001"}
    assert told["gpu_uuid"].null_count() == told.height


STAGE = pl.when(pl.col("rank") >= 24).then(pl.lit("last")).otherwise(pl.lit("first")).alias("role")
LONGER = pl.when(pl.col("rank") >= 24).then(pl.col("busy_s") * 1.3).otherwise("busy_s").alias("busy_s")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("healthy", lambda: rounds(lambda *_: None)),
        ("stage imbalance", lambda: changed(rounds(lambda *_: None), STAGE, LONGER)),
        ("sequence lengths", lambda: rounds(lengths)),
        ("data loading", lambda: changed(rounds(lambda *_: None), (pl.col("seconds") * 2).alias("seconds"))),
        (
            "wall seconds only",
            lambda: changed(
                rounds(slow), pl.col("busy_s").alias("seconds"), pl.lit(None, dtype=pl.Float64).alias("busy_s")
            ),
        ),
        ("one rank", lambda: rounds(lambda *_: None, nodes=1, gpus=1)),
        (
            "two ranks",
            lambda: changed(rounds(lambda *_: None, nodes=1, gpus=2), pl.col("busy_s") * (pl.col("rank") + 1)),
        ),
        ("no role told", lambda: changed(rounds(slow), pl.lit(None, dtype=pl.String).alias("role"))),
    ],
)
def test_what_is_the_applications_or_unknown_is_not_told(name: str, given: Callable[[], list[Round]]) -> None:
    """Stages, data, wall seconds, too few ranks, and a guess at the roles accuse no hardware."""
    assert play(given())[0].filter(TOLD).is_empty(), name


def test_an_older_model_in_a_mixed_job_is_nobodys_fault() -> None:
    """Node 1 has slower GPUs of another model: they are compared with each other."""
    model = pl.when(pl.col("node_id") == "id-node001").then(pl.lit("A100")).otherwise("gpu_model_last")
    given = [replace(r, gpu=r.gpu.with_columns(model.alias("gpu_model_last"))) for r in rounds(a_node, nodes=8)]
    assert play(given)[0].filter(TOLD).is_empty()


def test_the_order_of_rows_and_a_restart_in_the_middle_change_nothing() -> None:
    """Shuffled rows, and a memory that went through Arrow: the same findings and the same memory."""
    given = rounds(slow)
    found, state = play(given)
    shuffled = [replace(r, steps=r.steps.sample(fraction=1.0, shuffle=True, seed=w)) for w, r in enumerate(given)]
    assert play(shuffled)[0].equals(found)
    before, half = play(given[:13])
    stored: State = {n: pl.read_ipc(io.BytesIO(_ipc(f))) for n, f in half.items()}
    after, end = play(given[13:], stored)
    assert pl.concat([before, after]).equals(found)
    assert end["rank"].equals(state["rank"])


def test_a_rank_that_is_well_again_begins_anew() -> None:
    """One judgement without it ends the row: what is told is in a row."""
    sick, well = rounds(slow), rounds(lambda *_: None)
    _, state = play(sick[:14] + well[14:])
    assert state["rank"]["row"].max() == 0


def test_without_new_steps_the_memory_is_the_same_frame() -> None:
    """The common round costs nothing and writes nothing."""
    given = rounds(slow)[:9]
    _, state = play(given)
    _, after = play([replace(given[-1], steps=pl.DataFrame())], state)
    assert after["rank"] is state["rank"]


def _ipc(frame: pl.DataFrame) -> bytes:
    sink = io.BytesIO()
    frame.write_ipc(sink)
    return sink.getvalue()
