"""``graynode import``: real files into the lake, counted, once."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pytest

from graynode.pipeline.lake import Lake
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import LakeSection
from graynode.service.importing import run
from graynode.service.imports.formats import infinitehbd, longhorn_sgemm

FIXTURES = Path(__file__).parents[1] / "fixtures"
SGEMM = FIXTURES / "longhorn" / "sgemm-longhorn.csv.gz"
FAULTS = FIXTURES / "infinitehbd" / "fault_trace.json.gz"

REFAULTED = """
with repair as (select distinct node_id, ts from event where source = 'import' and kind = 'fault_end'),
     fault as (select distinct node_id, ts from event where source = 'import' and kind = 'fault_start'),
     watched as (select date_trunc('day', max(ts)) - interval 7 day as until from event where source = 'import')
select count(distinct repair.node_id)
from repair join fault using (node_id), watched
where fault.ts {after} repair.ts and fault.ts <= repair.ts + interval 7 day and repair.ts <= watched.until
"""
"""Nodes that fault again within a week of a repair. Only repairs with a whole week of the trace's 348 full days
after them can answer."""


def _config(tmp_path: Path, cluster: str = "default") -> Config:
    return Config(cluster=cluster, lake=LakeSection(path=str(tmp_path / "lake")))


def _table(tmp_path: Path, name: str) -> pl.DataFrame:
    return Lake(str(tmp_path / "lake")).read(name)


def test_longhorn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every line is accounted for: repeats are dropped, bogus times refused, the rest are probes of their GPU."""
    assert run(_config(tmp_path), "longhorn-sgemm", SGEMM) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "11,087 records" in said
    assert "8,795 stored" in said
    assert "2,268 exact repeats" in said
    assert "24 refused: ts is no time of a run: -1" in said
    assert 8795 + 2268 + 24 == 11_087
    probes = _table(tmp_path, "probe")
    assert probes.height == 8795
    assert probes["run_id"].n_unique() == 8795
    assert probes["gpu_uuid"].n_unique() == 392
    assert probes["cluster"].unique().to_list() == ["longhorn"]
    assert probes.select("operation", "dtype", "better", "unit", "variant").unique().rows() == [
        ("gemm", "fp32", "lower", "ms", "n=25536 volta_sgemm_128x32_sliced1x4_nn")
    ]
    assert probes["ts"].dt.year().unique().to_list() == [2020]
    assert probes.group_by("gpu_uuid").agg(pl.col("node_id").n_unique())["node_id"].max() == 1
    assert probes.filter(pl.col("node").is_not_null())["node"].str.contains(r"^c00\d-\d{3}$").all()
    one = probes.filter(pl.col("gpu_uuid") == "GPU-e1342d2b-9672-84a6-3f4f-793c5cec8f2f").sort("value")
    assert 2454.674449 in one["value"].to_list()


def test_longhorn_names_the_four_slow_gpus(tmp_path: Path) -> None:
    """One command from the file to the verdict: exactly the four, 87570fdd first, each with its effect and place; a
    second import says the same again."""
    command = [sys.executable, "-m", "graynode.service.cli", "import", "--format", "longhorn-sgemm"]
    command += ["--lake", str(tmp_path / "lake"), str(SGEMM)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path)
        named = re.findall(r"^  (GPU-\w{8}).* ([\d.]+)% worse than .* of 391 peers", done.stdout, re.MULTILINE)
        assert named == [
            ("GPU-87570fdd", "20.3"),
            ("GPU-8bd5126e", "7.7"),
            ("GPU-bf17fd1b", "7.6"),
            ("GPU-01f6142b", "6.7"),
        ]
        assert "Of 392 GPUs probed in cluster 'longhorn', 4 slower" in done.stdout
        assert "on c008-011" in done.stdout


