"""Samples of closed windows as window rows: numpy over arrays sorted by entity and time.

Pure: frames in, frames out. What a window needs to know of the time before it is the *carry*: per entity the last
value of each counter, with the boot and driver load that it belongs to. A carry can be made from samples or, after
a restart, from the ``_last`` columns of the window table.

Counter rule: same segment and not fallen, the difference; else the difference is unknown, ``resets`` + 1, and
``_since_reset`` is the counter's value at the end of the window. A segment is one boot and driver load; counters
that a driver reload leaves alone (host boot, agent start) compare inside one boot, and lifetime counters always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import CLOCK_EVENT_BITS, TABLES, Field, window_field_names

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Scope = Literal["load", "boot", "life"]

_WRAPS_32: Final = frozenset({"pcie_replays"})
"""Counters that the device keeps in 32 bits. From the last 2**24 below the limit to the first 2**24 above zero
inside one segment is a wrap, not a reset: a reset would have to come just there."""
_WRAP: Final = 1 << 32
_NEAR_WRAP: Final = 1 << 24
_US: Final = 1_000_000
_FAR: Final = np.iinfo(np.int64).max
_SEGMENTS_KEPT: Final = 3


def counters(table: str) -> tuple[Field, ...]:
    """The raw table's counters, those with a ``_delta`` and those of which windows keep the last value only."""
    return tuple(f for f in TABLES[table].fields if f.kind == "counter")


def scope(table: str, f: Field) -> Scope:
    """Inside what a counter may be compared."""
    if f.resets.startswith("never"):
        return "life"
    if table == "host" or f.resets == "agent start":
        return "boot"
    return "load"


def carry_columns(table: str) -> list[str]:
    """Columns of a carry frame: who, when, which segment, and the counters."""
    who = dict.fromkeys([*TABLES[table].entity, "gpu_uuid"] if table == "link" else TABLES[table].entity)
    return [*who, "ts", "boot_id", "driver_load", *(f.name for f in counters(table))]


def no_carry(table: str) -> pl.DataFrame:
    """The carry of an entity never seen."""
    schema = frame_schema(table)
    return pl.DataFrame(schema={name: schema[name] for name in carry_columns(table)})


def carry_of_windows(table: str, windows: pl.DataFrame) -> pl.DataFrame:
    """The carry that rows of the window table leave behind."""
    renamed = windows.select(
        pl.col(f"{name}_last").alias(name) if f"{name}_last" in windows.columns else pl.col(name)
        for name in carry_columns(table)
    )
    return _carry(table, _Sorted(table, no_carry(table), renamed, 30), renamed)


