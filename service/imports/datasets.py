"""Public data sets as files: read whole, parsed, landed in one transaction, probes ranked at once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from graynode.pipeline.lake import Lake
from graynode.service.config import Config, ConfigError
from graynode.service.imports import ranking as import_ranking
from graynode.service.imports.formats import FORMATS, Format, NotThisFormat, Parsed, reasons
from graynode.service.imports.landing import Landed, land_rows
from graynode.service.imports.reading import opened

MAX_BYTES: Final = 1 << 30
"""Unpacked. These formats hold a fleet's year in megabytes; a larger file is something else, or an attack."""


def import_file(lake: Lake, config: Config, name: str, path: Path) -> int:
    """Import one file, say what became of every record, rank probes. 0: all is in the lake; 1: none was readable.

    ``ConfigError`` or ``NotThisFormat`` where the file cannot be used; ``LakeError``: not now.
    """
    chosen, cluster = FORMATS[name], config.cluster
    if cluster == Config().cluster:
        cluster = chosen.cluster  # another cluster's data must not be taken for this one's
    data = _read(path)
    try:
        parsed = chosen.parse(_text(data, path), cluster)
    except NotThisFormat as error:
        others = ", ".join(other for other in FORMATS if other != name)
        raise NotThisFormat(f"{error}; other data sets: {others}") from error
    mark = f"import/{name}/{cluster}/{hashlib.sha256(data).hexdigest()}"
    _say(path, chosen, cluster, parsed, land_rows(lake, chosen.table, parsed.rows, mark))
    if chosen.table == "probe":
        print("\n".join(import_ranking.lines(import_ranking.ranking(lake, cluster), cluster)))
    return 0 if parsed.rows or not parsed.read else 1


def _read(path: Path) -> bytes:
    with opened(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: more than {MAX_BYTES >> 20} MiB unpacked; split it")
    return data


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}") from error


def _say(path: Path, chosen: Format, cluster: str, parsed: Parsed, landed: Landed) -> None:
    print(f"{path}: {parsed.read:,} records of {chosen.name} into table {chosen.table}, cluster {cluster!r}")
    print(f"{landed.stored:>7,} stored")
    if landed.there:
        print(f"{landed.there:>7,} were there already")
    if parsed.duplicates:
        print(f"{parsed.duplicates:>7,} exact repeats inside the file, dropped")
    for line in reasons(parsed.refused):
        print(line)
