"""``graynode import --format parquet|csv --map FILE``: tables that people have, in pieces, into the contract's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from graynode.pipeline.lake import Lake
from graynode.service.imports.landing import Landed, land
from graynode.service.imports.map_columns import Account, mapped
from graynode.service.imports.map_file import Map, read
from graynode.service.imports.map_rows import PIECE_ROWS, Broken, pieces
from graynode.service.imports.reading import hash_of
from graynode.service.imports.windows import Brought
from graynode.service.simulate import progress_bar

__all__ = ["import_file", "read"]

WINDOWED: Final = ("gpu", "host")
"""Tables of which windows are made, when all files are read."""
_BROKEN: Final = "not as many cells as names"


@dataclass(slots=True)
class _Done:
    account: Account = field(default_factory=Account)
    landed: Landed = field(default_factory=Landed)


def import_file(
    lake: Lake,
    cluster: str,
    format_: str,
    path: Path,
    wanted: Map,
    brought: Brought,
    *,
    now: datetime,
    piece_rows: int = PIECE_ROWS,
) -> int:
    """Import one file and say what became of every row. 0: rows are in the lake, 1: none could be read.

    ``brought`` learns of which hours and machines windows can be made. ``NotThisFormat`` and ``ConfigError``: the
    file cannot be used (what came before the damage stays); ``LakeError``: not now.
    """
    mark = f"import/{format_}/{cluster}/{hash_of(path)}/{wanted.hash}"
    done, broken = _Done(), Broken()
    with progress_bar(f"importing {path.name}") as told:
        for number, frame in enumerate(pieces(path, format_, wanted, broken, told, piece_rows), 1):
            rows = mapped(wanted, frame, cluster, now, done.account)
            done.landed += land(lake, wanted.table, rows, mark, number)
            if wanted.table in WINDOWED:
                brought.note(rows)
    if broken.rows:
        done.account.read += broken.rows
        done.account.refused[f"{_BROKEN}: {'; '.join(list(broken.seen)[:3])}"] += broken.rows
    print("\n".join(_lines(path, format_, cluster, wanted, done)))
    return 0 if done.account.given or not done.account.read else 1


def _lines(path: Path, format_: str, cluster: str, wanted: Map, done: _Done) -> Iterator[str]:
    account = done.account
    yield f"{path}: {account.read:,} rows of {format_} for table {wanted.table}, cluster {cluster!r}"
    yield f"{done.landed.stored:>9,} stored"
    if done.landed.there:
        yield f"{done.landed.there:>9,} were there already, or repeat a row of the file"
    for reason, count in account.refused.most_common():
        yield f"{count:>9,} refused: {reason}"
    for reason, count in account.nulled.most_common():
        yield f"  {count:,} values left out: {reason}"
