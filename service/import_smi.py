"""``graynode import --format nvidia-smi``: what ``nvidia-smi`` wrote, as ``gpu``, ``inventory`` and ``quality`` rows.

A file of any length is read once, in pieces of some thousand rows; each piece is whole in the lake or not there.
``inventory`` and ``quality`` are logs of changes: a file that says the same a thousand times gives one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from graynode.pipeline.lake import Lake
from graynode.service.config import ConfigError
from graynode.service.import_formats import NotThisFormat
from graynode.service.import_landing import Landed, land_rows
from graynode.service.import_reading import hash_of, opened_text, position
from graynode.service.import_smi_capture import Capture
from graynode.service.import_smi_ledger import Ledger
from graynode.service.import_smi_record import Row, Told, Where, rows, spend_shared
from graynode.service.import_smi_sift import Sifted, sift
from graynode.service.import_smi_split import Splitter
from graynode.service.import_smi_time import Clock, instant_of, zone_of
from graynode.service.import_windows import Brought
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
    """What became of one file."""

    ledger: Ledger = field(default_factory=Ledger)
    landed: dict[str, Landed] = field(default_factory=lambda: {name: Landed() for name in TABLES})
    brought: Brought = field(default_factory=Brought)
    first: datetime | None = None
    last: datetime | None = None


def import_file(
    lake: Lake,
    cluster: str,
    path: Path,
    asked: Asked,
    *,
    now: datetime,
    told: Progress = lambda _share: None,
    piece_rows: int = _PIECE_ROWS,
) -> Outcome:
    """Read one file into the lake. ``NotThisFormat``: it is something else, with what to do; ``ConfigError``: it or an
    option cannot be used; ``LakeError``: not now, and what is stored stays.
    """
    refuse_others(path)
    clock = Clock(zone_of(asked.zone), _otherwise(path, asked), now)
    file_id = hash_of(path)
    where = Where(cluster, asked.node, asked.node_id, file_id, "nvidia-smi")
    mark = "/".join(
        ("import/nvidia-smi", cluster, file_id, asked.node, asked.node_id, asked.zone, asked.at or "", asked.query)
    )
    out = Outcome()
    for number, piece in enumerate(_pieces(path, asked, clock, where, out, told, piece_rows), 1):
        for name in TABLES:
            out.landed[name] += land_rows(lake, name, getattr(piece, name), mark, number)
        out.brought.hours |= {row["ts"].replace(minute=0, second=0, microsecond=0) for row in piece.gpu}
        out.brought.nodes |= {row["node_id"] for row in piece.gpu}
        out.brought.columns.update(*piece.gpu)
    return out


def _otherwise(path: Path, asked: Asked) -> datetime:
    if asked.at is not None:
        return instant_of(asked.at)
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def _pieces(
    path: Path, asked: Asked, clock: Clock, where: Where, out: Outcome, told: Progress, piece_rows: int
) -> Iterator[Told]:
    size = max(path.stat().st_size, 1)
    splitter = Splitter(out.ledger, [name for name in asked.query.split(",") if name])
    reader, held = _Reader(clock, where, out), Told()
    with opened_text(path) as file:
        for capture in splitter.captures(file):
            reader.take(capture, held)
            if len(held.gpu) >= piece_rows:
                told(position(file) / size)
                yield held
                held = Told()
    if held.gpu:
        yield held


class _Reader:
    """Captures become rows; what was told of a GPU before is not told again."""

    def __init__(self, clock: Clock, where: Where, out: Outcome) -> None:
        self._clock, self._where, self._out = clock, where, out
        self._machines: dict[str, str] = {}
        self._facts: dict[tuple[str, str, str], Row] = {}
        self._bad: dict[tuple[str, str, str], str] = {}

    def take(self, capture: Capture, held: Told) -> None:
        """Add a capture's rows to ``held``."""
        ledger = self._out.ledger
        shared = sift(capture.form, capture.shared, ledger)
        shared.facts["machine"] = self._machine(capture)
        before = len(held.gpu)
        for device in capture.devices:
            made, own = rows(capture.form, device, shared, self._clock.moment, self._where, ledger)
            if made.gpu:
                self._add(capture.form, made, own, held)
        if capture.devices:
            ledger.captures[f"{capture.form}, {capture.schema}"] += 1
        spend_shared(shared, len(held.gpu) > before, ledger)

    def _machine(self, capture: Capture) -> str:
        """A name for the machine of a capture without a host: the least UUID of those first seen together."""
        uuids = sorted(
            text for d in capture.devices for name, text in d.readings if name in ("uuid", "gpu uuid", "gpu_uuid")
        )
        known = next((self._machines[uuid] for uuid in uuids if uuid in self._machines), uuids[0] if uuids else "")
        self._machines.update(dict.fromkeys(uuids, known))
        return known

    def _add(self, form: str, made: Told, own: Sifted, held: Told) -> None:
        held.gpu += made.gpu
        ts = made.gpu[0]["ts"]
        self._out.first = min(self._out.first or ts, ts)
        self._out.last = max(self._out.last or ts, ts)
        for row in made.inventory:
            facts = {name: value for name, value in row.items() if name != "ts"}
            key = (form, row["node_id"], row["entity"])  # each form knows other facts
            if self._facts.get(key) != facts:
                self._facts[key] = facts
                held.inventory.append(row)
        self._changes(made, own, held)

    def _changes(self, made: Told, own: Sifted, held: Told) -> None:
        told: set[tuple[str, str, str]] = set()
        for row in made.quality:
            key = (row["node_id"], row["entity"], row["field"])
            told.add(key)
            if self._bad.get(key) != row["state"]:
                self._bad[key] = row["state"]
                held.quality.append(row)
        who = made.gpu[0]
        for name in own.gpu:
            key = (who["node_id"], who["gpu_uuid"], name)
            if key not in told and self._bad.pop(key, None) is not None:
                held.quality.append(
                    {
                        **{k: who[k] for k in ("ts", "cluster", "node_id", "node")},
                        "table_name": "gpu", "entity": who["gpu_uuid"], "field": name, "state": "measured",
                        "reason": f"{self._where.source}: has a value again",
                    }
                )  # fmt: skip


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