def test_names_of_a_file_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a file calls its GPUs and nodes is shown as text."""
    head = "exp,input_size,uuid,cabinet,node,ts,kern,perf,freq,temp,pwr"
    names = [f"GPU-{n:02d}" for n in range(20)] + ["GPU-\x1b[2J\x07[red]"]
    lines = [
        f"e,1,{name},c1,0\x1b[31m{name[4:6]},{1.6e9 + run},k,{(200 if 'J' in name else 100) + run},1,1,1"
        for name in names
        for run in range(3)
    ]
    (tmp_path / "f.csv").write_text("\n".join([head, *lines]))
    assert run(_config(tmp_path), "longhorn-sgemm", tmp_path / "f.csv") == 0
    said = capsys.readouterr().out
    assert "1 slower" in said
    assert "GPU-�[2J�[red]" in said
    assert not [c for c in said if not c.isprintable() and c != "\n"]


def test_infinitehbd_answers_how_many_fault_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All 1,168 events of 231 nodes are stored; SQL finds 97 nodes that fault within a week of a repair, 84 if a
    fault that starts at the instant of a repair is one with it."""
    assert run(_config(tmp_path), "infinitehbd", FAULTS) == 0
    assert "1,168 stored" in capsys.readouterr().out
    event = _table(tmp_path, "event")
    assert event.height == event["event_id"].n_unique() == 1168
    assert event["node_id"].n_unique() == 231
    assert dict(event["kind"].value_counts().iter_rows()) == {"fault_start": 584, "fault_end": 584}
    first = event.sort("ts").row(0, named=True)
    assert first["ts"].isoformat() == "2024-04-02T21:29:31.200000+00:00"
    assert json.loads(first["attributes"])["class"] == "GPU"
    with duckdb.connect() as con:
        con.register("event", event.to_arrow(compat_level=pl.CompatLevel.oldest()))
        con.execute("set timezone = 'UTC'")
        assert con.execute(REFAULTED.format(after=">=")).fetchone() == (97,)
        assert con.execute(REFAULTED.format(after=">")).fetchone() == (84,)


@pytest.mark.parametrize(
    ("name", "path", "table"), [("longhorn-sgemm", SGEMM, "probe"), ("infinitehbd", FAULTS, "event")]
)
def test_twice_is_as_good_as_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, path: Path, table: str
) -> None:
    """The same file again adds nothing and no commit; so does a copy unpacked or shortened, by the rows' own ids."""
    config, lake = _config(tmp_path), Lake(str(tmp_path / "lake"))
    run(config, name, path)
    once = _table(tmp_path, table)
    version = lake.version(table)
    assert run(config, name, path) == 0
    assert lake.version(table) == version
    assert "were there already" in capsys.readouterr().out
    data = gzip.decompress(path.read_bytes())
    (tmp_path / "plain").write_bytes(data + b"\n")
    assert run(config, name, tmp_path / "plain") == 0
    assert _table(tmp_path, table).height == once.height


