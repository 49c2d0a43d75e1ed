"""What a GPU runs under: driver, VBIOS, power limit, MIG, and the last repair.

Peers are chosen by it, and a change of it ends what was normal: a GPU at another power limit is another GPU. Every
part is a number that a float holds exactly, equal where the part is equal, NaN where it is not known.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import numpy as np
import polars as pl

from graynode.detectors.base import Round
from graynode.detectors.frames import Bools, Floats, View, finite
from graynode.detectors.memory import Arrays

COLUMNS: Final = ("power_limit", "mig", "driver", "vbios", "repaired")

_latest: Final[dict[str, tuple[tuple[object, ...], Floats]]] = {}
"""The last answer for each kind of text: names of machines, jobs and firmware are the same from round to round."""


def read(view: View, round_: Round) -> Arrays:
    """The footing of each row now, from its power limit and MIG columns, the host's driver, the inventory and repairs.

    Parts are told now and then only: ``recall`` carries them over.
    """
    return {
        "power_limit": np.round(view.x["power_limit_enforced_w_last"]),  # settable by the watt
        "mig": _mig(view),
        "driver": view.once("driver", round_.host, lambda: _drivers(view, round_.host)),
        "vbios": view.once("vbios", round_.inventory, lambda: _vbios(view, round_.inventory)),
        "repaired": view.once("repaired", round_.repairs, lambda: repaired(view, _so_far(round_))),
    }


def recall(memory: Arrays, now: Arrays) -> tuple[Arrays, Bools]:
    """The last known footing, taken over into ``memory``, and whose has changed. A null is no change."""
    different = np.zeros(len(next(iter(now.values()))), dtype=np.bool_)
    for name, values in now.items():
        before = memory[name]
        different |= ~np.isnan(before) & ~np.isnan(values) & (before != values)
        memory[name] = np.where(np.isnan(values), before, values)
    return {name: memory[name] for name in now}, different


def _mig(view: View) -> Floats:
    """MIG off, or the profiles that are on. On without a profile, and neither known, is unknown."""
    off = np.where(view.x["mig_mode_last"] == 0.0, 0.0, np.nan)
    profile = view.text("mig_profile_last")
    return off if profile.null_count() == len(view) else np.where(profile.is_null().to_numpy(), off, numbers(profile))


def _drivers(view: View, host: pl.DataFrame) -> Floats:
    """The node's driver version as one number that grows with it (580.65.06 → 580 065 006)."""
    if not {"node_id", "driver_version_last"} <= set(host.columns) or host.is_empty():
        return np.full(len(view), np.nan)
    known = host.select("node_id", pl.col("driver_version_last").cast(pl.String).alias("text")).drop_nulls()
    wanted = view.text("node_id")
    return _as_before("driver", (wanted, known), lambda: _driver_of(wanted, known))


def _driver_of(wanted: pl.Series, known: pl.DataFrame) -> Floats:
    versions = known.get_column("text").unique()
    number = pl.Series("driver", [_number(v) for v in versions], dtype=pl.Float64)
    of_node = (
        known.lazy().join(pl.LazyFrame([versions, number]), on="text").group_by("node_id").agg(pl.col("driver").max())
    )
    return _joined(wanted, of_node, "node_id", "driver")


def _vbios(view: View, inventory: pl.DataFrame) -> Floats:
    if not {"ts", "kind", "entity", "vbios_version"} <= set(inventory.columns) or inventory.is_empty():
        return np.full(len(view), np.nan)
    uuids = view.text("gpu_uuid")
    return _as_before("vbios", (uuids, inventory), lambda: _vbios_of(uuids, inventory))


def _vbios_of(uuids: pl.Series, inventory: pl.DataFrame) -> Floats:
    newest = (
        inventory.lazy()
        .filter((pl.col("kind") == "gpu") & pl.col("vbios_version").is_not_null())
        .sort("ts", "vbios_version")
        .unique("entity", keep="last", maintain_order=True)
        .select("entity", "vbios_version")
        .collect()
    )
    told = newest.select("entity", numbers_of(newest.get_column("vbios_version")).alias("vbios")).lazy()
    return _joined(uuids, told, "entity", "vbios")


def _so_far(round_: Round) -> pl.DataFrame:
    if "ts" not in round_.repairs.columns:
        return round_.repairs
    return round_.repairs.filter(pl.col("ts") < round_.start + timedelta(seconds=round_.window_s))


def repaired(view: View, repairs: pl.DataFrame) -> Floats:
    """When each GPU, or its machine, was last repaired by the log (epoch s); 0 where never, NaN without a log."""
    if not {"ts", "node_id"} <= set(repairs.columns):
        return np.full(len(view), np.nan)
    if repairs.is_empty():
        return np.zeros(len(view))
    whose = pl.col("gpu_uuid") if "gpu_uuid" in repairs.columns else pl.lit(None, dtype=pl.String)
    at = pl.col("ts").cast(pl.Datetime("us", "UTC")).cast(pl.Int64) / 1e6
    told = repairs.select("node_id", whose.alias("gpu_uuid"), at.alias("at")).lazy()
    of_node = told.filter(pl.col("gpu_uuid").is_null()).group_by("node_id").agg(pl.col("at").max())
    of_gpu = told.drop_nulls("gpu_uuid").group_by("gpu_uuid").agg(pl.col("at").max())
    by_node = _joined(view.text("node_id"), of_node, "node_id", "at")
    by_gpu = _joined(view.text("gpu_uuid"), of_gpu, "gpu_uuid", "at")
    return np.nan_to_num(np.fmax(by_node, by_gpu))


def _joined(wanted: pl.Series, told: pl.LazyFrame, key: str, value: str) -> Floats:
    rows = wanted.alias(key).to_frame().lazy().join(told, on=key, how="left", maintain_order="left").collect()
    return finite(rows.get_column(value))


def numbers(texts: pl.Series) -> Floats:
    """A number for each text; NaN for null."""
    return _as_before(texts.name, (texts,), lambda: finite(numbers_of(texts)))


def _as_before(name: str, of: tuple[pl.Series | pl.DataFrame, ...], make: Callable[[], Floats]) -> Floats:
    """What ``make`` gives, or gave last time ``of`` the same; to be read only."""
    held = _latest.get(name)
    if held is not None and all(_equal(a, b) for a, b in zip(held[0], of, strict=True)):
        return held[1]
    made = make()
    made.flags.writeable = False
    _latest[name] = (of, made)
    return made


def _equal(one: object, other: pl.Series | pl.DataFrame) -> bool:
    if one is other:
        return True
    if isinstance(one, pl.DataFrame) and isinstance(other, pl.DataFrame):
        return one.equals(other)
    return isinstance(one, pl.Series) and isinstance(other, pl.Series) and len(one) == len(other) and one.equals(other)


def numbers_of(texts: pl.Series) -> pl.Series:
    """A number for each text that is the same in every process and version (CRC-32); null stays null."""
    known = texts.unique().drop_nulls()
    checks = pl.Series([float(zlib.crc32(t.encode())) for t in known], dtype=pl.Float64)
    return texts.replace_strict(known, checks, default=None, return_dtype=pl.Float64)


@functools.lru_cache(maxsize=1024)
def _number(version: str) -> float:
    return sum(float(part) * 1000.0 ** (2 - i) for i, part in enumerate(re.findall(r"\d+", version)[:3]))
