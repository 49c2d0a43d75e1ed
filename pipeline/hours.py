"""Hours from 30-second windows: when an hour of a machine is whole, and how its windows become one row.

Hours are made from committed ``_30s`` rows only, read back from the lake, so a restart makes the same ones. An hour
closes when its machine has closed all windows in it, or an hour after its end where the machine went silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import TABLES, WINDOW_S, Field, window_field_names
from graynode.pipeline.window_counters import scope
from graynode.pipeline.windows import Machine

HOUR_US: Final = WINDOW_S["1h"] * 1_000_000
_SILENT_MS: Final = 3_600_000
_WHO: Final = ["cluster", "node_id"]


class Hours:
    """Open hours of one partition and one raw table."""

    def __init__(self) -> None:
        self._open: dict[Machine, set[int]] = {}
        self._closed_us: dict[Machine, int] = {}

    def note(self, windows: pl.DataFrame) -> int:
        """Remember which hours these ``_30s`` rows belong to; gives how many machine-hours are closed already."""
        late = 0
        hours = windows.select(*_WHO, pl.col("ts").dt.truncate("1h")).unique()
        for cluster, node_id, ts in hours.iter_rows():
            machine, hour = f"{cluster}/{node_id}", epoch_us(ts)
            if hour + HOUR_US <= self._closed_us.get(machine, 0):
                late += 1
            else:
                self._open.setdefault(machine, set()).add(hour)
        return late

    def made(self, machine: Machine, hour_us: int) -> None:
        """A row of this hour is in the lake."""
        self._closed_us[machine] = max(self._closed_us.get(machine, 0), hour_us + HOUR_US)
        for hour in [h for h in self._open.get(machine, ()) if h <= hour_us]:
            self._open[machine].discard(hour)

    def due(self, closed_us: Callable[[Machine], int], clock_ms: int) -> dict[int, list[Machine]]:
        """Hours (start, µs) that are whole now, with their machines."""
        found: dict[int, list[Machine]] = {}
        for machine, hours in self._open.items():
            for hour in hours:
                end = hour + HOUR_US
                if closed_us(machine) >= end or clock_ms >= end // 1000 + _SILENT_MS:
                    found.setdefault(hour, []).append(machine)
        return found

    def mark(self, without: Mapping[int, Iterable[Machine]] | None = None) -> int | None:
        """Start of the oldest open hour, epoch seconds: from here on a restart must look.

        ``without`` are hours about to be made, by start, with their machines.
        """
        made = {(m, hour) for hour, machines in (without or {}).items() for m in machines}
        first = min((h for m, hours in self._open.items() for h in hours if (m, h) not in made), default=None)
        return None if first is None else first // 1_000_000


def merge(table: str, windows: pl.DataFrame) -> pl.DataFrame:
    """Rows of ``<table>_1h`` from rows of ``<table>_30s``; all windows of an hour must be there.

    Means are weighted by samples. ``_delta`` adds up what is known; ``_since_reset`` and ``_last`` of a counter are
    those of the segment (boot, driver load) in which the hour ends.
    """
    entity = list(TABLES[table].entity)
    ordered = windows.sort("ts").with_columns(pl.col("ts").dt.truncate("1h").alias("_hour"))
    pieces: list[pl.Expr] = []
    for f in TABLES[table].fields:
        pieces.extend(_merged(table, f, entity))
    pieces += [
        pl.col("samples").sum(),
        (pl.col("samples_expected").max() * (WINDOW_S["1h"] // WINDOW_S["30s"])).alias("samples_expected"),
        pl.col("resets").sum(),
    ]
    merged = ordered.group_by([*entity, "_hour"], maintain_order=True).agg(pieces).rename({"_hour": "ts"})
    return merged.select(pl.col(name).cast(kind) for name, kind in frame_schema(f"{table}_1h").items()).sort(
        [*entity, "ts"]
    )


def _merged(table: str, f: Field, entity: list[str]) -> Iterable[pl.Expr]:
    if f.kind == "key":
        if f.name not in entity and f.name != "ts":
            yield pl.col(f.name).last()
        return
    names = window_field_names(f)
    for name in names:
        column = pl.col(name)
        if f.kind == "counter":
            yield from _merged_counter(table, f, name)
        elif name.endswith("_last") and names == (f"{f.name}_last",):
            yield column.drop_nulls().last()
        elif name.endswith("_mean"):
            weight = pl.col("samples").filter(column.is_not_null())
            yield ((column.cast(pl.Float64) * pl.col("samples")).sum() / weight.sum()).fill_nan(None).alias(name)
        elif name.endswith("_min"):
            yield column.min()
        elif name.endswith("_max"):
            yield column.max()
        else:  # seconds and amounts add up, and are null where nothing is known
            yield _sum_or_null(column)


def _merged_counter(table: str, f: Field, name: str) -> Iterable[pl.Expr]:
    column = pl.col(name)
    if name.endswith("_delta"):
        yield _sum_or_null(column)
        return
    last = _in_last_segment(table, f, f"{f.name}_last").drop_nulls().last()
    if name.endswith("_since_reset"):
        fresh = _in_last_segment(table, f, name).is_not_null().any()
        yield pl.when(fresh).then(last).alias(name)
    else:
        yield last.alias(name)


def _in_last_segment(table: str, f: Field, name: str) -> pl.Expr:
    column = pl.col(name)
    within = scope(table, f)
    if within == "life":
        return column
    same = pl.col("boot_id").eq_missing(pl.col("boot_id").last())
    if within == "load" and table == "gpu":
        same &= pl.col("driver_load").eq_missing(pl.col("driver_load").last())
    elif within == "load":
        moved = pl.col("driver_load").eq_missing(pl.col("driver_load").last())
        same &= moved | pl.col("gpu_uuid").is_null()
    return column.filter(same)


def _sum_or_null(column: pl.Expr) -> pl.Expr:
    return pl.when(column.is_not_null().any()).then(column.sum())


def hour_bounds(hour_us: int) -> tuple[datetime, datetime]:
    """Start and end of an hour."""
    start = datetime.fromtimestamp(hour_us / 1_000_000, UTC)
    return start, start + timedelta(hours=1)


def epoch_us(ts: datetime) -> int:
    """A whole second as microseconds since 1970."""
    return int(ts.timestamp()) * 1_000_000
