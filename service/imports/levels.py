"""Which GPUs are worse than their peers now: imported hours against the hours of others, with the detectors' measures.

``detectors`` ask what has *changed*, in the order of time. Somebody who has just imported also wants to know who *is*
slow, whenever that began, so the last days are compared with those of the peers, signal by signal. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from graynode.detectors import capability, conformal, growth, residual, thermal
from graynode.detectors.accumulate import TAU
from graynode.detectors.ecc import PRIOR
from graynode.detectors.frames import Floats, View, codes, gpus

HOUR_S: Final = 3600
COLUMNS: Final = (
    *capability.NUMBERS, "temp_c_mean", "mem_temp_c_mean", "ecc_sbe_volatile_delta", "ecc_sbe_aggregate_delta",
    "row_remaps_uncorrectable_delta", "row_remaps_correctable_delta",
)  # fmt: skip
_LEAST_HOURS: Final = 12
"""Hours under load that make a GPU's median one."""
_LEAST_ERROR_HOURS: Final = 6
_ERROR_DIGITS: Final = 6.0
"""As many digits of p as the shipped threshold of ``ecc.growth`` asks for."""
_SAME_POWER: Final = 0.15
"""As ``thermal`` compares temperatures, one-sided."""
_TEMP_FLOOR_C: Final = 1.0
_LOG_FLOOR: Final = 0.002


@dataclass(frozen=True, slots=True)
class Measure:
    """One signal: from which excess on it is worth a name, how it is said, and below what spread peers agree."""

    name: str
    least: float
    floor: float
    logs: bool
    words: str
    cause: str


_LESS: Final = "SM clock under load {0:.1%} below its peers'"
_HELD: Final = "held below its clocks {0:.1%} more of the time than its peers"
_HOT: Final = "{0:.0f} °C hotter than its peers at the same power"
_GRADIENT: Final = "memory over core {0:.0f} °C more than its peers'"
MEASURES: Final = (
    Measure("clock", float(np.log1p(TAU)), _LOG_FLOOR, True, _LESS, "slow_gpu"),
    Measure("throttle", float(np.log1p(TAU)), _LOG_FLOOR, True, _HELD, "slow_gpu"),
    Measure("temp", thermal.TAU_C, _TEMP_FLOOR_C, False, _HOT, "thermal"),
    Measure("gradient", thermal.TAU_C, _TEMP_FLOOR_C, False, _GRADIENT, "thermal"),
)


@dataclass(frozen=True, slots=True)
class Level:
    """One thing that is worse with one GPU (or, ``key`` empty, with a whole node) than with its peers.

    ``value`` and ``peer_median`` are in ``unit``, over ``hours`` hours; ``since_day`` (days of the epoch) is the first
    of the days in a row up to the last on which it was so. ``weight`` ranks: 1 is worth a name.
    """

    key: str
    node_id: str
    cause: str
    signal: str
    words: str
    weight: float
    p: float
    hours: int
    peers: int
    since_day: int
    value: float | None = None
    peer_median: float | None = None
    unit: str = ""


