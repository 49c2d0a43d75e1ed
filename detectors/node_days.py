"""A node's day in one row: the largest score of each signal over the day's windows and the node's GPUs.

Scores are read from what the detectors remember, because findings begin at half a threshold and what thresholds are
made of lies below. A signal that accumulates nothing is seen by its findings only. Scores stay within twice their
threshold (``accumulate.advance``), so a larger maximum says "at least".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, ClassVar, Final

import polars as pl

from graynode.detectors import slow, thermal
from graynode.detectors.base import Round, State
from graynode.detectors.frames import epoch_s
from graynode.detectors.thresholds import Thresholds

ALL: Final = "*"
"""Detector and signal of the row that says of a node-day: seen in so many windows, and the largest part of all."""
_WATCHED: Final = ("power_at_clock",)
"""Signals whose findings are for the digest whatever their score: nobody is told, so they spend no budget."""
_RUNS: Final[Mapping[str, tuple[str, ...]]] = {
    "slow": tuple(s for s in slow.RUNS if s not in _WATCHED),
    "thermal": thermal.SIGNALS,
    "blind": ("latency",),
}
"""Detectors that remember sums (columns ``<signal>.sum`` of their memory), and of which signals."""
_THRESHOLD: Final[Mapping[str, str]] = {"latency": "call_latency"}
"""Where the threshold has another name than the sum."""
_WHO: Final = {"node_id": pl.String, "node": pl.String, "day": pl.Date, "windows": pl.Int32}
_NODE_ONLY: Final = ("job:", "driver:", "cluster:", "rack:", "domain:", "switch:")


def fitted_signals(thresholds: Thresholds, window_s: int) -> dict[tuple[str, str, int], float]:
    """The signals whose maxima are kept whole, with their thresholds: those that a site can fit for itself."""
    found = {}
    for detector, signals in _RUNS.items():
        for signal in (_THRESHOLD.get(s, s) for s in signals):
            try:
                found[detector, signal, window_s] = thresholds.value(detector, signal, window_s)
            except KeyError:
                continue
    return found


@dataclass(slots=True)
class NodeDays:
    """The maxima of the day that is going on, as a frame that the state of a round can keep.

    Every round and every restored state give the same rows: it knows only what it is given.
    """

    name: ClassVar[str] = "node_days"
    version: ClassVar[int] = 1

    _place: dict[str, tuple[pl.Series, pl.DataFrame, pl.Series]] = field(default_factory=dict)

    def take(
        self, round_: Round, states: Mapping[str, State], findings: pl.DataFrame, thresholds: Thresholds, state: State
    ) -> tuple[State, list[dict[str, Any]]]:
        """After a round: the state, and rows of ``node_day`` for a day that has just ended."""
        day = round_.start.astimezone(UTC).date()
        nodes = _nodes(round_, day)
        if nodes.is_empty():
            return state, []
        before = state.get("day")
        ended: list[dict[str, Any]] = []
        if before is not None and not before.is_empty() and before["day"][0] != day:
            ended = rows(before, round_.window_s, thresholds)
            before = None
        now = nodes
        for part in (*self._sums(round_, states), _parts(findings)):
            now = now.join(part, on="node_id", how="left", maintain_order="left")
        whole = now.with_columns(windows=pl.lit(1, dtype=pl.Int32))
        return {"day": whole if before is None else _merged(before, whole)}, ended

    def _sums(self, round_: Round, states: Mapping[str, State]) -> list[pl.DataFrame]:
        owners, now_s, found = _owners(round_), epoch_s(round_.start), []
        for detector, signals in _RUNS.items():
            for name, frame in states.get(detector, {}).items():
                sums = [s for s in signals if f"{s}.sum" in frame.columns]
                if not sums or frame.is_empty() or not {"key", "seen"} <= set(frame.columns):
                    continue
                node = self._nodes_of(f"{detector}.{name}", frame.get_column("key"), owners)
                most = (
                    frame.lazy()
                    .select("seen", node, *(_sum(detector, s) for s in sums))
                    .filter((pl.col("seen") == now_s) & pl.col("node_id").is_not_null())
                    .group_by("node_id")
                    .agg(pl.exclude("seen").max())
                )
                found.append(most.collect())
        return found

    def _nodes_of(self, place: str, keys: pl.Series, owners: pl.DataFrame) -> pl.Series:
        """The node of each key's GPU, or the node that the key is itself; null where it is not there now."""
        held = self._place.get(place)
        if held is not None and held[0].equals(keys) and held[1].equals(owners):
            return held[2]
        entity = keys.str.extract(r"^([^|/]+)").alias("entity").to_frame()
        node = entity.join(owners, on="entity", how="left", maintain_order="left").get_column("node_id")
        self._place[place] = (keys, owners, node)
        return node


