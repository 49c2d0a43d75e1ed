"""What faults do to the signals of a simulated fleet, and what they leave alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from small_fleet import NOW, ago, fleet, synchronous_job

from graynode.collectors.simulated import faults
from graynode.collectors.simulated.faults import FaultsError
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.collectors.simulated.windows import history

HOUR = 3600.0


def _job_place() -> tuple[int, int, tuple[int, ...]]:
    """Node, GPU and all GPUs of a job of several nodes that runs during the last two hours."""
    job = synchronous_job(fleet())
    gpu = job.gpus[3]
    return gpu // 8, gpu % 8, job.gpus


def _windows(of: Fleet, table: str = "gpu", seconds: float = 2 * HOUR, length: int = 30) -> pl.DataFrame:
    return pl.concat([f for _, f in history(of, ago(seconds), NOW, length, (table,))])


def _of(frame: pl.DataFrame, of: Fleet, gpus: tuple[int, ...]) -> pl.DataFrame:
    return frame.filter(pl.col("gpu_uuid").is_in([of.gpu_uuids[g] for g in gpus]))


def _change(frame: pl.DataFrame, column: str, uuid: str | None = None) -> float:
    """Ratio of a column's mean in the last hour to that in the hour before."""
    some = frame if uuid is None else frame.filter(pl.col("gpu_uuid") == uuid)
    late = pl.col("ts") >= ago(HOUR)
    return float(some.filter(late)[column].mean() / some.filter(~late)[column].mean())


def _struck(kind: str, more: str = "", start: str = "-1h", place: str = "gpu") -> tuple[Fleet, pl.DataFrame, str]:
    node, gpu, gpus = _job_place()
    where = {"gpu": f"gpu = {gpu}", "node": ""}[place]
    of = fleet(f'[[fault]]\nkind = "{kind}"\nstart = "{start}"\nnode = {node}\n{where}\n{more}')
    return of, _of(_windows(of), of, gpus), of.gpu_uuids[gpus[3]]


def test_a_slow_gpu_slows_its_job_and_only_its_clock_tells() -> None:
    """The slowest rank sets every rank's step: tensor activity falls on all alike, all stay at full utilisation, the
    others draw less as they wait; the clock falls on the culprit alone."""
    _, job, culprit = _struck("slow_gpu", "size = 0.15")
    others = job.filter(pl.col("gpu_uuid") != culprit)
    falls = [_change(job, "tensor_active_ratio_mean", uuid) for uuid in job["gpu_uuid"].unique()]
    assert max(falls) < 0.95
    assert max(falls) - min(falls) < 0.02
    assert _change(job, "sm_clock_mhz_mean", culprit) == pytest.approx(0.85, abs=0.01)
    assert _change(others, "sm_clock_mhz_mean") == pytest.approx(1.0, abs=0.005)
    assert job["gpu_util_percent_min"].min() >= 99
    assert _change(others, "power_w_mean") < 0.97
    assert _change(job, "power_w_mean", culprit) > _change(others, "power_w_mean") + 0.03


def test_a_healthy_job_is_steady() -> None:
    """Without a fault nothing moves by more than noise."""
    of = fleet()
    job = _of(_windows(of), of, _job_place()[2])
    for column in ("tensor_active_ratio_mean", "sm_clock_mhz_mean", "power_w_mean"):
        assert _change(job, column) == pytest.approx(1.0, abs=0.01)


def test_blocked_cooling_throttles() -> None:
    """A GPU that cannot be cooled grows hot, is held down by software thermal slowdown, and says for how long."""
    _, job, culprit = _struck("thermal", "size = 45")
    hot = job.filter((pl.col("gpu_uuid") == culprit) & (pl.col("ts") >= ago(0.9 * HOUR)))
    cool = job.filter(pl.col("gpu_uuid") != culprit)
    assert hot["temp_c_mean"].mean() > cool["temp_c_mean"].max()
    assert hot["sw_thermal_s"].mean() == pytest.approx(30.0, abs=3)
    assert (hot["throttle_sw_thermal_ns_delta"] / 1e9 - hot["sw_thermal_s"]).abs().max() < 1e-3
    assert cool["sw_thermal_s"].max() == 0
    assert _change(job, "sm_clock_mhz_mean", culprit) < 0.95


