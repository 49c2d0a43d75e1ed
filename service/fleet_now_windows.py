"""The newest windows of every node and GPU: read as they come, and remembered for those that have gone silent.

The 30-second tables tell, or the hours where the lake has nothing finer (an import). At first some minutes are read,
then only what is new, with a margin for what comes late; files are chosen by date and statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline.lake import Lake
from graynode.service.node_state import SILENT

_TIME: Final = pl.Datetime("us", "UTC")
_LENGTH: Final = {"30s": timedelta(seconds=30), "1h": timedelta(hours=1)}
_FIRST: Final = {"30s": SILENT, "1h": timedelta(hours=2)}
"""How far back the first look goes."""
_AGAIN: Final = {"30s": timedelta(minutes=2), "1h": timedelta(hours=1)}
"""How much is read again at each further look: a machine may be late by so much without being missed."""
_EARLIER: Final = {"1h": timedelta(days=14), "30s": timedelta(hours=3)}
_FORGET: Final = timedelta(days=14)
"""A GPU that is neither in the inventory nor seen for so long is gone (as in ``pipeline.quality_views``)."""
HOST: Final = {"driver_version": "driver_version_last", "on_bus": "gpus_expected_max"}
GPU: Final = {
    "gpu_index": "gpu_index", "model_seen": "gpu_model_last", "slot_seen": "pci_bus_id_last",
    "util_percent": "gpu_util_percent_mean", "sm_clock_mhz": "sm_clock_mhz_mean", "power_w": "power_w_mean",
    "temp_c": "temp_c_mean", "mem_used_bytes": "mem_used_bytes_mean", "job_id": "job_id_last",
}  # fmt: skip
"""Columns by the name that they get here."""
_KEYS: Final = {"host": ["cluster", "node_id"], "gpu": ["cluster", "node_id", "gpu_uuid"]}
_COLUMNS: Final = {"host": HOST, "gpu": GPU}


@dataclass(slots=True)
class Newest:
    """The last window of every node (``host``) and GPU (``gpu``) that was seen, with ``last_seen``, its end."""

    lake: Lake
    window: str = ""
    at: datetime | None = None
    host: pl.DataFrame = field(default_factory=lambda: _empty("host"))
    gpu: pl.DataFrame = field(default_factory=lambda: _empty("gpu"))

    def read(self) -> None:
        """Take in what is new. ``LakeError`` where the lake cannot be read: what was known stays."""
        window, at = self._newest()
        if at is None:
            return
        again = window == self.window and self.at is not None and self.at >= at - _FIRST[window]
        since = at - _LENGTH[window] - (_AGAIN if again else _FIRST)[window]
        if again and self.at is not None:
            since = min(since, self.at - _LENGTH[window] - _AGAIN[window])
        host, gpu = (self._rows(table, window, since) for table in ("host", "gpu"))
        known = (self.host, self.gpu) if window == self.window else (self._earlier(at), _empty("gpu"))
        self.host = _last("host", pl.concat([known[0], host])).filter(pl.col("last_seen") > at - _FORGET)
        self.gpu = _last("gpu", pl.concat([known[1], gpu])).filter(pl.col("last_seen") > at - _FORGET)
        self.window, self.at = window, at

    def _earlier(self, at: datetime) -> pl.DataFrame:
        """When each node was heard before the first look: lately to 30 s, in the days before to the hour."""
        parts = []
        for window, back in _EARLIER.items():
            rows = self.lake.read(f"host_{window}", at - back, columns=["cluster", "node_id", "node", "ts"])
            last = rows.group_by("cluster", "node_id").agg(pl.col("node").last(), pl.col("ts").max())
            parts.append(last.with_columns((pl.col("ts") + _LENGTH[window]).alias("last_seen")))
        heard = pl.concat(parts).drop("ts").with_columns(pl.lit(None).alias(name) for name in HOST)
        return _last("host", heard.select(_schema("host").names()).cast(_schema("host")))

    def _newest(self) -> tuple[str, datetime | None]:
        """Which windows tell, and the end of the newest."""
        ends: dict[str, datetime | None] = {}
        for window, length in _LENGTH.items():
            told = [ts + length for raw in _KEYS if (ts := self.lake.newest(f"{raw}_{window}")) is not None]
            ends[window] = max(told, default=None)
        fine, coarse = ends["30s"], ends["1h"]
        if fine is not None and (coarse is None or coarse - fine < timedelta(hours=2)):
            return "30s", fine
        return "1h", coarse

    def _rows(self, raw: str, window: str, since: datetime) -> pl.DataFrame:
        names = _COLUMNS[raw]
        keys = [*_KEYS[raw], "node", *(["mig_instance"] if raw == "gpu" else [])]
        rows = self.lake.read(f"{raw}_{window}", since, columns=[*dict.fromkeys([*keys, "ts", *names.values()])])
        chosen = [*(pl.col(k) for k in keys), (pl.col("ts") + _LENGTH[window]).alias("last_seen")]
        return rows.select(*chosen, *(pl.col(old).alias(new) for new, old in names.items())).cast(_schema(raw))


def _schema(raw: str) -> pl.Schema:
    kinds = {"gpu_index": pl.Int32(), "on_bus": pl.Int32()}
    keys = [*_KEYS[raw], "node", *(["mig_instance"] if raw == "gpu" else [])]
    measured = {"util_percent", "sm_clock_mhz", "power_w", "temp_c", "mem_used_bytes"}
    columns = {n: pl.Float64() if n in measured else kinds.get(n, pl.String()) for n in _COLUMNS[raw]}
    return pl.Schema({**dict.fromkeys(keys, pl.String()), "last_seen": _TIME, **columns})


def _empty(raw: str) -> pl.DataFrame:
    return pl.DataFrame(schema=_schema(raw))


def _last(raw: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The newest row of each; of a GPU with MIG the row of the whole GPU, where one is measured."""
    if raw == "gpu":
        newest = rows.filter(pl.col("last_seen") == pl.col("last_seen").max().over(_KEYS[raw]))
        whole = pl.col("mig_instance").is_null()
        return newest.with_columns(whole.alias("_whole")).sort("_whole").unique(_KEYS[raw], keep="last").drop("_whole")
    return rows.sort("last_seen").unique(_KEYS[raw], keep="last", maintain_order=True)
