"""Windows of imported ``gpu``, ``link`` or ``host`` samples, by the pipeline's own arithmetic, beside the live path.

Detectors read windows. Imported samples get theirs here, from whole hours at a time: a step of 30 s or more goes
straight to ``<table>_1h`` (a 30 s window of one sample says no more than the sample), a shorter one gives
``<table>_30s`` and from those ``<table>_1h``, as live samples do. Nothing here touches a partition's offsets or
``closed_through`` marks, so no live machine's watermark passes because of an import.

How to call it from an importer that goes through time: hand over chunks of **whole hours, in order of time**, each
with all samples of its GPUs in those hours::

    made = make_windows(lake, "prod", rows, step_s=300.0, now=now)

``rows`` may have only the columns that the source gave: those of the table's contract, ``ts`` and the entity among
them. Counters are continued from the hours that the lake holds before the chunk, so a process that was killed goes
on where it stopped. What the lake has already is not written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline.hours import merge
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform, frame_schema
from graynode.pipeline.schema import CLOCK_EVENT_BITS, TABLES, WINDOW_S
from graynode.pipeline.window_counters import carry_of_windows, no_carry
from graynode.pipeline.window_math import aggregate
from graynode.pipeline.windows import CARRY_FOR
from graynode.service.simulate import Progress

_HOUR: Final = timedelta(seconds=WINDOW_S["1h"])
_SLICE_ROWS: Final = 20_000
"""Rows made windows at once: a slice has all of the contract's columns, some 200 of them, null or not."""
_TELL_A_STEP: Final = 10
"""Samples of one entity from which a schedule can be told."""
_READ_ROWS: Final = 200_000
"""Raw rows read at once, about; the next read takes as many hours as the last one's rows suggest."""
_MOST_HOURS: Final = 24 * 31
_FINE_S: Final = float(WINDOW_S["30s"])
_BIT_SECONDS: Final = (*(f"{bit}_s" for bit in CLOCK_EVENT_BITS), "other_clock_event_s")


@dataclass(slots=True)
class Made:
    """What came of one call: rows written per window table, and windows that were not."""

    stored: dict[str, int] = field(default_factory=dict)
    there: int = 0
    """Hours (and 30 s windows) that the lake had already."""
    unfinished: int = 0
    """Samples of the hour that is not over: left for a later import, because a closed window never changes."""
    unscheduled: int = 0
    """Samples too few to tell at what step they were taken: no window is made of them."""

    def add(self, other: Made) -> None:
        """Count what another call did."""
        for name, count in other.stored.items():
            self.stored[name] = self.stored.get(name, 0) + count
        self.there += other.there
        self.unfinished += other.unfinished
        self.unscheduled += other.unscheduled


def make_windows(
    lake: Lake, cluster: str, rows: pl.DataFrame, step_s: float | None, *, table: str = "gpu", now: datetime
) -> Made:
    """Write the windows of these samples that the lake lacks. ``LakeError``: not now; what is written stays.

    ``step_s`` is the source's promised spacing, by which ``samples_expected`` is; ``None`` where nobody knows: then
    it is null. ``rows`` of other clusters are not looked at.
    """
    made = Made()
    ours = _keyed(table, rows).filter(pl.col("cluster") == cluster)
    whole = ours.filter(pl.col("ts") < _hour_of(now))
    made.unfinished = ours.height - whole.height
    if not whole.height:
        return made
    for name, frame in _windows(lake, table, whole, step_s).items():
        _write(lake, name, frame, made)
    return made


@dataclass(slots=True)
class Brought:
    """Hours and machines of which an import brought raw rows."""

    hours: set[datetime] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    """Fields that any row has a value of: only these are read back."""

    def add(self, other: Brought) -> None:
        """What another file brought."""
        self.hours |= other.hours
        self.nodes |= other.nodes
        self.columns |= other.columns

    def note(self, rows: pl.DataFrame) -> None:
        """Remember what these rows have."""
        self.columns.update(name for name in rows.columns if rows[name].null_count() < rows.height)
        self.hours.update(rows["ts"].dt.truncate("1h").unique().to_list())
        self.nodes.update(rows["node_id"].unique().to_list())


