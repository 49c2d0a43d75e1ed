"""Windows of imported samples, and landing: chunks, kills and repeats do not show in what the lake holds."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from kept_lake import KeptLake

from graynode.pipeline.lake import Lake, SecondWriter
from graynode.service.imports.landing import land
from graynode.service.imports.windows import Brought, fill_windows, make_windows, step_of

T0 = datetime(2026, 7, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def _samples(hours: float, step_s: float, gpus: int = 3, cluster: str = "c") -> pl.DataFrame:
    count = int(hours * 3600 / step_s)
    return pl.DataFrame(
        {
            "ts": T0 + timedelta(seconds=step_s * i), "cluster": cluster, "node_id": "m", "node": "n",
            "gpu_uuid": f"GPU-{g}", "power_w": 100.0 + i % 7, "clock_event_reasons": 0x40 if i % 10 == 0 else 0,
            "energy_mj": 1000 * i - (25_000 if i > count // 2 else 0),
        }
        for i in range(count)
        for g in range(gpus)
    )  # fmt: skip


def _lake(tmp_path: Path, name: str = "lake") -> Lake:
    return Lake(str(tmp_path / name))


@pytest.mark.parametrize("step_s", [10.0, 300.0])
def test_hour_by_hour_is_as_good_as_all_at_once(step_s: float) -> None:
    """Counters go on from what the lake holds, so chunks of whole hours give the rows of the whole."""
    rows = _samples(3, step_s, gpus=2)
    whole, parts = KeptLake(), KeptLake()
    make_windows(whole, "c", rows, step_s, now=NOW)
    for hour in range(3):
        since = T0 + timedelta(hours=hour)
        chunk = rows.filter(pl.col("ts").is_between(since, since + timedelta(hours=1), closed="left"))
        for _ in range(2):  # a chunk that comes again changes nothing
            make_windows(parts, "c", chunk, step_s, now=NOW)
    order = ["gpu_uuid", "ts"]
    for table in ("gpu_1h", *(("gpu_30s",) if step_s < 30 else ())):
        assert whole.read(table).sort(order).equals(parts.read(table).sort(order))
    hours = whole.read("gpu_1h").sort(order)
    assert hours.height == 6
    assert hours["samples"].unique().to_list() == hours["samples_expected"].unique().to_list() == [3600 / step_s]
    assert hours.filter(pl.col("gpu_uuid") == "GPU-0")["resets"].to_list() == [0, 1, 0]
    assert hours["energy_mj_delta"][2] == 1000 * 3600 / step_s
    assert whole.exists("gpu_30s") == (step_s < 30)
    held = [i for i in range(int(3600 / step_s)) if i % 10 == 0]
    assert hours["hw_thermal_s"][0] == len(held) * step_s


def test_no_live_watermark_moves(tmp_path: Path) -> None:
    """An import leaves no offset and no ``closed_through``: live windows and rounds do not see it."""
    lake = _lake(tmp_path)
    make_windows(lake, "c", _samples(2, 10.0), 10.0, now=NOW)
    for table in ("gpu_30s", "gpu_1h"):
        assert lake.closed_through(table, ["graynode.samples/0"]) == {"graynode.samples/0": None}
        assert lake.offset(table, "graynode.samples/0") is None
    log = b"".join(path.read_bytes() for path in tmp_path.rglob("_delta_log/*.json"))
    assert b'"txn"' not in log


def test_what_is_left_alone(tmp_path: Path) -> None:
    """Another cluster's rows, windows that are there, the hour that is not over, machines that no file brought."""
    lake, rows = _lake(tmp_path), _samples(2, 300.0)
    made = make_windows(
        lake, "c", pl.concat([rows, _samples(2, 300.0, cluster="d")]), 300.0, now=T0 + timedelta(hours=1.5)
    )
    assert (made.stored, made.unfinished) == ({"gpu_1h": 3}, 36)
    changed = rows.with_columns(power_w=pl.lit(1.0))
    made = make_windows(lake, "c", changed, 300.0, now=NOW)
    assert (made.stored, made.there) == ({"gpu_1h": 3}, 3)
    assert lake.read("gpu_1h").sort("ts")["power_w_min"].to_list() == [100.0] * 3 + [1.0] * 3
    land(lake, "gpu", rows.with_columns(node_id=pl.lit("live"), ts=pl.col("ts") + timedelta(days=1)), "m")
    brought = Brought()
    brought.note(rows.with_columns(pl.col("ts") + timedelta(days=1)))
    assert fill_windows(lake, "c", brought, 300.0, now=NOW).stored == {}


