"""Gauges that stand still while they should move, and rates that are always 0 under load: over windows, for hours.

A temperature that has not moved by a degree while the power went up and down is no temperature; a PCIe rate that was 0
through hours of work does not count (DCGM #149, dcgm-exporter #721: whole models). The values stay, for nobody can tell
a dead zero from a true one afterwards; ``quality`` says so, per GPU, with the time since when.

State is a row per GPU seen in the last two weeks. A restart begins the hours anew; what was told is known from the
table ``quality``. Instances of MIG have no sensors of their own and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.pipeline.schema import BY_HOURS

STILL_FOR: Final = timedelta(hours=2)
"""Longer than warm-up and evaluation phases of a job; a sensor that stands for so long will for the next hours too."""
ZERO_FOR_S: Final = 6 * 3600.0
"""Seconds of work without a byte. Every kernel launch crosses PCIe, so an hour would do; NVLink may idle for longer."""
_BUSY_PERCENT: Final = 50.0
_FORGET: Final = timedelta(days=14)
_WINDOW: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class _Sensor:
    """``field`` must move where ``cause`` (a window column) has moved by ``share`` of its highest and by ``least``."""

    field: str
    cause: str
    share: float
    least: float


_SENSORS: Final = (
    # 0.05 to 0.1 K/W from chip to coolant: 75 W are 4 °C and more
    _Sensor("temp_c", "power_w_mean", 0.3, 75.0),
    _Sensor("mem_temp_c", "power_w_mean", 0.3, 75.0),
    # a GPU at work draws several times what it draws at rest
    _Sensor("power_w", "gpu_util_percent_mean", 0.5, 50.0),
    _Sensor("power_instant_w", "gpu_util_percent_mean", 0.5, 50.0),
)
_RATES: Final = {
    "pcie_tx_bytes_per_s": "max", "pcie_rx_bytes_per_s": "max", "nvlink_tx_bytes_per_s": "max",
    "nvlink_rx_bytes_per_s": "max", "nvlink_tx_bytes": "last", "nvlink_rx_bytes": "last",
}  # fmt: skip
"""Field and the window column that is 0 only if all of the window was."""
_KEY: Final = ["cluster", "node_id", "gpu_uuid"]
_READS: Final = [
    "ts", *_KEY, "node", "boot_id", "mig_instance", "gpu_model_last", "nvlink_links_active_last",
    *dict.fromkeys(["gpu_util_percent_mean", *(s.cause for s in _SENSORS)]),
    *(f"{s.field}_{end}" for s in _SENSORS for end in ("min", "max")), *(f"{f}_{how}" for f, how in _RATES.items()),
]  # fmt: skip
_MANY: Final = 20_000
_TOGETHER: Final = timedelta(minutes=10)
"""One look costs some 15 ms whatever it sees, so closed windows wait for it: a few MB at most."""

Told = tuple[str, str, str, str]
"""cluster, node_id, gpu_uuid, field"""


class StillWatch:
    """The GPUs of one partition."""

    def __init__(self) -> None:
        self._waiting: list[pl.DataFrame] = []
        self._waiting_since: datetime | None = None
        self._state: pl.DataFrame | None = None
        self._told: set[Told] = set()

    def restore(self, quality: pl.DataFrame) -> None:
        """Take what the table ``quality`` last said from here."""
        own = quality.filter(pl.col("reason").str.starts_with(BY_HOURS)).sort("ts")
        for row in own.iter_rows(named=True):
            key: Told = (row["cluster"], row["node_id"], row["entity"], row["field"])
            (self._told.discard if row["state"] == "measured" else self._told.add)(key)

    def note(self, windows: pl.DataFrame) -> list[dict[str, Any]]:
        """Closed rows of ``gpu_30s``, looked at together once they are many or span ten minutes (``see``)."""
        self._waiting.append(windows.select(_READS))
        first, latest = windows["ts"].min(), windows["ts"].max()
        if not isinstance(first, datetime) or not isinstance(latest, datetime):
            return []
        self._waiting_since = min(self._waiting_since or first, first)
        rows = sum(part.height for part in self._waiting)
        if rows < _MANY and latest - self._waiting_since < _TOGETHER:
            return []
        together, self._waiting, self._waiting_since = pl.concat(self._waiting), [], None
        return self.see(together)

    def see(self, windows: pl.DataFrame) -> list[dict[str, Any]]:
        """``quality`` rows for what has begun to stand still in these windows, or to move again."""
        whole = windows.filter(pl.col("mig_instance").is_null() & pl.col("gpu_uuid").is_not_null())
        if not whole.height:
            return []
        before, now = self._state, _summary(whole)
        state = now.with_columns(_nothing()) if before is None else _joined(now, before)
        state = state.with_columns(_stand(s) for s in _SENSORS).with_columns(_count(field) for field in _RATES)
        told = [row for sensor in _SENSORS for row in self._sensor(sensor, state)]
        kept = state.select(_kept())
        if before is not None:
            latest: Any = kept["seen"].max()
            others = before.join(kept, on=_KEY, how="anti").filter(pl.col("seen") >= latest - _FORGET)
            kept = pl.concat([others, kept])
        self._state = kept
        return told + [row for field in _RATES for row in self._rate(field, state, kept)]

    def _sensor(self, sensor: _Sensor, state: pl.DataFrame) -> Iterator[dict[str, Any]]:
        stand = state.select(*_KEY, "node", "boot_id", "seen", pl.col(f"{sensor.field}.stand")).unnest(
            f"{sensor.field}.stand"
        )
        caused = (pl.col("high") - pl.col("low") >= sensor.least) & (
            pl.col("high") - pl.col("low") >= sensor.share * pl.col("high")
        )
        still = caused & (pl.col("seen") - pl.col("since") >= STILL_FOR)
        for row in stand.filter(still).iter_rows(named=True):
            cause = sensor.cause.removesuffix("_mean")
            said = f"{row['value']:g} all the time while {cause} went from {row['low']:.0f} to {row['high']:.0f}"
            yield from self._tell(row, sensor.field, "stale", said, row["since"])
        yield from self._moving(stand.filter(pl.col("moves")), sensor.field)

    def _rate(self, field: str, state: pl.DataFrame, everyone: pl.DataFrame) -> Iterator[dict[str, Any]]:
        names = [*_KEY, "node", "boot_id", "seen", "model", "nvlinks", f"{field}.zero"]
        zero = state.select(*names, pl.col(f"{field}.counts").alias("counts_now")).unnest(f"{field}.zero")
        dead = zero.filter(pl.col("zero_s") >= ZERO_FOR_S)
        if dead.height:
            counts = everyone.select("model", pl.col(f"{field}.zero").struct.field("counts").fill_null(value=False))
            totals = {
                model: (gpus, moving)
                for model, gpus, moving in counts.group_by("model").agg(pl.len(), pl.col("counts").sum()).iter_rows()
            }
            for row in dead.iter_rows(named=True):
                gpus, moving = totals.get(row["model"], (1, 0))
                if field.startswith("nvlink") and (moving or not row["nvlinks"]):
                    continue  # a job of one GPU leaves it idle; only a model on which nobody counts is dead
                where = f"while it counts on {moving} of {gpus}" if moving else f"on all {gpus}"
                said = f"0 through {row['zero_s'] / 3600:.0f} h of work, {where} GPUs of its model here"
                yield from self._tell(row, field, "implausible", said, row["since"])
        yield from self._moving(zero.filter(pl.col("counts_now")), field)

    def _tell(
        self, row: dict[str, Any], field: str, state: str, said: str, since: datetime
    ) -> Iterator[dict[str, Any]]:
        key: Told = (row["cluster"], row["node_id"], row["gpu_uuid"], field)
        if key not in self._told:
            self._told.add(key)
            yield _quality(row, field, state, said, since)

    def _moving(self, rows: pl.DataFrame, field: str) -> Iterator[dict[str, Any]]:
        if not self._told:
            return
        for row in rows.iter_rows(named=True):
            key: Told = (row["cluster"], row["node_id"], row["gpu_uuid"], field)
            if key in self._told:
                self._told.discard(key)
                yield _quality(row, field, "measured", "it moves again", row["seen"])


def _summary(windows: pl.DataFrame) -> pl.DataFrame:
    """A row per GPU of these windows: what stood still in all of them, what its causes did, what counted."""
    busy = pl.col("gpu_util_percent_mean") >= _BUSY_PERCENT
    names = [
        pl.col("ts").min().alias("first"), (pl.col("ts").max() + _WINDOW).alias("seen"), pl.col("node").last(),
        pl.col("boot_id").last(), pl.col("gpu_model_last").drop_nulls().last().alias("model"),
        pl.col("nvlink_links_active_last").max().fill_null(0).alias("nvlinks"),
    ]  # fmt: skip
    for s in _SENSORS:
        names += [
            pl.col(f"{s.field}_min").min().cast(pl.Float64).alias(f"{s.field}.min"),
            pl.col(f"{s.field}_max").max().cast(pl.Float64).alias(f"{s.field}.max"),
            pl.col(s.cause).min().cast(pl.Float64).alias(f"{s.field}.low"),
            pl.col(s.cause).max().cast(pl.Float64).alias(f"{s.field}.high"),
        ]
    for field, how in _RATES.items():
        column = pl.col(f"{field}_{how}")
        names += [
            (busy & (column == 0)).sum().cast(pl.Float64).mul(30.0).alias(f"{field}.zero_s"),
            (column > 0).any().alias(f"{field}.counts"),
        ]
    return windows.sort("ts").group_by(_KEY, maintain_order=True).agg(names)


def _nothing() -> list[pl.Expr]:
    """The state of a GPU never seen."""
    return [
        *(pl.lit(None, _STAND).alias(f"{s.field}.was") for s in _SENSORS),
        *(pl.lit(None, _ZERO).alias(f"{field}.had") for field in _RATES),
    ]


_STAND: Final = pl.Struct(
    {"value": pl.Float64, "since": pl.Datetime("us", "UTC"), "low": pl.Float64, "high": pl.Float64, "moves": pl.Boolean}
)
_ZERO: Final = pl.Struct({"zero_s": pl.Float64, "since": pl.Datetime("us", "UTC"), "counts": pl.Boolean})


def _joined(now: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    names = {f"{s.field}.stand": f"{s.field}.was" for s in _SENSORS}
    names |= {f"{field}.zero": f"{field}.had" for field in _RATES}
    held = before.select(*_KEY, *(pl.col(a).alias(b) for a, b in names.items()))
    return now.join(held, on=_KEY, how="left", maintain_order="left")


def _kept() -> list[str]:
    return [
        *_KEY, "seen", "model", *(f"{s.field}.stand" for s in _SENSORS), *(f"{field}.zero" for field in _RATES),
    ]  # fmt: skip


def _stand(s: _Sensor) -> pl.Expr:
    """The value that stands, since when, and between what its cause went meanwhile. Unseen, it stands as it did."""
    was = pl.col(f"{s.field}.was")
    least, most = pl.col(f"{s.field}.min"), pl.col(f"{s.field}.max")
    unseen, flat = least.is_null(), least == most
    goes_on = flat & (was.struct.field("value") == least).fill_null(value=False)
    low, high = pl.col(f"{s.field}.low"), pl.col(f"{s.field}.high")
    held = pl.struct(
        least.alias("value"),
        pl.when(goes_on).then(was.struct.field("since")).otherwise(pl.col("first")).alias("since"),
        pl.when(goes_on).then(pl.min_horizontal(low, was.struct.field("low"))).otherwise(low).alias("low"),
        pl.when(goes_on).then(pl.max_horizontal(high, was.struct.field("high"))).otherwise(high).alias("high"),
        (~goes_on & was.struct.field("value").is_not_null()).fill_null(value=False).alias("moves"),
    )
    moving = pl.struct(
        pl.lit(None, pl.Float64).alias("value"), pl.lit(None, pl.Datetime("us", "UTC")).alias("since"),
        pl.lit(None, pl.Float64).alias("low"), pl.lit(None, pl.Float64).alias("high"),
        pl.lit(value=True).alias("moves"),
    )  # fmt: skip
    return pl.when(unseen).then(was).when(flat).then(held).otherwise(moving).alias(f"{s.field}.stand")


def _count(field: str) -> pl.Expr:
    """Seconds of work with 0, since the last time it was not."""
    had, counts = pl.col(f"{field}.had"), pl.col(f"{field}.counts")
    seconds = had.struct.field("zero_s").fill_null(0.0) + pl.col(f"{field}.zero_s")
    first = pl.when(pl.col(f"{field}.zero_s") > 0).then(pl.col("first"))
    return pl.struct(
        pl.when(counts).then(0.0).otherwise(seconds).alias("zero_s"),
        pl.when(~counts).then(pl.coalesce(had.struct.field("since"), first)).alias("since"),
        (counts | had.struct.field("counts").fill_null(value=False)).alias("counts"),
    ).alias(f"{field}.zero")


def _quality(row: dict[str, Any], field: str, state: str, said: str, ts: datetime) -> dict[str, Any]:
    return {
        "ts": ts, "cluster": row["cluster"], "node_id": row["node_id"], "node": row["node"], "boot_id": row["boot_id"],
        "table_name": "gpu", "entity": row["gpu_uuid"], "field": field, "state": state, "reason": BY_HOURS + said,
    }  # fmt: skip