@dataclass(slots=True)
class Levels:
    """Days of hour windows, reduced as they come: memory goes with GPUs and days, not with hours."""

    _kept: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def add(self, hours: pl.DataFrame) -> None:
        """One day of ``gpu_1h`` rows, or any part of it in which all peers of an hour are together."""
        view = gpus(hours, COLUMNS)
        if not len(view):
            return
        groups = residual.peers(view)
        x = {**capability.measured(view, HOUR_S), **thermal.at_equal_power(view, groups, HOUR_S)}
        power = np.where(capability.loaded(view, HOUR_S), view.x["power_w_mean"], np.nan)
        of_peers = residual.against_peers(power, groups).median
        for measure in MEASURES:
            r = residual.against_peers(x[measure.name], groups)
            # Without a scheduler's word peers may do other work. More work (more power) lowers a clock and heats, and
            # is no fault; a lower clock at no more power is one.
            alike = power <= (1.0 + _SAME_POWER) * of_peers
            self._keep(measure.name, view, np.where(alike, r.excess, np.nan), _own(measure, view))
        self._errors(view)
        self._remaps(view)

    def _keep(self, name: str, view: View, excess: Floats, own: Floats) -> None:
        frame = pl.DataFrame({
            "key": view.keys, "node_id": view.text("node_id"), "day": _days(view),
            "model": view.text("gpu_model_last").fill_null("unknown"), "excess": excess, "own": own,
        })  # fmt: skip
        medians = pl.col("excess", "own").median()
        by_day = frame.filter(pl.col("excess").is_not_nan()).group_by("key", "day", maintain_order=True)
        self._kept.setdefault(name, []).append(by_day.agg(pl.col("node_id", "model").last(), medians, _HOURS))

    def _errors(self, view: View) -> None:
        volatile = view.x["ecc_sbe_volatile_delta"]
        delta = np.where(np.isnan(volatile), view.x["ecc_sbe_aggregate_delta"], volatile)
        frame = pl.DataFrame({"key": view.keys, "node_id": view.text("node_id"), "day": _days(view), "delta": delta})
        by_day = frame.filter(pl.col("delta").is_not_nan()).group_by("key", "day", maintain_order=True)
        hits = (pl.col("delta") > 0).sum().cast(pl.Float64).alias("hits")
        self._kept.setdefault(_ERRORS, []).append(by_day.agg(pl.col("node_id").last(), hits, _HOURS))

    def _remaps(self, view: View) -> None:
        counts = {kind: np.nan_to_num(view.x[f"row_remaps_{kind}_delta"]) for kind in ("uncorrectable", "correctable")}
        frame = pl.DataFrame({"key": view.keys, "node_id": view.text("node_id"), "day": _days(view), **counts})
        grown = frame.filter((pl.col("uncorrectable") > 0) | (pl.col("correctable") > 0))
        self._kept.setdefault(_REMAPS, []).append(grown)

    def found(self, last_days: Sequence[int] = (7, 2)) -> Iterator[Level]:
        """What is worth a name in the last days, over each of these spans: against peers, each GPU once by signal.

        Memory errors are held against fleet and own past, over the first span.
        """
        for measure in MEASURES:
            named: set[str] = set()
            for days in last_days:
                for level in _against_peers(measure, self._all(measure.name), days):
                    if level.key not in named:
                        named.add(level.key)
                        yield level
        yield from _many_errors(self._all(_ERRORS), last_days[0])
        yield from _remapped(self._all(_REMAPS))

    def clock_excess(self, key: str, since_day: int) -> float:
        """By how much (log) the clock has been below peers' that take no less power, median of days; NaN: unknown."""
        days = self._all("clock")
        if days.is_empty():
            return float("nan")
        known = days.filter((pl.col("key") == key) & (pl.col("day") >= since_day)).get_column("excess")
        return float(known.median()) if len(known) else float("nan")  # type: ignore[arg-type]  # a number, not null

    def _all(self, name: str) -> pl.DataFrame:
        parts = self._kept.get(name)
        return pl.concat(parts) if parts else pl.DataFrame()


_HOURS: Final = pl.len().cast(pl.Int64).alias("hours")
_ERRORS: Final = "errors"
_REMAPS: Final = "remaps"


def _days(view: View) -> NDArray[np.int64]:
    return np.floor(view.t_s / 86400.0).astype(np.int64)


def _own(measure: Measure, view: View) -> Floats:
    """The measured value in its unit."""
    if measure.name == "clock":
        return view.x["sm_clock_mhz_mean"]
    if measure.name == "temp":
        return view.x["temp_c_mean"]
    return np.full(len(view), np.nan)


def _against_peers(measure: Measure, days: pl.DataFrame, last_days: int) -> Iterator[Level]:
    """The detectors' daily level test (robust z with self left out, Benjamini–Hochberg at 5 %) over the last days."""
    if days.is_empty():
        return
    recent = (
        days.filter(pl.col("day") > _newest(days) - last_days)
        .group_by("key", maintain_order=True)
        .agg(pl.col("node_id", "model").last(), pl.col("excess", "own").median(), pl.col("hours").sum())
        .filter(pl.col("hours") >= _LEAST_HOURS)
        .sort("key")
    )
    excess = recent.get_column("excess").to_numpy()
    groups = codes(recent.get_column("model"))
    z, above, peers = residual.robust_z(excess, groups, measure.floor)
    p = np.where(np.isnan(z), np.nan, conformal.robust_tail(np.nan_to_num(z), peers))
    flagged = conformal.benjamini_hochberg(p) & (above >= measure.least)
    for i in np.flatnonzero(flagged):
        row = recent.row(int(i), named=True)
        effect = float(np.expm1(above[i]) if measure.logs else above[i])
        yield Level(
            key=row["key"], node_id=row["node_id"], cause=measure.cause, signal=measure.name,
            words=measure.words.format(-np.expm1(-above[i]) if measure.name == "clock" else effect),
            weight=float(above[i] / measure.least), p=float(p[i]), hours=int(row["hours"]), peers=int(peers[i]),
            since_day=_since(days.filter(pl.col("key") == row["key"]), measure.least / 2),
            value=_value(measure, row), peer_median=_peer(measure, row), unit=_UNITS.get(measure.name, ""),
        )  # fmt: skip