def aggregate(
    table: str, rows: pl.DataFrame, carry: pl.DataFrame, window_s: int = 30
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Window rows of these samples, an entity's together and in order of time, and the carry after them.

    ``rows`` may hold many entities and windows; all samples of a window must be there. The order of rows does not
    matter, save that of two rows of one entity and time the first is taken. Gives frames of ``<table>_30s``
    columns and ``carry_columns``.
    """
    at = _Sorted(table, carry, rows, window_s)
    columns: dict[str, pl.Series] = {}
    for f in TABLES[table].fields:
        if f.kind == "key":
            columns[f.name] = rows[f.name].gather(at.row(at.last))
        elif f.kind != "counter":
            columns.update(_plain(f, rows[f.name], at))
    for f in counters(table):
        columns.update(_counter(table, f, _joined(f.name, carry, rows), at))
    columns["ts"] = pl.Series(at.window_of[at.last], dtype=pl.Int64).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    columns["samples"] = pl.Series(at.sizes)
    columns["samples_expected"] = pl.repeat(window_s, at.groups, eager=True)
    resets = np.bincount(at.group[at.reset & (at.group >= 0)], minlength=at.groups)
    columns["resets"] = pl.Series(resets)
    schema = frame_schema(f"{table}_30s")
    made = pl.DataFrame([columns[name].cast(kind).alias(name) for name, kind in schema.items()])
    everything = pl.concat([carry, rows.select(carry.columns)])
    return made, _carry(table, at, everything)


class _Sorted:
    """Carry rows and samples in order of entity and time, one per entity and time, and where windows lie.

    Arrays are over sorted positions. ``group`` is the window's number, −1 in carry rows; ``real`` are positions of
    samples; ``starts``/``last`` the first and last *sample* of each group among ``real``.
    """

    def __init__(self, table: str, carry: pl.DataFrame, rows: pl.DataFrame, window_s: int) -> None:
        names = [*TABLES[table].entity, "ts", "boot_id", "driver_load"]
        if table == "link":
            names = [*dict.fromkeys([*names, "gpu_uuid"])]
        both = pl.concat([carry.select(names), rows.select(names)])
        entity = _codes(both, list(TABLES[table].entity))
        ts = both["ts"].dt.timestamp("us").to_numpy()
        is_carry = np.arange(both.height) < carry.height
        order = np.lexsort((ts, entity))
        again = np.zeros(both.height, bool)
        same = (entity[order][1:] == entity[order][:-1]) & (ts[order][1:] == ts[order][:-1])
        again[1:] = same & ~is_carry[order][:-1]
        order = order[~again]
        self.order, self.offset = order, carry.height
        self.entity, self.ts = entity[order], ts[order]
        self.boot = _codes(both, ["boot_id"])[order]
        self.load = _load(table, both)[order]
        self.window_of = self.ts - self.ts % (window_s * _US)
        is_real = ~is_carry[order]
        new = np.ones(len(order), bool)
        new[1:] = (
            (self.entity[1:] != self.entity[:-1])
            | (self.window_of[1:] != self.window_of[:-1])
            | (is_real[1:] & ~is_real[:-1])
        )
        self.group = np.where(is_real, np.cumsum(new & is_real) - 1, -1)
        self.real = np.flatnonzero(is_real)
        starts = np.flatnonzero((new & is_real)[self.real])
        self.starts, self.groups = starts, len(starts)
        self.sizes = np.diff(np.append(starts, len(self.real)))
        self.last = self.real[starts + self.sizes - 1] if self.groups else self.real
        self.segment_changed = np.zeros(len(order), bool)
        same_entity = self.entity[1:] == self.entity[:-1]
        moved = (self.boot[1:] != self.boot[:-1]) | (self.load[1:] != self.load[:-1])
        self.segment_changed[1:] = same_entity & moved
        self.reset = self.segment_changed.copy()

    def row(self, positions: Ints) -> Ints:
        """Row numbers in the samples' frame of sorted positions."""
        return self.order[positions] - self.offset

    def spacing_s(self, least: float) -> NDArray[np.float64]:
        """Seconds a sample stands for, per group: its shortest spacing, so that a gap is not filled up."""
        step = np.full(len(self.real), _FAR, np.int64)
        step[1:] = np.diff(self.ts[self.real])
        step[self.starts] = _FAR
        shortest = np.minimum.reduceat(step, self.starts) if self.groups else step
        return np.where(shortest == _FAR, least, np.maximum(shortest / _US, least))


def _codes(frame: pl.DataFrame, names: list[str]) -> Ints:
    """A number per distinct combination; null is a value of its own."""
    distinct = frame.select(names).unique(maintain_order=True).with_row_index("_code")
    joined = frame.select(names).join(distinct, on=names, how="left", nulls_equal=True, maintain_order="left")
    return joined["_code"].cast(pl.Int64).to_numpy()


def _load(table: str, frame: pl.DataFrame) -> Ints:
    load = frame["driver_load"].fill_null(-1)
    if table == "link":  # a network port does not care for the GPU driver; an NVLink does
        return np.where(frame["gpu_uuid"].is_null().to_numpy(), 0, load.to_numpy())
    return np.zeros(frame.height, np.int64) if table == "host" else load.to_numpy()


@dataclass(frozen=True, slots=True)
class _Valid:
    """A column's non-null samples: values, sorted positions, and runs of one group in them."""

    values: Any
    positions: Ints
    present: Ints
    starts: Ints

    @property
    def ends(self) -> Ints:
        """Index of the last value of each present group."""
        return np.append(self.starts[1:], len(self.positions)) - 1


def _valid(column: pl.Series, at: _Sorted) -> _Valid | None:
    if column.null_count() == len(column) or not at.groups:
        return None
    rows = at.row(at.real)
    if column.null_count():
        good = column.is_not_null().to_numpy()[rows]
        positions = at.real[good]
        group = at.group[positions]
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else group
        if not len(group):
            return None
        present = group[starts]
    else:
        positions, present, starts = at.real, np.arange(at.groups), at.starts
    if column.dtype in (pl.String, pl.Boolean, pl.Datetime("us", "UTC")):
        return _Valid(None, positions, present, starts)
    values = (column.fill_null(0) if column.null_count() else column).to_numpy()
    return _Valid(values[at.row(positions)], positions, present, starts)


def _spread(values: Any, present: Ints, groups: int) -> pl.Series:  # noqa: ANN401 (array of any number type)
    """One value per group; groups without one are null."""
    if len(present) == groups:
        return pl.Series(values)
    full = np.zeros(groups, values.dtype)
    full[present] = values
    there = np.zeros(groups, bool)
    there[present] = True
    return pl.Series(full).set(pl.Series(~there), None)


def _plain(f: Field, column: pl.Series, at: _Sorted) -> dict[str, pl.Series]:
    names = window_field_names(f)
    found = _valid(column, at)
    if found is None or not names:
        return {name: pl.repeat(None, at.groups, dtype=column.dtype, eager=True) for name in names}
    if names == (f"{f.name}_last",):
        at_last = np.full(at.groups, -1, np.int64)
        at_last[found.present] = at.row(found.positions[found.ends])
        picked = pl.Series(at_last)
        return {names[0]: column.gather(picked.set(picked < 0, None))}
    made = {"gauge": _gauge, "amount": _amount, "bits": _bits}[f.kind](f, found, at)
    return {name: _spread(values, found.present, at.groups) for name, values in zip(names, made, strict=True)}


def _gauge(f: Field, found: _Valid, at: _Sorted) -> tuple[Any, ...]:
    del f, at
    sizes = np.diff(np.append(found.starts, len(found.positions)))
    mean = np.add.reduceat(found.values.astype(np.float64), found.starts) / sizes
    lowest, highest = (fn.reduceat(found.values, found.starts) for fn in (np.minimum, np.maximum))
    return np.clip(mean, lowest, highest), lowest, highest


def _amount(f: Field, found: _Valid, at: _Sorted) -> tuple[Any, ...]:
    del f, at
    return (np.add.reduceat(found.values.astype(np.float64), found.starts),)


def _bits(f: Field, found: _Valid, at: _Sorted) -> tuple[Any, ...]:
    each = at.spacing_s(float(f.every_s))[found.present]
    known = 0
    for bit in CLOCK_EVENT_BITS.values():
        known |= bit
    masks = [*CLOCK_EVENT_BITS.values(), ~known]
    return tuple(np.add.reduceat(((found.values & mask) != 0).astype(np.int64), found.starts) * each for mask in masks)


# --- counters -------------------------------------------------------------------------------------------


def _joined(name: str, carry: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    return pl.concat([carry[name], rows[name]])


def _counter(table: str, f: Field, column: pl.Series, at: _Sorted) -> dict[str, pl.Series]:
    names = window_field_names(f)
    good = column.is_not_null().to_numpy()[at.order]
    positions = np.flatnonzero(good)
    if not len(positions):
        return {name: pl.repeat(None, at.groups, dtype=pl.Int64, eager=True) for name in names}
    values = column.fill_null(0).to_numpy()[at.order[positions]]
    same, known, step = _steps(table, f, values, positions, at)
    group = at.group[positions]
    at.reset[positions[1:][same & ~known & _in_segment(table, f, positions, at)]] = True
    sampled = np.flatnonzero(group >= 0)
    if not len(sampled):
        return {name: pl.repeat(None, at.groups, dtype=pl.Int64, eager=True) for name in names}
    inside = group[sampled]
    starts = np.flatnonzero(np.append(True, inside[1:] != inside[:-1]))
    present = inside[starts]
    ends = sampled[np.append(starts[1:], len(sampled)) - 1]
    current = _current(table, f, positions[ends], at.last[present], at)
    last = _spread(values[ends][current], present[current], at.groups)
    if len(names) == 1:
        return {names[0]: last}
    counts = np.append(False, known)[sampled]
    steps = np.append(0, np.where(known, step, 0))[sampled]
    has = np.add.reduceat(counts.astype(np.int64), starts) > 0
    fresh = np.add.reduceat(np.append(False, same & ~known)[sampled].astype(np.int64), starts) > 0
    fresh &= current
    return {
        names[0]: _spread(np.add.reduceat(steps, starts)[has], present[has], at.groups),
        names[1]: _spread(values[ends][fresh], present[fresh], at.groups),
        names[2]: last,
    }


def _steps(table: str, f: Field, values: Ints, positions: Ints, at: _Sorted) -> tuple[Bools, Bools, Ints]:
    """For each value but the first: same entity as the one before, difference known, difference."""
    same = at.entity[positions[1:]] == at.entity[positions[:-1]]
    step = values[1:] - values[:-1]
    if f.name in _WRAPS_32:
        wrapped = (values[:-1] >= _WRAP - _NEAR_WRAP) & (values[:-1] < _WRAP) & (values[1:] < _NEAR_WRAP)
        step = np.where(wrapped, step + _WRAP, step)
    known = same & _in_segment(table, f, positions, at) & (step >= 0)
    return same, known, step


def _in_segment(table: str, f: Field, positions: Ints, at: _Sorted) -> Bools:
    return _alike(scope(table, f), positions[1:], positions[:-1], at)


def _current(table: str, f: Field, positions: Ints, last: Ints, at: _Sorted) -> Bools:
    """Whether a group's last value belongs to the segment of the group's last sample."""
    return _alike(scope(table, f), positions, last, at)


def _alike(within: Scope, one: Ints, other: Ints, at: _Sorted) -> Bools:
    if within == "life":
        return np.ones(len(one), bool)
    alike: Bools = at.boot[one] == at.boot[other]
    return alike & (at.load[one] == at.load[other]) if within == "load" else alike


def _carry(table: str, at: _Sorted, everything: pl.DataFrame) -> pl.DataFrame:
    """Per entity its last three segments, each with the last value of every counter in it.

    Three, because a counter read once a minute may not have been read yet since a reboot and a reload after it.
    """
    if not len(at.order):
        return no_carry(table)
    begin = np.ones(len(at.order), bool)
    begin[1:] = (at.entity[1:] != at.entity[:-1]) | at.segment_changed[1:]
    run = np.cumsum(begin) - 1
    starts = np.flatnonzero(begin)
    ends = np.append(starts[1:], len(run)) - 1
    owner = at.entity[starts]
    final = np.append(owner[1:] != owner[:-1], True)
    from_end = np.searchsorted(np.flatnonzero(final), np.arange(len(final)))  # which entity a run is of, in order
    keep = np.flatnonzero(final)[from_end] - np.arange(len(final)) < _SEGMENTS_KEPT
    kept = everything[at.order[ends[keep]]]
    columns = []
    for f in counters(table):
        column = everything[f.name]
        positions = np.flatnonzero(column.is_not_null().to_numpy()[at.order])
        picked = np.full(len(starts), -1, np.int64)
        picked[run[positions]] = at.order[positions]  # positions ascend, so the last one stays
        index = pl.Series(picked[keep])
        columns.append(column.gather(index.set(index < 0, None)))
    made: pl.DataFrame = kept.with_columns(columns).select(carry_columns(table))
    return made
