"""Which GPUs are worse than their peers now: imported hours against the hours of others, with the detectors' measures.

``detectors`` ask what has *changed*, in the order of time. Somebody who has just imported also wants to know who *is*
slow, whenever that began, so the last days are compared with those of the peers, signal by signal. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from graynode.detectors import capability, conformal, growth, residual, thermal
from graynode.detectors.accumulate import TAU
from graynode.detectors.ecc import PRIOR
from graynode.detectors.frames import Floats, View, codes, gpus

HOUR_S: Final = 3600
COLUMNS: Final = (
    *capability.NUMBERS, "temp_c_mean", "mem_temp_c_mean", "ecc_sbe_volatile_delta", "ecc_sbe_aggregate_delta",
)  # fmt: skip
_LEAST_HOURS: Final = 12
"""Hours under load that make a GPU's median one."""
_MOST_FALSE: Final = 0.001
_LEAST_ERROR_HOURS: Final = 6
_ERROR_DIGITS: Final = 6.0
"""As many digits of p as the shipped threshold of ``ecc.growth`` asks for."""
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
_POWER: Final = "takes {0:.1%} more power than its peers at the same clock"
_HOT: Final = "{0:.0f} °C hotter than its peers at the same power"
_GRADIENT: Final = "memory over core {0:.0f} °C more than its peers'"
MEASURES: Final = (
    Measure("clock", float(np.log1p(TAU)), _LOG_FLOOR, True, _LESS, "slow_gpu"),
    Measure("throttle", float(np.log1p(TAU)), _LOG_FLOOR, True, _HELD, "slow_gpu"),
    Measure("power_at_clock", float(np.log1p(2 * TAU)), _LOG_FLOOR, True, _POWER, "slow_gpu"),
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

    _days: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def add(self, hours: pl.DataFrame) -> None:
        """One day of ``gpu_1h`` rows, or any part of it in which all peers of an hour are together."""
        view = gpus(hours, COLUMNS)
        if not len(view):
            return
        groups = residual.peers(view)
        everybody = residual.Peers(
            codes(view.text("gpu_model_last").fill_null("unknown"), view.t_s.astype(np.int64)), groups.node * 0 - 1
        )
        x = {**capability.measured(view, HOUR_S), **thermal.at_equal_power(view, groups, HOUR_S)}
        for measure in MEASURES:
            r = residual.against_peers(x[measure.name], groups)
            self._keep(measure.name, view, r.excess, _own(measure, view), r.median)
            of_node = residual.against_peers(x[measure.name], everybody)
            self._keep(f"node.{measure.name}", view, of_node.excess, _own(measure, view), of_node.median, by_node=True)
        grew = _grew(view)
        self._errors(view, grew)

    def _keep(
        self, name: str, view: View, excess: Floats, own: Floats, median: Floats, *, by_node: bool = False
    ) -> None:
        key = view.text("node_id") if by_node else view.keys
        frame = pl.DataFrame({
            "key": key, "node_id": view.text("node_id"), "model": view.text("gpu_model_last").fill_null("unknown"),
            "day": np.floor(view.t_s / 86400.0).astype(np.int64), "excess": excess, "own": own, "peer": median,
        }).filter(pl.col("excess").is_not_nan())  # fmt: skip
        days = frame.group_by("key", "day", maintain_order=True).agg(
            pl.col("node_id", "model").last(), pl.col("excess", "own", "peer").median(), pl.len().alias("hours")
        )
        self._days.setdefault(name, []).append(days)

    def _errors(self, view: View, grew: Floats) -> None:
        frame = pl.DataFrame({"key": view.keys, "node_id": view.text("node_id"), "t": view.t_s, "grew": grew})
        known = frame.filter(pl.col("grew").is_not_nan())
        self._days.setdefault("errors", []).append(
            known.group_by("key", maintain_order=True).agg(
                pl.col("node_id").last(),
                pl.col("grew").sum(),
                pl.len().alias("hours"),
                pl.col("t").filter(pl.col("grew") > 0).min().alias("first"),
            )  # fmt: skip
        )

    def found(self, last_days: int = 7) -> Iterator[Level]:
        """What is worth a name: over the last days against peers, and memory errors over all of it."""
        for measure in MEASURES:
            yield from _against_peers(measure, self._all(measure.name), last_days, of_node=False)
            yield from _against_peers(measure, self._all(f"node.{measure.name}"), last_days, of_node=True)
        yield from _many_errors(self._all("errors"))

    def _all(self, name: str) -> pl.DataFrame:
        parts = self._days.get(name)
        return pl.concat(parts) if parts else pl.DataFrame()


def _own(measure: Measure, view: View) -> Floats:
    """The measured value in its unit."""
    if measure.name == "clock":
        return view.x["sm_clock_mhz_mean"]
    if measure.name == "temp":
        return view.x["temp_c_mean"]
    return np.full(len(view), np.nan)


def _grew(view: View) -> Floats:
    volatile = view.x["ecc_sbe_volatile_delta"]
    delta = np.where(np.isnan(volatile), view.x["ecc_sbe_aggregate_delta"], volatile)
    return np.where(np.isnan(delta), np.nan, (delta > 0).astype(np.float64))


def _against_peers(measure: Measure, days: pl.DataFrame, last_days: int, *, of_node: bool) -> Iterator[Level]:
    """The detectors' daily level test (robust z with self left out, Benjamini–Hochberg at 5 %) over the last days."""
    if days.is_empty():
        return
    newest = int(days.get_column("day").max() or 0)  # type: ignore[arg-type]  # day is an integer column
    recent = (
        days.filter(pl.col("day") > newest - last_days)
        .group_by("key", maintain_order=True)
        .agg(pl.col("node_id", "model").last(), pl.col("excess", "own", "peer").median(), pl.col("hours").sum())
    )
    recent = recent.filter(pl.col("hours") >= _LEAST_HOURS).sort("key")
    excess = recent.get_column("excess").to_numpy()
    groups = codes(recent.get_column("model"))
    z, above, peers = residual.robust_z(excess, groups, measure.floor)
    p = np.where(np.isnan(z), np.nan, conformal.robust_tail(np.nan_to_num(z), peers))
    flagged = conformal.benjamini_hochberg(p) & (above >= measure.least)
    for i in np.flatnonzero(flagged):
        row = recent.row(int(i), named=True)
        effect = float(np.expm1(above[i]) if measure.logs else above[i])
        yield Level(
            key="" if of_node else row["key"], node_id=row["node_id"], cause=measure.cause, signal=measure.name,
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
        return float(np.exp(-row["peer"]))
    return row["own"] - row["excess"] if measure.name == "temp" else None


def _since(days: pl.DataFrame, least: float) -> int:
    """The first of the known days in a row, up to the last, on which it was so."""
    since = 0
    for day, excess in days.sort("day", descending=True).select("day", "excess").iter_rows():
        if since and excess < least:
            break
        since = day
    return since


def _many_errors(parts: pl.DataFrame) -> Iterator[Level]:
    """GPUs whose clock hours with corrected errors are more than the fleet's own law gives, over all of the time."""
    if parts.is_empty():
        return
    total = parts.group_by("key", maintain_order=True).agg(
        pl.col("node_id").last(), pl.col("grew", "hours").sum(), pl.col("first").min()
    ).sort("key")  # fmt: skip
    hits = total.get_column("grew").to_numpy()
    hours = total.get_column("hours").cast(pl.Float64).to_numpy()
    law = growth.fitted(hits, hours, PRIOR)
    p = conformal.negative_binomial_tail(hits, np.full(len(hits), law.shape), np.full(len(hits), law.rate_h), hours)
    for i in np.flatnonzero(conformal.benjamini_hochberg(p, _MOST_FALSE) & (hits >= _LEAST_ERROR_HOURS)):
        row = total.row(int(i), named=True)
        others = float(np.median(np.delete(hits, i))) if len(hits) > 1 else 0.0
        yield Level(
            key=row["key"], node_id=row["node_id"], cause="memory_errors", signal="error_hours",
            words=f"corrected memory errors in {int(hits[i])} of {int(hours[i]):,} hours",
            weight=float(-np.log10(max(p[i], 1e-300)) / _ERROR_DIGITS), p=float(p[i]), hours=int(hits[i]),
            peers=len(hits) - 1, since_day=int(row["first"] // 86400), value=float(hits[i]), peer_median=others,
            unit="hours with errors",
        )  # fmt: skip
