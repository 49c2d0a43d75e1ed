"""``fleet_1h``: hours of GPUs add up to hours of the fleet, once, whoever is late and whatever dies when."""

import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from landing_kit import Log, gpu_row, land, message

from graynode.pipeline.fleet_hours import fill
from graynode.pipeline.fleet_rows import GPU_COLUMNS, GROUP, merge, of_gpus
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform, frame_schema
from graynode.pipeline.maintenance import Maintainer
from graynode.pipeline.schema import FLEET_GAUGES

DAY = datetime(2026, 3, 2, tzinfo=UTC)


def hour(node: str, gpu: int, at: float, **values: Any) -> dict[str, Any]:
    """One GPU's hour, that many hours after the beginning."""
    return {
        "ts": DAY + timedelta(hours=at), "cluster": "c", "node_id": node, "node": f"host-{node}",
        "gpu_uuid": f"{node}-{gpu}", "samples": 3600, "samples_expected": 3600, "gpu_model_last": "H100",
        "gpu_util_percent_mean": 50.0, "gpu_util_percent_min": 0, "gpu_util_percent_max": 100, "power_w_mean": 400.0,
        "energy_mj_delta": 1000, **values,
    }  # fmt: skip


def put(lake: Lake, *rows: dict[str, Any]) -> None:
    lake.write("gpu_1h", conform("gpu_1h", pl.DataFrame(rows, infer_schema_length=None)))


def whole(lake: Lake) -> dict[str, Any]:
    """Everything that the table holds, as one row."""
    return merge(lake.read("fleet_1h"), ["cluster"]).row(0, named=True)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


def test_hours_by_model_and_job_with_partition_and_rack(lake: Lake) -> None:
    """Counts and energy add up, means are weighted by the time that was measured, extremes stay extremes."""
    put(
        lake,
        hour("a", 0, 0, job_id_last="7", gpu_util_percent_mean=100.0, temp_c_max=81, temp_c_mean=70.0),
        hour("a", 1, 0, job_id_last="7", samples=1800, gpu_util_percent_mean=40.0, temp_c_max=64, temp_c_mean=60.0),
        hour("b", 0, 0, gpu_util_percent_mean=0.0, power_w_mean=70.0),
    )
    inventory = [
        {"ts": DAY, "cluster": "c", "node_id": n, "kind": "node", "entity": n, "attributes": f'{{"rack": "r-{n}"}}'}
        for n in "ab"
    ]
    lake.write("inventory", conform("inventory", pl.DataFrame(inventory)))
    job = {"ts": DAY, "cluster": "c", "node_id": "slurm:x/host-b", "node": "host-b", "job_id": "5", "state": "running",
           "partition": "batch"}  # fmt: skip
    train = {**job, "node_id": "slurm:x/host-a", "node": "host-a", "job_id": "7", "partition": "train"}
    lake.write("job", conform("job", pl.DataFrame([job, train])))
    assert fill(lake) == 1
    rows = {row["job_id"]: row for row in lake.read("fleet_1h").to_dicts()}
    busy, free = rows["7"], rows[None]
    assert (busy["gpus"], busy["gpu_hours"], busy["blind_s"], busy["energy_mj_sum"]) == (2, 1.5, 1800.0, 2000)
    assert busy["gpu_util_percent_mean"] == pytest.approx((100 * 1.0 + 40 * 0.5) / 1.5)
    assert (busy["temp_c_max"], busy["temp_c_gpu_hours"], free["temp_c_mean"], free["temp_c_gpu_hours"]) == (
        81, 1.5, None, None,
    )  # fmt: skip
    assert (busy["partition"], busy["rack"], free["partition"], free["rack"]) == ("train", "r-a", "batch", "r-b")
    assert (busy["gpu_model"], free["ts"]) == ("H100", DAY)


def test_late_machines_are_in_it_and_nothing_is_there_twice(lake: Lake) -> None:
    """An hour whose machines came later is made anew; those that have not changed stay as they were."""
    put(lake, hour("a", 0, 0), hour("a", 0, 1), hour("a", 0, 30))
    assert fill(lake) == 3
    assert fill(lake) == 0
    before = lake.version("fleet_1h")
    put(lake, hour("late", 0, 0))
    assert fill(lake) == 1
    assert lake.version("fleet_1h") == before + 1
    put(lake, hour("later", 0, 30))
    assert fill(lake) == 1
    told = whole(lake)
    assert (told["gpus"], told["gpu_hours"], told["windows"], told["energy_mj_sum"]) == (5, 5.0, 5, 5000)
    assert len(lake.files("fleet_1h")) == 2


