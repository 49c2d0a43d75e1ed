"""``graynode replay``: the whole path over a recording, in a folder and under a cluster of its own."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from graynode.pipeline.lake import Lake
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import LakeSection
from graynode.service.imports.landing import land_rows
from graynode.service.replaying import run

START = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
LOST = START + timedelta(seconds=95)
WHO = {"cluster": "site", "node_id": "m1", "node": "n1", "boot_id": "b1"}


def gpu(ts: datetime, number: int, **values: Any) -> dict[str, Any]:
    return {
        "ts": ts, **WHO, "driver_load": 1, "gpu_uuid": f"GPU-{number}", "gpu_index": number, "vendor": "NVIDIA",
        "pci_bus_id": f"0000:0{number}:00.0", "gpu_model": "H100", "sm_clock_mhz": 1700, "gpu_util_percent": 99,
        "row_remap_failed": 0, **values,
    }  # fmt: skip


def live_rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Four minutes of two GPUs at one sample a second; in the middle one falls off the bus."""
    for second in range(240):
        ts = START + timedelta(seconds=second)
        for number in range(2):
            yield "gpu", gpu(ts, number, row_remap_failed=number)
        if ts == LOST:
            yield "event", {
                "ts": ts, **WHO, "event_id": "e1", "source": "kmsg", "kind": "xid", "code": 79,
                "pci_bus_id": "0000:00:00.0", "message": "GPU has fallen off the bus", "ts_quality": "exact",
            }  # fmt: skip


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "day.jsonl.gz"
    with gzip.open(path, "wt") as out:
        for table, row in live_rows():
            out.write(json.dumps({"table": table, **row}, default=datetime.isoformat) + "\n")
        out.write("no json\n" + json.dumps({"table": "nonsense"}) + "\n")
    return path


def replay(path: Path | None, out: Path, **more: Any) -> int:
    return run(Config(), path, **{"from_lake": None, "out": out, "stop": threading.Event(), **more})


def test_what_would_have_been_told_when(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hard event is told in the half minute that brought it, a flag when its window has closed, each at recorded
    time, under a cluster and in a lake of its own; lines that are none are counted; the site's lake is not touched."""
    config = Config(cluster="site", lake=LakeSection(path=str(tmp_path / "site")))
    assert run(config, recording, from_lake=None, out=tmp_path / "out", stop=threading.Event()) == 0
    assert not (tmp_path / "site").exists()
    said = capsys.readouterr().out
    assert "a sample every 1 s, judged in 30 s windows, cluster 'site-replay'" in said
    told = [line for line in said.splitlines() if line.startswith("2026-03-02")]
    assert len(told) == 2
    assert told[0].startswith("2026-03-02 06:00:30  page   n1: ")
    assert "GPU 1" in told[0]
    assert told[1].startswith("2026-03-02 06:02:00  page   n1: a GPU is gone")
    assert "481 rows, 2 incidents told, 2 open at the end; not taken: " in said
    assert "1 line is not JSON" in said
    lake = Lake(str(tmp_path / "out" / "lake"))
    assert lake.read("gpu")["cluster"].unique().to_list() == ["site-replay"]
    assert lake.read("gpu").height == 480
    assert lake.read("gpu_30s").height == 16
    assert set(lake.read("incident")["cause"]) == {"gpu_lost", "memory_degraded"}


def test_samples_of_an_import_are_judged_by_the_hour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Raw rows of a lake, ten minutes apart: hour windows that expect six samples, and rounds of an hour."""
    lake = Lake(str(tmp_path / "lake"))
    rows = [
        gpu(START + timedelta(minutes=10 * i), number, row_remap_failed=int(number == 3 and i >= 13))
        for i in range(24)
        for number in range(4)
    ]
    land_rows(lake, "gpu", rows, "test")
    out = tmp_path / "out"
    since, until = START + timedelta(hours=1), START + timedelta(hours=4)
    assert replay(None, out, from_lake=str(tmp_path / "lake"), since=since, until=until, cluster="mine") == 0
    said = capsys.readouterr().out
    assert "a sample every 600 s, judged in hours, cluster 'mine'" in said
    told = [line for line in said.splitlines() if line.startswith("2026-03-02")]
    assert len(told) == 1
    assert told[0].startswith("2026-03-02 09:00:00  page   n1: ")
    hours = Lake(str(out / "lake")).read("gpu_1h")
    assert hours.height == 3 * 4
    assert hours.select("cluster", "samples", "samples_expected").unique().rows() == [("mine", 6, 6)]
    assert Lake(str(tmp_path / "lake")).read("gpu")["cluster"].unique().to_list() == ["site"]


@pytest.mark.parametrize("apart_s", [1, 600])
def test_what_the_contract_does_not_take_is_told(
    apart_s: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value of another type is counted in the last line, live or by the hour; the rest of the replay goes on."""
    path = tmp_path / "r.jsonl"
    with path.open("w") as out:
        for i in range(30):
            row = gpu(START + timedelta(seconds=apart_s * i), 0)
            out.write(json.dumps({"table": "gpu", **row}, default=datetime.isoformat) + "\n")
            bad = {"ts": row["ts"], **WHO, "load1": "much"}
            out.write(json.dumps({"table": "host", **bad}, default=datetime.isoformat) + "\n")
    assert replay(path, tmp_path / "out") == 0
    last = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("over at"))
    assert "not taken: " in last
    assert "host" in last


