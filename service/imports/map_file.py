"""The map: a TOML file that says which of their columns is which field, and how its values are to be read.

A wrong map stops the import before a row is read: one line that names the file, the key, what is wrong and what is
allowed. ``docs/import.md`` has the whole form.
"""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from graynode.pipeline.schema import TABLES as CONTRACT
from graynode.pipeline.schema import Field
from graynode.service.config import ConfigError
from graynode.service.config_tables import Section
from graynode.service.imports.map_units import conversion, known

NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "probe": ("operation", "value"),
    "step": ("job_id", "rank"),
    "event": ("kind",),
    "job": ("job_id",),
    "host": (),
    "gpu": ("gpu_uuid",),
}
"""Fields without which a row of that table says nothing, beside ``ts`` and a machine."""
MADE: Final = {"probe": "run_id", "event": "event_id"}
"""Ids that are made of the row's own cells where the map gives none."""
EPOCHS: Final = {"epoch_s": 1_000_000.0, "epoch_ms": 1000.0, "epoch_us": 1.0, "epoch_ns": 0.001}
"""Time formats that are numbers, in microseconds each."""
_MACHINE: Final = ("node_id", "node", "gpu_uuid")
_LARGEST: Final = 1 << 20


class Column(Section, frozen=True):
    """One field: ``source`` (``from`` in the file) is their column, or several of them for a JSON object."""

    source: str | list[str] = msgspec.field(name="from")
    unit: str | None = None
    scale: float | None = None
    offset: float | None = None
    nulls: tuple[str, ...] = ()
    values: dict[str, str | int | float] = msgspec.field(default_factory=dict)
    format: str | None = None
    zone: str = "UTC"

    @property
    def sources(self) -> list[str]:
        """Their columns."""
        return [self.source] if isinstance(self.source, str) else list(self.source)


class CsvForm(Section, frozen=True):
    """How a CSV file is written. ``columns`` names them where the file has no header."""

    separator: str = ","
    quote: str = '"'
    columns: tuple[str, ...] = ()
    multiline: bool = False


class _File(Section, frozen=True):
    table: Literal["probe", "step", "event", "job", "host", "gpu"]
    nulls: tuple[str, ...] = ("",)
    step_s: float | None = None
    constant: dict[str, Any] = msgspec.field(default_factory=dict)
    column: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    csv: CsvForm = msgspec.field(default_factory=CsvForm)


@dataclass(frozen=True, slots=True)
class Map:
    """A map that fits the contract."""

    table: str
    columns: Mapping[str, Column]
    constants: Mapping[str, Any]
    nulls: tuple[str, ...]
    step_s: float | None
    csv: CsvForm
    hash: str

    @property
    def sources(self) -> list[str]:
        """Their columns that are read, each once."""
        return list(dict.fromkeys(name for column in self.columns.values() for name in column.sources))

    def scaling(self, name: str) -> tuple[float, float]:
        """Scale and offset of a field."""
        column = self.columns[name]
        if column.unit is not None:
            return conversion(CONTRACT[self.table].field(name), column.unit)
        return (1.0 if column.scale is None else column.scale, column.offset or 0.0)


_T = TypeVar("_T")


class _Wrong(Exception):
    """One key is wrong; the text begins with its name."""