def test_a_gpu_with_mig_is_counted_once(lake: Lake) -> None:
    """Instances are windows beside their GPU's own, and add nothing to it."""
    put(lake, hour("a", 0, 0), hour("a", 0, 0, mig_instance="1"), hour("a", 0, 0, mig_instance="2"))
    fill(lake)
    told = whole(lake)
    assert (told["gpus"], told["gpu_hours"], told["energy_mj_sum"], told["windows"]) == (1, 1.0, 1000, 3)
    assert fill(lake) == 0


def test_what_was_not_measured_is_null_and_no_zero(lake: Lake) -> None:
    """Without a schedule nobody knows how long it was blind; a GPU without SM activity has none, not zero."""
    put(lake, hour("a", 0, 0, samples_expected=None, energy_mj_delta=None))
    fill(lake)
    told = whole(lake)
    assert (told["gpu_hours"], told["blind_s"], told["energy_mj_sum"], told["sm_active_ratio_mean"]) == (
        1.0, None, None, None,
    )  # fmt: skip


def test_what_the_pipeline_lands_is_in_the_fleet_after_maintenance(lake: Lake) -> None:
    """From samples over windows and hours to the fleet, by the maintainer's round."""
    log = Log()
    for i, start in enumerate(range(0, 7200, 600)):
        rows = [gpu_row(start + s, gpu=gpu, power_w=300.0) for s in range(0, 600, 10) for gpu in ("GPU-0", "GPU-1")]
        log.add(message(rows, sequence=i, sent=start + 600), start + 600)
    land(lake.path, log)
    done = Maintainer(lake, clock=lambda: (DAY + timedelta(days=300)).timestamp()).round()
    assert (done.fleet_hours, done.anything) == (2, True)
    assert whole(lake)["power_w_mean"] == pytest.approx(300.0)
    assert whole(lake)["windows"] == lake.read("gpu_1h").height == 4


def test_a_stop_between_days_leaves_whole_days_and_the_next_call_goes_on(lake: Lake) -> None:
    """A day is one transaction: stopped after the first, nothing of it is lost or doubled by going on."""
    put(lake, *(hour("a", 0, 24 * day) for day in range(4)))
    stop = _StopsAfter(1)
    assert fill(lake, stop) == 1
    assert whole(lake)["ts"] is None
    assert whole(lake)["windows"] == 1
    assert fill(lake) == 3
    assert whole(lake)["windows"] == 4


