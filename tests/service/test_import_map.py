"""``graynode import --format parquet|csv --map``: their tables into ours, by a map that is checked first."""

from __future__ import annotations

import gzip
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from kept_lake import DyingLake

from graynode.pipeline.lake import Lake
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import LakeSection
from graynode.service.importing import run
from graynode.service.imports.map import import_file
from graynode.service.imports.map_file import parse
from graynode.service.imports.map_rows import BLOCK_BYTES
from graynode.service.imports.windows import Brought, fill_windows

PAGE = Path(__file__).parents[2] / "docs" / "import.md"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GPU = """
table = "gpu"
step_s = 60
column.ts = { from = "t", format = "epoch_s" }
column.node = { from = "host" }
column.gpu_uuid = { from = "gpu" }
column.power_w = { from = "p", unit = "mW" }
"""


def _import(tmp_path: Path, map_: str, data: str | bytes | pl.DataFrame, lake: Lake | None = None) -> int:
    mapped = tmp_path / "map.toml"
    mapped.write_text(map_)
    if isinstance(data, pl.DataFrame):
        path = tmp_path / "data.parquet"
        data.write_parquet(path, row_group_size=1000)
    else:
        path = tmp_path / "data.csv"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    config = Config(cluster="c", lake=LakeSection(path=str(tmp_path / "lake")))
    return run(config, path.suffix[1:], path, lake, map_path=mapped, now=NOW)


def _read(tmp_path: Path, table: str) -> pl.DataFrame:
    return Lake(str(tmp_path / "lake")).read(table)


