"""History of a simulated fleet: what it promises as data, and that it is what its samples would have given."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_fleet import NOW, ago, fleet, synchronous_job

from graynode.collectors.simulated import load as fleet_load
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.collectors.simulated.rows import LiveRows
from graynode.collectors.simulated.windows import history, windows
from graynode.pipeline.codec import to_batch
from graynode.pipeline.lake_format import conform
from graynode.pipeline.schema import TABLES
from graynode.pipeline.window_counters import no_carry
from graynode.pipeline.window_math import aggregate

_PLAN = """
[[fault]]
kind = "slow_gpu"
start = "-3m"
node = 0
gpu = 1
[[fault]]
kind = "link_flap"
start = "-10m"
size = 100
node = 0
link = 2
[[fault]]
kind = "ecc_growth"
start = "-1d"
size = 5000
node = 1
gpu = 0
"""


def _frames(of: Fleet, start: float, end: float, length: int) -> dict[str, pl.DataFrame]:
    parts: dict[str, list[pl.DataFrame]] = {}
    for name, frame in history(of, ago(start), ago(end), length):
        parts.setdefault(name, []).append(frame)
    return {name: pl.concat(some) for name, some in parts.items()}


def test_windows_are_what_samples_give() -> None:
    """Counters, states and sums of windows made directly equal those the pipeline makes of the live samples; means
    agree within the noise of their samples."""
    of = fleet(_PLAN, nodes=2)
    direct, live = _frames(of, 240, 0, 30), LiveRows(of)
    start = int(of.seconds(ago(240)))
    for table, make in (("gpu", live.gpus), ("link", live.ports), ("host", live.hosts)):
        rows = []
        for second in range(start - 1, start + 240):
            for row in make(second, frozenset({1, 10, 60})):
                rows.append({**row, "ts": of.moment(second)})
        samples = pl.from_arrow(to_batch(TABLES[table], rows))
        assert isinstance(samples, pl.DataFrame)
        made, _ = aggregate(table, samples, no_carry(table))
        who = [c for c in TABLES[table].entity if c != "mig_instance"]
        both = direct[f"{table}_30s"].join(made, on=[*who, "ts"], how="inner", suffix="_of_samples")
        assert both.height == direct[f"{table}_30s"].height == made.filter(pl.col("ts") >= ago(240)).height
        exact = [c for c in direct[f"{table}_30s"].columns if c.endswith(("_delta", "_last", "_sum")) or c in
                 ("samples", "resets", "boot_id", "driver_load")]  # fmt: skip
        for column in exact:
            ours, theirs = both[column], both[f"{column}_of_samples"]
            if ours.dtype == pl.Float32 or ours.dtype == pl.Float64:
                assert ((ours - theirs).abs() < 1.5).all(), column
            elif ours.dtype.is_integer():
                # Live counters are rounded, direct ones floored; beyond 2**53 a float counts in steps of 2 to 8.
                assert ((ours - theirs).abs() <= (16 if "bytes" in column else 1)).all(), column
            else:
                assert ours.equals(theirs, check_names=False, null_equal=True), column
    gpu = direct["gpu_30s"].join(made := _made(of, live, start), on=["gpu_uuid", "ts"], suffix="_s")
    assert made.height
    assert ((gpu["sm_clock_mhz_mean"] / gpu["sm_clock_mhz_mean_s"] - 1).abs() < 0.006).all()
    assert ((gpu["power_w_mean"] / gpu["power_w_mean_s"] - 1).abs() < 0.03).all()
    assert ((gpu["temp_c_mean"] - gpu["temp_c_mean_s"]).abs() < 1.0).all()


def _made(of: Fleet, live: LiveRows, start: int) -> pl.DataFrame:
    rows = [{**row, "ts": of.moment(s)} for s in range(start, start + 240) for row in live.gpus(s, frozenset({1}))]
    samples = pl.from_arrow(to_batch(TABLES["gpu"], rows))
    assert isinstance(samples, pl.DataFrame)
    return aggregate("gpu", samples, no_carry("gpu"))[0]


@pytest.mark.parametrize("length", [30, 3600])
def test_pieces_are_the_whole(length: int) -> None:
    """History asked for in two pieces is that asked for at once."""
    of = fleet(_PLAN, nodes=2)
    span = 40 * length
    whole = _frames(of, span, 0, length)
    for name, first in _frames(of, span, span / 2, length).items():
        second = _frames(of, span / 2, 0, length)[name]
        again = pl.concat([first, second])
        keys = [c for c in ("node", "gpu_uuid", "link", "ts") if c in again.columns]
        assert again.sort(keys).equals(whole[name].sort(keys)), name


def test_another_process_makes_the_same_fleet() -> None:
    """The same seed and *now* give the same rows; another seed gives other ones."""
    a, b = (Fleet(Spec(NOW, 2, seed=9)) for _ in range(2))
    other = Fleet(Spec(NOW, 2, seed=10))
    frames = [_frames(of, 7200, 0, 3600)["gpu_1h"] for of in (a, b, other)]
    assert frames[0].equals(frames[1])
    assert not frames[0].equals(frames[2])


def test_a_longer_view_is_the_same_history() -> None:
    """A fleet known further ahead has the same past and the same next day."""
    near = fleet(_PLAN, nodes=4)
    far = near.ahead(21.0)
    late = NOW + timedelta(days=1)
    for (_, a), (_, b) in zip(history(near, ago(3600), late, 3600), history(far, ago(3600), late, 3600), strict=True):
        assert a.equals(b)


def test_counters_go_on_live_where_history_ends() -> None:
    """The first live sample continues the counters of the last window: no jump, no fall, no reset."""
    of = fleet(_PLAN, nodes=2)
    last = _frames(of, 30, 0, 30)["gpu_30s"].sort("gpu_uuid")
    rows = LiveRows(Fleet(of.spec, of.plan)).gpus(int(of.now_s), frozenset({1, 10, 60}))
    live = pl.DataFrame(rows, infer_schema_length=None).sort("gpu_uuid")
    assert live["gpu_uuid"].equals(last["gpu_uuid"])
    assert live["boot_id"].equals(last["boot_id"])
    step = live["energy_mj"] - last["energy_mj_last"]
    assert ((step > 0) & (step < 800_000)).all()  # one second at less than 800 W
    for name in ("throttle_sw_power_cap_ns", "ecc_sbe_volatile", "nvlink_tx_bytes"):
        assert (live[name] >= last[f"{name}_last"] - 1).all()


def test_every_column_is_the_contracts() -> None:
    """Frames fit the lake as they are: known columns, their types, values inside their legal range."""
    of = fleet(_PLAN, nodes=2)
    for length in (30, 3600):
        for name, frame in _frames(of, 2 * 3600, 0, length).items():
            assert conform(name, frame).height == frame.height
            for f in TABLES[name].fields:
                if f.name not in frame.columns or frame[f.name].null_count() == frame.height:
                    continue
                if f.lo is not None and frame[f.name].dtype.is_numeric():
                    assert frame[f.name].min() >= f.lo, f.name
                if f.hi is not None and not f.name.endswith(("_sum", "_delta")):
                    assert frame[f.name].max() <= f.hi, f.name
                if f.name.endswith("_mean") and f.name.replace("_mean", "_min") in frame.columns:
                    low, high = (frame[f.name.replace("_mean", end)] for end in ("_min", "_max"))
                    assert (low <= frame[f.name] + 1e-3).all(), f.name
                    assert (high >= frame[f.name] - 1e-3).all(), f.name


def test_windows_are_counted() -> None:
    """The number told beforehand, for the progress bar, is that of the windows that come."""
    of = fleet(_PLAN, nodes=2)
    for length, span in ((30, 1000), (3600, 40_000)):
        made = _frames(of, span, 0, length)
        assert made[f"host_{'30s' if length == 30 else '1h'}"]["ts"].n_unique() == windows(of, ago(span), NOW, length)


def test_noise_remembers_as_training_steps_do() -> None:
    """Of a steady job's 30 s windows a GPU's clock has a lag-one correlation of .4 to .8 (steps of real jobs: .59 to
    .76) and a spread below one percent."""
    of = fleet()
    job = synchronous_job(of)
    clock = _frames(of, 7200, 0, 30)["gpu_30s"].filter(
        pl.col("gpu_uuid").is_in([of.gpu_uuids[g] for g in job.gpus])
    ).sort("gpu_uuid", "ts").with_columns(x=pl.col("sm_clock_mhz_mean").log())  # fmt: skip
    x = np.stack([g["x"].to_numpy()[:230] for _, g in clock.group_by("gpu_uuid") if g.height >= 230])
    x = x - x.mean(axis=1, keepdims=True)
    assert 0.4 < np.sum(x[:, 1:] * x[:, :-1]) / np.sum(x * x) < 0.8
    assert 0.001 < x.std() < 0.01


@pytest.mark.parametrize(("column", "name"), [("power_w", "power_w"), ("tensor", "tensor_active_percent")])
def test_the_fleets_marginals_are_the_measured_ones(column: str, name: str) -> None:
    """Over GPU time at work, power and tensor activity are distributed as in the cluster they were taken from: the
    mean distance of their quantiles is within 15 % of the range."""
    load = fleet(nodes=32).load
    held = np.diff(load.start, append=load.start[-1:]).clip(0) * (load.columns["busy"] > 0)
    order = np.argsort(load.columns[column])
    share = np.cumsum(held[order]) / held.sum()
    at = np.linspace(0.05, 0.95, 19)
    ours = load.columns[column][order][np.searchsorted(share, at)]
    measured = json.loads((Path(fleet_load.__file__).parent / "acme_quantiles.json").read_text())
    theirs = np.quantile(np.array(measured[name])[38:], at)
    theirs = fleet_load.to_h100_w(theirs) if column == "power_w" else theirs / 100
    assert abs(ours - theirs).mean() < 0.15 * (theirs[-1] - theirs[0])


def test_samples_are_missed_now_and_then() -> None:
    """About one sample in a thousand is missing, more while a machine reboots; never are there more than expected."""
    of = fleet()
    host = _frames(of, 3 * 86400, 0, 3600)["host_1h"]
    missed = 1 - host["samples"].sum() / host["samples_expected"].sum()
    assert 0.0003 < missed < 0.01
    assert (host["samples"] <= host["samples_expected"]).all()
    fine = _frames(of, 3600, 0, 30)["host_30s"]
    assert 0 < (fine["samples"] < 30).mean() < 0.1


def test_reboots_and_reloads_begin_counters_again() -> None:
    """Over weeks idle machines reboot and drivers are loaded again; counters restart and the window says so."""
    of = fleet()
    gpu = _frames(of, 30 * 86400, 0, 3600)["gpu_1h"].sort("gpu_uuid", "ts")
    resets = gpu.filter(pl.col("resets") > 0)
    assert resets.height >= 8
    assert (resets["energy_mj_since_reset"] == resets["energy_mj_last"]).all()
    assert gpu.filter(pl.col("resets") == 0)["energy_mj_since_reset"].null_count() > 0
    assert (gpu["energy_mj_delta"] >= 0).all()
    fell = gpu.with_columns(step=pl.col("energy_mj_last").diff().over("gpu_uuid")).filter(pl.col("step") < 0)
    assert (fell["resets"] > 0).all()
    assert fell.height