_UNITS: Final = {"clock": "MHz", "temp": "°C"}


def _value(measure: Measure, row: Mapping[str, float]) -> float | None:
    return row["own"] if measure.name in _UNITS else None


def _peer(measure: Measure, row: Mapping[str, float]) -> float | None:
    if measure.name == "clock":
        return row["own"] * float(np.exp(row["excess"]))
    return row["own"] - row["excess"] if measure.name == "temp" else None


def _since(days: pl.DataFrame, least: float) -> int:
    """The first of the known days in a row, up to the last, on which it was so."""
    since = 0
    for day, excess in days.sort("day", descending=True).select("day", "excess").iter_rows():
        if since and excess < least:
            break
        since = day
    return since


def _many_errors(days: pl.DataFrame, last_days: int) -> Iterator[Level]:
    """GPUs with more clock hours of corrected errors in the last days than the fleet's law and their own past give."""
    if days.is_empty():
        return
    late = pl.col("day") > _newest(days) - last_days
    sums = [
        pl.col(c).filter(when).sum().alias(f"{c}_{name}")
        for c in ("hits", "hours")
        for name, when in (("now", late), ("before", ~late))
    ]
    total = days.group_by("key", maintain_order=True).agg(
        pl.col("node_id").last(), *sums, pl.col("day").filter(pl.col("hits") > 0).min().alias("first")
    )
    total = total.sort("key")
    now, now_h, before, before_h = (
        total.get_column(c).to_numpy().astype(np.float64)
        for c in ("hits_now", "hours_now", "hits_before", "hours_before")
    )
    law = growth.fitted(before, before_h, PRIOR)
    whole = conformal.negative_binomial_tail(now + before, *_law(law, len(now)), now_h + before_h)
    grown = conformal.negative_binomial_tail(now, law.shape + before, law.rate_h + before_h, now_h)
    p = np.minimum(1.0, 2.0 * np.minimum(whole, grown))  # two questions, so the better answer counts half
    for i in np.flatnonzero(conformal.benjamini_hochberg(p) & (now >= _LEAST_ERROR_HOURS)):
        row = total.row(int(i), named=True)
        yield Level(
            key=row["key"], node_id=row["node_id"], cause="memory_errors", signal="error_hours",
            words=f"corrected memory errors in {int(now[i])} of the last {int(now_h[i]):,} hours"
            f" (before: {int(before[i])} of {int(before_h[i]):,}; median of the others: {_others(now, int(i)):.0f})",
            weight=float(-np.log10(max(p[i], 1e-300)) / _ERROR_DIGITS), p=float(p[i]), hours=int(now_h[i]),
            peers=len(now) - 1, since_day=int(row["first"]),
        )  # fmt: skip


def _remapped(rows: pl.DataFrame) -> Iterator[Level]:
    """GPUs of which rows were remapped in the time: each remap is a memory row that the device itself gave up."""
    if rows.is_empty():
        return
    total = rows.group_by("key", maintain_order=True).agg(
        pl.col("node_id").last(), pl.col("uncorrectable", "correctable").sum(), pl.col("day").min(), _HOURS
    )
    for row in total.sort("key").iter_rows(named=True):
        hard, soft = int(row["uncorrectable"]), int(row["correctable"])
        yield Level(
            key=row["key"], node_id=row["node_id"], cause="memory_degraded", signal="row_remaps",
            words=f"memory rows remapped: {hard} for uncorrectable errors, {soft} for correctable ones",
            weight=float(hard + 0.1 * soft), p=float("nan"), hours=int(row["hours"]), peers=0,
            since_day=int(row["day"]),
        )  # fmt: skip


def _law(law: growth.Prior, count: int) -> tuple[Floats, Floats]:
    return np.full(count, law.shape), np.full(count, law.rate_h)


def _others(values: Floats, i: int) -> float:
    return float(np.median(np.delete(values, i))) if len(values) > 1 else 0.0


def _newest(days: pl.DataFrame) -> int:
    return int(days.select(pl.col("day").max()).item())
