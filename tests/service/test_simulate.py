"""``graynode simulate``: a lake of its own, with the truth beside it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from graynode.collectors.base import Machine, Round
from graynode.collectors.simulated.collector import Simulated
from graynode.pipeline.lake import Lake
from graynode.service.config import Config, ConfigError
from graynode.service.simulate import progress_bar, read_plan, run

NOW = datetime(2026, 11, 30, 10, 17, 23, tzinfo=UTC)
_PLAN = """
[[fault]]
kind = "slow_gpu"
start = "-2h"
[[fault]]
kind = "gpu_lost"
start = "-1h"
node = 0
gpu = 3
"""


def _simulate(tmp_path: Path, name: str = "out", seed: int = 1, days: float = 2) -> Path:
    (tmp_path / "faults.toml").write_text(_PLAN)
    out = tmp_path / name
    assert run(Config(), nodes=4, days=days, seed=seed, faults=tmp_path / "faults.toml", out=out, now=NOW) == 0
    return out


def test_a_lake_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two days of four nodes: hours of all of it, half minutes of its end, jobs, events and an inventory, under a
    cluster name of its own; the summary counts them and says what to try."""
    lake = Lake(str(_simulate(tmp_path)))
    hours, fine = lake.read("gpu_1h"), lake.read("gpu_30s")
    assert hours["ts"].min() == datetime(2026, 11, 28, 11, tzinfo=UTC)
    assert hours["ts"].max() == datetime(2026, 11, 30, 9, tzinfo=UTC)
    assert fine["ts"].min() == datetime(2026, 11, 30, 4, 17, 30, tzinfo=UTC)
    assert fine["ts"].max() == datetime(2026, 11, 30, 10, 16, 30, tzinfo=UTC)
    lost = 32 * 47 - hours.height
    assert 0 <= lost < 40  # one GPU of an hour, and an hour of a reboot or two
    said = capsys.readouterr().out
    assert "graynode sql --lake" in said
    for table in ("gpu_1h", "link_1h", "link_30s", "host_1h", "host_30s", "job", "event", "inventory"):
        rows = lake.read(table)
        assert rows.height
        assert rows["cluster"].unique().to_list() == ["simulated"], table
        assert f"{table:<10} {rows.height:>10,} rows" in said
    assert lake.read("inventory").height == 4 * (1 + 8 + 9)
    busy = fine.filter(pl.col("job_id_last").is_not_null())["job_id_last"].unique()
    assert set(busy) <= set(lake.read("job")["job_id"])


def test_the_truth_beside_it(tmp_path: Path) -> None:
    """Each fault is a line: what, where, from when until when, how much; where the data shows it."""
    out = _simulate(tmp_path)
    slow, lost = (json.loads(line) for line in (out / "truth.jsonl").read_text().splitlines())
    assert (slow["kind"], slow["size"], slow["until"]) == ("slow_gpu", 0.05, None)
    assert datetime.fromisoformat(slow["from"]) == NOW - timedelta(hours=2)
    assert (lost["kind"], lost["node"]) == ("gpu_lost", "sim-000")
    fine = Lake(str(out)).read("gpu_30s")
    assert fine.filter(pl.col("gpu_uuid") == slow["gpu_uuid"])["node"].unique().to_list() == [slow["node"]]
    assert fine.filter(pl.col("gpu_uuid") == lost["gpu_uuid"])["ts"].max() <= datetime.fromisoformat(lost["from"])
    event = Lake(str(out)).read("event").filter(pl.col("code") == 79)
    assert event.select("gpu_uuid", "node_id").rows() == [(lost["gpu_uuid"], lost["node_id"])]


def test_the_same_again(tmp_path: Path) -> None:
    """The same seed gives the same lake, another seed another one."""
    one, two, other = (Lake(str(_simulate(tmp_path, f"o{i}", seed, 0.1))) for i, seed in enumerate((1, 1, 2)))
    keys = ["gpu_uuid", "ts"]
    frames = [lake.read("gpu_30s").sort(keys) for lake in (one, two, other)]
    assert frames[0].equals(frames[1])
    assert not frames[0].equals(frames[2])


def test_the_live_collector_goes_on(tmp_path: Path) -> None:
    """Begun at the end of history with the same numbers, the collector gives the machines that it was written for."""
    last = Lake(str(_simulate(tmp_path))).read("gpu_30s")
    machine = Machine("simulated", "l", "m", "configured", "b", tmp_path)
    live = Simulated(machine, nodes=4, seed=1, faults_path=tmp_path / "faults.toml", start=NOW.isoformat())
    rows = live.collect(Round(NOW + timedelta(seconds=5), frozenset({1, 10, 60})))["gpu"]
    at_end = last.filter(pl.col("ts") == last["ts"].max())
    assert {row["gpu_uuid"] for row in rows} == set(at_end["gpu_uuid"])
    assert {row["boot_id"] for row in rows} == set(at_end["boot_id"])


def test_a_folder_that_holds_something(tmp_path: Path) -> None:
    """A folder in use is left alone: another lake must not be mixed with a simulated one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("x")
    with pytest.raises(ConfigError, match="is not empty"):
        _simulate(tmp_path)


def test_wrong_faults(tmp_path: Path) -> None:
    """A wrong faults file stops the command before anything is written, and so does a place that is not there."""
    for text, said in (
        ("[[fault]]\nkind = 'x'", "kind = 'x'"),
        ('[[fault]]\nkind = "thermal"\nstart = "-1h"\nnode = 7', "node = 7"),
    ):
        (tmp_path / "f.toml").write_text(text)
        with pytest.raises(ConfigError, match=said):
            run(Config(), nodes=4, days=1, seed=1, faults=tmp_path / "f.toml", out=tmp_path / "out", now=NOW)
        assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_plan(tmp_path / "none.toml", NOW)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A place where nothing can be written is an error with its name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--out .*file/out"):
        run(Config(), nodes=1, days=0.1, seed=1, faults=None, out=tmp_path / "file" / "out", now=NOW)


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody looks no bar is drawn."""
    with progress_bar("x") as told:
        told(0.5)
    assert capsys.readouterr() == ("", "")