def rows(day: pl.DataFrame, window_s: int, thresholds: Thresholds) -> list[dict[str, Any]]:
    """Rows of table ``node_day`` (without cluster): one a node and signal that had a score, and one of all signals."""
    told: list[dict[str, Any]] = []
    signals = [name for name in day.columns if name not in _WHO and not name.startswith("part.")]
    parts = [name for name in day.columns if name.startswith("part.")]
    limits = {name: _limit(thresholds, name, window_s) for name in signals}
    for row in day.sort("node_id").iter_rows(named=True):
        ts = datetime.combine(row["day"], datetime.min.time(), UTC)
        who = {"ts": ts, "node_id": row["node_id"], "node": row["node"], "windows": row["windows"]}
        who["window_s"] = window_s
        of_all = [row[p] for p in parts if row[p] is not None]
        for name in signals:
            if row[name] is None:
                continue
            detector, signal = name.split(".", 1)
            of_all.append(row[name] / limits[name])
            told.append(
                {**who, "detector": detector, "signal": signal, "maximum": row[name], "threshold": limits[name]}
            )
        for name in parts:
            detector, signal = name.removeprefix("part.").split(".", 1)
            if row[name] is not None and f"{detector}.{signal}" not in signals:
                told.append({**who, "detector": detector, "signal": signal, "maximum": row[name], "threshold": 1.0})
        told.append({**who, "detector": ALL, "signal": ALL, "maximum": max(of_all, default=0.0), "threshold": 1.0})
    return told


def _limit(thresholds: Thresholds, name: str, window_s: int) -> float:
    detector, _, signal = name.partition(".")
    return thresholds.value(detector, signal, window_s)


def _nodes(round_: Round, day: date) -> pl.DataFrame:
    frames = [
        f.select("node_id", "node" if "node" in f.columns else pl.lit(None, dtype=pl.String).alias("node"))
        for f in (round_.gpu, round_.host)
        if "node_id" in f.columns and not f.is_empty()
    ]
    if not frames:
        return pl.DataFrame(schema=_WHO)
    seen = pl.concat(frames).lazy().drop_nulls("node_id").group_by("node_id").agg(pl.col("node").max())
    return seen.sort("node_id").select("node_id", "node", day=pl.lit(day)).collect()


def _sum(detector: str, signal: str) -> pl.Expr:
    return pl.col(f"{signal}.sum").fill_nan(None).alias(f"{detector}.{_THRESHOLD.get(signal, signal)}")


def _owners(round_: Round) -> pl.DataFrame:
    """What keys begin with, and the node that it belongs to: GPUs to theirs, nodes to themselves."""
    parts = [pl.LazyFrame(schema={"entity": pl.String, "node_id": pl.String})]
    for frame, entity in ((round_.gpu, "gpu_uuid"), (round_.host, "node_id")):
        if {entity, "node_id"} <= set(frame.columns):
            parts.append(frame.lazy().select(pl.col(entity).alias("entity"), pl.col("node_id")).drop_nulls())
    return pl.concat(parts).unique("entity", keep="first", maintain_order=True).collect()


def _parts(findings: pl.DataFrame) -> pl.DataFrame:
    """Scores of findings in parts of their thresholds, by node: ``part.<detector>.<signal>``. Shifts are nobody's."""
    if findings.is_empty():
        return pl.DataFrame(schema={"node_id": pl.String})
    of_nodes = findings.filter(
        pl.col("node_id").is_not_null()
        & ~pl.any_horizontal(pl.col("node_id").str.starts_with(p) for p in _NODE_ONLY)
        & (pl.col("severity") != "digest").or_(pl.col("score") < pl.col("threshold"))
    )
    if of_nodes.is_empty():
        return pl.DataFrame(schema={"node_id": pl.String})
    parts = of_nodes.select(
        "node_id",
        name=pl.concat_str(pl.lit("part."), "detector", pl.lit("."), "signal"),
        part=pl.col("score") / pl.col("threshold"),
    )
    return parts.pivot("name", index="node_id", values="part", aggregate_function="max")


def _merged(before: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
    both = pl.concat([before, now], how="diagonal")
    largest = [c for c in both.columns if c not in ("node_id", "windows", "node", "day")]
    return (
        both.lazy()
        .group_by("node_id")
        .agg(pl.col("node").last(), pl.col("day").last(), pl.col("windows").sum(), pl.col(largest).max())
        .sort("node_id")
        .collect()
    )
