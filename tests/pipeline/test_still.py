"""Sensors that stand still and rates that never count are told, per GPU, with the time since when."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from landing_kit import CLUSTER, T0, Log, gpu_row, land, message

from graynode.pipeline.lake_format import conform
from graynode.pipeline.normalise import Normaliser
from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import BY_HOURS, QUALITY_STATES
from graynode.pipeline.still import StillWatch

HOUR = 120


def window(w: int, gpu: str = "GPU-0", model: str = "NVIDIA L40S", **values: Any) -> dict[str, Any]:
    """Window ``w`` of a GPU whose work comes and goes by the ten minutes; sensors move with it unless given."""
    busy = (w // 20) % 2 == 0
    power = 320.0 if busy else 90.0
    wiggle = (w % 7) / 10
    row: dict[str, Any] = {
        "ts": T0 + timedelta(seconds=30 * w), "cluster": CLUSTER, "node_id": "n1", "node": "host-n1", "boot_id": "b",
        "gpu_uuid": gpu, "gpu_model_last": model, "gpu_util_percent_mean": 97.0 if busy else 1.0,
        "power_w_mean": power + wiggle, "power_w_min": power - 3 + wiggle, "power_w_max": power + 3 + wiggle,
        "temp_c_min": int(30 + power / 8), "temp_c_max": int(31 + power / 8), "nvlink_links_active_last": 0,
        "pcie_tx_bytes_per_s_max": 1e9 if busy else 0.0, "pcie_rx_bytes_per_s_max": 1e9 if busy else 0.0,
    }  # fmt: skip
    return row | values


def see(watch: StillWatch, rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What is told of these windows: GPU, field, state, time, reason."""
    frame = conform("gpu_30s", pl.DataFrame(list(rows), infer_schema_length=None))
    return [(r["entity"], r["field"], r["state"], r["ts"], r["reason"]) for r in watch.see(frame)]


def stuck(w: int, **values: Any) -> dict[str, Any]:
    return window(w, **{"temp_c_min": 41, "temp_c_max": 41, **values})


@pytest.mark.parametrize("each", [10, 60, 1000])
def test_a_temperature_that_does_not_follow_the_power_is_told_after_two_hours(each: int) -> None:
    """Once, with the time it began to stand, however the windows come."""
    watch, told = StillWatch(), []
    rows = [window(w) if w < 30 else stuck(w) for w in range(6 * HOUR)]
    for start in range(0, len(rows), each):
        told += see(watch, rows[start : start + each])
    if each == 1000:  # one look over all of it saw it move: a later one tells
        told += see(watch, [stuck(w) for w in range(1000, 1000 + 5 * HOUR)])
        told += see(watch, [stuck(w) for w in range(1600, 1610)])
    [(gpu, field, state, since, reason)] = told
    assert (gpu, field, state) == ("GPU-0", "temp_c", "stale")
    assert state in QUALITY_STATES
    assert reason.startswith(f"{BY_HOURS}41 all the time while power_w went from 9")
    assert since >= T0 + timedelta(seconds=30 * 30)
    if each < 100:
        assert since <= T0 + timedelta(seconds=30 * (30 + each))


def test_it_is_measured_again_when_it_moves() -> None:
    """One row, at the windows in which it moved."""
    watch = StillWatch()
    assert [row[2] for row in see(watch, (stuck(w) for w in range(3 * HOUR)))] == ["stale"]
    assert see(watch, (stuck(w) for w in range(3 * HOUR, 3 * HOUR + 10))) == []
    told = see(watch, [window(4 * HOUR)])
    assert [row[2] for row in told] == ["measured"]
    assert see(watch, [window(4 * HOUR + 1)]) == []


def test_under_steady_load_nothing_has_to_move() -> None:
    """Liquid cooling and one job for days: 54 °C is 54 °C."""
    watch = StillWatch()
    for hour in range(12):
        rows = [stuck(w, power_w_mean=640.0, power_w_min=635.0 + w % 3) for w in range(hour * HOUR, (hour + 1) * HOUR)]
        assert see(watch, rows) == []


def test_power_that_does_not_follow_the_work_is_told() -> None:
    """The same to the digit for hours, while kernels come and go."""
    watch, told = StillWatch(), []
    for hour in range(4):
        rows = range(hour * HOUR, (hour + 1) * HOUR)
        flat = {"power_w_min": 71.25, "power_w_max": 71.25, "power_w_mean": 71.25}
        told += see(watch, (window(w, **flat) for w in rows))
    assert [(row[1], row[2]) for row in told] == [("power_w", "stale")]
    assert "gpu_util_percent went from 1 to 97" in told[0][4]


def test_one_stuck_gpu_of_eight_is_told_alone() -> None:
    """Sensors are judged one by one, whatever the others do."""
    watch, told = StillWatch(), []
    for hour in range(4):
        told += see(
            watch,
            (
                (stuck if g == 3 else window)(w, gpu=f"GPU-{g}")
                for w in range(hour * HOUR, (hour + 1) * HOUR, 4)
                for g in range(8)
            ),
        )
    assert [row[:2] for row in told] == [("GPU-3", "temp_c")]


