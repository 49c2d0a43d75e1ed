"""What a partition's owner has met, kept beside the tables: one small Parquet file per partition, replaced whole.

The file holds what had been met below ``offset``, and is written only when every table has committed past that
offset. So whatever dies when, the file in place is true and a restart never has to read further back than it says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import polars as pl

from graynode.pipeline.bus import Partition
from graynode.pipeline.lake import Lake, LakeError
from graynode.pipeline.seen import SCHEMA, Seen

FOLDER: Final = "_graynode"
_OFFSET: Final = "offset"


def save(lake: Lake, partition: Partition, offset: int, runs: pl.DataFrame) -> None:
    """Replace the snapshot. ``LakeError`` if it cannot be: the one before stays."""
    # An empty frame must keep its offset too, hence a first row that is no run.
    head = pl.DataFrame([("", 0, 0, 0)], schema=SCHEMA, orient="row")
    frame = pl.concat([head, runs]).with_columns(pl.lit(offset, dtype=pl.Int64).alias(_OFFSET))
    target = _file(lake, partition)
    try:
        if not lake.local:
            frame.write_parquet(target, storage_options=lake.storage_options or None)
            return
        path = Path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        frame.write_parquet(fresh)
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        fresh.replace(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise LakeError(f"{target}: cannot be written: {error}") from error


def load(lake: Lake, partition: Partition) -> tuple[int, Seen] | None:
    """Offset and what was met below it; ``None`` where there is no snapshot that can be read."""
    target = _file(lake, partition)
    if lake.local and not Path(target).exists():
        return None
    try:
        frame = pl.read_parquet(target, storage_options=lake.storage_options or None)
        offset = int(frame[_OFFSET][0])
        return offset, Seen(frame.slice(1))
    except (OSError, pl.exceptions.PolarsError, ValueError, IndexError):
        return None


def _file(lake: Lake, partition: Partition) -> str:
    return f"{lake.path}/{FOLDER}/seen-{partition.topic}-{partition.number}.parquet"
