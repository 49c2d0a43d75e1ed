"""Hours sorted, files joined, days dropped; one maintainer at a time; rows neither lost nor doubled."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from landing_kit import at, gpu_row
from polars.testing import assert_frame_equal

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.pipeline.maintenance import Maintainer
from graynode.pipeline.maintenance_lock import AlreadyMaintained, FolderLock, LeaseLock, maintenance_lock
from graynode.pipeline.schema import TABLES

HOUR = 3600


def frame(first: int, count: int, nodes: int = 3) -> pl.DataFrame:
    return pl.DataFrame(
        [gpu_row(first + i, f"n{i % nodes}", f"G{i % 2}", sm_clock_mhz=i, power_w=float(i % 50)) for i in range(count)]
    )


def maintainer(lake: Lake, now: float, **settings: int) -> Maintainer:
    return Maintainer(lake, clock=lambda: at(now).timestamp(), **settings)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.mark.parametrize("slice_rows", [1_500_000, 700])
def test_a_closed_hour_becomes_one_sorted_file(lake: Lake, slice_rows: int) -> None:
    """The running hour is left alone, and an hour that is done is not done again."""
    for first in range(0, HOUR + 600, 300):
        lake.write("gpu", frame(first, 300), {"t/0": first + 300})
    before = lake.read("gpu").sort("ts")
    work = maintainer(lake, HOUR + 1300, slice_rows=slice_rows)
    assert work.unsorted("gpu") == [at(0)]
    done = work.round()
    assert (done.hours, len(lake.files("gpu", until=at(HOUR))), len(lake.files("gpu", since=at(HOUR)))) == (1, 1, 2)
    assert_frame_equal(lake.read("gpu").sort("ts"), before)
    if slice_rows > HOUR:
        rows = pl.read_parquet(lake.files("gpu", until=at(HOUR)))
        assert_frame_equal(rows, rows.sort([*TABLES["gpu"].entity, "ts"]))
    assert work.round().hours == 0
    assert lake.offset("gpu", "t/0") == HOUR + 600


def test_a_closed_day_of_hour_windows_becomes_one_sorted_file(lake: Lake) -> None:
    """In small row groups, so that a month of one GPU is little to read; the running day is left alone, a late hour is
    sorted in."""
    day = 24 * HOUR

    def hours(first: int, count: int, gpus: int) -> pl.DataFrame:
        who = [{"cluster": "c", "node_id": f"n{g // 8:03}", "gpu_uuid": f"G{g:04}"} for g in range(gpus)]
        rows = [{"ts": at((first + h) * HOUR), **one, "samples": h} for h in range(count) for one in who]
        return conform("gpu_1h", pl.DataFrame(rows))

    start = -(-at(0).timestamp() // 86400) * 24 - at(0).timestamp() / HOUR  # the first midnight, in hours from at(0)
    first = round(start)
    for hour in range(first, first + 26):
        lake.write("gpu_1h", hours(hour, 1, 2000))
    before = lake.read("gpu_1h").sort("ts", "gpu_uuid")
    work = maintainer(lake, first * HOUR + day + 2 * HOUR)
    assert work.round().hours == 1
    closed = lake.files("gpu_1h", until=at(first * HOUR + day))
    assert (len(closed), len(lake.files("gpu_1h", since=at(first * HOUR + day)))) == (1, 2)
    assert_frame_equal(lake.read("gpu_1h").sort("ts", "gpu_uuid"), before)
    groups = pq.ParquetFile(closed[0]).metadata
    column = groups.schema.names.index("gpu_uuid")
    ends = [groups.row_group(i).column(column).statistics for i in range(groups.num_row_groups)]
    assert sum(one.min <= "G0700" <= one.max for one in ends) <= 2
    assert len(ends) > 1
    lake.write("gpu_1h", hours(first + 3, 1, 1).with_columns(gpu_uuid=pl.lit("late")))
    assert work.round().hours == 1
    assert (len(lake.files("gpu_1h", until=at(first * HOUR + day))), lake.read("gpu_1h").height) == (1, 26 * 2000 + 1)


def test_what_comes_late_is_sorted_in(lake: Lake) -> None:
    """A backlog's rows make the hour unsorted again."""
    lake.write("gpu", frame(0, 100))
    lake.write("gpu", frame(100, 100))
    work = maintainer(lake, 2 * HOUR)
    assert work.round().hours == 1
    lake.write("gpu", frame(200, 100))
    assert work.round().hours == 1
    assert (len(lake.files("gpu")), lake.read("gpu").height) == (1, 300)