def test_a_rate_that_never_counts_on_a_model_is_told_of_each_of_its_gpus() -> None:
    """PROF_PCIE bytes are 0 on every L40S; the H100s beside them count."""
    watch, told = StillWatch(), []
    dead = {"pcie_tx_bytes_per_s_max": 0.0, "pcie_rx_bytes_per_s_max": 0.0}
    for hour in range(16):
        for w in range(hour * HOUR, (hour + 1) * HOUR, 20):
            rows = [window(v, gpu=f"GPU-{g}", **dead) for v in range(w, w + 20) for g in range(2)]
            rows += [window(v, gpu="GPU-h", model="NVIDIA H100") for v in range(w, w + 20)]
            told += see(watch, rows)
    assert sorted({row[:3] for row in told}) == [
        (f"GPU-{g}", f"pcie_{d}_bytes_per_s", "implausible") for g in range(2) for d in ("rx", "tx")
    ]
    assert len(told) == 4
    assert told[0][3] == T0
    assert "on all 2 GPUs of its model here" in told[0][4]
    back = see(watch, [window(20 * HOUR, gpu="GPU-0")])
    assert sorted(row[:3] for row in back) == [("GPU-0", f"pcie_{d}_bytes_per_s", "measured") for d in ("rx", "tx")]


def test_idle_gpus_may_send_nothing() -> None:
    """Only hours of work count."""
    watch = StillWatch()
    for hour in range(12):
        rows = range(hour * HOUR, (hour + 1) * HOUR)
        assert see(watch, (window(w, gpu_util_percent_mean=3.0, pcie_tx_bytes_per_s_max=0.0) for w in rows)) == []


@pytest.mark.parametrize(("links", "others", "told_of"), [(18, 0.0, 1), (18, 5e10, 0), (0, 0.0, 0)])
def test_nvlink_that_is_0_is_told_only_where_it_is_on_the_whole_model(links: int, others: float, told_of: int) -> None:
    """A job of one GPU leaves it idle, and a board without links has nothing to count."""
    watch, told = StillWatch(), set()
    for hour in range(16):
        rows = [
            window(w, gpu=gpu, nvlink_links_active_last=links, nvlink_tx_bytes_per_s_max=rate)
            for w in range(hour * HOUR, (hour + 1) * HOUR, 2)
            for gpu, rate in (("GPU-0", 0.0), ("GPU-1", others))
        ]
        told |= {row[:2] for row in see(watch, (*rows, *({**r, "ts": r["ts"] + timedelta(seconds=30)} for r in rows)))}
    assert len({gpu for gpu, field in told if field == "nvlink_tx_bytes_per_s"} - {"GPU-1"}) == told_of


def test_a_restart_tells_nothing_twice_and_takes_nothing_back_unseen() -> None:
    """What was told is in the table ``quality``; standing still goes on, and only movement ends it."""
    row = {"cluster": CLUSTER, "node_id": "n1", "entity": "GPU-0", "field": "temp_c", "state": "stale"}
    told_before = pl.DataFrame([{**row, "ts": T0, "table_name": "gpu", "reason": f"{BY_HOURS}41 all the time"}])
    watch = StillWatch()
    watch.restore(told_before)
    for hour in range(4):
        assert see(watch, (stuck(w) for w in range(hour * HOUR, (hour + 1) * HOUR))) == []
    assert [r[2] for r in see(watch, [window(5 * HOUR)])] == ["measured"]
    normaliser = Normaliser()  # its own memory is another: a plausible value does not end this
    normaliser.restore(told_before)
    assert not normaliser._bad


def test_windows_wait_until_a_look_is_worth_it() -> None:
    """A look costs the same however little there is to see, so closed windows gather for ten minutes."""
    watch, told = StillWatch(), []
    looks: list[int] = []
    whole = watch.see
    watch.see = lambda rows: (looks.append(rows.height), whole(rows))[1]  # type: ignore[method-assign]
    for w in range(0, 4 * HOUR, 4):
        told += watch.note(conform("gpu_30s", pl.DataFrame([stuck(w)])))
    assert [row["field"] for row in told] == ["temp_c"]
    assert set(looks) == {6}


def test_a_stuck_sensor_is_in_the_lake_with_its_time(tmp_path: Path) -> None:
    """From messages to SQL: four hours of samples, of which the temperature follows the power for one."""
    log = Log()
    for message_ in range(12):
        rows = []
        for s in range(message_ * 1200, (message_ + 1) * 1200, 30):
            busy = (s // 900) % 2 == 0
            power = (320.0 if busy else 90.0) + s % 7
            temp = 41 if s >= 3600 else int(30 + power / 8)
            rows.append(gpu_row(s, power_w=power, temp_c=temp, gpu_util_percent=97 if busy else 1))
        log.add(message(rows, sequence=message_), (message_ + 1) * 1200)
    lake = land(tmp_path, log, chunks=[4] * 3, now=20_000)
    [row] = lake.read("quality").to_dicts()
    assert (row["entity"], row["field"], row["state"]) == ("GPU-0", "temp_c", "stale")
    assert timedelta(seconds=3570) <= row["ts"] - T0 <= timedelta(seconds=3600 + 1800)
    assert lake.read("gpu")["temp_c"].null_count() == 0
    queries = Queries(lake)
    try:
        [now] = queries.rows("SELECT state, reason FROM quality_now WHERE field = 'temp_c'")
        assert now == {"state": "stale", "reason": row["reason"]}
    finally:
        queries.close()
    again = land(tmp_path, log, now=20_000)  # a restart: told once
    assert again.read("quality").height == 1


def test_memory_is_as_large_as_the_fleet() -> None:
    """A GPU unseen for two weeks is forgotten."""
    watch = StillWatch()
    see(watch, [window(0, gpu="GPU-gone")])
    see(watch, [window(15 * 24 * HOUR, gpu="GPU-1")])
    assert watch._state is not None
    assert watch._state["gpu_uuid"].to_list() == ["GPU-1"]
