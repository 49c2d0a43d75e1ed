"""An older lake is brought forward: columns, layouts, killed at any step, and never a newer one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import polars as pl
import pytest
from deltalake import CommitProperties, Transaction

from graynode.pipeline.lake import Lake, LakeTooNew
from graynode.pipeline.lake_format import CONFIGURATION, VERSION_KEY, conform, frame_schema, lake_schema, to_lake
from graynode.pipeline.lake_migration import Forward, OldLayout, must_be_current
from graynode.pipeline.schema import VERSION

NOW = datetime(2026, 11, 30, 22, 30, tzinfo=UTC)
OLD_NAMES = {"gpu": {"clock_sm": "sm_clock_mhz"}}
"""What a made older major version calls a column."""
OFFSET = "graynode.samples/3"


def rows(hours: int = 4) -> pl.DataFrame:
    """One row a minute over midnight, as today's contract has them; some nulls."""
    n = hours * 60
    some = pl.DataFrame(
        {
            "ts": [NOW + timedelta(minutes=i) for i in range(n)],
            "cluster": ["a"] * n, "node_id": ["m"] * n, "node": ["n"] * n,
            "gpu_uuid": [f"GPU-{i % 8}" for i in range(n)],
            "sm_clock_mhz": [None if i % 7 == 0 else 1000 + i for i in range(n)],
            "power_w": [float(i) for i in range(n)],
        }
    )  # fmt: skip
    return conform("gpu", some)


def old_lake(folder: Path) -> Lake:
    """A lake of a made major version 0: folders by date alone, another name, a wider type, a column that went."""
    data = pl.from_arrow(to_lake("gpu", rows()))
    assert isinstance(data, pl.DataFrame)
    old = data.drop("hour", "job_rank").rename({"sm_clock_mhz": "clock_sm"})
    old = old.with_columns(pl.col("power_w").cast(pl.Float64), voltage_v=pl.lit(0.9))
    for part in (old.filter(pl.col("date") == day) for day in sorted(set(old["date"]))):
        deltalake.write_deltalake(
            str(folder / "gpu"), part.to_arrow(compat_level=pl.CompatLevel.oldest()), mode="append",
            partition_by=["date"],
            commit_properties=CommitProperties(app_transactions=[Transaction(OFFSET, 41 + len(part))]),
        )  # fmt: skip
    says(folder / "gpu", "0.9")
    return Lake(str(folder))


def says(table: Path, version: str) -> None:
    """Note a contract version as the table's."""
    deltalake.DeltaTable(str(table)).alter.set_table_properties({VERSION_KEY: version}, raise_if_not_exists=False)


def read(lake: Lake) -> pl.DataFrame:
    """All rows of ``gpu`` in order."""
    return lake.read("gpu").sort("ts")


def states(lake: Lake) -> dict[str, str]:
    """State by table, of those that are there."""
    return {f.table: f.state for f in Forward(lake, OLD_NAMES).look() if f.state != "absent"}


def test_an_older_major_layout_is_brought_forward(tmp_path: Path) -> None:
    """Every value is there under today's name and type, folders are today's, and bus offsets are where they were."""
    lake = old_lake(tmp_path)
    offset = lake.offset("gpu", OFFSET)
    with pytest.raises(OldLayout, match="graynode lake migrate --yes"):
        must_be_current(lake)
    done = Forward(lake, OLD_NAMES).run()
    assert [(f.table, f.state) for f in done] == [("gpu", "layout")]
    assert read(lake).equals(rows())
    delta = deltalake.DeltaTable(str(tmp_path / "gpu"))
    assert delta.metadata().partition_columns == ["date", "hour"]
    assert delta.schema().to_arrow().names == lake_schema("gpu").names
    assert CONFIGURATION.items() <= delta.metadata().configuration.items()
    assert lake.offset("gpu", OFFSET) == offset is not None
    must_be_current(lake)
    assert states(lake) == {"gpu": "current"}
    assert Forward(lake, OLD_NAMES).run() == []


