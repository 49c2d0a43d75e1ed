"""``graynode import``: data that is there already, into the lake; twice is as good as once.

Rows pass the same check as an agent's (``codec.to_batch``) and go straight into the lake, not over the bus: the
transaction that stores them also holds the hash of the file they came from (application id ``import/<format>/…``),
so a kill leaves all of a file or nothing. Over the bus no transaction would span a whole file, and rows that are
years old would pass the windows' watermarks of machines that are alive.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Final

import polars as pl

from graynode.pipeline.codec import to_batch
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.schema import TABLES
from graynode.service import import_ranking
from graynode.service.config import Config, ConfigError
from graynode.service.import_formats import FORMATS, Format, NotThisFormat, Parsed, reasons
from graynode.service.wiring import make_lake

MAX_BYTES: Final = 1 << 30
"""Unpacked. These formats hold a fleet's year in megabytes; a larger file is something else, or an attack."""
_GZIP: Final = b"\x1f\x8b"


def run(config: Config, format: str, path: Path, lake: Lake | None = None) -> int:  # noqa: A002 (the flag's name)
    """Import one file, say what became of every record, rank probes. 0: all is in the lake; 1: none was readable."""
    if format not in FORMATS:
        raise ConfigError(f"--format {format}: known: {', '.join(FORMATS)}")
    chosen, cluster = FORMATS[format], config.cluster
    if cluster == Config().cluster:
        cluster = chosen.cluster  # another cluster's data must not be taken for this one's
    data = read(path)
    try:
        parsed = chosen.parse(_text(data, path), cluster)
    except NotThisFormat as error:
        others = ", ".join(name for name in FORMATS if name != format)
        raise ConfigError(f"{path}: is not {format}: {error}; other formats: {others}") from error
    try:
        mark = f"import/{format}/{cluster}/{hashlib.sha256(data).hexdigest()}"
        lake = lake or make_lake(config)
        stored, there = store(lake, chosen, parsed, mark)
        _say(path, chosen, cluster, parsed, stored, there)
        if chosen.table == "probe":
            print("\n".join(import_ranking.lines(import_ranking.ranking(lake, cluster), cluster)))
    except (LakeError, LakeTooNew) as error:
        raise ConfigError(str(error)) from error
    return 0 if parsed.rows or not parsed.read else 1


def read(path: Path) -> bytes:
    """The file's bytes, unpacked if they are gzip's. ``ConfigError`` where they cannot be had."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: damaged gzip: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: more than {MAX_BYTES >> 20} MiB unpacked; split it")
    return data


def store(lake: Lake, chosen: Format, parsed: Parsed, mark: str) -> tuple[int, int]:
    """Write what the lake lacks in one transaction that also holds ``mark``, the file's own application id.

    Gives how many rows were stored and how many were there already.
    """
    if lake.offset(chosen.table, mark) is not None:
        return 0, len(parsed.rows)
    if not parsed.rows:
        return 0, 0
    frame = pl.from_arrow(to_batch(TABLES[chosen.table], parsed.rows))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 (a batch gives a frame; narrows the type)
    first, last = min(row["ts"] for row in parsed.rows), max(row["ts"] for row in parsed.rows)
    known = lake.read(chosen.table, first, last + timedelta(microseconds=1), columns=[chosen.id_column])
    fresh = frame.join(known, on=chosen.id_column, how="anti").sort("ts")
    lake.write(chosen.table, fresh, offsets={mark: 1})
    return fresh.height, frame.height - fresh.height


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}") from error


def _say(path: Path, chosen: Format, cluster: str, parsed: Parsed, stored: int, there: int) -> None:
    print(f"{path}: {parsed.read:,} records of {chosen.name} into table {chosen.table}, cluster {cluster!r}")
    print(f"{stored:>7,} stored")
    if there:
        print(f"{there:>7,} were there already")
    if parsed.duplicates:
        print(f"{parsed.duplicates:>7,} exact repeats inside the file, dropped")
    for line in reasons(parsed.refused):
        print(line)