def read(path: Path) -> Map:
    """The map in that file. ``ConfigError`` names file and key."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ConfigError(f"--map {path}: more than {_LARGEST >> 20} MiB: no map is that large")
        return parse(data)
    except _Wrong as error:
        raise ConfigError(f"--map {path}: {error}") from error
    except OSError as error:
        raise ConfigError(f"--map {path}: cannot be read: {error.strerror or error}") from error


def parse(data: bytes) -> Map:
    """The map in that text. ``_Wrong`` names the key."""
    try:
        told = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _Wrong(f"not TOML: {error}") from error
    file = _checked(told, _File, "")
    columns = {name: _checked(spec, Column, f"column.{name}.") for name, spec in file.column.items()}
    names = CONTRACT[file.table].names
    for where, given in (("column", columns), ("constant", file.constant)):
        for name in given:
            _check_name(f"{where}.{name}", name, names)
    for name, column in columns.items():
        _check_column(CONTRACT[file.table].field(name), column)
        if name in file.constant:
            raise _Wrong(f"constant.{name}: is column.{name} too; one of them must go")
    constants = {n: _constant(CONTRACT[file.table].field(n), v) for n, v in file.constant.items()}
    _check_needed(file.table, {*columns, *constants})
    _check_csv(file.csv)
    found = hashlib.sha256(data).hexdigest()[:16]
    return Map(file.table, columns, constants, file.nulls, file.step_s, file.csv, found)


def _checked(told: object, kind: type[_T], prefix: str) -> _T:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `")
        key = where.rstrip("`").removeprefix("$").lstrip(".")
        raise _Wrong(f"{prefix}{key}: {text}" if prefix or key else text) from error


def _check_name(key: str, name: str, names: Iterable[str]) -> None:
    if name == "cluster":
        raise _Wrong(f"{key}: the cluster is the configuration's (cluster = …), of all rows of an import")
    if name not in names:
        near = difflib.get_close_matches(name, list(names), 3)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise _Wrong(f"{key}: no such field{hint} (docs/metrics.md has all)")


def _check_column(f: Field, column: Column) -> None:
    key = f"column.{f.name}"
    numeric = f.type not in ("string", "timestamp")
    if len(column.sources) != 1 and f.name != "attributes":
        raise _Wrong(f"{key}.from: several columns become one JSON object, which only attributes can hold")
    if column.unit is not None and column.unit not in known(f):
        raise _Wrong(f"{key}.unit: {column.unit!r}: known: {', '.join(known(f)) or 'none, it has no unit'}")
    if column.unit is not None and (column.scale, column.offset) != (None, None):
        raise _Wrong(f"{key}: unit and scale/offset exclude each other")
    if not numeric and (column.unit, column.scale, column.offset) != (None, None, None):
        raise _Wrong(f"{key}: is {f.type}: no unit, scale or offset")
    if column.scale is not None and column.scale == 0:
        raise _Wrong(f"{key}.scale: 0 makes all values one")
    _check_time(key, f, column)
    for text, value in column.values.items():
        if isinstance(value, str) == numeric:
            raise _Wrong(f"{key}.values.{text}: {value!r} is no {f.type}")


def _check_time(key: str, f: Field, column: Column) -> None:
    if f.type != "timestamp":
        if column.format is not None or column.zone != "UTC":
            raise _Wrong(f"{key}: is {f.type}: format and zone are a time's")
        return
    try:
        ZoneInfo(column.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        if column.zone != "UTC":
            raise _Wrong(f"{key}.zone: {column.zone!r}: no such time zone; names are like Europe/Berlin") from None
    form = column.format
    if form is not None and form != "iso8601" and form not in EPOCHS and "%" not in form:
        raise _Wrong(
            f"{key}.format: {form!r}: known: iso8601, {', '.join(EPOCHS)}, or a pattern such as %Y-%m-%d %H:%M:%S"
        )


def _constant(f: Field, value: object) -> object:
    fits = {"string": str, "int32": int, "int64": int, "float32": (int, float), "float64": (int, float)}
    if f.type not in fits:
        raise _Wrong(f"constant.{f.name}: is {f.type}: a time is a column")
    if isinstance(value, bool) or not isinstance(value, fits[f.type]):  # type: ignore[arg-type]
        raise _Wrong(f"constant.{f.name}: {value!r} is no {f.type}")
    return value


def _check_needed(table: str, given: set[str]) -> None:
    for name in ("ts", *NEEDED[table]):
        if name not in given:
            raise _Wrong(f"column.{name}: is missing: a row of {table} says nothing without it")
    if not given & set(_MACHINE):
        raise _Wrong("column.node: is missing: rows need a machine: node, node_id or gpu_uuid, as column or constant")


def _check_csv(form: CsvForm) -> None:
    for key, text in (("separator", form.separator), ("quote", form.quote)):
        if len(text) != 1 or not text.isascii() or text in "\r\n":
            raise _Wrong(f"csv.{key}: {text!r}: one ASCII character is wanted")