def test_what_was_brought_forward_goes_on(tmp_path: Path) -> None:
    """New rows are appended, files are skipped by time, and a vacuum takes old files and no row."""
    lake = old_lake(tmp_path)
    Forward(lake, OLD_NAMES).run()
    later = rows(1).with_columns(pl.col("ts") + timedelta(hours=4))
    lake.write("gpu", later, {OFFSET: 1000})
    assert read(lake).height == 300
    assert len(lake.files("gpu", NOW, NOW + timedelta(minutes=20))) == 1
    before = len(list(tmp_path.rglob("*.parquet")))
    lake.table("gpu").vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert len(list(tmp_path.rglob("*.parquet"))) == before - 2
    assert read(lake).height == 300


CHILD = """
import os, signal, sys
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_migration import Forward
left = [int(sys.argv[2])]
def stepped(table, step):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
Forward(Lake(sys.argv[1]), {"gpu": {"clock_sm": "sm_clock_mhz"}}, stepped).run()
"""


@pytest.mark.parametrize("dies_after", [1, 3, 6, 7])
def test_killed_half_way_it_goes_on_where_it_was(tmp_path: Path, dies_after: int) -> None:
    """After the first piece, in the middle, between new shape and rows, before the last
    settings: nothing lost, nothing twice.

    Five hours have rows; the sixth step is the new shape, the seventh the rows, the eighth the settings.
    """
    lake = old_lake(tmp_path)
    child = subprocess.run(
        [sys.executable, "-I", "-c", CHILD, str(tmp_path), str(dies_after)], timeout=60, check=False, env={**os.environ}
    )
    assert child.returncode == -signal.SIGKILL
    if dies_after < 7:
        with pytest.raises(OldLayout):
            must_be_current(Lake(str(tmp_path)))
    steps: list[str] = []
    Forward(lake, OLD_NAMES, lambda table, step: steps.append(step)).run()
    assert len(steps) == 8 - dies_after
    assert read(lake).equals(rows())
    assert states(lake) == {"gpu": "current"}


def test_a_minor_version_gets_its_columns_in_place(tmp_path: Path) -> None:
    """What an older minor lacked is null in its rows; no file is rewritten."""
    data = to_lake("gpu", rows()).drop_columns(["job_rank"])
    deltalake.write_deltalake(str(tmp_path / "gpu"), data, partition_by=["date", "hour"])
    says(tmp_path / "gpu", "1.0")
    files = sorted(tmp_path.rglob("*.parquet"))
    lake = Lake(str(tmp_path))
    must_be_current(lake)
    (found,) = [f for f in Forward(lake).look() if f.state != "absent"]
    assert (found.state, found.why) == ("columns", "lacks job_rank (contract 1.0)")
    Forward(lake).run()
    assert sorted(tmp_path.rglob("*.parquet")) == files
    assert read(lake).equals(rows())
    assert (
        deltalake.DeltaTable(str(tmp_path / "gpu")).metadata().configuration[VERSION_KEY]
        == f"{VERSION[0]}.{VERSION[1]}"
    )


def test_a_newer_lake_is_refused_whole(tmp_path: Path) -> None:
    """One table of a newer major version, and nothing at all is touched."""
    lake = old_lake(tmp_path)
    empty = to_lake("host", pl.DataFrame(schema=frame_schema("host")))
    deltalake.write_deltalake(str(tmp_path / "host"), empty)
    says(tmp_path / "host", f"{VERSION[0] + 1}.0")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LakeTooNew, match="update graynode"):
        Forward(lake, OLD_NAMES).run()
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_lake_has_nothing_to_bring(tmp_path: Path) -> None:
    """No folder, no tables: nothing is made."""
    lake = Lake(str(tmp_path / "none"))
    assert Forward(lake).run() == []
    assert not (tmp_path / "none").exists()
