"""Samples of closed windows as window rows: numpy over arrays sorted by entity and time.

Pure: frames in, frames out. ``window_order`` sorts, ``window_counters`` has the rule for counters and what must be
known of the time before; gauges, amounts, states and bits are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import CLOCK_EVENT_BITS, TABLES, Field, window_field_names
from graynode.pipeline.window_counters import carry_after, counter_columns, counters
from graynode.pipeline.window_order import Ints, Sorted, spread


def aggregate(
    table: str, rows: pl.DataFrame, carry: pl.DataFrame, window_s: int = 30
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Window rows of these samples, an entity's together and in order of time, and the carry after them.

    ``rows`` may hold many entities and windows; all samples of a window must be there. The order of rows does not
    matter, save that of two rows of one entity and time the first is taken. Gives frames of ``<table>_30s``
    columns and ``carry_columns``.
    """
    at = Sorted(table, carry, rows, window_s)
    columns: dict[str, pl.Series] = {}
    for f in TABLES[table].fields:
        if f.kind == "key":
            columns[f.name] = rows[f.name].gather(at.row(at.last))
        elif f.kind != "counter":
            columns.update(_plain(f, rows[f.name], at))
    for f in counters(table):
        columns.update(counter_columns(table, f, pl.concat([carry[f.name], rows[f.name]]), at))
    columns["ts"] = pl.Series(at.window_of[at.last], dtype=pl.Int64).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    columns["samples"] = pl.Series(at.sizes)
    columns["samples_expected"] = _expected(rows, at, window_s)
    resets = np.bincount(at.group[at.reset & (at.group >= 0)], minlength=at.groups)
    columns["resets"] = pl.Series(resets)
    schema = frame_schema(f"{table}_30s")
    made = pl.DataFrame([columns[name].cast(kind).alias(name) for name, kind in schema.items()])
    everything = pl.concat([carry, rows.select(carry.columns)])
    return made, carry_after(table, at, everything)


def _expected(rows: pl.DataFrame, at: Sorted, window_s: int) -> pl.Series:
    """Samples that each group's schedule promises: its last sample's cadence, one a second where that says none."""
    if "cadence_s" not in rows.columns:
        return pl.repeat(window_s, at.groups, eager=True)
    cadence = rows["cadence_s"].gather(at.row(at.last)).fill_null(1.0).clip(lower_bound=1.0)
    return (window_s / cadence).round().clip(lower_bound=1.0).cast(pl.Int32)


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


def _valid(column: pl.Series, at: Sorted) -> _Valid | None:
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


def _plain(f: Field, column: pl.Series, at: Sorted) -> dict[str, pl.Series]:
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
    return {name: spread(values, found.present, at.groups) for name, values in zip(names, made, strict=True)}


def _gauge(f: Field, found: _Valid, at: Sorted) -> tuple[Any, ...]:
    del f, at
    sizes = np.diff(np.append(found.starts, len(found.positions)))
    mean = np.add.reduceat(found.values.astype(np.float64), found.starts) / sizes
    lowest, highest = (fn.reduceat(found.values, found.starts) for fn in (np.minimum, np.maximum))
    return np.clip(mean, lowest, highest), lowest, highest


def _amount(f: Field, found: _Valid, at: Sorted) -> tuple[Any, ...]:
    del f, at
    return (np.add.reduceat(found.values.astype(np.float64), found.starts),)


def _bits(f: Field, found: _Valid, at: Sorted) -> tuple[Any, ...]:
    each = at.spacing_s(float(f.every_s))[found.present]
    known = 0
    for bit in CLOCK_EVENT_BITS.values():
        known |= bit
    masks = [*CLOCK_EVENT_BITS.values(), ~known]
    return tuple(np.add.reduceat(((found.values & mask) != 0).astype(np.int64), found.starts) * each for mask in masks)