def test_a_grown_file_adds_its_new_rows_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that has grown since adds what is new."""
    lines = gzip.decompress(SGEMM.read_bytes()).decode().splitlines(keepends=True)
    for count in (50, 120):
        (tmp_path / "some.csv").write_text("".join(lines[:count]))
        run(_config(tmp_path), "longhorn-sgemm", tmp_path / "some.csv")
    said = capsys.readouterr().out
    assert "49 were there already" in " ".join(said.split())
    assert _table(tmp_path, "probe").height == len(set(lines[1:120]))


def test_the_configured_cluster(tmp_path: Path) -> None:
    """A configured cluster keeps the data under its own name; without one the data's own name parts it from others."""
    for cluster in ("mine", "default", "mine"):
        run(_config(tmp_path, cluster), "infinitehbd", FAULTS)
    event = _table(tmp_path, "event")
    assert dict(event["cluster"].value_counts().iter_rows()) == {"infinitehbd": 1168, "mine": 1168}
    assert event["event_id"].n_unique() == 2 * 1168


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("infinitehbd", b"a,b\n1,2\n", ("is not infinitehbd", "not JSON", "longhorn-sgemm")),
        ("infinitehbd", b"{}", ("a JSON array of events is wanted", "dict")),
        ("infinitehbd", b'[{"a": 1}]', ("no entry has event_type",)),
        ("infinitehbd", b"[" * 100_000, ("is not infinitehbd",)),
        ("longhorn-sgemm", b"[]", ("is not longhorn-sgemm", "lacks the columns exp")),
        ("longhorn-sgemm", b"\xff\xfe", ("not UTF-8 text at byte 0",)),
        ("longhorn-sgemm", b"\x1f\x8b\x08broken", ("damaged gzip",)),
        ("longhorn-sgemm", gzip.compress(b"exp")[:-9], ("damaged gzip",)),
        ("rocm", b"", ("--format rocm", "known: nvidia-smi, parquet, csv, longhorn-sgemm, infinitehbd")),
        ("parquet", b"", ("--format parquet", "needs --map FILE")),
    ],
)
def test_a_wrong_file(tmp_path: Path, name: str, data: bytes, said: tuple[str, ...]) -> None:
    """A file that is not what it is said to be is named, with what was found; the lake is not touched."""
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ConfigError) as error:
        run(_config(tmp_path), name, tmp_path / "file")
    for part in said:
        assert part in str(error.value)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("name", ["nvidia-smi", "infinitehbd"])
def test_a_map_for_a_format_that_takes_none(tmp_path: Path, name: str) -> None:
    """It is refused, not passed over: whoever wrote a map believes that it is used."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=f"--format {name}: takes no --map"):
        run(_config(tmp_path), name, tmp_path / "file", map_path=tmp_path / "map.toml")


def test_no_such_file(tmp_path: Path) -> None:
    """A file that is not there is said with its path; so is a folder."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read") as error:
            run(_config(tmp_path), "infinitehbd", path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize("format_", ["nvidia-smi", "infinitehbd"])
def test_what_is_no_file(tmp_path: Path, format_: str) -> None:
    """A device has no end and a pipe can be read once: both are refused at once, with the way out."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigError, match=r"is a pipe or a device, .* write it into a file first"):
            run(_config(tmp_path), format_, path)


def test_records_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each refused record is counted under its reason; if none is left the exit code says so."""
    good = {"node_id": "n", "event_time": 1.5, "event_type": "fault_start", "fault_type": {"Level": "L"}}
    bad = [5, {**good, "node_id": ""}, {**good, "event_time": -1}, {**good, "event_time": "1"},
           {**good, "event_type": "fault"}, {**good, "fault_type": None}]  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps([*bad, {**good, "event_time": float("nan")}]))
    assert run(_config(tmp_path), "infinitehbd", tmp_path / "a.json") == 1
    assert "3 refused: event_time is no number of days" in " ".join(capsys.readouterr().out.split())
    parsed = infinitehbd(json.dumps([good, good, *bad]), "c")
    assert (len(parsed.rows), parsed.duplicates, parsed.refused.total(), parsed.read) == (1, 1, 6, 8)
    header = "exp,input_size,uuid,cabinet,node,ts,kern,perf,freq,temp,pwr\n"
    lines = ["sgemm,1,GPU-1,-1,-1,1591118862,k,0,1,2,3", "sgemm,1,GPU-1,-1,-1,nan,k,1,1,2,3", "sgemm,1,GPU-1",
             "sgemm,1,GPU-1,-1,-1,1591118862,k,5.5,,x,3", "sgemm,1,G,-1,-1,1591118862,k,5,1,1,3"]  # fmt: skip
    sgemm = longhorn_sgemm(header + "\n".join(lines), "c")
    assert sgemm.refused.total() == 4
    (row,) = sgemm.rows
    assert (row["value"], row["sm_clock_mhz"], row["temp_c"], row["power_w"], row["node"]) == (
        5.5,
        None,
        None,
        3.0,
        None,
    )
