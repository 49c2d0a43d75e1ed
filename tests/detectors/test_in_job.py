"""The beginning of the job as a second reference."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from window_rounds import Change, Cluster, Columns

from graynode.detectors.base import TOLD, State
from graynode.detectors.slow import Slow

SICK = 11


def from_window(begins: int, by: float) -> Change:
    def change(w: int, c: Columns) -> None:
        if w >= begins:
            c["sm_clock_mhz_mean"][SICK] *= 1 - by

    return change


def play(fault: Change, windows: int, state: State) -> tuple[pl.DataFrame, State]:
    found = []
    for round_ in Cluster(nodes=2, nodes_per_job=2, gpu_fault=fault).rounds(windows):
        scored = Slow().score(round_, state)
        state = scored.state
        found.append(scored.findings)
    return pl.concat(found).filter(TOLD), state


def test_a_change_in_the_middle_of_a_job_needs_no_past() -> None:
    """The first day of a new site: 6 % after half an hour is told within a quarter, and the reference is named."""
    told, _ = play(from_window(70, 0.06), 110, {})
    assert set(told["gpu_uuid"]) == {"GPU-001-3"}
    assert set(told["signal"]) == {"clock_in_job"}
    assert "the job's first half hour" in told["message"][0]
    assert told["effect"][-1] == pytest.approx(0.064, abs=0.01)


def test_what_was_slow_from_the_job_s_beginning_is_no_change() -> None:
    """It is for the own baseline and the daily level to say."""
    told, _ = play(from_window(0, 0.06), 110, {})
    assert told.is_empty()


def test_a_new_job_begins_anew() -> None:
    """Another job with its own half hour: the change of the job before it is not carried over."""
    _, state = play(from_window(70, 0.06), 110, {})
    assert state["gpu"].filter(pl.col("key") == "GPU-001-3")["clock_in_job.sum"][0] > 0.6
    (round_,) = Cluster(nodes=2, nodes_per_job=2).rounds(1, first=111)
    other = round_.gpu.with_columns(job_id_last=pl.lit("the next"))
    frames = {f: getattr(round_, f) for f in round_.__dataclass_fields__} | {"gpu": other}
    after = Slow().score(round_.__class__(**frames), state).state["gpu"]
    assert after["clock_in_job.sum"].max() < 0.05
    assert set(after["clock.job_windows"]) == {1.0}


def test_the_beginning_never_moves_while_the_job_lasts() -> None:
    """Sixty windows make it, and neither a fault nor hours of work change it."""
    _, before = play(from_window(61, 0.2), 62, {})
    _, after = play(from_window(61, 0.2), 140, {})
    for column in ("clock.job_total", "clock.job_windows"):
        assert before["gpu"][column].equals(after["gpu"][column])


def test_a_window_without_a_job_ends_nothing() -> None:
    """One window in which the scheduler was not asked leaves the beginning as it is."""
    _, state = play(from_window(999, 0.0), 62, {})
    (round_,) = Cluster(nodes=2, nodes_per_job=2).rounds(1, first=62)
    gone = round_.gpu.with_columns(job_id_last=pl.lit(None, dtype=pl.String))
    frames = {f: getattr(round_, f) for f in round_.__dataclass_fields__} | {"gpu": gone}
    after = Slow().score(round_.__class__(**frames), state).state["gpu"]
    assert np.array_equal(after["clock.job_windows"], state["gpu"]["clock.job_windows"])
