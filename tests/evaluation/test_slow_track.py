"""The whole track ``slow``: folders of files in Longhorn's format in, results out."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from longhorn_runs import START_S, made

from graynode.benchmarks.detection import slow
from graynode.benchmarks.detection.frozen import frozen
from graynode.benchmarks.detection.result import DataError
from graynode.benchmarks.detection.slow_data import Workload, parse, read
from graynode.benchmarks.detection.slow_methods import Case

LONGHORN = Path(__file__).parents[1] / "fixtures" / "longhorn" / "sgemm-longhorn.csv.gz"
SMALL = {**frozen("slow")[0], "rates": [0.005, 0.05], "folds": 2, "draws": 20, "draws_of_others": 5}


def workload(table: pl.DataFrame) -> Workload:
    return parse(table.with_columns(pl.all().cast(pl.String)), "sgemm", "made.csv")


def written(folder: Path, table: pl.DataFrame, name: str = "made.csv") -> Path:
    table.write_csv(folder / name)
    return folder


def test_on_longhorns_sgemm_the_figures_hold_on_another_seed_and_the_always_slow_are_named(tmp_path: Path) -> None:
    """What was asked of 5 % and 2 % is reached with a seed that no result names; few GPUs raise the false alarms."""
    with gzip.open(LONGHORN) as file:
        (tmp_path / "sgemm.csv").write_bytes(file.read())
    values = {**frozen("slow")[0], "draws": 20}
    result = slow.evaluate(tmp_path, 77, values, compare=False)
    figures = result.figures
    for name, least in values["targets"].items():
        if name in figures:
            assert figures[name].value >= least, name
    realised = figures["sgemm.time.all.fpr_at_fpr_0.1pct"]
    assert 0.0003 < realised.value < 0.003
    assert figures["sgemm.time.all.false_alarm_gpus_at_fpr_0.1pct"].value >= 3
    said = "\n".join(result.notes)
    assert "without a possible time 24, exact repeats 2268" in said
    for gpu in ("GPU-87570fdd", "GPU-8bd5126e", "GPU-bf17fd1b", "GPU-01f6142b"):
        assert said.count(gpu) == 3, "set aside for time and for clock, and slower than the others"


def test_a_run_holds_figures_baselines_ablations_and_says_the_same_again(tmp_path: Path) -> None:
    """The same data and seed: the same result, in any order of the rows; every figure has its counterpart."""
    table = made(gpus=12, runs=16).drop("freq")
    first = slow.evaluate(written(tmp_path, table), 3, SMALL)
    again = slow.evaluate(written(tmp_path, table.sample(fraction=1.0, shuffle=True, seed=1)), 3, SMALL)
    assert first.data_sha256 != again.data_sha256
    again.data_sha256 = first.data_sha256
    assert first == again
    assert first.n == 12
    name = "sgemm.time.all.recall_5pct_at_fpr_5pct"
    assert first.figures[name].value == 1.0
    assert first.figures["sgemm.time.all.fpr_at_fpr_0.5pct"].value is None
    for other in (*first.baselines.values(), *first.ablations.values()):
        assert name in other
    assert {"three_sigma", "mad", "isolation_forest", "grafana_dbscan", "ratio_0.75"} <= set(first.baselines)
    assert {"no_own_history", "no_peers", "no_own_spread"} == set(first.ablations)


def test_the_frozen_values_are_named_by_their_hash_and_full_asks_for_more_draws(tmp_path: Path) -> None:
    """A result says by which frozen values it was made."""
    result = slow.run(written(tmp_path, made(gpus=2, runs=1)), 1, full=True)
    assert result.thresholds_sha256 == frozen("slow")[1]


def test_another_site_with_other_columns_numbers_and_models_runs_unchanged(tmp_path: Path) -> None:
    """Three runs each, one GPU a node, no clock, power or place: time is judged, by own history alone."""
    table = made(gpus=300, runs=3, per_node=1).select("uuid", "ts", "perf")
    result = slow.evaluate(written(tmp_path, table, "site-b.csv"), 1, SMALL, compare=False)
    assert {name.split(".")[1] for name in result.figures} == {"time"}
    assert "site-b.time.all.fpr_at_fpr_0.5pct" in result.figures
    two_models = pl.concat([made(), made(seed=8).with_columns(kern=pl.lit("other"), perf=pl.col("perf") * 3)])
    mixed = workload(two_models)
    assert len(np.unique(mixed.work)) == 2
    assert np.nanmax(np.abs(Case(mixed, "time").judge().excess)) < 0.1, "runs of other work are no past of these"


def test_two_files_of_one_workload_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """Two clusters' sgemm, and a file of another kind that is named and left out."""
    written(tmp_path, made(gpus=8, runs=4), "a.csv")
    written(tmp_path, made(gpus=8, runs=4, seed=9), "b.csv")
    written(tmp_path, pl.DataFrame({"x": [1]}), "c.csv")
    found = read(tmp_path)
    assert [w.name for w in found.workloads] == ["a", "b"]
    assert found.others == ("c.csv",)


