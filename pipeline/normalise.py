"""Rows as they came, made honest: what is no measurement becomes null, and ``quality`` says so when it changes.

Nothing is rewritten: not the time, not a value that could be. A bad value costs itself, a row without a usable
time or machine costs that row, never the message. No I/O, no clock: what came before is passed in or remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.pipeline.cross_checks import Contradicted, cross_check
from graynode.pipeline.decode import SOURCE
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import BY_HOURS, BY_VALUES, TABLES, Field
from graynode.pipeline.values import Verdict, bad_mask, checked_fields, judge, suspect

ENTITY_COLUMN: Final = {"gpu": "gpu_uuid", "link": "link", "host": "node_id"}
"""What a ``quality`` row's entity is, per sample table."""
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
AHEAD: Final = timedelta(days=1)
"""Later than this after arrival a time is nonsense: it would make partitions of days that are not there yet."""
WELL_AGAIN: Final = timedelta(seconds=60)
"""Measured again after this long without a bad value, so that a flapping field tells twice a minute at most."""
_LASTS: Final = timedelta(seconds=10)
"""What two fields contradict for less than this is said by nobody: their readings are of slightly different moments."""
_MOST_REMEMBERED: Final = 100_000

Key = tuple[str, str, str, str, str]
"""table, cluster, node_id, entity, field"""