def test_rows_appended_while_hours_are_sorted_are_neither_lost_nor_doubled(lake: Lake) -> None:
    """A writer and a maintainer at full speed on the same hours and on others."""
    lake.write("gpu", frame(0, 200))
    stop, written = threading.Event(), []

    def append() -> None:
        writer = Lake(lake.path)
        for number in range(25):
            first = 10_000 + number * 10 if number % 3 else 300 + number * 10
            writer.write("gpu", frame(first, 10), {"t/0": number + 1})
            written.append(first)
        stop.set()

    thread = threading.Thread(target=append)
    thread.start()
    work, rounds = maintainer(lake, 20 * HOUR), 0
    while not stop.is_set():
        rounds += work.round().hours
    thread.join()
    rounds += work.round().hours
    assert rounds > 0
    expected = pl.concat([frame(0, 200), *(frame(first, 10) for first in written)]).sort("ts", "node_id")
    assert_frame_equal(lake.read("gpu", columns=expected.columns).sort("ts", "node_id"), expected, check_dtypes=False)
    assert lake.offset("gpu", "t/0") == 25


def test_days_beyond_the_retention_are_dropped_whole(lake: Lake) -> None:
    """Raw samples after seven days; events are kept."""
    for day in range(10):
        lake.write("gpu", frame(day * 24 * HOUR, 2))
        lake.write("event", pl.DataFrame({"ts": [at(day * 24 * HOUR)], "cluster": ["c"], "node_id": ["n"]}))
    done = maintainer(lake, 9 * 24 * HOUR + 100).round()
    assert done.dropped_days == 2
    assert lake.read("gpu")["ts"].min() == at(2 * 24 * HOUR)
    assert lake.read("event").height == 10


def test_many_small_files_of_a_rare_table_are_joined(lake: Lake) -> None:
    """Rows and offsets stay; old files go with a vacuum only hours later."""
    for i in range(70):
        lake.write(
            "event",
            pl.DataFrame({"ts": [at(i)], "cluster": ["c"], "node_id": ["n"], "event_id": [str(i)]}),
            {"t/0": i + 1},
        )
    work = maintainer(lake, 100)
    assert work.round().compacted == 70
    assert (len(lake.files("event")), lake.read("event")["event_id"].n_unique(), lake.offset("event", "t/0")) == (
        1,
        70,
        70,
    )
    assert work.vacuum("event") == 0  # a reader may have listed them a moment ago
    assert lake.read("event").height == 70


HOLD = """
import sys, time
from graynode.pipeline.lake import Lake
from graynode.pipeline.maintenance_lock import FolderLock
FolderLock(Lake(sys.argv[1])).take()
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_maintainer_is_refused_until_the_first_is_gone(lake: Lake, tmp_path: Path) -> None:
    """Another process holds it; killed, the lock is free at once."""
    script = tmp_path / "hold.py"
    script.write_text(HOLD)
    with subprocess.Popen([sys.executable, "-I", str(script), lake.path], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(AlreadyMaintained, match=rf"process {holder.pid}: .*pipeline\.maintain = false"):
                maintenance_lock(lake).take()
        finally:
            holder.kill()
    lock = FolderLock(lake)
    lock.take()
    lock.renew()
    lock.release()
    lock.release()


def test_a_lease_on_an_object_store_has_one_owner_and_ends_by_itself(lake: Lake) -> None:
    """Shown over a folder: the same Delta commits decide on S3."""
    now = [1000.0]
    one, other = (LeaseLock(lake, clock=lambda: now[0], lease_s=100) for _ in range(2))
    one.take()
    with pytest.raises(AlreadyMaintained, match="100 s more"):
        other.take()
    now[0] += 90
    one.renew()
    now[0] += 50
    with pytest.raises(AlreadyMaintained):
        other.take()
    now[0] += 51
    other.take()
    with pytest.raises(AlreadyMaintained, match="somebody else"):
        one.renew()
    one.release()
    with pytest.raises(AlreadyMaintained):
        LeaseLock(lake, clock=lambda: now[0]).take()
    other.release()
    LeaseLock(lake, clock=lambda: now[0]).take()
