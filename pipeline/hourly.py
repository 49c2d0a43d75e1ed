"""Hours of a partition, written when they are whole.

Order matters: the mark that says from which hour on a restart must look is committed before ``_30s`` rows of an
older hour are, and an hour is made from committed ``_30s`` rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from graynode.pipeline import land_metrics as metrics
from graynode.pipeline.hours import epoch_us, hour_bounds, merge
from graynode.pipeline.lake import CLOSED_THROUGH, Lake
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.partition import OPEN_HOURS, Owned
from graynode.pipeline.windows import Machine

_COMMITS: Final = "commits:"
_WHO: Final = ["cluster", "node_id"]


def make_hours(lake: Lake, owned: Owned, table: str, waiting: Sequence[pl.DataFrame]) -> None:
    """Write hours that are whole; ``waiting`` are noted ``_30s`` rows not yet committed. ``LakeError``: not now."""
    hours, name = owned.hours[table], f"{table}_1h"
    due = hours.due(owned.windows.closed_us, owned.windows.clock_ms)
    unready = _machine_hours(waiting)
    ready = {h: [m for m in ms if (m, h) not in unready] for h, ms in due.items()}
    parts = [_hour(lake, table, hour, machines) for hour, machines in ready.items() if machines]
    mark, said = hours.mark(), owned.said_hours.get(table)
    if not parts and (mark is None or (said is not None and mark >= said)):
        return
    frame = pl.concat(parts) if parts else pl.DataFrame(schema=frame_schema(name))
    left = hours.mark(without=ready)
    marks: dict[str, int] = {}
    if left is not None:
        closed = max(left, lake.committed(name, CLOSED_THROUGH + owned.id) or 0)
        marks = {OPEN_HOURS + owned.id: left, CLOSED_THROUGH + owned.id: closed}
    # Hours have no offset of the bus; a number of their own makes a second writer's commit fail.
    number = f"{_COMMITS}{owned.id}"
    lake.write(name, frame, {number: (lake.committed(name, number) or 0) + 1}, marks)
    metrics.ROWS.labels(name).inc(frame.height)
    if left is not None:
        owned.said_hours[table] = left
    for hour, machines in ready.items():
        for machine in machines:
            hours.made(machine, hour)


def _machine_hours(frames: Sequence[pl.DataFrame]) -> set[tuple[Machine, int]]:
    found: set[tuple[Machine, int]] = set()
    for frame in frames:
        for cluster, node_id, ts in frame.select(*_WHO, pl.col("ts").dt.truncate("1h")).unique().iter_rows():
            found.add((f"{cluster}/{node_id}", epoch_us(ts)))
    return found


def _hour(lake: Lake, table: str, hour_us: int, machines: Sequence[Machine]) -> pl.DataFrame:
    since, until = hour_bounds(hour_us)
    rows = lake.read(f"{table}_30s", since, until, node=sorted({m.partition("/")[2] for m in machines}))
    # An hour that an import or a simulated history has written already is not written again.
    there = lake.read(f"{table}_1h", since, until, columns=_WHO)
    missing = set(machines) - {f"{cluster}/{node_id}" for cluster, node_id in there.iter_rows()}
    return merge(table, rows.filter(pl.concat_str(_WHO, separator="/").is_in(list(missing))))
