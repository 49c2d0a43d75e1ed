"""``graynode simulate``: the history of a simulated fleet as a lake of its own, with the truth beside it."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from graynode.collectors.base import Row
from graynode.collectors.simulated import faults as faults_file
from graynode.collectors.simulated.events import Told, inventory, truth
from graynode.collectors.simulated.faults import FaultsError, Plan
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.collectors.simulated.links import Outages
from graynode.collectors.simulated.scheduler import node_states
from graynode.collectors.simulated.windows import history, windows
from graynode.pipeline import fleet_hours
from graynode.pipeline.codec import to_batch
from graynode.pipeline.lake import Lake, LakeError
from graynode.pipeline.schema import TABLES
from graynode.service.config import Config, ConfigError

FINE: Final = timedelta(hours=6)
"""The end of history is kept in 30 s windows for this long; all of it in windows of an hour."""
TRUTH: Final = "truth.jsonl"
_COMMIT_ROWS: Final = 250_000
"""Rows of one transaction, about: few commits, and still little memory."""
_BAR_AFTER_S: Final = 2.0
_QUESTIONS: Final = (
    "select count(distinct gpu_uuid) as gpus, min(ts), max(ts) from gpu_1h",
    "select node, count(*) as xids from event where kind = 'xid' group by 1 order by 2 desc limit 10",
)
Progress = Callable[[float], None]
"""Told the share that is done, 0 to 1."""


@dataclass(slots=True)
class Written:
    """What went into the lake."""

    rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: float = 0.0


def run(
    config: Config, *, nodes: int, days: float, seed: int, faults: Path | None, out: Path, now: datetime | None = None
) -> int:
    """Simulate into the folder ``out`` and say what is there. ``ConfigError`` where faults or folder will not do."""
    end = (now or datetime.now(UTC)).replace(microsecond=0)
    cluster = config.cluster if config.cluster != Config().cluster else "simulated"
    spec = Spec(end, nodes, config.simulated.gpus_per_node, seed, days, cluster=cluster)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {out}: is not empty; a simulation makes a lake of its own: name a new folder")
    plan = read_plan(faults, end)
    try:
        with progress_bar(f"simulating {nodes} nodes, {days:g} days") as told:
            fleet = Fleet(spec, plan)
            written = write(fleet, Lake(str(out)), told)
            write_truth(fleet, out)
    except FaultsError as error:
        raise ConfigError(f"{faults}: {error}") from error
    except (LakeError, OSError) as error:
        raise ConfigError(f"--out {out}: cannot be written: {error}") from error
    _say(fleet, written, out)
    return 0


def read_plan(faults: Path | None, now: datetime) -> Plan:
    """The plan of that file, or the shipped one. ``ConfigError`` says what is wrong in the file."""
    try:
        return faults_file.demo() if faults is None else faults_file.read(faults, now)
    except FaultsError as error:
        raise ConfigError(str(error)) from error


def write(fleet: Fleet, lake: Lake, told: Progress = lambda _share: None) -> Written:
    """History into the lake: 1 h windows of all of it, 30 s windows of its end, events, jobs and the inventory."""
    began, written = time.perf_counter(), Written()
    end = fleet.spec.now
    start = max(end - timedelta(days=fleet.spec.days), fleet.origin)
    fine = max(start, end - FINE)
    parts = [(start, end, 3600), (fine, end, 30)]
    total = sum(windows(fleet, a, b, length) for a, b, length in parts)
    done = 0
    for a, b, length in parts:
        held: dict[str, list[pl.DataFrame]] = defaultdict(list)
        for table, frame in history(fleet, a, b, length):
            held[table].append(frame)
            if table.startswith("host"):
                done += frame["ts"].n_unique()
            if sum(f.height for f in held[table]) > _COMMIT_ROWS:
                _commit(lake, table, held.pop(table), written)
                told(0.95 * done / max(total, 1))
        for table, frames in held.items():
            _commit(lake, table, frames, written)
            told(0.95 * done / max(total, 1))
    _write_rows(fleet, lake, start, end, written)
    fleet_hours.fill(lake)
    told(1.0)
    written.seconds = time.perf_counter() - began
    return written


def _commit(lake: Lake, table: str, frames: list[pl.DataFrame], written: Written) -> None:
    """One transaction, sorted as the lake's maintenance would sort it: by machine, entity and time."""
    frame = pl.concat(frames, how="diagonal")
    entity = TABLES[table].entity[1:]
    lake.write(table, frame.sort([c for c in entity if c in frame.columns] + ["ts"]))
    written.rows[table] += frame.height


def _write_rows(fleet: Fleet, lake: Lake, start: datetime, end: datetime, written: Written) -> None:
    rows: dict[str, list[Row]] = {"job": [], "event": [], "job_log": []}
    rows["inventory"] = inventory(fleet, fleet.seconds(start))
    rows["node_state"] = node_states(fleet, fleet.seconds(start), fleet.seconds(end))
    told, since = Told(fleet, Outages(fleet)), fleet.seconds(start)
    for table, row in (*told.running(since), *told.between(since, fleet.seconds(end))):
        rows[table].append(row)
    for table, some in rows.items():
        frame = pl.from_arrow(to_batch(TABLES[table], some))
        assert isinstance(frame, pl.DataFrame)  # noqa: S101 (a batch gives a frame; narrows the type)
        if frame.height:
            lake.write(table, frame)
        written.rows[table] += frame.height


def write_truth(fleet: Fleet, folder: Path) -> Path:
    """``truth.jsonl`` in that folder: one line for each fault."""
    path = folder / TRUTH
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in truth(fleet)), encoding="utf-8")
    return path


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on stderr once the work has taken two seconds and a person looks; nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda _share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task, began = bar.add_task(what, total=1.0), time.monotonic()

    def told(share: float) -> None:
        if not bar.live.is_started and time.monotonic() - began > _BAR_AFTER_S:
            bar.start()
        bar.update(task, completed=share)

    try:
        yield told
    finally:
        bar.stop()


def _say(fleet: Fleet, written: Written, out: Path) -> None:
    spec = fleet.spec
    print(f"{spec.nodes} nodes, {fleet.gpus} GPUs, {spec.days:g} days until {spec.now:%Y-%m-%d %H:%M:%S} UTC")
    print(f"cluster {spec.cluster!r}, seed {spec.seed}")
    for table, rows in sorted(written.rows.items()):
        print(f"  {table:<10} {rows:>10,} rows")
    print(f"{len(fleet.faults)} faults, told in {out / TRUTH}; written in {written.seconds:.1f} s")
    print("\nTry next:")
    for question in _QUESTIONS:
        print(f'  graynode sql --lake {out} -c "{question}"')