def fill_windows(
    lake: Lake,
    cluster: str,
    brought: Brought,
    step_s: float | None,
    *,
    table: str = "gpu",
    now: datetime,
    told: Progress = lambda _share: None,
) -> Made:
    """Windows of raw rows that are in the lake: for files whose rows come in no order, when all of them are read.

    Only of machines that the import brought: other machines' windows are the live pipeline's to make. Without
    ``step_s`` the samples of the first day must tell it; where they are too few, no window is made and
    ``Made.unscheduled`` counts them, because nobody could say how much of an hour they stand for.
    """
    total, nodes, hours = Made(), sorted(brought.nodes), sorted(brought.hours)
    if not hours:
        return total
    step = step_s or _step_of_first_day(lake, cluster, table, hours, nodes)
    keys = {f.name for f in TABLES[table].fields if f.kind == "key"}
    columns = [name for name in TABLES[table].names if name in keys | brought.columns]
    done, take = 0, 1
    while done < len(hours):
        some = hours[done : done + take]
        rows = lake.read(table, some[0], some[-1] + _HOUR, columns, node=nodes)
        rows = rows.filter((pl.col("cluster") == cluster) & pl.col("ts").dt.truncate("1h").is_in(some))
        if step is None:
            total.unscheduled += rows.height
        else:
            total.add(make_windows(lake, cluster, rows, step, table=table, now=now))
        done += len(some)
        take = max(1, min(_MOST_HOURS, len(some) * _READ_ROWS // max(rows.height, 1)))
        told(done / len(hours))
    return total


def _step_of_first_day(
    lake: Lake, cluster: str, table: str, hours: Sequence[datetime], nodes: Sequence[str]
) -> float | None:
    last = [hour for hour in hours if hour < hours[0] + timedelta(days=1)][-1]
    keys = [*TABLES[table].entity, "ts"]
    rows = lake.read(table, hours[0], last + _HOUR, keys, node=nodes)
    return step_of(rows.filter(pl.col("cluster") == cluster), table)


def step_of(rows: pl.DataFrame, table: str = "gpu") -> float | None:
    """The usual spacing of an entity's samples, seconds: their median; ``None`` where no entity has ten of them."""
    entity = list(TABLES[table].entity)
    keyed = _keyed(table, rows)
    most = keyed.group_by(entity).len()["len"].max()
    if not isinstance(most, int) or most < _TELL_A_STEP:
        return None
    spacing = keyed.sort([*entity, "ts"]).select(pl.col("ts").diff().over(entity).dt.total_microseconds()).to_series()
    median = spacing.drop_nulls().median()
    return float(median) / 1e6 if isinstance(median, int | float) and median > 0 else None


def _keyed(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with every column of their entity; what the source does not know is null."""
    schema = frame_schema(table)
    missing = [name for name in TABLES[table].entity if name not in rows.columns]
    return rows.with_columns(pl.lit(None, schema[name]).alias(name) for name in missing)


def _windows(lake: Lake, table: str, rows: pl.DataFrame, step_s: float | None) -> dict[str, pl.DataFrame]:
    fine = step_s is not None and step_s < _FINE_S
    length = WINDOW_S["30s" if fine else "1h"]
    carry = _carry(lake, table, rows)
    parts: list[pl.DataFrame] = []
    for some in _slices(table, rows):
        who = some.select(TABLES[table].entity).unique()
        held = carry.join(who, on=list(TABLES[table].entity), how="semi", nulls_equal=True)
        made, _ = aggregate(table, conform(table, some), held, length)
        parts.append(_expected(made, step_s, length))
    windows = pl.concat(parts)
    if not fine:
        return {f"{table}_1h": windows.cast(frame_schema(f"{table}_1h"))}
    hours = _expected(merge(table, windows), step_s, WINDOW_S["1h"], bits=False)
    return {f"{table}_30s": windows, f"{table}_1h": hours}


def _expected(made: pl.DataFrame, step_s: float | None, length: int, *, bits: bool = True) -> pl.DataFrame:
    """How many samples the step promised. A lone sample of a window stands for one step, not for one second."""
    said = None if step_s is None else max(1, round(length / step_s))
    columns = [pl.lit(said, pl.Int32).alias("samples_expected")]
    if bits and step_s is not None and _BIT_SECONDS[0] in made.columns:
        stood = pl.lit(min(step_s, float(length)), pl.Float32)
        columns += [
            pl.when((pl.col("samples") == 1) & (pl.col(name) > 0)).then(stood).otherwise(pl.col(name)).alias(name)
            for name in _BIT_SECONDS
        ]
    return made.with_columns(columns)


def _carry(lake: Lake, table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The counters' last values before these samples, of the hours that the lake holds."""
    first = rows["ts"].min()
    if not isinstance(first, datetime):
        return no_carry(table)
    since = _hour_of(first)
    before = lake.read(f"{table}_1h", since - CARRY_FOR, since, node=rows["node_id"].unique().to_list())
    return carry_of_windows(table, before) if before.height else no_carry(table)


def _slices(table: str, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The rows by entity, in pieces of about ``_SLICE_ROWS``; an entity is never split."""
    entity = list(TABLES[table].entity)
    ordered = rows.sort([*entity, "ts"], maintain_order=True)
    ends = ordered.select(
        (pl.struct(entity) != pl.struct(entity).shift(-1)).fill_null(value=True).arg_true()
    ).to_series()
    begin = 0
    for end in ends.to_list():
        if end + 1 - begin >= _SLICE_ROWS:
            yield ordered.slice(begin, end + 1 - begin)
            begin = end + 1
    if begin < ordered.height:
        yield ordered.slice(begin)


def _write(lake: Lake, name: str, frame: pl.DataFrame, made: Made) -> None:
    """Append the windows whose entity and time the lake does not hold."""
    keys = [*TABLES[name].entity, "ts"]
    first, last = frame["ts"].min(), frame["ts"].max()
    assert isinstance(first, datetime)  # noqa: S101 (rows are there; narrows the type)
    assert isinstance(last, datetime)  # noqa: S101 (rows are there; narrows the type)
    known = lake.read(name, first, last + timedelta(seconds=1), keys, node=frame["node_id"].unique().to_list())
    fresh = frame.join(known, on=keys, how="anti", nulls_equal=True).sort(keys)
    made.there += frame.height - fresh.height
    if fresh.height:
        lake.write(name, fresh)
    made.stored[name] = made.stored.get(name, 0) + fresh.height


def _hour_of(ts: datetime) -> datetime:
    return ts.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
