"""Their columns as the contract's: a frame in, a frame out; what cannot be read is null and counted with its reason.

A bad value costs itself; a row is refused only where its time, its machine or what it is about cannot be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import polars as pl

from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.normalise import AHEAD, EARLIEST
from graynode.pipeline.schema import TABLES, Field, stable_id
from graynode.pipeline.values import bad_mask
from graynode.service.imports.map_file import EPOCHS, MADE, NEEDED, Column, Map

_ISO: Final = "%Y-%m-%dT%H:%M:%S%.f"
_DEFAULTS: Final = {"event": {"source": "import"}, "probe": {"source": "import"}, "gpu": {"vendor": "NVIDIA"}}
_KEYS: Final = frozenset({"ts", "cluster", "node_id", "node", "boot_id", "vendor", "source", "event_id", "run_id"})


@dataclass(slots=True)
class Account:
    """Rows read are rows given and refused; values that could not be read are null in rows that are given."""

    read: int = 0
    given: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    nulled: Counter[str] = field(default_factory=Counter)


def mapped(wanted: Map, frame: pl.DataFrame, cluster: str, now: datetime, account: Account) -> pl.DataFrame:
    """Rows of the map's table, in the order of theirs."""
    account.read += frame.height
    columns: dict[str, pl.Series] = {}
    for name, column in wanted.columns.items():
        columns[name] = _column(wanted, TABLES[wanted.table].field(name), column, frame, account)
    rows = pl.DataFrame(columns) if columns else pl.DataFrame()
    schema = frame_schema(wanted.table)
    constants = {**_DEFAULTS.get(wanted.table, {}), "cluster": cluster, **wanted.constants}
    rows = rows.with_columns(
        pl.lit(value, schema[name]).alias(name) for name, value in constants.items() if name not in columns
    )
    made = MADE.get(wanted.table)
    if made is not None and made not in rows.columns:
        rows = rows.with_columns(pl.Series(made, _ids(wanted, frame, cluster), pl.String))
    kept = _refuse(wanted, _placed(rows, cluster), now, account)
    account.given += kept.height
    return kept


# --- one column ----------------------------------------------------------------------------------------------


def _column(wanted: Map, f: Field, column: Column, frame: pl.DataFrame, account: Account) -> pl.Series:
    if len(column.sources) > 1:
        told = frame.select(_text(frame[name]).alias(name) for name in column.sources)
        return told.select(pl.struct(pl.all()).struct.json_encode()).to_series().alias(f.name)
    raw = frame[column.sources[0]]
    given = ~_absent(raw, (*wanted.nulls, *column.nulls))
    if raw.dtype == pl.Binary:
        text = _text(raw)
        _count(account, f, "not UTF-8 text", given & text.is_null())
        given &= text.is_not_null()
        raw = text
    raw = raw.set(~given, None)
    value, reason = _value(wanted, f, column, raw)
    _count(account, f, reason, given & value.is_null())
    bad = bad_mask(f, value) if f.kind != "key" and f.type != "timestamp" else None
    if bad is not None and bad.any():
        _count(account, f, "outside what the contract allows", bad)
        value = value.set(bad, None)
    return value.alias(f.name)


def _count(account: Account, f: Field, reason: str, mask: pl.Series) -> None:
    count = int(mask.sum())
    if count:
        account.nulled[f"{f.name}: {reason}"] += count


def _absent(raw: pl.Series, nulls: Sequence[str]) -> pl.Series:
    absent = raw.is_null()
    if raw.dtype.is_float():
        absent |= raw.is_nan().fill_null(value=False)
    if not nulls or raw.dtype.is_nested():
        return absent
    if raw.dtype == pl.Binary:
        return absent | raw.is_in([text.encode() for text in nulls]).fill_null(value=False)
    return absent | raw.cast(pl.String, strict=False).is_in(list(nulls)).fill_null(value=False)


def _value(wanted: Map, f: Field, column: Column, raw: pl.Series) -> tuple[pl.Series, str]:
    """The column in the field's type, null where it cannot be, and why that is."""
    kind = frame_schema(wanted.table)[f.name]
    if column.values:
        keys, texts = list(column.values), _text(raw).str.strip_chars()
        return texts.replace_strict(keys, [column.values[k] for k in keys], default=None, return_dtype=kind), (
            "a value that the map does not name"
        )
    if f.type == "timestamp":
        return _time(column, raw), "no time of the map's format"
    if f.type == "string":
        return _text(raw), "no text"
    scale, offset = wanted.scaling(f.name)
    number = _number(raw, exact=(scale, offset) == (1.0, 0.0) and f.type in ("int32", "int64"))
    if (scale, offset) != (1.0, 0.0):
        number = number.cast(pl.Float64) * scale + offset
    if f.type in ("int32", "int64") and number.dtype.is_float():
        near = number.round()
        halves = ((number - near).abs() > 1e-6).fill_null(value=False)  # less is a factor's rounding
        number = near if f.kind == "gauge" else near.set(halves, None)  # a count or a state has no halves
    return number.cast(kind, strict=False), f"no {f.type}"