def _samples(count: int, gpus: int = 4) -> pl.DataFrame:
    start = int(datetime(2026, 7, 1, tzinfo=UTC).timestamp())
    return pl.DataFrame(
        {
            "t": [start + 60 * (i // gpus) for i in range(count)],
            "host": [f"n{i % gpus // 2}" for i in range(count)],
            "gpu": [f"GPU-{i % gpus}" for i in range(count)],
            "p": [300_000.0 + i % 50 for i in range(count)],
        }
    )


# --- the page ----------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's maps read what it says that they read."""
    jobs, samples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (csv,) = re.findall(r"```csv\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert _import(tmp_path, jobs, csv) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 rows of csv for table job" in said
    assert "3 stored 1 refused: no ts" in said
    assert "1 values left out: gpus: no int32" in said
    assert "1 values left out: state: a value that the map does not name" in said
    rows = _read(tmp_path, "job").sort("job_id")
    assert rows["ts"][0] == datetime(2026, 7, 1, 6, tzinfo=UTC)
    assert rows["end_ts"].to_list()[:2] == [datetime(2026, 7, 1, 7, 30, tzinfo=UTC), None]
    assert rows.select("job_id", "node", "partition", "gpus", "state").rows() == [
        ("4711", "gpu-a07", "train", 8, "completed"),
        ("4712", "gpu-a08", "train", 8, "node_fail"),
        ("4714", "gpu-a09", "train", None, None),
    ]
    data = "time,host,gpu,power,temp,energy\n1782900000000,h,GPU-1,71500,122,2.5\n"
    assert _import(tmp_path, samples, data) == 0
    row = _read(tmp_path, "gpu").row(0, named=True)
    assert (row["power_w"], row["temp_c"], row["energy_mj"], row["vendor"]) == (71.5, 50, 9_000_000, "NVIDIA")


# --- each table ----------------------------------------------------------------------------------------------------


WHO = 'column.ts = { from = "t" }\ncolumn.node = { from = "n" }\n'
PROBE = f"""
table = "probe"
{WHO}
constant = {{ operation = "all_reduce", unit = "GB/s" }}
column.value = {{ from = "bw" }}
column.latency_us = {{ from = "lat", unit = "ms" }}
column.gpu_uuid = {{ from = "g" }}
"""
STEP = f"""
table = "step"
{WHO}
column.job_id = {{ from = "j" }}
column.rank = {{ from = "r" }}
column.seconds = {{ from = "ms", unit = "ms" }}
column.step = {{ from = "s" }}
"""
EVENT = f"""
table = "event"
{WHO}
column.kind = {{ from = "k" }}
column.attributes = {{ from = ["a", "b"] }}
"""
HOST = f"""
table = "host"
step_s = 600
{WHO}
column.root_used_ratio = {{ from = "u", unit = "%" }}
"""


def test_every_table_has_a_map(tmp_path: Path) -> None:
    """``probe``, ``step``, ``event``, ``host``: ids are made, machines are made of names, JSON of several columns."""
    lines = "2026-07-01 10:00,a,412.5,1.5,GPU-1\n2026-07-01T10:00:00Z,a,380,2,GPU-2\n"
    assert _import(tmp_path, PROBE, f"t,n,bw,lat,g\n{lines}") == 0
    rows = _read(tmp_path, "probe").sort("value")
    assert rows.select("value", "latency_us").rows() == [(380.0, 2000.0), (412.5, 1500.0)]
    assert rows.select("source", "unit", "gpu_uuid").row(0) == ("import", "GB/s", "GPU-2")
    assert rows["run_id"].n_unique() == 2
    assert rows["ts"].unique().to_list() == [datetime(2026, 7, 1, 10, tzinfo=UTC)]
    assert _import(tmp_path, STEP, "t,n,j,r,ms,s\n2026-07-01T10:00:00.5,a,7,0,1500,3\n") == 0
    assert _read(tmp_path, "step").select("job_id", "rank", "seconds", "step").row(0) == ("7", 0, 1.5, 3)
    assert _import(tmp_path, EVENT, 't,n,k,a,b\n2026-07-01T10:00:00+02:00,a,xid,"x ""y""",\n') == 0
    row = _read(tmp_path, "event").row(0, named=True)
    assert (row["ts"], row["attributes"]) == (datetime(2026, 7, 1, 8, tzinfo=UTC), '{"a":"x \\"y\\"","b":""}')
    assert len(row["event_id"]) == 36
    assert _import(tmp_path, HOST, "t,n,u\n2026-07-01T10:00:00,a,75\n2026-07-01T10:10:00,a,50\n") == 0
    assert _read(tmp_path, "host").sort("ts")["root_used_ratio"].to_list() == [0.75, 0.5]
    assert _read(tmp_path, "host_1h").select("samples", "samples_expected").rows() == [(2, 6)]
    assert rows["node_id"][0] == _read(tmp_path, "host")["node_id"][0] == row["node_id"]


@pytest.mark.parametrize(
    ("form", "zone", "given"),
    [("iso8601", "UTC", "2026-07-01T10:00:00.250Z"), ("iso8601", "Europe/Berlin", "2026-07-01 12:00:00.25"),
     ("iso8601", "Asia/Tokyo", "2026-07-01T10:00:00.25+00:00"), ("epoch_s", "UTC", "1782900000.25"),
     ("epoch_ms", "UTC", "1782900000250"), ("epoch_us", "UTC", "1782900000250000"),
     ("epoch_ns", "UTC", "1782900000250000999"), ("%d.%m.%Y %H:%M:%S%.f", "Europe/Berlin", "01.07.2026 12:00:00.25"),
     ("%Y%m%d %H%M%S%.f %z", "UTC", "20260701 050000.25 -0500")],
)  # fmt: skip
def test_times(tmp_path: Path, form: str, zone: str, given: str) -> None:
    """Every form and zone of the same moment is the same moment, to the microsecond."""
    map_ = f"{GPU.replace('epoch_s', form)}\n".replace('from = "t",', f'from = "t", zone = "{zone}",')
    assert _import(tmp_path, map_, f"t,host,gpu,p\n{given},h,GPU-1,1\n") == 0
    assert _read(tmp_path, "gpu")["ts"].to_list() == [datetime(2026, 7, 1, 10, 0, 0, 250_000, tzinfo=UTC)]


def test_clocks_that_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An hour that there is twice is taken as its first, one that there is not is no time."""
    map_ = GPU.replace('format = "epoch_s"', 'zone = "Europe/Berlin"')
    _import(tmp_path, map_, "t,host,gpu,p\n2026-10-25T02:30:00,h,GPU-1,1\n2026-03-29T02:30:00,h,GPU-1,1\n")
    assert _read(tmp_path, "gpu")["ts"].to_list() == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC)]
    assert "1 refused: no ts" in capsys.readouterr().out


def test_types_of_parquet(tmp_path: Path) -> None:
    """Typed columns are taken as they are: times with and without zone, floats with NaN, whole counts beyond 2^53."""
    frame = pl.DataFrame(
        {
            "t": pl.Series([datetime(2026, 7, 1, 10), datetime(2026, 7, 1, 11)], dtype=pl.Datetime("ns")),
            "host": ["a", "a"], "gpu": ["GPU-1", "GPU-1"], "p": [float("nan"), 70_000.0],
            "e": [2**53 + 1, 2**53 + 3], "odd": [[1], [2]],
        }
    )  # fmt: skip
    map_ = GPU.replace('format = "epoch_s"', 'zone = "Europe/Berlin"') + 'column.energy_mj = { from = "e" }\n'
    assert _import(tmp_path, map_, frame) == 0
    rows = _read(tmp_path, "gpu").sort("ts")
    assert rows["ts"][0] == datetime(2026, 7, 1, 8, tzinfo=UTC)
    assert rows["power_w"].to_list() == [None, 70.0]
    assert rows["energy_mj"].to_list() == [2**53 + 1, 2**53 + 3]


def test_what_cannot_be_is_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words, halves of a state, ranges, bytes that are no text: each value costs itself, each under its reason."""
    map_ = GPU + 'column.pstate = { from = "s", nulls = ["?"] }\ncolumn.gpu_model = { from = "m" }\n'
    lines = [b"t,host,gpu,p,s,m", b"1782900000,h,GPU-1,many,0,A", b"1782900001,h,GPU-1,1,2.5,A",
             b"1782900002,h,GPU-1,-5,99,A", b"1782900003,h,GPU-1,1,?,\xff\xfe", b"soon,h,GPU-1,1,1,A",
             b"1782900004,,GPU-1,1,1,A", b"1782900005,h,,1,1,A", b"99999999999,h,GPU-1,1,1,A",
             b"1782900006,h,GPU-1,x,x,", b"1782900007,h,GPU-1,1"]  # fmt: skip
    assert _import(tmp_path, map_, b"\n".join(lines) + b"\n") == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in ("10 rows of csv", "4 stored", "1 refused: no ts", "1 refused: no machine", "1 refused: no gpu_uuid",
                 "1 refused: ts is a time that cannot be", "1 refused: none of its values can be read",
                 "1 refused: not as many cells as names: 4 cells where 6 are named",
                 "2 values left out: power_w: no float32", "1 values left out: power_w: outside",
                 "1 values left out: pstate: outside", "1 values left out: gpu_model: not UTF-8 text"):  # fmt: skip
        assert part in said, part
    rows = _read(tmp_path, "gpu").sort("ts")
    assert rows["power_w"].to_list() == [None, pytest.approx(0.001), None, pytest.approx(0.001)]
    assert rows["pstate"].to_list() == [0, None, None, None]


# --- once, and through a kill --------------------------------------------------------------------------------------


def test_twice_is_as_good_as_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Again, and as CSV instead of Parquet, and with a repeat inside: nothing is stored twice."""
    frame = _samples(3000)
    assert _import(tmp_path, GPU, frame) == 0
    lake = Lake(str(tmp_path / "lake"))
    version, hours = lake.version("gpu"), lake.read("gpu_1h").height
    assert _import(tmp_path, GPU, frame) == 0
    assert "3,000 were there already" in capsys.readouterr().out
    assert lake.version("gpu") == version
    packed = gzip.compress(pl.concat([frame, frame.head(5)]).write_csv().encode())
    assert _import(tmp_path, GPU, packed) == 0
    assert "3,005 were there already" in capsys.readouterr().out
    assert (lake.read("gpu").height, lake.read("gpu_1h").height) == (3000, hours)
    assert lake.read("gpu_1h").select("samples_expected").unique().rows() == [(60,)]


@pytest.mark.parametrize("writes", [1, 2])
def test_a_kill_leaves_whole_pieces(tmp_path: Path, writes: int) -> None:
    """Killed between pieces, the second run brings the rest, the windows too, and doubles nothing."""
    path, lake = tmp_path / "data.parquet", Lake(str(tmp_path / "lake"))
    _samples(1200).write_parquet(path)
    wanted, dying = parse(GPU.encode()), DyingLake(str(tmp_path / "lake"))
    dying.left = writes
    with pytest.raises(KeyboardInterrupt):
        import_file(dying, "c", "parquet", path, wanted, Brought(), now=NOW, piece_rows=500)
    assert lake.read("gpu").height == writes * 500
    brought = Brought()
    assert import_file(lake, "c", "parquet", path, wanted, brought, now=NOW, piece_rows=500) == 0
    assert lake.read("gpu").height == lake.read("gpu").unique(["gpu_uuid", "ts"]).height == 1200
    for _ in range(2):
        fill_windows(lake, "c", brought, 60.0, now=NOW)
    assert lake.read("gpu_1h")["samples"].to_list() == [60] * (4 * 5)


# --- bad input -------------------------------------------------------------------------------------------------------


def test_files_that_are_damaged(tmp_path: Path) -> None:
    """Absent, empty, cut and other files are said with what was found; pieces before the damage stay."""
    whole = tmp_path / "whole.parquet"
    _samples(1000).write_parquet(whole)
    data = whole.read_bytes()
    (tmp_path / "map.toml").write_text(GPU)
    config = Config(cluster="c", lake=LakeSection(path=str(tmp_path / "lake")))
    bad = {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "other": b"hello, world\n" * 100,
        "tail": data[:-4] + b"PAR1"[::-1],
    }
    for name, content in bad.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"is not parquet|cannot be read"):
            run(config, "parquet", path, map_path=tmp_path / "map.toml", now=NOW)
    for name in ("absent", "."):
        with pytest.raises(ConfigError, match="cannot be read"):
            run(config, "csv", tmp_path / name, map_path=tmp_path / "map.toml", now=NOW)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ConfigError, match="empty"):
        run(config, "csv", tmp_path / "empty", map_path=tmp_path / "map.toml", now=NOW)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(_samples(1000).write_csv().encode())[:-20])
    with pytest.raises(ConfigError, match="damaged gzip"):
        run(config, "csv", tmp_path / "cut.gz", map_path=tmp_path / "map.toml", now=NOW)


def test_a_csv_that_is_cut_in_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last row, which lacks cells, is refused; all before it are stored."""
    text = _samples(100).write_csv()
    assert _import(tmp_path, GPU, text[: text.rindex("GPU")]) == 0
    assert _read(tmp_path, "gpu").height == 99
    assert "1 refused" in capsys.readouterr().out


def test_a_line_longer_than_can_be(tmp_path: Path) -> None:
    """A line of many megabytes is an error of the file, without its being held whole."""
    with pytest.raises(ConfigError, match="is not csv"):
        _import(tmp_path, GPU, "t,host,gpu,p\n1782900000,h,GPU-1,1\n" + "x" * (3 * BLOCK_BYTES) + "\n")


def test_control_characters_and_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text is text whatever is in it; a nested column is no number; the account is printable."""
    frame = _samples(3).with_columns(host=pl.lit("\x1b[2J\x00\x07"), p=pl.Series([[[1.0]], [[2.0]], None]))
    assert _import(tmp_path, GPU, frame) == 1
    said = capsys.readouterr().out
    assert "2 values left out: power_w: no float32" in said
    assert "3 refused: none of its values can be read" in " ".join(said.split())
    assert not [c for c in said if not c.isprintable() and c != "\n"]


def test_columns_of_a_newer_file(tmp_path: Path) -> None:
    """Columns that the map does not name are not read; one that it names and the file lacks is said."""
    frame = _samples(10).with_columns(new=pl.lit(1), newer=pl.lit("x"))
    assert _import(tmp_path, GPU, frame) == 0
    with pytest.raises(ConfigError, match=r"column\.power_w\.from: 'p' is none of its columns"):
        _import(tmp_path, GPU, frame.rename({"p": "power"}))


@pytest.mark.long
def test_millions_of_rows_in_flat_memory(tmp_path: Path) -> None:
    """Two million rows take their time, and no more memory than the first pieces."""
    import resource

    frame = _samples(2_000_000, gpus=64)
    began = time.monotonic()
    assert _import(tmp_path, GPU, frame.head(200_000)) == 0
    first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert _import(tmp_path, GPU, frame) == 0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first
    print(f"{time.monotonic() - began:.0f} s, {first >> 10} MiB, {grown >> 10} MiB more")  # noqa: T201 (a figure for whoever runs it)
    assert _read(tmp_path, "gpu").height == 2_000_000
    assert grown < 300 << 10
    assert _read(tmp_path, "gpu_1h")["ts"].max() < NOW - timedelta(days=1)
