"""How contract tables look on disk: Arrow schema with the partition column, Delta settings, encodings.

The settings were measured (``benchmarks/speed/pipeline.py``): statistics on the first four columns only keep a commit
at some 15 ms where all-column statistics cost 240; encodings follow what a column does over time.
"""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Final

import polars as pl
import pyarrow as pa
from deltalake import ColumnProperties, WriterProperties

from graynode.pipeline.codec import arrow_schema
from graynode.pipeline.schema import TABLES, VERSION, Field

DATE: Final = "date"
"""Partition column: the UTC date of ``ts`` as text, ``YYYY-MM-DD``."""
HOUR: Final = "hour"
"""Second partition column of tables that are kept sorted by the hour: the UTC hour of ``ts``. A file never straddles
an hour, so an hour can be sorted in one transaction that touches nothing else."""
HOURLY: Final = ("gpu", "link", "host", "gpu_30s", "link_30s", "host_30s")
VERSION_KEY: Final = "graynode.contract"
"""Table property: the newest contract version that wrote here."""

CONFIGURATION: Final[dict[str, str | None]] = {
    VERSION_KEY: f"{VERSION[0]}.{VERSION[1]}",
    "delta.dataSkippingNumIndexedCols": "4",
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 6 hours",
}


@functools.cache
def lake_schema(table: str) -> pa.Schema:
    """The Arrow schema of a table in the lake: the contract's columns, then the partition columns."""
    dated = arrow_schema(table).append(pa.field(DATE, pa.string()))
    return dated.append(pa.field(HOUR, pa.int32())) if table in HOURLY else dated


def partition_columns(table: str) -> list[str]:
    """What a table's folders are named by."""
    return [DATE, HOUR] if table in HOURLY else [DATE]


@functools.cache
def frame_schema(table: str) -> pl.Schema:
    """The same columns, without the partition column, as Polars sees them."""
    empty = pl.from_arrow(arrow_schema(table).empty_table())
    assert isinstance(empty, pl.DataFrame)  # noqa: S101 (a table gives a frame; narrows the type)
    return empty.schema


def conform(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """All columns of the contract in its order and types; absent ones null, unknown ones a ``KeyError``."""
    schema = frame_schema(table)
    unknown = set(frame.columns) - set(schema)
    if unknown:
        raise KeyError(f"{table} has no field {', '.join(sorted(unknown))}")
    if frame.schema == schema:
        return frame
    if not frame.width:
        return pl.DataFrame(schema=schema)
    have = frame.schema
    return frame.select(
        (pl.col(name).cast(kind) if have[name] != kind else pl.col(name))
        if name in have
        else pl.lit(None, dtype=kind).alias(name)
        for name, kind in schema.items()
    )


def to_lake(table: str, frame: pl.DataFrame) -> pa.Table:
    """A conforming frame as the Arrow table that is written. Rows without ``ts`` have no partition: an error."""
    if frame["ts"].null_count():
        raise ValueError(f"{table}: {frame['ts'].null_count()} rows without ts cannot be stored")
    dated = frame.with_columns(_dates(frame["ts"]))
    if table in HOURLY:
        dated = dated.with_columns(pl.col("ts").dt.hour().cast(pl.Int32).alias(HOUR))
    # String views cannot be filtered by readers of the same lake, hence the oldest layout and plain strings.
    return dated.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(lake_schema(table))


def _dates(ts: pl.Series) -> pl.Series:
    first, last = ts.min(), ts.max()
    if isinstance(first, datetime) and isinstance(last, datetime) and first.date() == last.date():
        return pl.repeat(first.date().isoformat(), len(ts), dtype=pl.String, eager=True).alias(DATE)
    return ts.dt.strftime("%Y-%m-%d").alias(DATE)


def _appended(field: Field) -> ColumnProperties | None:
    if field.type == "timestamp":
        return ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED")
    if field.type in ("float32", "float64", "int32", "int64") and field.kind not in ("key", "state", "bits"):
        return ColumnProperties(dictionary_enabled=False, encoding="BYTE_STREAM_SPLIT")
    return None


def _sorted(field: Field) -> ColumnProperties | None:
    counts = field.type == "int64" and field.kind == "counter"
    if field.type == "timestamp" or (counts and not field.name.endswith("_since_reset")):
        return ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED")
    return None


@functools.cache
def writer_properties(table: str, *, in_order: bool = False) -> WriterProperties:
    """Compression and encodings. ``in_order``: rows are sorted by entity and time, so that neighbours resemble.

    Row groups of sorted hour windows are small: a question about one GPU reads one or two of a day.
    """
    choose = _sorted if in_order else _appended
    chosen = {f.name: properties for f in TABLES[table].fields if (properties := choose(f)) is not None}
    return WriterProperties(
        compression="ZSTD",
        compression_level=3 if in_order else 1,
        max_row_group_size=1 << (15 if in_order and table.endswith("_1h") else 20),
        default_column_properties=ColumnProperties(dictionary_enabled=True, statistics_enabled="CHUNK"),
        column_properties=chosen,
    )