def _text(raw: pl.Series) -> pl.Series:
    if raw.dtype == pl.Binary:
        return _decoded(raw)
    if raw.dtype.is_nested():
        return raw.to_frame("v").select(pl.struct("v").struct.json_encode()).to_series()
    return raw.cast(pl.String, strict=False)


def _decoded(raw: pl.Series) -> pl.Series:
    try:
        return raw.cast(pl.String)
    except pl.exceptions.ComputeError:  # one value that is no text fails all of them
        return pl.Series(raw.name, [_utf8(value) for value in raw.to_list()], pl.String)


def _utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _number(raw: pl.Series, *, exact: bool) -> pl.Series:
    if raw.dtype.is_numeric():
        return raw
    if raw.dtype == pl.Boolean:
        return raw.cast(pl.Int32)
    text = _text(raw).str.strip_chars()
    if exact:
        whole = text.cast(pl.Int64, strict=False)
        if whole.null_count() == text.null_count():
            return whole
    return text.cast(pl.Float64, strict=False).fill_nan(None)


def _time(column: Column, raw: pl.Series) -> pl.Series:
    form = column.format or "iso8601"
    if raw.dtype == pl.Date:
        raw = raw.cast(pl.Datetime("us"))
    if isinstance(raw.dtype, pl.Datetime):
        at = raw.cast(pl.Datetime("us", raw.dtype.time_zone))
        return at.dt.convert_time_zone("UTC") if raw.dtype.time_zone else _zoned(at, column.zone)
    if form in EPOCHS:
        number = _number(raw, exact=True)
        us = number.cast(pl.Float64) * EPOCHS[form] if number.dtype.is_float() else _whole_us(number, form)
        return us.cast(pl.Int64, strict=False).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    text = _text(raw).str.strip_chars()
    if form != "iso8601":
        aware = "%z" in form or "%:z" in form
        parsed = text.str.to_datetime(form, time_unit="us", strict=False, ambiguous="earliest")
        return parsed.dt.convert_time_zone("UTC") if aware else _zoned(parsed, column.zone)
    tidy = text.str.replace(r"^(\d{4}-\d{2}-\d{2}) ", "${1}T").str.replace(r"Z$", "+00:00")
    tidy = tidy.str.replace(r"^(\d{4}-\d{2}-\d{2})$", "${1}T00:00:00").str.replace(
        r"T(\d\d:\d\d)($|[+-])", "T${1}:00${2}"
    )
    aware_ts = tidy.str.to_datetime(_ISO + "%z", time_unit="us", strict=False)
    naive = tidy.str.to_datetime(_ISO, time_unit="us", strict=False)
    return aware_ts.dt.convert_time_zone("UTC").zip_with(aware_ts.is_not_null(), _zoned(naive, column.zone))


def _whole_us(number: pl.Series, form: str) -> pl.Series:
    whole = number.cast(pl.Int64, strict=False)
    return whole // 1000 if form == "epoch_ns" else whole * int(EPOCHS[form])


def _zoned(naive: pl.Series, zone: str) -> pl.Series:
    """An hour that a change of clocks repeats is taken as its first; one that it leaves out is no time."""
    return naive.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").dt.convert_time_zone("UTC")


# --- rows ----------------------------------------------------------------------------------------------------


def _ids(wanted: Map, frame: pl.DataFrame, cluster: str) -> list[str]:
    """Ids of the row's own cells as they came: the same row of another copy of the file is the same."""
    texts = frame.select(_text(frame[name]).alias(name) for name in wanted.sources)
    return [stable_id("import", "map", wanted.table, cluster, *row) for row in texts.iter_rows()]


def _placed(rows: pl.DataFrame, cluster: str) -> pl.DataFrame:
    """Rows with a machine: by its id, else made of its name, else of its GPU; as ``nvidia-smi`` imports make it."""
    if "node_id" in rows.columns:
        return rows
    name, parts = ("node", ()) if "node" in rows.columns else ("gpu_uuid", ("of",))
    known = {text: stable_id("import", cluster, *parts, text) for text in rows[name].unique().drop_nulls().to_list()}
    ids = rows[name].replace_strict(known, default=None, return_dtype=pl.String)
    return rows.with_columns(ids.alias("node_id"))


def _refuse(wanted: Map, rows: pl.DataFrame, now: datetime, account: Account) -> pl.DataFrame:
    for name in ("ts", "node_id", *NEEDED[wanted.table]):
        rows = _keep(rows, pl.col(name).is_not_null(), f"no {name}" if name != "node_id" else "no machine", account)
    possible = (pl.col("ts") >= EARLIEST) & (pl.col("ts") <= now + AHEAD)
    rows = _keep(rows, possible, "ts is a time that cannot be", account)
    values = [name for name in wanted.columns if name not in _KEYS and name not in TABLES[wanted.table].entity]
    if wanted.table in ("gpu", "host") and values:
        rows = _keep(rows, pl.any_horizontal(pl.col(values).is_not_null()), "none of its values can be read", account)
    return rows


def _keep(rows: pl.DataFrame, condition: pl.Expr, reason: str, account: Account) -> pl.DataFrame:
    kept = rows.filter(condition)
    if kept.height < rows.height:
        account.refused[reason] += rows.height - kept.height
    return kept