def test_how_far_a_sample_stands(tmp_path: Path) -> None:
    """The spacing is told by ten samples of one GPU, not by fewer; a lone sample stands for one step of it."""
    lake = _lake(tmp_path)
    assert step_of(_samples(1, 300.0)) == 300.0
    assert step_of(_samples(0.7, 300.0)) is None
    assert step_of(_samples(1, 300.0).clear()) is None
    few = _samples(0.25, 300.0)
    land(lake, "gpu", few, "m")
    brought = Brought()
    brought.note(few)
    assert fill_windows(lake, "c", brought, None, now=NOW).unscheduled == 9
    assert not lake.exists("gpu_1h")
    lone = few.filter(pl.col("ts") == T0)
    make_windows(lake, "c", lone, 3600.0, now=NOW)
    hour = lake.read("gpu_1h").row(0, named=True)
    assert (hour["samples"], hour["samples_expected"], hour["hw_thermal_s"], hour["gpu_idle_s"]) == (1, 1, 3600.0, 0.0)


def test_chunks_land_once_and_in_order(tmp_path: Path) -> None:
    """A chunk whose number was reached is not looked at; rows that another file brought are not stored again; a
    second process that imports the same is refused."""
    lake, rows = _lake(tmp_path), _samples(1, 300.0)
    first = land(lake, "gpu", rows.head(18), "import/x", 1)
    assert (first.stored, first.there) == (18, 0)
    again = land(lake, "gpu", rows, "import/x", 1)
    assert (again.stored, again.there) == (0, 36)
    assert land(lake, "gpu", pl.concat([rows, rows]), "import/y", 1).stored == 18
    other = _lake(tmp_path)
    assert land(other, "gpu", rows.with_columns(pl.col("ts") + timedelta(days=1)), "import/x", 2).stored == 36
    with pytest.raises(SecondWriter):
        lake.write("gpu", rows.head(1), offsets={"import/x": 1})


def test_killed_and_run_again(tmp_path: Path) -> None:
    """SIGKILL in the middle of the command, then the command again: every row once, every hour whole."""
    count, filler = 12_000, "x" * 500  # two blocks of CSV
    lines = [f"{T0 + timedelta(seconds=10 * (i // 40))},GPU-{i % 40},{i % 700},{filler}\n" for i in range(count)]
    (tmp_path / "x.csv").write_text("".join(["t,g,p,f\n", *lines]))
    (tmp_path / "m.toml").write_text(
        'table = "gpu"\ncolumn.ts = { from = "t" }\ncolumn.gpu_uuid = { from = "g" }\ncolumn.power_w = { from = "p" }\n'
    )
    command = [sys.executable, "-m", "graynode.service.cli", "import", "--format", "csv", "--map", "m.toml"]
    command += ["--lake", str(tmp_path / "lake"), "x.csv"]
    lake = _lake(tmp_path)
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while lake.version("gpu") < 1 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "12,000 rows of csv" in done.stdout
    rows = lake.read("gpu", columns=["gpu_uuid", "ts", "power_w"])
    assert rows.height == rows.unique(["gpu_uuid", "ts"]).height == count
    hours = lake.read("gpu_1h")
    assert hours.height == hours.unique(["gpu_uuid", "ts"]).height == 40
    assert hours["samples"].sum() == count
