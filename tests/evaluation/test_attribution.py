"""The track ``attribution`` on made jobs in both formats, where who is slow and why is known by construction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from training_jobs import operations, step_times

from graynode.benchmarks.detection import attribution, attribution_trace
from graynode.benchmarks.detection import attribution_faults as faults
from graynode.benchmarks.detection import attribution_hardware as hardware
from graynode.benchmarks.detection.attribution_cases import Seen, as_work, ours, permuted
from graynode.benchmarks.detection.attribution_job import Trace
from graynode.benchmarks.detection.attribution_made import Sizes, make
from graynode.benchmarks.detection.result import DataError, Result
from graynode.detectors.straggler import Limits
from graynode.detectors.stragglers import judge

AS_IS = Seen(roles_given=True, permuted=False)


def job(**how: float | int) -> Trace:
    return attribution_trace.parse(operations(**how), "made")  # type: ignore[arg-type]


def evaluated(trace: Trace, seed: int = 1) -> Result:
    result = Result(track="attribution", seed=seed, n=0, figures={})
    hardware.evaluate(trace, Limits(), (seed, 0), result, Sizes(victims=2, jobs=2))
    return result


@pytest.fixture(scope="module")
def small() -> Result:
    return evaluated(job())


def test_every_condition_of_the_issue_has_a_figure(small: Result) -> None:
    """Ranks and nodes at four excesses, roles given and learned, labels as they are and permuted; and the causes."""
    for view in ("given.labels_as_is", "given.labels_permuted", "learned.labels_as_is", "learned.labels_permuted"):
        for kind in ("rank", "node"):
            for excess in (5, 10, 20, 50):
                for what in ("recall", "wrong"):
                    figure = small.figures[f"made.{kind}.roles_{view}.{what}_{excess}pct"]
                    assert figure.value is not None
                    assert figure.ci_low is not None
                    assert figure.n == 2
        for cause in ("nothing", "stage_imbalance", "sequence_length", "data_loading", "collective", "combined"):
            assert small.figures[f"made.application.{cause}.roles_{view}.hardware_flag_rate"].value == 0
    assert small.figures["made.application.hardware_flags"].value == 0
    assert {"nvrx_ratio_0.75", "three_sigma_all_ranks", "mad_3.5_all_ranks", "minder_like"} <= set(small.baselines)
    assert {"roles", "busy_wait_split", "forward_backward_test", "data_taken_out"} == set(small.ablations)
    assert all(f.keys() & small.figures.keys() for f in (*small.baselines.values(), *small.ablations.values()))


def test_a_fault_put_in_is_found_and_nothing_is_found_where_none_is(small: Result) -> None:
    """Half as slow again is found wherever it is; the wall seconds of the same faults accuse nobody."""
    for view in ("given.labels_as_is", "given.labels_permuted", "learned.labels_as_is", "learned.labels_permuted"):
        assert small.figures[f"made.rank.roles_{view}.recall_50pct"].value == 1
        assert small.figures[f"made.rank.roles_{view}.wrong_50pct"].value == 0
    assert small.figures["made.wall_only.hardware_flag_rate_50pct"].value == 0


def test_the_same_seed_gives_the_same_result_and_another_seed_other_cases() -> None:
    """All chance comes from the seed."""
    trace, view = job(steps=6), Seen(roles_given=False, permuted=True)
    first, again = (
        hardware.measured(ours(Limits()), make(trace, (3, 0), Sizes(2, 2)), [view], (3, 0)) for _ in range(2)
    )
    assert first == again
    one, other = (make(trace, (seed, 0), Sizes(2, 2)).application["sequence_length"][0] for seed in (3, 4))
    assert not np.array_equal(one.total, other.total)


def test_the_recorded_slow_worker_is_made_well_and_its_excess_is_the_fault() -> None:
    """Worker 0 at 1.8 times its stage: the base is without it, the profile sums to the excess asked for."""
    base, profile = faults.healthy(job(slow=0.8))
    assert profile.worker == 0
    assert profile.ratio == pytest.approx(1.8, abs=0.02)
    well = faults.sums(base)
    victim = np.array([5])
    made = faults.slow_hardware(well, profile, victim, 0.1)
    assert np.median(made.total[5] / well.total[5]) == pytest.approx(1.1, abs=0.005)
    others = np.arange(8) != 5
    assert np.array_equal(made.total[others], well.total[others])
    assert (made.wall >= well.wall).all()
    assert faults.healthy(job())[1].worker is None


def test_no_excess_is_no_fault() -> None:
    """A victim slower by nothing is a healthy job."""
    base, profile = faults.healthy(job())
    well = faults.sums(base)
    same = faults.slow_hardware(well, profile, np.array([3]), 0.0)
    assert np.array_equal(same.total, well.total)
    named, _ = ours(Limits())(base, same, AS_IS, np.random.default_rng(0))
    assert named == frozenset()


def test_permuted_labels_lead_back_to_the_same_worker() -> None:
    """The order given back says which row a renamed rank was."""
    base, profile = faults.healthy(job())
    made = faults.slow_hardware(faults.sums(base), profile, np.array([3]), 0.2)
    work, order = permuted(as_work(base, made, AS_IS), np.random.default_rng(9))
    slow = [s.ranks for s in judge(work) if s.cause == "hardware"]
    assert [order[list(work.rank).index(r)] for ranks in slow for r in ranks] == [3]


def test_without_roles_neither_stage_nor_pipeline_is_told() -> None:
    """What a method sees of a job with roles not given holds no trace of them."""
    base = job()
    work = as_work(base, faults.sums(base), replace(AS_IS, roles_given=False))
    assert work.role is None
    assert work.pipeline is None


def test_other_names_columns_and_order_of_rows_give_the_same_job() -> None:
    """Rows shuffled, more columns, other operation names, exact repeats: the same arrays."""
    table = operations()
    other = pl.concat([table, table.head(50)]).sample(fraction=1.0, shuffle=True, seed=4)
    names = {
        "forward-compute": "fwd_step",
        "backward-compute": "bwd_step",
        "grads-reduce-scatter": "nccl:reduce_scatter",
    }
    other = other.with_columns(pl.col("optype").replace(names), host=pl.lit("x"))
    one, two = attribution_trace.parse(table, "a"), attribution_trace.parse(other, "b")
    assert np.allclose(one.micro["forward"], two.micro["forward"])
    assert np.allclose(one.micro["backward"], two.micro["backward"])
    assert np.allclose(one.wait, two.wait)
    assert {k: v.tolist() for k, v in one.traits.items() if "before" in k} == {
        k: v.tolist() for k, v in two.traits.items() if "before" in k
    }
    assert any("50 exact repeats" in note for note in two.notes)


def test_a_job_without_stages_is_evaluated_with_learned_roles_only() -> None:
    """Rank, step, operation and duration are enough to be read."""
    bare = operations().drop("stage", "dp_rank", "seq_id")
    made = make(attribution_trace.parse(bare, "bare"), (1, 0), Sizes(2, 1))
    assert made.base.role is None
    assert set(made.application) == {"nothing", "data_loading", "collective", "combined"}
    assert any("no stages are told" in note for note in made.notes)
    view = Seen(roles_given=False, permuted=False)
    figures, _ = hardware.measured(ours(Limits()), made, [view], (1, 0))
    assert figures["rank.roles_learned.labels_as_is.recall_50pct"].value == 1


def test_step_times_are_located_and_never_hardware(tmp_path: Path) -> None:
    """Worker 2 is 40 % slower from step 20 to 39; the table of variation names nobody."""
    (tmp_path / "one").mkdir()
    step_times().write_csv(tmp_path / "one" / "job_x.csv")
    pl.DataFrame({"": [0, 1], "0": [0.1, 0.2], "1": [0.1, 0.3]}).write_csv(tmp_path / "variation.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    result = attribution.run(tmp_path, 1)
    assert result.figures["job_x.hardware_flags"].value == 0
    assert "worker 2 +40% steps 2" in result.figures["job_x.hardware_flags"].note
    assert result.figures["job_x.located_50pct"].value == 1
    assert result.figures["variation.hardware_flags"].value == 0
    assert "other.csv" in result.notes[0]
    assert set(result.data_sha256) == {"job_x.csv", "variation.csv"}
    assert result == attribution.run(tmp_path, 1)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (operations().drop("duration"), "duration"),
        (operations().clear(), "no usable row"),
        (operations(pipelines=1, stages=1), "1 workers"),
        (operations(steps=2), "2 steps"),
        (operations().with_columns(duration=pl.lit(float("nan"))), "no usable row"),
        (operations().with_columns(optype=pl.lit("ncclAllReduce")), "no compute"),
        (operations().with_columns(rank=pl.lit("x")), "whole numbers"),
        (step_times().drop("time"), "time"),
        (step_times(workers=2), "2 workers"),
        (pl.DataFrame({"a": [1]}), "expected operation traces"),
    ],
)
def test_data_that_cannot_be_used_is_refused_with_the_way_out(table: pl.DataFrame, says: str, tmp_path: Path) -> None:
    """The file, what is wrong, what was expected."""
    table.write_csv(tmp_path / "bad.csv")
    with pytest.raises(DataError, match=says) as refused:
        attribution.run(tmp_path, 1)
    assert "bad" in str(refused.value)
    assert "expected" in str(refused.value)


def test_no_data_and_broken_files_are_refused(tmp_path: Path) -> None:
    """No folder, an empty folder, a file that is no parquet."""
    for data, says in ((None, "give --data"), (tmp_path, r"no \.parquet or \.csv")):
        with pytest.raises(DataError, match=says):
            attribution.run(data, 1)
    (tmp_path / "broken.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"broken\.parquet"):
        attribution.run(tmp_path, 1)


def test_single_rows_that_cannot_be_right_are_left_out_and_counted() -> None:
    """A duration that is not a number, or negative, costs its row only."""
    table = operations().with_row_index("i")
    bad = pl.when(pl.col("i") == 5).then(float("nan")).when(pl.col("i") == 9).then(-1.0).otherwise(pl.col("duration"))
    trace = attribution_trace.parse(table.with_columns(duration=bad).drop("i"), "made")
    assert any("2 rows" in note for note in trace.notes)


@pytest.mark.long
def test_the_whole_track_over_a_trace_file(tmp_path: Path) -> None:
    """From the file to the result: the recorded slow worker is named, and no application cause is."""
    operations(stages=4, slow=0.5).write_parquet(tmp_path / "job.parquet")
    result = attribution.run(tmp_path, 1)
    assert result.figures["job.recorded.roles_given.hardware_flags"].value == 1
    assert result.figures["job.application.hardware_flags"].value == 0
    assert result.n == 16