def test_a_power_brake_holds_the_whole_node() -> None:
    """The brake is the node's: all its GPUs lose clock and power, none of the job's other nodes does."""
    _, job, culprit = _struck("power_brake", "size = 0.5", place="node")
    node = job.filter(pl.col("gpu_uuid") == culprit)["node"][0]
    late = job.filter(pl.col("ts") >= ago(HOUR))
    assert late.filter(pl.col("node") == node)["hw_power_brake_s"].min() == 30
    assert late.filter(pl.col("node") == node)["hw_slowdown_s"].min() == 30
    assert late.filter(pl.col("node") != node)["hw_power_brake_s"].max() == 0
    assert _change(job.filter(pl.col("node") == node), "sm_clock_mhz_mean") == pytest.approx(0.5, abs=0.02)
    assert _change(job.filter(pl.col("node") != node), "power_w_mean") < 0.85


def test_lost_lanes() -> None:
    """The width falls to the fault's size and replays begin; a generation is held down where the fault says so."""
    _, job, culprit = _struck("pcie_width", "size = 4\ngen = 3")
    late = job.filter(pl.col("ts") >= ago(HOUR))
    one, others = late.filter(pl.col("gpu_uuid") == culprit), late.filter(pl.col("gpu_uuid") != culprit)
    assert one["pcie_width_last"].unique().to_list() == [4]
    assert one["pcie_gen_last"].unique().to_list() == [3]
    assert one["pcie_replays_delta"].sum() > 60
    assert others["pcie_width_last"].unique().to_list() == [16]
    assert others["pcie_gen_last"].unique().to_list() == [5]
    assert others["pcie_replays_delta"].sum() == 0


def test_corrected_errors_grow() -> None:
    """Errors are few at first, about ``size`` a day in the end, and on that GPU alone; counters only grow."""
    of = fleet('[[fault]]\nkind = "ecc_growth"\nstart = "-8d"\nsize = 400\nnode = 2\ngpu = 5', seed=4)
    days = pl.concat([f for _, f in history(of, ago(9 * 86400), NOW, 3600, ("gpu",))])
    one = days.filter(pl.col("gpu_uuid") == of.gpu_uuids[21]).sort("ts")
    by_day = [one.filter(pl.col("ts").is_between(ago((d + 1) * 86400), ago(d * 86400)))["ecc_sbe_volatile_delta"].sum()
              for d in range(8)]  # fmt: skip
    assert by_day[0] == pytest.approx(400 * 0.88, rel=0.25)  # the mean of (t/8)² over the eighth day
    assert by_day[7] < 30
    assert by_day[0] > by_day[3] > by_day[6]
    assert (one["ecc_sbe_aggregate_last"].diff().drop_nulls() >= 0).all()
    others = days.filter(pl.col("gpu_uuid") != of.gpu_uuids[21]).group_by("gpu_uuid").agg(
        pl.col("ecc_sbe_aggregate_delta").sum().alias("n")
    )  # fmt: skip
    assert (others["n"] > 0).mean() < 0.25
    assert others["n"].max() < by_day[0]


def test_a_flapping_port_and_one_that_is_down() -> None:
    """A flap is many short outages, a long down one piece: sums, counts and the longest say which."""
    of = fleet(
        """
        [[fault]]
        kind = "link_flap"
        start = "-1h"
        size = 30
        outage_s = 4
        node = 1
        link = 2
        [[fault]]
        kind = "link_down"
        start = "-30m"
        duration = "10m"
        node = 3
        link = 0
        """
    )
    links = _windows(of, "link", HOUR)
    ports = links.group_by("node", "link").agg(
        down=pl.col("down_s_sum").sum(), downs=pl.col("downs_sum").sum(), longest=pl.col("outage_s_max").max(),
        changes=pl.col("carrier_changes_delta").sum(), trained=pl.col("link_downed_delta").sum(),
        worst=pl.col("state_last").eq("down").sum(),
    )  # fmt: skip
    flap = ports.row(by_predicate=(pl.col("node") == "sim-001") & (pl.col("link") == "mlx5_2/1"), named=True)
    down = ports.row(by_predicate=(pl.col("node") == "sim-003") & (pl.col("link") == "mlx5_0/1"), named=True)
    assert 15 < flap["downs"] < 45
    assert flap["changes"] in (2 * flap["downs"], 2 * flap["downs"] - 1)
    assert flap["trained"] == flap["downs"]
    assert 2.5 < flap["down"] / flap["downs"] < 6
    assert flap["longest"] <= 20
    assert (down["down"], down["downs"], down["longest"], down["worst"]) == (600, 1, 600, 20)
    assert ports.filter(pl.col("down") > 0).height == 2


