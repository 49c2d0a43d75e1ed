"""From contract frames to arrays: the columns a detector reads, one row per entity and window, sorted.

An absent column is all null, null and non-finite numbers are NaN, rows without identity are left out. Sorting
by entity makes every detector indifferent to the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from graynode.detectors.gpu_words import named

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Derived = TypeVar("Derived")

_WHO: Final = ("cluster", "node_id", "node", "boot_id")
GPU_TEXTS: Final = (
    "gpu_uuid", "gpu_model_last", "pci_bus_id_last", "gpu_index", "job_id_last", "job_role_last", "mig_profile_last",
)  # fmt: skip
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class View:
    """Rows of one window table as arrays. ``keys`` names the entity, ``t_s`` is the window's start (epoch s).

    Arrays are read-only. ``derived`` keeps what several detectors make of the same rows (``once``).
    """

    keys: pl.Series
    who: pl.DataFrame
    t_s: Floats
    x: Mapping[str, Floats]
    derived: dict[str, tuple[object, Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def text(self, name: str) -> pl.Series:
        """A text column; null where it was absent."""
        return self.who.get_column(name)

    def once(self, name: str, of: object, make: Callable[[], Derived]) -> Derived:
        """What ``make`` gives, made once for these rows and this very ``of``."""
        held = self.derived.get(name)
        if held is None or held[0] is not of:
            held = self.derived[name] = (of, make())
        made: Derived = held[1]
        return made

    def gpu_name(self, row: int) -> str:
        """The GPU of a row as a person names it."""
        gpu = named(self.text("gpu_index")[row], self.text("pci_bus_id_last")[row], self.text("gpu_uuid")[row])
        return f"{gpu} on {self.text('node')[row] or self.text('node_id')[row]}"

    def identity(self, row: int) -> dict[str, object]:
        """The key columns of one row, as a finding carries them, and for its evidence where a GPU sits."""
        known = self.who.row(row, named=True)
        found: dict[str, object] = {k: known[k] for k in (*_WHO, "gpu_uuid", "link") if k in known}
        if "gpu_index" in known:
            found |= {"pci_bus_id": known["pci_bus_id_last"], "gpu_index": known["gpu_index"]}
        return found


def gpus(frame: pl.DataFrame, numbers: Sequence[str]) -> View:
    """GPU windows; a MIG instance is an entity of its own."""

    def key(rows: pl.DataFrame) -> pl.Series:
        uuid = rows.get_column("gpu_uuid")
        if "mig_instance" not in rows.columns or rows.get_column("mig_instance").null_count() == rows.height:
            return uuid
        instance = pl.col("mig_instance").cast(pl.String)
        slash = pl.when(instance.is_null() | (instance == "")).then(pl.lit("")).otherwise(pl.lit("/") + instance)
        return rows.select(pl.col("gpu_uuid") + slash).to_series()

    return _view(frame, "gpu_uuid", key, GPU_TEXTS, numbers)


def links(frame: pl.DataFrame, numbers: Sequence[str]) -> View:
    """Link windows; a link's name is unique on its machine only."""

    def key(rows: pl.DataFrame) -> pl.Series:
        return rows.select(pl.concat_str("node_id", "link", separator="|")).to_series()

    return _view(frame, "link", key, ("link", "gpu_uuid", "link_kind_last", "state_last"), numbers)


def hosts(frame: pl.DataFrame, numbers: Sequence[str]) -> View:
    """Host windows."""
    return _view(frame, "node_id", lambda rows: rows.get_column("node_id"), ("driver_version_last",), numbers)


@dataclass(frozen=True, slots=True)
class _Ordered:
    """The usable rows of one frame, in order, and the columns that were asked for so far."""

    asked: pl.DataFrame
    frame: pl.DataFrame
    columns: frozenset[str]
    order: Ints | None
    view: View

    def number(self, name: str) -> Floats:
        """A column in order; read-only, because all detectors see the same."""
        if name not in self.view.x:
            values = _numbers(self.frame, self.columns, name)
            values = values if self.order is None else values[self.order]
            values.flags.writeable = False
            return values
        return self.view.x[name]


_latest: Final[dict[str, _Ordered]] = {}
"""The last frame of each kind of entity: the detectors of a round read the same one in turn."""


def _view(
    frame: pl.DataFrame,
    identity: str,
    key_of: Callable[[pl.DataFrame], pl.Series],
    texts: Sequence[str],
    numbers: Sequence[str],
) -> View:
    held = _latest.get(identity)
    if held is None or held.asked is not frame:
        held = _latest[identity] = _in_order(frame, identity, key_of, texts)
    x = {name: held.number(name) for name in numbers}
    whole = replace(held.view, x={**held.view.x, **x})
    _latest[identity] = replace(held, view=whole)
    return replace(whole, x=x)


