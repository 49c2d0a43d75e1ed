"""Tables with offsets in the same transaction: once, whoever else writes, whatever version came before."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from landing_kit import at, gpu_row

from graynode.pipeline.lake import CLOSED_THROUGH, Lake, LakeError, LakeTooNew, SecondWriter
from graynode.pipeline.lake_format import CONFIGURATION, VERSION_KEY, lake_schema
from graynode.pipeline.schema import TABLES, VERSION


def frame(*seconds: float, node: str = "n1") -> pl.DataFrame:
    return pl.DataFrame([gpu_row(s, node, sm_clock_mhz=int(s)) for s in seconds])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def test_before_anything_is_written_there_is_nothing(lake: Lake) -> None:
    """Questions to an empty lake have answers."""
    assert (lake.version("gpu"), lake.exists("gpu"), lake.offset("gpu", "t/0"), lake.files("gpu")) == (
        -1,
        False,
        None,
        [],
    )
    assert lake.read("gpu").columns == list(TABLES["gpu"].names)
    assert lake.closed_through("gpu_30s", ["t/0"]) == {"t/0": None}


def test_rows_and_offsets_are_one_transaction(lake: Lake) -> None:
    """Another process sees both or neither; marks may go back, offsets may not."""
    mark = {CLOSED_THROUGH + "t/0": int(at(30).timestamp())}
    lake.write("gpu", frame(1, 2), {"t/0": 2, "t/1": 7}, mark)
    other = Lake(lake.path)
    assert (other.offset("gpu", "t/0"), other.offset("gpu", "t/1"), other.read("gpu").height) == (2, 7, 2)
    assert other.closed_through("gpu", ["t/0", "t/1"]) == {"t/0": at(30), "t/1": None}
    lake.write("gpu", frame(), {"t/0": 5})
    assert (other.offset("gpu", "t/0"), other.read("gpu").height) == (5, 2)
    with pytest.raises(SecondWriter, match="back from 5 to 4"):
        lake.write("gpu", frame(9), {"t/0": 4})
    assert other.read("gpu").height == 2


def test_a_second_writer_of_the_same_partition_is_refused(lake: Lake) -> None:
    """Both began at the same offset; the rows of the slower are not written. Another partition is free."""
    slower = Lake(lake.path)
    lake.write("gpu", frame(1), {"t/0": 1})
    assert slower.committed("gpu", "t/0") == lake.committed("gpu", "t/0") == 1
    lake.write("gpu", frame(2), {"t/0": 2})
    with pytest.raises(SecondWriter, match="another pipeline reads the same partition"):
        slower.write("gpu", frame(2, 3), {"t/0": 3})
    slower.write("gpu", frame(4), {"t/1": 1})
    assert sorted(lake.read("gpu")["sm_clock_mhz"]) == [1, 2, 4]
    slower.forget()
    assert slower.committed("gpu", "t/0") == 2


def test_two_writers_of_one_partition_never_double_a_row(lake: Lake) -> None:
    """Twenty rounds of both trying the same: one wins each."""
    other = Lake(lake.path)
    for offset in range(1, 21):
        won = 0
        for one in (lake, other):
            try:
                one.write("gpu", frame(offset), {"t/0": offset})
                won += 1
            except SecondWriter:
                one.forget()
        assert won >= 1
    counts = lake.read("gpu")["sm_clock_mhz"].value_counts()["count"]
    assert lake.read("gpu")["sm_clock_mhz"].n_unique() == 20
    assert counts.sum() == lake.read("gpu").height


def test_reading_prunes_on_time_and_machine(lake: Lake) -> None:
    """Days and hours that are not asked for are not opened."""
    for day in range(3):
        lake.write("gpu", frame(day * 86400, day * 86400 + 1))
        lake.write("gpu", frame(day * 86400, node="n2"))
    assert len(lake.files("gpu")) == 6
    assert len(lake.files("gpu", at(86400), at(86401))) == 2
    assert lake.read("gpu", at(86400), at(86401), ["node_id"]).sort("node_id").rows() == [("n1",), ("n2",)]
    assert lake.read("gpu", node="n2")["node_id"].to_list() == ["n2"] * 3
    assert lake.read("gpu", at(86401), node=["n1", "n2"]).height == 4


def test_a_batch_over_midnight_lies_in_two_days(lake: Lake) -> None:
    """Partitions are by the date of each row."""
    midnight = (datetime(2026, 11, 3, tzinfo=UTC) - at(0)).total_seconds()
    lake.write("gpu", frame(midnight - 1, midnight))
    assert [path.split("/date=")[1][:10] for path in sorted(lake.files("gpu"))] == ["2026-11-02", "2026-11-03"]
    assert lake.read("gpu", until=at(midnight)).height == 1


def test_every_table_can_be_made_and_keeps_few_statistics(lake: Lake) -> None:
    """The settings that keep a commit fast; the contract's version is written on the table."""
    for name in TABLES:
        lake.create(name)
        settings = lake.table(name).metadata().configuration
        assert settings == CONFIGURATION
        assert lake.version(name) == 0
    assert lake.create("gpu").version() == 0


