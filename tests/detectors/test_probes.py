"""Ranking of active checks, on real runs: sgemm on the V100s of Longhorn."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from graynode.detectors import probes
from graynode.detectors.base import Round
from graynode.detectors.slow import Slow

LONGHORN = Path(__file__).parents[1] / "fixtures" / "longhorn" / "sgemm-longhorn.csv.gz"
SLOW = ["GPU-87570fdd", "GPU-8bd5126e", "GPU-bf17fd1b", "GPU-01f6142b"]
START = datetime(2026, 3, 2, tzinfo=UTC)
EMPTY = pl.DataFrame()


@pytest.fixture(scope="module")
def longhorn() -> pl.DataFrame:
    """The file's rows as probe results, the bogus and the repeated ones included."""
    with gzip.open(LONGHORN) as file:
        rows = pl.read_csv(file.read(), infer_schema_length=None)
    return rows.select(
        pl.from_epoch("ts", time_unit="s").cast(pl.Datetime("us", "UTC")).alias("ts"),
        pl.lit("longhorn").alias("cluster"),
        pl.concat_str("cabinet", "node", separator="-").alias("node_id"),
        pl.col("uuid").alias("gpu_uuid"),
        pl.lit("Tesla V100").alias("gpu_model"),
        pl.lit("gemm").alias("operation"),
        pl.lit("float32").alias("dtype"),
        pl.col("kern").alias("variant"),
        pl.col("perf").alias("value"),
        pl.lit("ms").alias("unit"),
        pl.lit("lower").alias("better"),
        pl.col("freq").cast(pl.Float32).alias("sm_clock_mhz"),
        pl.col("pwr").cast(pl.Float32).alias("power_w"),
        pl.col("temp").cast(pl.Float32).alias("temp_c"),
    )


def test_the_four_really_slow_gpus_rank_at_the_top_and_nothing_else_is_flagged(longhorn: pl.DataFrame) -> None:
    """1.20×, 1.077×, 1.076× and 1.067× of the median of 391 others; the fifth, 1.050×, is within what V100s do."""
    ranking = probes.rank(longhorn)
    top = ranking.table.head(4)
    assert [g[:12] for g in top.get_column("gpu_uuid")] == SLOW
    assert np.allclose(1 + top.get_column("effect").to_numpy(), [1.203, 1.077, 1.076, 1.067], atol=0.001)
    assert ranking.table.get_column("flagged").sum() == 4
    assert top.get_column("flagged").all()
    assert ranking.table.height == 392


def test_repeats_and_impossible_times_are_counted_and_left_out(longhorn: pl.DataFrame) -> None:
    """24 rows with a time of −1 are refused, 2,268 exact repeats dropped, of 11,087."""
    ranking = probes.rank(longhorn)
    assert (ranking.refused, ranking.duplicates) == (24, 2268)
    assert ranking.table.get_column("runs").sum() == 11_087 - 24 - 2268


def test_the_ranking_does_not_depend_on_the_order_of_results(longhorn: pl.DataFrame) -> None:
    """Shuffled results rank the same."""
    shuffled = longhorn.sample(fraction=1.0, shuffle=True, seed=5)
    assert probes.rank(shuffled).table.drop("node_id").equals(probes.rank(longhorn).table.drop("node_id"))


def test_the_detector_tells_the_four_as_tickets_in_the_round_that_brings_them(longhorn: pl.DataFrame) -> None:
    """Findings name GPU, effect, peers and p-value; the next round without new results says nothing more."""
    slow = Slow()
    first = slow.score(Round(START, 30, EMPTY, EMPTY, EMPTY, EMPTY, longhorn, EMPTY, EMPTY), {})
    found = first.findings.sort("effect", descending=True)
    assert [g[:12] for g in found.get_column("gpu_uuid")] == SLOW
    assert set(found.get_column("severity")) == {"ticket"}
    assert found.get_column("p_value").max() < 1e-3
    assert set(found.get_column("peers")) == {391}
    later = Round(START + timedelta(seconds=30), 30, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)
    assert slow.score(later, first.state).findings.is_empty()


def results(values: dict[str, list[float]], better: str = "higher") -> pl.DataFrame:
    rows = [
        {"ts": START + timedelta(hours=i), "node_id": g, "gpu_uuid": g, "gpu_model": "H100", "operation": "hbm",
         "dtype": None, "variant": "copy", "value": v, "better": better}
        for g, runs in values.items() for i, v in enumerate(runs)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema_overrides={"dtype": pl.String, "ts": pl.Datetime("us", "UTC")})


def healthy(n: int = 40) -> dict[str, list[float]]:
    rng = np.random.default_rng(2)
    return {f"GPU-{i:02d}": list(3000 * np.exp(rng.normal(0, 0.005) + rng.normal(0, 0.001, 3))) for i in range(n)}


def test_where_higher_is_better_the_lowest_is_the_slowest() -> None:
    """A bandwidth 8 % down is flagged; 8 % up is nobody's trouble."""
    values = healthy() | {"GPU-bad": [2760.0, 2761.0, 2759.0], "GPU-good": [3240.0, 3241.0, 3239.0]}
    table = probes.rank(results(values)).table
    assert table.filter("flagged").get_column("gpu_uuid").to_list() == ["GPU-bad"]


def test_a_difference_that_is_certain_but_small_is_not_flagged() -> None:
    """Two percent, thirty times the spread of the others: real, and nobody's reason to swap a GPU."""
    rng = np.random.default_rng(6)
    values = {f"GPU-{i:02d}": list(3000 * np.exp(rng.normal(0, 0.0007, 3))) for i in range(40)} | {
        "GPU-2": [2940.0] * 3
    }
    ranking = probes.rank(results(values)).table
    assert ranking.row(0, named=True)["gpu_uuid"] == "GPU-2"
    assert ranking.row(0, named=True)["z"] > 5
    assert ranking.filter("flagged").is_empty()