def _in_order(
    asked: pl.DataFrame, identity: str, key_of: Callable[[pl.DataFrame], pl.Series], texts: Sequence[str]
) -> _Ordered:
    names, frame = [*_WHO, *(t for t in texts if t not in _WHO)], asked
    needed = {identity, "node_id", "ts"}
    if not needed <= set(frame.columns):
        frame = pl.DataFrame(schema=dict.fromkeys(names, pl.String) | {"ts": pl.Datetime("us", "UTC")})
    if any(frame.get_column(n).null_count() for n in needed):
        frame = frame.drop_nulls(list(needed))
    columns = frozenset(frame.columns)
    keys = key_of(frame).cast(pl.String).alias("key")
    t_s = frame.get_column("ts").cast(pl.Datetime("us", "UTC")).cast(pl.Int64).to_numpy() / 1e6
    who = pl.DataFrame([_text(frame, columns, n) for n in names])
    order = _order(keys, t_s, _numbers(frame, columns, "samples"), who.get_column("boot_id"))
    if order is not None:
        keys, who, t_s = keys.gather(order), who[order], t_s[order]
    t_s.flags.writeable = False
    return _Ordered(asked, frame, columns, order, View(keys, who, t_s, {}))


def _order(keys: pl.Series, t_s: Floats, samples: Floats, boots: pl.Series) -> Ints | None:
    """Rows in order of key and window, one each: of several the one with most samples. ``None``: as they stand."""
    frame = pl.DataFrame([keys, pl.Series("t", t_s), pl.Series("samples", -np.nan_to_num(samples, nan=-1.0)), boots])
    same_window = bool(len(t_s) == 0 or t_s.min() == t_s.max())
    if same_window and keys.is_sorted() and keys.n_unique() == len(keys):
        return None
    order = frame.select(pl.arg_sort_by("key", "t", "samples", "boot_id", nulls_last=True)).to_series()
    ordered = frame.select("key", "t")[order].with_columns(order.alias("row"))
    return (
        ordered.unique(subset=["key", "t"], keep="first", maintain_order=True)
        .get_column("row")
        .to_numpy()
        .astype(np.int64)
    )


def _text(frame: pl.DataFrame, columns: frozenset[str], name: str) -> pl.Series:
    if name not in columns:
        return pl.Series(name, [None] * frame.height, dtype=pl.String)
    return frame.get_column(name).cast(pl.String)


def _numbers(frame: pl.DataFrame, columns: frozenset[str], name: str) -> Floats:
    return finite(frame.get_column(name)) if name in columns else np.full(frame.height, np.nan)


def finite(column: pl.Series) -> Floats:
    """A column as float64; null and non-finite are NaN."""
    values = column.cast(pl.Float64).to_numpy().astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def codes(*columns: pl.Series | Ints) -> Ints:
    """The same number for the same combination of values; −1 where the first column is null."""
    if not columns or len(columns[0]) == 0:
        return np.zeros(0, dtype=np.int64)
    combined = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:  # 64-bit hashes: two groups of a million share one in 10⁷ runs at most
        number = column.hash().to_numpy() if isinstance(column, pl.Series) else column.astype(np.uint64)
        combined = combined * _GOLDEN + number
    numbers = np.unique(combined, return_inverse=True)[1].astype(np.int64)
    if isinstance(columns[0], pl.Series) and columns[0].null_count():
        numbers[columns[0].is_null().to_numpy()] = -1
    return numbers


def keys_by_work(view: View, jobs: pl.DataFrame) -> pl.Series:
    """Keys of GPUs at their kind of work: a baseline does not carry over from one kind to another."""
    return view.once("work", jobs, lambda: _keys_by_work(view, jobs))


def _keys_by_work(view: View, jobs: pl.DataFrame) -> pl.Series:
    if not {"job_id", "work"} <= set(jobs.columns) or jobs.is_empty() or not len(view):
        return view.keys
    here = view.text("job_id_last").alias("job_id").to_frame()
    mentioned = jobs.lazy().select("job_id", "work").join(here.lazy().unique(), on="job_id", how="semi")
    kinds = mentioned.drop_nulls().unique("job_id", keep="first", maintain_order=True).collect()
    work = here.join(kinds, on="job_id", how="left", maintain_order="left").get_column("work")
    frame = pl.DataFrame([view.keys.alias("key"), work])
    return frame.select(pl.concat_str("key", pl.col("work"), separator="|", ignore_nulls=True)).to_series().alias("key")


def epoch_s(moment: datetime) -> float:
    """A moment as epoch seconds."""
    return moment.timestamp()


def moment(seconds: float) -> datetime | None:
    """Epoch seconds as a moment; ``None`` for NaN."""
    return None if np.isnan(seconds) else datetime.fromtimestamp(seconds, UTC)
