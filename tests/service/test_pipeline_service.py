"""The pipeline as a process: it carries, stops as told, and says clearly why it cannot."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import landing_kit
import polars as pl
from landing_kit import gpu_row, message

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import VERSION_KEY
from graynode.pipeline.maintenance_lock import FolderLock
from graynode.pipeline.schema import SAMPLES, TABLES
from graynode.pipeline.spool import SpoolBus
from graynode.service.config import Config, parse
from graynode.service.pipeline import maintain, run

CHILD = Path(landing_kit.__file__).with_name("pipeline_child.py")


def config(tmp_path: Path) -> Config:
    return parse(
        {
            "bus": {"spool_dir": str(tmp_path / "bus")},
            "lake": {"path": str(tmp_path / "lake")},
            "pipeline": {"commit_s": 0.2, "metrics_listen": "", "maintain": False},
        },
        "test",
    )


def send(tmp_path: Path, count: int, first: int = 0) -> None:
    with closing(SpoolBus(tmp_path / "bus", 1 << 30).producer()) as producer:
        producer.send(SAMPLES, [message([gpu_row(first + i)], sequence=first + i) for i in range(count)])


def test_told_to_stop_it_writes_what_it_has_and_ends_with_zero(tmp_path: Path) -> None:
    """SIGTERM to the real process; the lake opens and holds every message."""
    send(tmp_path, 50)
    command = [sys.executable, "-I", str(CHILD), "spool", str(tmp_path / "bus"), str(tmp_path / "lake")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            lake, patience = Lake(str(tmp_path / "lake")), time.monotonic() + 60
            while not lake.version("gpu") > 0 and time.monotonic() < patience:
                time.sleep(0.1)
            send(tmp_path, 20, first=50)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, said[-2000:]
    assert "Traceback" not in said
    held = lake.read("gpu").height
    assert held in (50, 70)
    assert lake.offset("gpu", f"{SAMPLES}/0") == held
    assert all(lake.exists(table) for table in TABLES)


def test_a_lake_of_a_newer_version_ends_it_with_the_way_out(tmp_path: Path) -> None:
    """Exit code 1, no traceback."""
    lake = Lake(str(tmp_path / "lake"))
    lake.create("gpu")
    lake.table("gpu").alter.set_table_properties({VERSION_KEY: "9.0"}, raise_if_not_exists=False)
    assert run(config(tmp_path), threading.Event()) == 1


def test_a_lake_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """The folder's place is taken by a file; when it is gone the rows land."""
    (tmp_path / "lake").write_text("")
    send(tmp_path, 5)
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(config(tmp_path), stop))
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive()
    (tmp_path / "lake").unlink()
    lake, patience = Lake(str(tmp_path / "lake")), time.monotonic() + 60
    while lake.read("gpu").height < 5 and time.monotonic() < patience:
        time.sleep(0.1)
    stop.set()
    thread.join(60)
    assert lake.read("gpu").height == 5


def test_maintenance_waits_for_its_turn(tmp_path: Path) -> None:
    """While somebody else holds the lock nothing is done; afterwards it is."""
    lake = Lake(str(tmp_path))
    for first in (0, 10):
        lake.write("gpu", pl.DataFrame([gpu_row(first)]))
    held, stop = FolderLock(lake), threading.Event()
    held.take()
    thread = threading.Thread(target=maintain, args=(Lake(str(tmp_path)), stop, 0.05))
    thread.start()
    time.sleep(0.5)
    assert len(lake.files("gpu")) == 2
    held.release()
    patience = time.monotonic() + 30
    while len(lake.files("gpu")) != 1 and lake.read("gpu").height and time.monotonic() < patience:
        time.sleep(0.05)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