def test_repeats_bogus_times_and_nonsense_are_counted_and_left_out() -> None:
    """Exact repeats once; −1, empty and far times, perf of 0, NaN and words, no uuid: none of them is a run."""
    table = made(gpus=4, runs=5).with_columns(pl.all().cast(pl.String))
    bad = pl.concat([table.head(1)] * 7).with_columns(
        ts=pl.Series(["-1", None, "9999999999", *[str(START_S)] * 4]),
        perf=pl.Series(["1", "1", "1", "0", "NaN", "fast", "1"]),
        uuid=pl.Series(["GPU-x"] * 6 + [None]),
    )
    w = parse(pl.concat([table, table.head(3), bad]), "sgemm", "made.csv")
    assert (w.rows, w.without_time, w.duplicates, w.unusable) == (30, 3, 3, 4)
    assert len(w.gpu) == 20
    assert len(w.ids) == 4


@pytest.mark.parametrize(("gpus", "runs"), [(1, 1), (1, 9), (2, 2), (9, 1)])
def test_hardly_any_data_gives_figures_without_values(tmp_path: Path, gpus: int, runs: int) -> None:
    """One GPU, or one run each: nothing is stated, and nothing fails."""
    result = slow.evaluate(written(tmp_path, made(gpus=gpus, runs=runs).drop("freq")), 1, SMALL)
    stated = {n: f for n, f in result.figures.items() if f.value is not None}
    assert not any("at_fpr" in name for name in stated)


def test_equal_values_everywhere_give_no_false_alarm(tmp_path: Path) -> None:
    """Runs that agree to the last digit: no alarm as they are, and every slowdown is one."""
    table = made(gpus=12, runs=16).with_columns(perf=pl.lit(2400.0), freq=pl.lit(1400.0), pwr=pl.lit(297.0))
    result = slow.evaluate(written(tmp_path, table), 1, SMALL, compare=False)
    assert result.figures["sgemm.time.all.fpr_at_fpr_5pct"].value == 0.0
    assert result.figures["sgemm.time.all.recall_1pct_at_fpr_5pct"].value == 1.0


def test_wrong_data_is_refused_with_file_and_what_was_expected(tmp_path: Path) -> None:
    """No folder, none of the format, a column missing, no usable row, no CSV at all."""
    with pytest.raises(DataError, match="needs --data"):
        slow.run(None, 1)
    with pytest.raises(DataError, match="uuid, ts, perf"):
        slow.run(tmp_path, 1)
    written(tmp_path, made(gpus=2, runs=2).drop("ts"), "no_ts.csv")
    with pytest.raises(DataError, match=r"no_ts\.csv: has no column ts"):
        slow.run(tmp_path, 1)
    written(tmp_path, made(gpus=2, runs=2).with_columns(perf=pl.lit(None)), "no_ts.csv")
    with pytest.raises(DataError, match=r"no_ts\.csv: none of its 4 rows"):
        slow.run(tmp_path, 1)
    (tmp_path / "no_ts.csv").write_text("")
    with pytest.raises(DataError, match=r"no_ts\.csv: cannot be read"):
        slow.run(tmp_path, 1)
