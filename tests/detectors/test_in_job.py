"""The beginning of the job as a second reference."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from window_rounds import Change, Cluster, Columns

from graynode.detectors import in_job
from graynode.detectors.base import TOLD, State
from graynode.detectors.in_job import Begun
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
    assert set(after["clock.begun_windows"]) == {1.0}


def test_the_beginning_never_moves_while_the_job_lasts() -> None:
    """Sixty windows make it, and neither a fault nor hours of work change it."""
    _, before = play(from_window(61, 0.2), 62, {})
    _, after = play(from_window(61, 0.2), 140, {})
    for column in in_job.columns(("clock",))[1:]:
        assert before["gpu"][column].equals(after["gpu"][column])


def test_a_window_without_a_job_ends_nothing() -> None:
    """One window in which the scheduler was not asked leaves the beginning as it is."""
    _, state = play(from_window(999, 0.0), 62, {})
    (round_,) = Cluster(nodes=2, nodes_per_job=2).rounds(1, first=62)
    gone = round_.gpu.with_columns(job_id_last=pl.lit(None, dtype=pl.String))
    frames = {f: getattr(round_, f) for f in round_.__dataclass_fields__} | {"gpu": gone}
    after = Slow().score(round_.__class__(**frames), state).state["gpu"]
    assert np.array_equal(after["clock.begun_windows"], state["gpu"]["clock.begun_windows"])


def wild(begins: int, ends: int, by: float) -> Change:
    """The sick GPU's clock is off for some windows of its beginning, as heavy tails with a memory make it."""

    def change(w: int, c: Columns) -> None:
        if begins <= w < ends:
            c["sm_clock_mhz_mean"][SICK] *= 1 + by

    return change


def test_a_beginning_that_was_off_by_chance_accuses_nobody() -> None:
    """Ten minutes 12 % faster: the mean of half an hour is 4 % off, and a sum would run away. Its blocks say so."""
    told, state = play(wild(5, 25, 0.12), 200, {})
    assert told.is_empty()
    row = state["gpu"].filter(pl.col("key") == "GPU-001-3")
    assert row["clock.begun_windows"][0] == 200
    assert state["gpu"]["clock.begun_windows"].median() == 60


def test_an_uncertain_beginning_still_tells_what_is_beyond_the_zone_and_learns_nothing_of_it() -> None:
    """30 % slower, soon after a wild beginning: told as a ticket, because the reference is not firm."""

    def change(w: int, c: Columns) -> None:
        wild(5, 25, 0.06)(w, c)
        from_window(80, 0.3)(w, c)

    told, state = play(change, 140, {})
    assert set(told["gpu_uuid"]) == {"GPU-001-3"}
    assert set(told["severity"]) == {"ticket"}
    assert told["message"].str.contains(r"the job's first \d\d minutes").all()
    assert state["gpu"].filter(pl.col("key") == "GPU-001-3")["clock.begun_windows"][0] < 100


def test_what_an_older_version_kept_goes_on_and_the_beginning_is_learned_anew() -> None:
    """A state without blocks: baselines stay; the running job's beginning and the sum against it are made again."""
    _, state = play(from_window(70, 0.06), 110, {})
    begun = in_job.columns(("clock", "throttle"))[1:]
    older = state["gpu"].drop(begun).with_columns(pl.lit(60.0).alias("clock.job_windows"))
    (round_,) = Cluster(nodes=2, nodes_per_job=2).rounds(1, first=110)
    after = Slow().score(round_, {**state, "gpu": older}).state["gpu"]
    assert after.columns == state["gpu"].columns
    assert set(after["clock.begun_windows"]) == {1.0}
    assert older["clock_in_job.sum"].max() > 0.6
    assert after["clock_in_job.sum"].max() == 0
    assert after["job"].equals(older["job"])
    assert after["clock.days"].equals(older["clock.days"])


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 300), st.integers(1, 4)), elements=st.floats(-0.05, 0.05)),
    st.sampled_from([1, 5, 10]),
)
def test_the_reference_is_the_mean_of_blocks_whose_standard_error_is_known(x: np.ndarray, size: int) -> None:
    """Of any windows: from the sixth block on, the first at which the blocks' mean is certain ends it."""
    nothing = np.zeros(x.shape[1])
    begun, all_well = Begun(size, nothing, nothing, nothing, nothing), np.ones(x.shape[1], dtype=bool)
    for window in x:
        begun = begun.learned(window, begun.known()[1], all_well)
    reference, firm = begun.known()
    for gpu in range(x.shape[1]):
        means = x[: len(x) // size * size, gpu].reshape(-1, size).mean(axis=1)[: in_job.MOST]
        error = [means[:n].std(ddof=1) / np.sqrt(n) for n in range(in_job.LEAST, len(means) + 1)]
        assume(all(abs(e - in_job.ERROR) > 1e-9 for e in error))
        certain = [n for n, e in enumerate(error, in_job.LEAST) if e < in_job.ERROR]
        assert firm[gpu] == bool(certain)
        if error:
            n = certain[0] if certain else len(means)
            assert reference[gpu] == pytest.approx(means[:n].mean(), abs=1e-9)
        else:
            assert np.isnan(reference[gpu])