class _StopsAfter(threading.Event):
    """Is set once it has been asked so often."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_two_at_once_double_nothing(tmp_path: Path) -> None:
    """Maintainer and importer at the same moment, each with a handle of its own: one of them is refused, or waits."""
    lake = Lake(str(tmp_path))
    put(lake, *(hour("a", 0, h) for h in range(72)))
    lake.create("fleet_1h")
    together = threading.Barrier(3)

    def work() -> None:
        together.wait()
        fill(Lake(str(tmp_path)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fill(lake)
    assert (whole(lake)["windows"], whole(lake)["gpu_hours"]) == (72, 72.0)
    assert lake.read("fleet_1h")["ts"].n_unique() == 72


def test_rows_that_a_dead_writer_left_uncommitted_are_not_there(lake: Lake) -> None:
    """A kill between file and log entry leaves a file that nobody reads: the day is made as if it were not there."""
    put(lake, hour("a", 0, 0))
    fill(lake)
    handle = lake.create("fleet_1h")
    folder = Path(lake.path, "fleet_1h", f"date={DAY.date()}")
    written = next(folder.glob("*.parquet"))
    (folder / "part-dead.parquet").write_bytes(written.read_bytes())
    put(lake, hour("b", 0, 1))
    assert fill(lake) == 1
    assert whole(lake)["windows"] == 2
    with pytest.raises(Exception, match=r"(?i)conflict|transaction|commit"):  # what came between is refused
        write_deltalake(
            handle, lake.table("fleet_1h").to_pyarrow_table().slice(0, 0), mode="overwrite",
            predicate=f"date = '{DAY.date()}'",
        )  # fmt: skip


# --- the rule -------------------------------------------------------------------------------------------------

NUMBER = st.one_of(st.none(), st.floats(0, 1000, width=32))
ROW = st.fixed_dictionaries(
    {
        "node": st.sampled_from("abc"), "at": st.integers(0, 2), "job_id_last": st.sampled_from([None, "1", "2"]),
        "samples": st.integers(1, 3600), "samples_expected": st.sampled_from([None, 3600, 1800]),
        "power_w_mean": NUMBER, "temp_c_min": st.one_of(st.none(), st.integers(0, 90)),
        "temp_c_max": st.one_of(st.none(), st.integers(0, 90)), "sm_active_ratio_mean": NUMBER,
        "energy_mj_delta": st.one_of(st.none(), st.integers(0, 10**12)),
        "mig_instance": st.sampled_from([None, None, "1"]),
    }
)  # fmt: skip


def gpu_hours(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    told = [hour(row["node"], i, row["at"], **{k: v for k, v in row.items() if k not in ("node", "at")})
            for i, row in enumerate(rows)]  # fmt: skip
    frame = conform("gpu_1h", pl.DataFrame(told, infer_schema_length=None)).select(GPU_COLUMNS)
    return frame.with_columns(partition=pl.lit("p"), rack=pl.col("node_id"))


def same(a: pl.DataFrame, b: pl.DataFrame) -> None:
    assert a.shape == b.shape
    for left, right in zip(a.to_dicts(), b.to_dicts(), strict=True):
        for name, value in left.items():
            if isinstance(value, float):
                assert right[name] == pytest.approx(value, rel=1e-5, abs=1e-9), name
            else:
                assert right[name] == value, name


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_merging_parts_is_the_whole(rows: list[dict[str, Any]], chance: random.Random) -> None:
    """In any order, any pieces, any number of steps: the rule is associative and commutative, up to rounding."""
    singles = of_gpus(gpu_hours(rows))
    at_once = merge(singles)
    shuffled = singles.sample(fraction=1.0, shuffle=True, seed=chance.randrange(1000))
    cut = chance.randrange(len(rows) + 1)
    pieces = [merge(part) for part in (shuffled[:cut], shuffled[cut:]) if part.height]
    same(at_once, merge(pl.concat(pieces)))
    same(merge(at_once, ["cluster"]), merge(singles, ["cluster"]))
    same(merge(merge(singles, ["cluster", "rack"]), ["cluster"]), merge(singles, ["cluster"]))


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12))
def test_the_whole_is_what_one_reckons_by_hand(rows: list[dict[str, Any]]) -> None:
    """Against a plain loop over the GPUs."""
    told = merge(of_gpus(gpu_hours(rows)), ["cluster"]).row(0, named=True)
    own = [row for row in rows if row["mig_instance"] is None]
    share = [min(1.0, row["samples"] / row["samples_expected"]) if row["samples_expected"] else 1.0 for row in own]
    power = [(row["power_w_mean"], s) for row, s in zip(own, share, strict=True) if row["power_w_mean"] is not None]
    energy = [row["energy_mj_delta"] for row in own if row["energy_mj_delta"] is not None]
    hot = [row["temp_c_max"] for row in own if row["temp_c_max"] is not None]
    assert told["gpus"] == len(own)
    assert told["windows"] == len(rows)
    assert (told["gpu_hours"] or 0.0) == pytest.approx(sum(share))
    assert told["energy_mj_sum"] == (sum(energy) if energy else None)
    assert told["temp_c_max"] == max(hot, default=None)
    if power:
        assert told["power_w_mean"] == pytest.approx(sum(p * s for p, s in power) / sum(s for _, s in power), rel=1e-5)
    else:
        assert told["power_w_mean"] is None


def test_every_gauge_has_its_weight() -> None:
    """Mean, extremes and GPU-hours of each, so that any reader can merge further."""
    kinds = frame_schema("fleet_1h")
    assert all(f"{g}_{part}" in kinds for g in FLEET_GAUGES for part in ("mean", "min", "max", "gpu_hours"))
    assert set(GROUP) < set(kinds)