def test_a_second_run_is_refused(recording: Path, tmp_path: Path) -> None:
    """The memory of the first would judge it; the way out is said. A folder of something else is not taken either."""
    stopped = threading.Event()
    stopped.set()
    assert replay(recording, tmp_path / "out", stop=stopped) == 130
    with pytest.raises(ConfigError, match=r"holds a replay of .*day\.jsonl\.gz already.* name another folder"):
        replay(recording, tmp_path / "out")
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        replay(recording, other)


def test_ctrl_c_ends_it_cleanly(recording: Path, tmp_path: Path) -> None:
    """At a pace of one minute a second it takes its time; the signal ends it with a summary and code 130."""
    command = [sys.executable, "-I", "-m", "graynode.service.cli", "replay", str(recording), "--pace", "20"]
    child = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert "a sample every 1 s" in child.stdout.readline()
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    assert out.splitlines()[-2].startswith("stopped at 2026-03-02 06:0")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "no such file"),
        (lambda folder: (folder / "r.jsonl").write_text(""), "no row with a time"),
        (lambda folder: (folder / "r.jsonl").write_text("\x00\x01" * 50 + "\n" + "[" * 100_000), "2 line is not JSON"),
        (lambda folder: (folder / "r.jsonl").write_bytes(b"\xff\xfe\xff"), "not UTF-8"),
        (lambda folder: (folder / "r.jsonl").mkdir(), "no recording there"),
    ],
)
def test_what_is_no_recording_is_said(make: Any, said: str, tmp_path: Path) -> None:
    """In one sentence, and nothing is left behind that would be in the way of the next try."""
    make(tmp_path)
    with pytest.raises(ConfigError) as error:
        replay(tmp_path / "r.jsonl", tmp_path / "out")
    assert said in str(error.value)
    assert not (tmp_path / "out").exists()


def test_one_recording_is_wanted(tmp_path: Path) -> None:
    """Neither none nor two; and a lake's own folders are not read as files."""
    with pytest.raises(ConfigError, match="name one recording"):
        replay(None, tmp_path / "out")
    with pytest.raises(ConfigError, match="name one recording"):
        replay(tmp_path, tmp_path / "out", from_lake="x")
    (tmp_path / "lake" / "gpu" / "_delta_log").mkdir(parents=True)
    with pytest.raises(ConfigError, match="use --from-lake"):
        replay(tmp_path / "lake", tmp_path / "out")
    with pytest.raises(ConfigError, match=f"--from-lake {tmp_path / 'lake'}: holds no row with a time"):
        replay(None, tmp_path / "out", from_lake=str(tmp_path / "lake"))