def test_a_stuck_sensor_repeats_itself() -> None:
    """The sensor shows the value of its first moment for as long as the fault lasts, whatever the GPU does."""
    _, job, culprit = _struck("stuck_sensor", 'signal = "power_w"\nduration = "30m"', start="-1h")
    one = job.filter(pl.col("gpu_uuid") == culprit).sort("ts")
    inside = one.filter(pl.col("ts").is_between(ago(HOUR), ago(HOUR / 2), closed="left"))
    assert inside["power_w_mean"].n_unique() == 1
    assert (inside["power_w_min"] == inside["power_w_max"]).all()
    assert one.filter(pl.col("ts") >= ago(HOUR / 2))["power_w_mean"].n_unique() > 50


def test_a_lost_gpu_vanishes() -> None:
    """Its rows end with the fault and no zero stands in for them; the node's others go on, the host counts seven."""
    of = fleet('[[fault]]\nkind = "gpu_lost"\nstart = "-1h"\nduration = "30m"\nnode = 1\ngpu = 6')
    gpus = _windows(of, "gpu", HOUR + 600)
    rows = gpus.filter(pl.col("node") == "sim-001").group_by("gpu_index").agg(pl.col("ts"))
    lost = set(rows.row(by_predicate=pl.col("gpu_index") == 6, named=True)["ts"])
    assert not any(ago(HOUR) <= ts < ago(HOUR / 2) for ts in lost)
    assert set(rows.row(by_predicate=pl.col("gpu_index") == 5, named=True)["ts"]) > lost
    assert any(ts > ago(HOUR / 2) for ts in lost)
    host = _windows(of, "host", HOUR).filter(pl.col("node") == "sim-001").sort("ts")
    assert host["gpus_read_max"][10] == 7
    assert host["gpus_expected_max"][10] == 8
    assert host["boot_id"].n_unique() == 2  # the repair is a reboot
    assert host["resets"].sum() == 1
    after = gpus.filter((pl.col("node") == "sim-001") & (pl.col("ts") > ago(HOUR / 2 - 600)))
    assert after["energy_mj_last"].max() < 2_000 * 1800 * 700  # begun again


def test_a_place_that_is_not_there() -> None:
    """A node, GPU or port beyond the fleet's size is an error that says how many there are."""
    for place, said in (("node = 99", "there are 8 nodes"), ('node = "web-1"', "'web-1'"), ("gpu = 9", "a node has 8")):
        with pytest.raises(FaultsError, match=said):
            fleet(f'[[fault]]\nkind = "slow_gpu"\nstart = "-1h"\n{place}')


def test_a_node_by_its_name() -> None:
    """A node may be named."""
    (fault,) = fleet('[[fault]]\nkind = "slow_gpu"\nstart = "-1h"\nnode = "sim-005"\ngpu = 2').faults
    assert (fault.node, fault.gpu) == (5, 42)


def test_places_chosen_by_the_seed() -> None:
    """Without a node the seed chooses: the same each time, another with another seed, a GPU at work for a slow one."""
    text = '[[fault]]\nkind = "slow_gpu"\nstart = "-2h"\n[[fault]]\nkind = "thermal"\nstart = "-1h"'
    placed = {seed: Fleet(Spec(NOW, 8, seed=seed), faults.parse(text, "p")).faults for seed in (1, 1, 2, 3, 4)}
    assert placed[1] == fleet(text).faults
    assert len({(f[0].gpu, f[1].gpu) for f in placed.values()}) > 1
    slow, hot = fleet(text).faults
    assert slow.node != hot.node
    busy = fleet(text).load
    at = busy.at(np.array([slow.gpu, hot.gpu]), np.array([slow.start, hot.start]))
    assert (busy.columns["busy"][at] == 1).all()


def test_faults_that_simply_happen() -> None:
    """With a natural rate the count is that of the rate, all kinds appear, and each is marked natural."""
    of = fleet("[natural]\nrate_per_1000_node_days = 300", nodes=16)
    days = of.horizon_s / 86400
    expected = 0.3 * 16 * days
    assert abs(len(of.faults) - expected) < 4 * np.sqrt(expected)
    assert {f.kind for f in of.faults} >= {"ecc_growth", "link_down", "thermal", "pcie_width"}
    assert all(f.natural for f in of.faults)
    assert fleet().faults == ()
