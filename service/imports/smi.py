"""``graynode import --format nvidia-smi``: what ``nvidia-smi`` wrote, as ``gpu``, ``inventory`` and ``quality`` rows.

Files of any length and number are read one after the other, in pieces of some thousand rows; each piece is whole in the
lake or not there. ``inventory`` and ``quality`` are logs of changes: what is said a thousand times gives one row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from graynode.pipeline.lake import Lake
from graynode.service.config import ConfigError
from graynode.service.imports.formats import NotThisFormat
from graynode.service.imports.landing import Landed, land_rows
from graynode.service.imports.reading import hash_of, opened_text, position
from graynode.service.imports.smi_ledger import Ledger
from graynode.service.imports.smi_reader import Reader
from graynode.service.imports.smi_record import Told, Where
from graynode.service.imports.smi_split import Splitter
from graynode.service.imports.smi_time import Clock, instant_of, zone_of
from graynode.service.imports.windows import Brought
from graynode.service.simulate import Progress

TABLES: Final = ("gpu", "inventory", "quality")
_PIECE_ROWS: Final = 10_000
_HEAD: Final = 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """What the person said: the host, the zone of the file's times, the time of a file without, the CSV's query, and
    the spacing of samples, where their number cannot tell it."""

    node: str = ""
    node_id: str = ""
    zone: str = "UTC"
    at: str | None = None
    query: str = ""
    step_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """What became of all files of one command; ``failed`` says why a file could not be read, or not to its end."""

    ledger: Ledger = field(default_factory=Ledger)
    landed: dict[str, Landed] = field(default_factory=lambda: {name: Landed() for name in TABLES})
    brought: Brought = field(default_factory=Brought)
    failed: dict[Path, str] = field(default_factory=dict)
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Per file, values stored and refused."""
    first: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    id: str
    otherwise: datetime
    """The time of captures that have none."""


def import_files(
    lake: Lake,
    cluster: str,
    paths: Sequence[Path],
    asked: Asked,
    *,
    now: datetime,
    told: Progress = lambda _share: None,
    piece_rows: int = _PIECE_ROWS,
) -> Outcome:
    """Read the files into the lake. ``ConfigError``: an option cannot be used; ``LakeError``: not now, and what is
    stored stays. A file that cannot be used costs itself.
    """
    zone_of(asked.zone)
    out = Outcome()
    files = list(_usable(paths, asked, out))
    said = (asked.node, asked.node_id, asked.zone, asked.at or "", asked.query, *(file.id for file in files))
    mark = f"import/nvidia-smi/{cluster}/{hashlib.sha256(chr(0).join(said).encode()).hexdigest()}"
    for number, piece in enumerate(_pieces(files, cluster, asked, out, now, told, piece_rows), 1):
        for name in TABLES:
            out.landed[name] += land_rows(lake, name, getattr(piece, name), mark, number)
        out.brought.hours |= {row["ts"].replace(minute=0, second=0, microsecond=0) for row in piece.gpu}
        out.brought.nodes |= {row["node_id"] for row in piece.gpu}
        out.brought.columns.update(*piece.gpu)
    return out


def _usable(paths: Sequence[Path], asked: Asked, out: Outcome) -> Iterator[_File]:
    at = None if asked.at is None else instant_of(asked.at)
    for path in paths:
        try:
            refuse_others(path)
            yield _File(path, hash_of(path), at or datetime.fromtimestamp(path.stat().st_mtime, UTC))
        except NotThisFormat as error:
            out.failed[path] = f"{path}: is not nvidia-smi: {error}"
        except ConfigError as error:
            out.failed[path] = str(error)


def _pieces(
    files: Sequence[_File],
    cluster: str,
    asked: Asked,
    out: Outcome,
    now: datetime,
    told: Progress,
    piece_rows: int,
) -> Iterator[Told]:
    held, reader = Told(), Reader(out.ledger)
    for done, file in enumerate(files):
        clock = Clock(zone_of(asked.zone), file.otherwise, now)
        where = Where(cluster, asked.node, asked.node_id, file.id, "nvidia-smi")
        splitter = Splitter(out.ledger, [name for name in asked.query.split(",") if name])
        before = (out.ledger.stored.total(), out.ledger.refused.total())
        try:
            size = max(file.path.stat().st_size, 1)
            with opened_text(file.path) as text:
                for capture in splitter.captures(text):
                    reader.take(capture, clock, where, held)
                    if len(held.gpu) >= piece_rows:
                        told((done + position(text) / size) / len(files))
                        yield held
                        held = Told()
        except (ConfigError, OSError) as error:
            out.failed[file.path] = str(error)
        after = (out.ledger.stored.total(), out.ledger.refused.total())
        out.values[file.path] = (after[0] - before[0], after[1] - before[1])
        told((done + 1) / len(files))
    out.first, out.last = reader.first, reader.last
    if held.gpu:
        yield held


def refuse_others(path: Path) -> None:
    """``NotThisFormat`` for what is often taken for nvidia-smi's output and is not, with what to do instead."""
    with opened_text(path) as file:
        head = file.read(_HEAD)
    start = head.lstrip("\ufeff \t\r\n")
    if not start:
        raise NotThisFormat("the file is empty")
    if start.startswith("PAR1"):
        raise NotThisFormat("it is Parquet: --format parquet --map FILE")
    if start.startswith(("{", "[")):
        amd = '"card0"' in head or '"Temperature (Sensor edge) (C)"' in head
        what = "it is rocm-smi's JSON of AMD GPUs, and graynode reads NVIDIA's only" if amd else "it is JSON"
        raise NotThisFormat(f"{what}; what it says can come as a table: --format csv --map FILE (docs/import.md)")
    if start.startswith(("# HELP ", "# TYPE ")):
        raise NotThisFormat(
            "it is an exporter's page, one moment without its time; the series are in the Prometheus that scraped it: "
            "--format prometheus --url …"
        )
