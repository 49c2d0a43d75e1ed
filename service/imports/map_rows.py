"""Their files in pieces: Parquet by batches, CSV by blocks, both as frames of the columns that the map names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from graynode.service.config import ConfigError
from graynode.service.imports.formats import NotThisFormat
from graynode.service.imports.map_file import Map
from graynode.service.imports.reading import opened, position
from graynode.service.simulate import Progress

PIECE_ROWS: Final = 50_000
BLOCK_BYTES: Final = 4 << 20
"""Of CSV; the longest line that can be read."""


@dataclass(slots=True)
class Broken:
    """Lines of CSV that are no rows."""

    rows: int = 0
    seen: dict[str, None] = field(default_factory=dict)


def pieces(
    path: Path, format_: str, wanted: Map, broken: Broken, told: Progress, piece_rows: int = PIECE_ROWS
) -> Iterator[pl.DataFrame]:
    """Frames of the map's columns, in the file's order and of the same rows every time.

    ``ConfigError`` where the file cannot be read, or lacks a column; pieces before the damage have been given.
    """
    try:
        if format_ == "parquet":
            yield from _parquet(path, wanted, told, piece_rows)
        else:
            yield from _csv(path, wanted, broken, told)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise NotThisFormat(" ".join(str(error).split())[:300]) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def _lacks(have: list[str], wanted: Map) -> None:
    for field_name, column in wanted.columns.items():
        for name in column.sources:
            if name not in have:
                shown = ", ".join(have[:12]) + (" …" if len(have) > 12 else "")
                raise NotThisFormat(f"column.{field_name}.from: {name!r} is none of its columns: {shown}")


def _parquet(path: Path, wanted: Map, told: Progress, piece_rows: int) -> Iterator[pl.DataFrame]:
    with path.open("rb") as raw:
        file = pa_parquet.ParquetFile(raw)
        _lacks(list(file.schema_arrow.names), wanted)
        done, total = 0, max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(piece_rows, columns=wanted.sources):
            done += batch.num_rows
            yield _frame(batch)
            told(done / total)


def _csv(path: Path, wanted: Map, broken: Broken, told: Progress) -> Iterator[pl.DataFrame]:
    size = max(path.stat().st_size, 1)

    def no_row(row: Any) -> str:  # noqa: ANN401 (pyarrow has no types)
        broken.rows += 1
        broken.seen[f"{row.actual_columns} cells where {row.expected_columns} are named"] = None
        return "skip"

    form = wanted.csv
    with opened(path) as file:
        _lacks(list(form.columns) or _header(file, wanted), wanted)
        file.seek(0)
        reader = pa_csv.open_csv(
            file,
            read_options=pa_csv.ReadOptions(
                block_size=BLOCK_BYTES, use_threads=False, column_names=list(form.columns) or None
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=form.separator,
                quote_char=form.quote,
                newlines_in_values=form.multiline,
                invalid_row_handler=no_row,
            ),
            convert_options=pa_csv.ConvertOptions(
                include_columns=wanted.sources, column_types=dict.fromkeys(wanted.sources, pa.binary())
            ),
        )
        for batch in reader:
            yield _frame(batch)
            told(min(position(file) / size, 1.0))


def _header(file: BinaryIO, wanted: Map) -> list[str]:
    line = file.readline(BLOCK_BYTES)
    if not line.strip():
        raise NotThisFormat("the file is empty, or its first line is")
    text = line.decode("utf-8-sig", "replace").rstrip("\r\n")
    quote = wanted.csv.quote
    return [cell.strip(quote) for cell in text.split(wanted.csv.separator)]


def _frame(batch: pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 (a batch gives a frame; narrows the type)
    return frame