@dataclass(slots=True)
class Normalised:
    """The rows that stay, changes of ``quality`` (with ``_source``), rows dropped by reason, values made null."""

    frame: pl.DataFrame
    quality: list[dict[str, Any]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    nulled: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Bad:
    state: str
    reason: str
    last: datetime
    since: datetime | None = None
    """Set while it is not told yet."""


class Normaliser:
    """Remembers which fields are bad now, per machine; everything absent is well.

    A restart knows what was told (``restore``); what had not lasted long enough to be told begins anew.
    """

    def __init__(self) -> None:
        self._bad: dict[tuple[str, str], dict[Key, _Bad]] = {}
        self._remembered = 0

    def restore(self, quality: pl.DataFrame) -> None:
        """Take what the table ``quality`` says of fields that were bad when the pipeline last stopped."""
        reason = pl.col("reason")
        own = quality.filter(reason.str.starts_with(BY_VALUES) & ~reason.str.starts_with(BY_HOURS)).sort("ts")
        keys = ("table_name", "cluster", "node_id", "entity", "field")
        for row in own.unique(keys, keep="last", maintain_order=True).iter_rows(named=True):
            key: Key = tuple(row[name] for name in keys)
            self._forget(key)
            if row["state"] != "measured":
                self._remember(key, _Bad(row["state"], row["reason"], row["ts"]))

    def normalise(self, table: str, frame: pl.DataFrame, arrived_ms: Sequence[int]) -> Normalised:
        """``frame`` has the contract's columns and ``_source``, an index into ``arrived_ms``."""
        done = Normalised(frame)
        self._drop_unplaced(done, arrived_ms)
        if done.frame.height == 0:
            return done
        self._clean(table, done)
        before = done.frame.height
        if table in ENTITY_COLUMN:
            done.frame = drop_repeats(table, done.frame)
            done.dropped["duplicate"] += before - done.frame.height
        return done

    def _clean(self, table: str, done: Normalised) -> None:
        """Make null what is no measurement, and notice whose."""
        crossed = cross_check(table, done.frame)
        cleaned: list[pl.Series] = []
        for f in checked_fields(table):
            column, other = done.frame[f.name], crossed.get(f.name)
            if other is None and not self._bad.get((table, f.name)) and not suspect(f, column):
                continue
            bad = bad_mask(f, column)
            if table in ENTITY_COLUMN:
                self._notice(table, f, bad if other is None else bad | other.mask, other, done)
            if other is not None and not other.kept:
                bad |= other.mask
            count = int(bad.sum())
            if count:
                done.nulled[f"{table}.{f.name}"] += count
                cleaned.append(column.set(bad, None))
        if cleaned:
            done.frame = done.frame.with_columns(cleaned)

    def _drop_unplaced(self, done: Normalised, arrived_ms: Sequence[int]) -> None:
        """Rows without machine or usable time cannot be stored."""
        ts = done.frame["ts"]
        first, last = ts.min(), ts.max()
        latest = datetime.fromtimestamp(min(arrived_ms, default=0) / 1000, UTC) + AHEAD
        whole = not any(done.frame[name].null_count() for name in ("ts", "cluster", "node_id"))
        if (
            whole
            and isinstance(first, datetime)
            and isinstance(last, datetime)
            and first >= EARLIEST
            and last <= latest
        ):
            return
        bound = pl.Series(arrived_ms, dtype=pl.Int64).gather(done.frame[SOURCE]).cast(pl.Datetime("ms", "UTC"))
        keep = (ts >= EARLIEST) & (ts <= bound + AHEAD)
        for name in ("cluster", "node_id"):
            keep &= done.frame[name].is_not_null()
        kept = done.frame.filter(keep.fill_null(value=False))
        done.dropped["unplaced"] += done.frame.height - kept.height
        done.frame = kept

    # --- quality: by message and entity, never by sample -------------------------------------------------

    def _notice(self, table: str, f: Field, bad: pl.Series, other: Contradicted | None, done: Normalised) -> None:
        """Compare the field's state in each message with what is remembered; remember and tell changes."""
        entity = ENTITY_COLUMN[table]
        who = [*dict.fromkeys(["cluster", "node_id", "node", "boot_id", entity])]
        rows = done.frame.select(SOURCE, "ts", *who, pl.col(f.name).alias("value")).with_columns(bad.alias("bad"))
        names = {key[3] for key in self._bad.get((table, f.name), {})}
        names |= {name or "" for name in rows.filter("bad")[entity].unique().to_list()}
        concerned = pl.col(entity).fill_null("").is_in(list(names)) & pl.col("value").is_not_null()
        rows = rows.filter(pl.col("bad") | concerned)
        if rows.height == 0:
            return
        order = [SOURCE, entity, "bad"]
        firsts = pl.all().first(), pl.col("ts").last().alias("last")
        for row in rows.group_by(order, maintain_order=True).agg(*firsts).iter_rows(named=True):
            key: Key = (table, row["cluster"], row["node_id"], row[entity] or "", f.name)
            verdict = judge(f, row["value"]) if row["bad"] else None
            crossed = row["bad"] and verdict is None
            change = self._change(key, row, other.verdict if crossed and other else verdict, lasting=crossed)
            if change is not None:
                done.quality.append(change)

    def _change(
        self, key: Key, row: dict[str, Any], verdict: Verdict | None, *, lasting: bool
    ) -> dict[str, Any] | None:
        """The row to tell, if any. ``lasting``: told only once it has lasted, with the time at which it began."""
        held = self._bad.get((key[0], key[4]), {}).get(key)
        if verdict is None:
            return self._well(key, row, held)
        if held is not None and held.since is not None and row["ts"] - held.last > WELL_AGAIN:
            held = None  # a moment of long ago, never told
        if held is not None and held.state == verdict.state:
            held.last = max(held.last, row["last"])
            if held.since is None or held.last - held.since < _LASTS:
                return None
            began, held.since = held.since, None
            return _quality_row(key, {**row, "ts": began}, held.state, held.reason)
        reason = BY_VALUES + verdict.reason
        untold = held is None or held.since is not None
        waits = row["ts"] if lasting and untold and row["last"] - row["ts"] < _LASTS else None
        self._remember(key, _Bad(verdict.state, reason, row["last"], waits))
        return None if waits is not None else _quality_row(key, row, verdict.state, reason)

    def _well(self, key: Key, row: dict[str, Any], held: _Bad | None) -> dict[str, Any] | None:
        if held is None or (held.since is None and row["last"] - held.last < WELL_AGAIN):
            return None
        self._forget(key)
        return None if held.since is not None else _quality_row(key, row, "measured", f"{BY_VALUES}plausible again")

    def _remember(self, key: Key, bad: _Bad) -> None:
        field_states = self._bad.setdefault((key[0], key[4]), {})
        if key not in field_states:
            if self._remembered >= _MOST_REMEMBERED:
                return  # said again at the next bad value: noise is better than unbounded memory
            self._remembered += 1
        field_states[key] = bad

    def _forget(self, key: Key) -> None:
        field_states = self._bad.get((key[0], key[4]), {})
        if field_states.pop(key, None) is not None:
            self._remembered -= 1
            if not field_states:
                del self._bad[key[0], key[4]]


def drop_repeats(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """One row per entity and time, the first that came."""
    keys = [*TABLES[table].entity, "ts"]
    unique = frame.select(pl.struct(keys).is_first_distinct()).to_series()
    return frame if unique.all() else frame.filter(unique)


def _quality_row(key: Key, row: dict[str, Any], state: str, reason: str) -> dict[str, Any]:
    table, cluster, node_id, entity, name = key
    return {
        "ts": row["ts"], "cluster": cluster, "node_id": node_id, "node": row["node"], "boot_id": row["boot_id"],
        "table_name": table, "entity": entity, "field": name, "state": state, "reason": reason, SOURCE: row[SOURCE],
    }  # fmt: skip


def quality_frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Quality rows as a frame with ``_source``."""
    return pl.DataFrame(rows, schema={**frame_schema("quality"), SOURCE: pl.Int32}, orient="row")
