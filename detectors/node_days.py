"""A node's day in one row: the largest score of each signal over the day's windows and the node's GPUs.

Scores are read from what the detectors remember, because findings begin at half a threshold and what thresholds are
made of lies below. A signal that accumulates nothing is seen by its findings only. Scores stay within twice their
threshold (``accumulate.advance``), so a larger maximum says "at least".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

    _place: dict[str, tuple[pl.Series, list[pl.Series], pl.Series]] = field(default_factory=dict)

    def take(
        self, round_: Round, states: Mapping[str, State], findings: pl.DataFrame, thresholds: Thresholds, state: State
    ) -> tuple[State, list[dict[str, Any]]]:
        """After a round: the state, and rows of ``node_day`` for a day that has just ended."""
        day = round_.start.astimezone(UTC).date()
        nodes = _nodes(round_, day)
        if nodes is None:
            return state, []
        before = state.get("day")
        ended: list[dict[str, Any]] = []
        if before is not None and not before.is_empty() and before["day"][0] != day:
            ended = rows(before, round_.window_s, thresholds)
            before = None
        held = [] if before is None else [before.lazy()]
        return {"day": _merged([*held, nodes, *self._sums(round_, states), *_parts(findings)])}, ended

    def _sums(self, round_: Round, states: Mapping[str, State]) -> Iterator[pl.LazyFrame]:
        """One row an entity that is here now: its node and its sums."""
        now_s = epoch_s(round_.start)
        for detector, signals in _RUNS.items():
            for name, frame in states.get(detector, {}).items():
                sums = [s for s in signals if f"{s}.sum" in frame.columns]
                if not sums or frame.is_empty() or not {"key", "seen"} <= set(frame.columns):
                    continue
                node = self._nodes_of(f"{detector}.{name}", frame.get_column("key"), round_)
                yield (
                    frame.lazy()
                    .select("seen", node, *(_sum(detector, s) for s in sums))
                    .filter((pl.col("seen") == now_s) & pl.col("node_id").is_not_null())
                    .drop("seen")
                )

    def _nodes_of(self, place: str, keys: pl.Series, round_: Round) -> pl.Series:
        """The node of each key's GPU, or the node that the key is itself; null where it is not there now."""
        here = [f.get_column(n) for f, c in _entities(round_) for n in (c, "node_id") if {c, n} <= set(f.columns)]
        held = self._place.get(place)
        if held is not None and held[0].equals(keys) and _same(held[1], here):
            return held[2]
        entity = keys.str.extract(r"^([^|/]+)").alias("entity").to_frame()
        node = entity.join(_owners(round_), on="entity", how="left", maintain_order="left").get_column("node_id")
        self._place[place] = (keys, here, node)
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


def _nodes(round_: Round, day: date) -> pl.LazyFrame | None:
    """A row a node of the round; ``None``: nobody was seen."""
    frames = [
        f.lazy().select("node_id", "node" if "node" in f.columns else pl.lit(None, dtype=pl.String).alias("node"))
        for f in (round_.gpu, round_.host)
        if "node_id" in f.columns and not f.is_empty()
    ]
    if not frames:
        return None
    seen = pl.concat(frames).drop_nulls("node_id").group_by("node_id").agg(pl.col("node").max())
    return seen.with_columns(day=pl.lit(day), windows=pl.lit(1, dtype=pl.Int32))


def _sum(detector: str, signal: str) -> pl.Expr:
    return pl.col(f"{signal}.sum").fill_nan(None).alias(f"{detector}.{_THRESHOLD.get(signal, signal)}")


def _entities(round_: Round) -> tuple[tuple[pl.DataFrame, str], ...]:
    """What keys begin with: frames and their column."""
    return ((round_.gpu, "gpu_uuid"), (round_.host, "node_id"))


def _same(held: Sequence[pl.Series], here: Sequence[pl.Series]) -> bool:
    return len(held) == len(here) and all(a.equals(b) for a, b in zip(held, here, strict=True))


def _owners(round_: Round) -> pl.DataFrame:
    """What keys begin with, and the node that it belongs to: GPUs to theirs, nodes to themselves."""
    parts = [pl.LazyFrame(schema={"entity": pl.String, "node_id": pl.String})]
    for frame, entity in _entities(round_):
        if {entity, "node_id"} <= set(frame.columns):
            parts.append(frame.lazy().select(pl.col(entity).alias("entity"), pl.col("node_id")).drop_nulls())
    return pl.concat(parts).unique("entity", keep="first", maintain_order=True).collect()


def _parts(findings: pl.DataFrame) -> list[pl.LazyFrame]:
    """Scores of findings in parts of their thresholds, by node: ``part.<detector>.<signal>``. Shifts are nobody's."""
    if findings.is_empty():
        return []
    of_nodes = findings.filter(
        pl.col("node_id").is_not_null()
        & ~pl.any_horizontal(pl.col("node_id").str.starts_with(p) for p in _NODE_ONLY)
        & (pl.col("severity") != "digest").or_(pl.col("score") < pl.col("threshold"))
    )
    if of_nodes.is_empty():
        return []
    parts = of_nodes.select(
        "node_id",
        name=pl.concat_str(pl.lit("part."), "detector", pl.lit("."), "signal"),
        part=pl.col("score") / pl.col("threshold"),
    )
    return [parts.pivot("name", index="node_id", values="part", aggregate_function="max").lazy()]


def _merged(parts: Sequence[pl.LazyFrame]) -> pl.DataFrame:
    """One row a node: windows added up, of all else the largest. Rows of nodes that were not seen count for nothing."""
    both = pl.concat(parts, how="diagonal")
    return (
        both.group_by("node_id")
        .agg(pl.col("node").drop_nulls().last(), pl.col("day").max(), pl.col("windows").sum(), pl.exclude(_WHO).max())
        .filter(pl.col("day").is_not_null())
        .sort("node_id")
        .collect()
    )