def test_rows_that_do_not_fit_are_refused_before_anything_is_written(lake: Lake) -> None:
    """An unknown column and a row without time are the caller's mistakes."""
    with pytest.raises(KeyError, match="warp"):
        lake.write("gpu", frame(1).with_columns(warp=1))
    with pytest.raises(ValueError, match="without ts"):
        lake.write("gpu", frame(1).with_columns(ts=pl.lit(None, pl.Datetime("us", "UTC"))))
    with pytest.raises(KeyError, match="not a table"):
        lake.write("gpus", frame(1))
    assert not lake.exists("gpu")


def test_a_lake_of_a_newer_major_version_is_not_touched(lake: Lake) -> None:
    """Neither read nor written; the text names table, versions and the way out."""
    lake.write("gpu", frame(1))
    lake.table("gpu").alter.set_table_properties({VERSION_KEY: f"{VERSION[0] + 1}.0"}, raise_if_not_exists=False)
    for use in (lambda one: one.read("gpu"), lambda one: one.write("gpu", frame(2))):
        with pytest.raises(LakeTooNew, match=r"update graynode, or name another folder as lake\.path"):
            use(Lake(lake.path))


def test_an_older_lake_is_readable_and_gets_the_columns_it_lacks(lake: Lake) -> None:
    """What the files lack is null; the first write adds the columns and the version."""
    old = pa.schema([f for f in lake_schema("gpu") if f.name not in ("temp_c", "power_w")])
    DeltaTable.create(
        lake.uri("gpu"), old, partition_by=["date", "hour"], configuration={"delta.dataSkippingNumIndexedCols": "4"}
    )
    rows = pa.Table.from_pylist(
        [{"ts": at(0), "cluster": "c", "node_id": "n", "date": "2026-11-02", "hour": 10}], schema=old
    )
    from deltalake import write_deltalake

    write_deltalake(lake.uri("gpu"), rows, mode="append")
    assert lake.read("gpu", columns=["node_id", "temp_c"]).rows() == [("n", None)]
    lake.write("gpu", frame(1).with_columns(temp_c=pl.lit(50)), {"t/0": 1})
    assert sorted(lake.read("gpu")["temp_c"], key=str) == [50, None]
    assert lake.table("gpu").metadata().configuration[VERSION_KEY] == f"{VERSION[0]}.{VERSION[1]}"


def test_a_newer_minor_versions_columns_stay_null_in_our_rows(lake: Lake) -> None:
    """Somebody else's columns neither stop us nor show."""
    lake.create("gpu")
    from deltalake import Field

    lake.table("gpu").alter.add_columns([Field("warp_ratio", "float")])
    lake.write("gpu", frame(1), {"t/0": 1})
    assert lake.read("gpu").height == 1
    assert "warp_ratio" not in lake.read("gpu").columns


def test_many_commits_keep_offsets_and_rows(lake: Lake) -> None:
    """Past several reopenings of the handle and a checkpoint."""
    for i in range(120):
        lake.write(
            "step", pl.DataFrame({"ts": [at(i)], "cluster": ["c"], "node_id": ["n"], "step": [i]}), {"t/0": i + 1}
        )
    assert (lake.offset("step", "t/0"), lake.read("step").height) == (120, 120)
    assert sorted(lake.read("step", since=at(100))["step"]) == list(range(100, 120))
    assert list(Path(lake.uri("step"), "_delta_log").glob("*.checkpoint.parquet"))


FULL = """
import resource, sys
import polars as pl
sys.path.insert(0, sys.argv[2])
from landing_kit import gpu_row
from graynode.pipeline.lake import Lake, LakeError
lake = Lake(sys.argv[1])
lake.write("gpu", pl.DataFrame([gpu_row(0)]), {"t/0": 1})
many = pl.DataFrame([gpu_row(i, power_w=float(i * 7919 % 1000)) for i in range(30000)])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    lake.write("gpu", many, {"t/0": 2})
    print("written")
except LakeError as error:
    print("refused:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
lake.write("gpu", many, {"t/0": 2})
print(lake.read("gpu").height, lake.offset("gpu", "t/0"))
"""


def test_a_write_that_does_not_fit_on_the_disk_leaves_the_lake_as_it_was(lake: Lake, tmp_path: Path) -> None:
    """A clear error, and the same write succeeds when there is room again: nothing lost, nothing doubled."""
    kit = Path(__file__).parents[1] / "kit"
    script = tmp_path / "full.py"
    script.write_text(FULL)
    done = subprocess.run(
        [sys.executable, "-I", str(script), lake.path, str(kit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, after = done.stdout.strip().splitlines()
    assert refused.startswith("refused:")
    assert lake.uri("gpu") in refused
    assert after == "30001 2"


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """Path and reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeError, match="file"):
        Lake(str(tmp_path / "file")).write("gpu", frame(1))
