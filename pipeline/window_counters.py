"""Counters in windows: what they grew by, and where they began again.

What a window needs to know of the time before it is the *carry*: per entity the last value of each counter, with the
boot and driver load that it belongs to. A carry can be made from samples or, after a restart, from the ``_last``
columns of the window table.

Counter rule: same segment and not fallen, the difference; else the difference is unknown, ``resets`` + 1, and
``_since_reset`` is the counter's value at the end of the window. A segment is one boot and driver load; counters
that a driver reload leaves alone (host boot, agent start) compare inside one boot, and lifetime counters always.
A growth that the device cannot have made is no difference either; a counter that stands where its bits end says
nothing.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import polars as pl

from graynode.pipeline.cross_checks import SATURATES
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import TABLES, Field, window_field_names
from graynode.pipeline.window_order import Bools, Ints, Sorted, spread

Scope = Literal["load", "boot", "life"]

_WRAPS_32: Final = frozenset({"pcie_replays"})
"""Counters that the device keeps in 32 bits. From the last 2**24 below the limit to the first 2**24 above zero
inside one segment is a wrap, not a reset: a reset would have to come just there."""
_MOST_PER_S: Final = {"energy_mj": 4_000_000}
"""Growth that cannot be: 4 kW is where the legal range of ``power_w`` ends; energy that underflows has been seen to
give terawatts (compute-runtime #938)."""
_NS_PER_S: Final = 1_100_000_000
"""Clocks are not held down for longer than time passes; a tenth for the jitter of reading."""
_SLACK_US: Final = 2_000_000
"""Two readings may be of moments that are a second further apart than their times."""
_WRAP: Final = 1 << 32
_NEAR_WRAP: Final = 1 << 24
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
    return carry_after(table, Sorted(table, no_carry(table), renamed, 30), renamed)


def counter_columns(table: str, f: Field, column: pl.Series, at: Sorted) -> dict[str, pl.Series]:
    """Window columns of one counter; ``column`` holds the carry's values, then the samples'. Marks ``at.reset``."""
    names = window_field_names(f)
    good = column.is_not_null().to_numpy()[at.order]
    positions = np.flatnonzero(good)
    if not len(positions):
        return {name: pl.repeat(None, at.groups, dtype=pl.Int64, eager=True) for name in names}
    values = column.fill_null(0).to_numpy()[at.order[positions]]
    same, known, step = _steps(table, f, values, positions, at)
    group = at.group[positions]
    fell = same & ~known
    at.reset[positions[1:][fell & _in_segment(table, f, positions, at)]] = True
    known &= ~_full(table, f, values)
    sampled = np.flatnonzero(group >= 0)
    if not len(sampled):
        return {name: pl.repeat(None, at.groups, dtype=pl.Int64, eager=True) for name in names}
    inside = group[sampled]
    starts = np.flatnonzero(np.append(True, inside[1:] != inside[:-1]))
    present = inside[starts]
    ends = sampled[np.append(starts[1:], len(sampled)) - 1]
    current = _current(table, f, positions[ends], at.last[present], at)
    last = spread(values[ends][current], present[current], at.groups)
    if len(names) == 1:
        return {names[0]: last}
    counts = np.append(False, known)[sampled]
    steps = np.append(0, np.where(known, step, 0))[sampled]
    has = np.add.reduceat(counts.astype(np.int64), starts) > 0
    fresh = np.add.reduceat(np.append(False, fell)[sampled].astype(np.int64), starts) > 0
    fresh &= current
    return {
        names[0]: spread(np.add.reduceat(steps, starts)[has], present[has], at.groups),
        names[1]: spread(values[ends][fresh], present[fresh], at.groups),
        names[2]: last,
    }


def _steps(table: str, f: Field, values: Ints, positions: Ints, at: Sorted) -> tuple[Bools, Bools, Ints]:
    """For each value but the first: same entity as the one before, difference known, difference."""
    same = at.entity[positions[1:]] == at.entity[positions[:-1]]
    step = values[1:] - values[:-1]
    if f.name in _WRAPS_32:
        wrapped = (values[:-1] >= _WRAP - _NEAR_WRAP) & (values[:-1] < _WRAP) & (values[1:] < _NEAR_WRAP)
        step = np.where(wrapped, step + _WRAP, step)
    known = same & _in_segment(table, f, positions, at) & (step >= 0)
    most = _MOST_PER_S.get(f.name, _NS_PER_S if f.unit == "ns" else 0)
    if most:
        apart_us = at.ts[positions[1:]] - at.ts[positions[:-1]]
        known &= step <= (apart_us + _SLACK_US) * (most / 1e6)
    return same, known, step


def _full(table: str, f: Field, values: Ints) -> Bools:
    """Where a counter stood at the end of its bits and still does: what happened in between is not counted."""
    limit = SATURATES.get(f.name) if table == "link" else None
    if limit is None:
        return np.zeros(max(0, len(values) - 1), bool)
    full: Bools = (values[1:] == limit) & (values[:-1] == limit)
    return full


def _in_segment(table: str, f: Field, positions: Ints, at: Sorted) -> Bools:
    return _alike(scope(table, f), positions[1:], positions[:-1], at)


def _current(table: str, f: Field, positions: Ints, last: Ints, at: Sorted) -> Bools:
    """Whether a group's last value belongs to the segment of the group's last sample."""
    return _alike(scope(table, f), positions, last, at)


def _alike(within: Scope, one: Ints, other: Ints, at: Sorted) -> Bools:
    if within == "life":
        return np.ones(len(one), bool)
    alike: Bools = at.boot[one] == at.boot[other]
    return alike & (at.load[one] == at.load[other]) if within == "load" else alike


def carry_after(table: str, at: Sorted, everything: pl.DataFrame) -> pl.DataFrame:
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