def test_a_difference_that_is_large_but_like_the_others_is_not_flagged() -> None:
    """Eight percent where GPUs differ by six: the tail of a wide fleet is not a fault."""
    rng = np.random.default_rng(6)
    values = {f"GPU-{i:02d}": [float(3000 * np.exp(rng.normal(0, 0.06)))] * 3 for i in range(40)}
    ranking = probes.rank(results(values)).table
    assert ranking.row(0, named=True)["effect"] > 0.08
    assert ranking.filter("flagged").is_empty()


def test_fewer_than_three_runs_accuse_nobody() -> None:
    """One odd run asks for another run."""
    values = healthy() | {"GPU-odd": [2400.0]}
    table = probes.rank(results(values)).table
    assert table.row(0, named=True)["gpu_uuid"] == "GPU-odd"
    assert table.filter("flagged").is_empty()


def test_three_gpus_are_too_few_to_rank_and_results_of_nonsense_are_refused() -> None:
    """No peers, no verdict; zero, NaN and infinite values are counted, not ranked."""
    few = probes.rank(results({"a": [1.0] * 3, "b": [1.0] * 3, "c": [9.0] * 3}))
    assert few.table.filter("flagged").is_empty()
    assert few.table.get_column("effect").null_count() == 3
    nonsense = probes.rank(results({"a": [0.0, float("nan"), float("inf"), -1.0]}))
    assert nonsense.refused == 4
    assert nonsense.table.is_empty()
    assert probes.rank(pl.DataFrame(schema={"ts": pl.Datetime("us", "UTC")})).table.is_empty()


def slower_in_its_latest_run(probes: pl.DataFrame, gpu: str, factor: float) -> pl.DataFrame:
    latest = (pl.col("gpu_uuid") == gpu) & (pl.col("ts") == probes.filter(pl.col("gpu_uuid") == gpu)["ts"].max())
    return probes.with_columns(value=pl.col("value") * pl.when(latest).then(factor).otherwise(1.0))


def test_a_gpu_that_is_six_percent_slower_than_it_was_is_named_and_no_other(longhorn: pl.DataFrame) -> None:
    """As they were no GPU has left its past by 5 %; one of the fast half made 6 % slower has, and no level shows it."""
    assert not probes.changes(longhorn).get_column("flagged").any()
    table = probes.rank(longhorn).table.filter(pl.col("runs") > 10)
    fast = table.filter(pl.col("effect") < -0.01).row(0, named=True)["gpu_uuid"]
    slower = slower_in_its_latest_run(longhorn, fast, 1.06)
    found = probes.changes(slower).filter("flagged").row(0, named=True)
    assert probes.changes(slower).get_column("flagged").sum() == 1
    assert found["gpu_uuid"] == fast
    assert found["effect"] == pytest.approx(0.06, abs=0.005)
    assert not probes.rank(slower).table.filter(gpu_uuid=fast).get_column("flagged").any()


def test_one_slower_run_asks_for_another_and_makes_no_ticket(longhorn: pl.DataFrame) -> None:
    """The finding is a digest and says against how many earlier runs."""
    gpu = longhorn.group_by("gpu_uuid").len().filter(pl.col("len") > 60).get_column("gpu_uuid").min()
    assert isinstance(gpu, str)
    slower = slower_in_its_latest_run(longhorn, gpu, 1.1)
    found = Slow().score(Round(START, 30, EMPTY, EMPTY, EMPTY, EMPTY, slower, EMPTY, EMPTY), {}).findings
    [change] = found.filter(pl.col("signal") == "probe_change").iter_rows(named=True)
    assert change["gpu_uuid"] == gpu
    assert change["severity"] == "digest"
    assert "39 earlier runs" in change["message"]
    assert change["score"] > change["threshold"]


def test_a_change_is_not_told_without_a_past_or_where_nobody_knows_how_much_runs_differ() -> None:
    """First runs, and three GPUs with two runs each: null, not flagged."""
    once = probes.changes(results(healthy() | {"GPU-new": [1.0]}))
    assert once.filter(gpu_uuid="GPU-new").row(0, named=True)["score"] is None
    few = probes.changes(results({g: [3000.0, 1500.0] for g in "abc"}))
    assert few.get_column("score").null_count() == 3
    assert not few.get_column("flagged").any()
    assert probes.changes(pl.DataFrame(schema={"ts": pl.Datetime("us", "UTC")})).is_empty()


def test_runs_beside_it_that_slowed_as_well_clear_a_gpu() -> None:
    """A whole node 8 % slower at once is no change of one of its GPUs."""
    values = healthy(48)
    table = results(values).with_columns(
        node_id=pl.concat_str(pl.lit("n"), (pl.col("gpu_uuid").str.slice(4).cast(pl.Int64) // 8).cast(pl.String))
    )
    table = pl.concat([table, table.with_columns(ts=pl.col("ts") + timedelta(hours=9))])
    last = table.get_column("ts").max()
    hot = table.with_columns(
        value=pl.col("value") * pl.when((pl.col("node_id") == "n2") & (pl.col("ts") == last)).then(0.92).otherwise(1.0)
    )
    assert not probes.changes(hot).get_column("flagged").any()
    assert probes.changes(hot.with_columns(node_id=pl.col("gpu_uuid"))).get_column("flagged").sum() == 8
