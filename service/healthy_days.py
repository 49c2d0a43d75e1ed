"""Healthy node-days of a lake: what may stand behind a threshold, and what was left out and why.

A node-day is whole when half of its windows were seen. It is healthy when nobody was told of the node then (or a label
says that this was wrong), the scheduler had not taken it out, no repair was logged, and no label calls it sick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

import polars as pl

from graynode.detectors.calibration import COLUMNS, Key
from graynode.detectors.node_days import ALL
from graynode.pipeline.lake import Lake
from graynode.service.audit import start_of

_TOLD: Final = ("page", "ticket")
_OUT: Final = ("quarantined", "in_repair")
_DAY: Final = pl.Schema({"node_id": pl.String, "day": pl.Date, "reason": pl.String})
_WHOLE: Final = 0.5
_OPEN_FOR: Final = timedelta(days=400)
"""How far back an incident may have begun that is still open."""


@dataclass(frozen=True, slots=True)
class HealthyDays:
    """``maxima`` of healthy node-days (columns of ``calibration``, detector ``*`` for all signals) and the rest.

    ``whole`` node-days were seen; ``left_out`` counts by reason those that are not in ``maxima``; ``unjudged`` are
    those left out on which statistics told something that nobody has judged; ``in_force`` the thresholds of that time.
    """

    maxima: pl.DataFrame
    whole: int
    left_out: Mapping[str, int]
    unjudged: int
    in_force: Mapping[Key, float]
    names: Mapping[str, str]

    @property
    def node_days(self) -> pl.DataFrame:
        """Healthy node-days with ``told``: whether a score reached its threshold of then."""
        rows = self.maxima.filter(pl.col("detector") == ALL)
        return rows.select("node_id", "day", told=pl.col("maximum") >= 1.0)

    @property
    def nodes(self) -> int:
        """Nodes among them."""
        return self.maxima.get_column("node_id").n_unique()


def read(lake: Lake, cluster: str, since: datetime, until: datetime, window_s: int = 30) -> HealthyDays:
    """The healthy node-days that began in ``[since, until)``."""
    rows = _rows(lake, cluster, since, until, window_s)
    whole = rows.filter((pl.col("detector") == ALL) & (pl.col("windows") >= _WHOLE * 86_400 / window_s))
    days = whole.select("node_id", "day", part="maximum")
    sick, judged_false = _sick(lake, cluster, since, until)
    out = (
        sick.join(days, on=["node_id", "day"])
        .join(judged_false, on=["node_id", "day"], how="anti")
        .unique(["node_id", "day"], keep="first", maintain_order=True)
    )
    healthy = days.join(out, on=["node_id", "day"], how="anti").select("node_id", "day")
    maxima = rows.join(healthy, on=["node_id", "day"]).select(list(COLUMNS))
    unjudged = out.filter((pl.col("reason") == "an incident that nobody has judged") & (pl.col("part") >= 1.0)).height
    reasons = dict(out.group_by("reason").len().sort("reason").iter_rows())
    limits = (
        rows.filter(pl.col("detector") != ALL).group_by("detector", "signal", "window_s").agg(pl.col("limit").min())
    )
    named = rows.drop_nulls("node").group_by("node_id").agg(pl.col("node").last())
    return HealthyDays(
        maxima,
        whole.height,
        reasons,
        unjudged,
        {(d, s, w): limit for d, s, w, limit in limits.iter_rows() if limit is not None},
        dict(named.iter_rows()),
    )


def _rows(lake: Lake, cluster: str, since: datetime, until: datetime, window_s: int) -> pl.DataFrame:
    columns = ["ts", "cluster", "node_id", "node", "detector", "signal", "maximum", "windows", "window_s", "threshold"]
    read = lake.read("node_day", since, until, columns)
    key = ["node_id", "day", "detector", "signal", "window_s"]
    return (
        read.lazy()
        .filter((pl.col("cluster") == cluster) & (pl.col("window_s") == window_s))
        .with_columns(day=pl.col("ts").dt.date())
        .group_by(key)
        .agg(pl.col("node").last(), pl.col("maximum", "windows").max(), limit=pl.col("threshold").min())
        .sort(key)
        .collect()
    )


def _sick(lake: Lake, cluster: str, since: datetime, until: datetime) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Node-days that are not healthy with the first reason that applies; and those that a label calls healthy."""
    labels = lake.read("label", None, None, ["ts", "cluster", "incident_id", "node_id", "period", "verdict"])
    now = (
        labels.filter(pl.col("cluster") == cluster)
        .sort("ts", maintain_order=True)
        .unique(["incident_id", "node_id", "period"], keep="last", maintain_order=True)
    )
    periods = now.filter(pl.col("incident_id").is_null() & pl.col("period").is_not_null())
    incidents = _incidents(lake, cluster, since, until, now)
    parts = [
        _periods(periods.filter(pl.col("verdict") == "true"), "a label that calls it sick"),
        incidents,
        _states(lake, cluster, until),
        _repairs(lake, cluster, since, until),
    ]
    return pl.concat(parts), _periods(periods.filter(pl.col("verdict") == "false"), "").drop("reason")


def _incidents(lake: Lake, cluster: str, since: datetime, until: datetime, labels: pl.DataFrame) -> pl.DataFrame:
    columns = ["ts", "cluster", "node_id", "incident_id", "revision", "severity", "since", "resolved_ts", "state"]
    rows = lake.read("incident", since - _OPEN_FOR, until + timedelta(days=7), columns)
    told = rows.lazy().filter((pl.col("cluster") == cluster) & pl.col("severity").is_in(_TOLD))
    latest = (
        told.sort("revision")
        .group_by("incident_id")
        .agg(pl.col("node_id", "since").first(), pl.col("resolved_ts").last())
    )
    verdicts = labels.lazy().drop_nulls("incident_id").select("incident_id", "verdict")
    spans = (
        latest.join(verdicts, on="incident_id", how="left")
        .filter(pl.col("verdict").fill_null("none") != "false")
        .with_columns(
            reason=pl.when(pl.col("verdict") == "true")
            .then(pl.lit("an incident labelled true"))
            .otherwise(pl.lit("an incident that nobody has judged"))
        )
        .select("node_id", "reason", begin="since", end=pl.col("resolved_ts").fill_null(until))
    )
    return _days(spans.collect(), since)


def _states(lake: Lake, cluster: str, until: datetime) -> pl.DataFrame:
    rows = lake.read("node_state", None, until, ["ts", "cluster", "node_id", "state"])
    spans = (
        rows.lazy()
        .filter(pl.col("cluster") == cluster)
        .sort("node_id", "ts")
        .with_columns(end=pl.col("ts").shift(-1).over("node_id").fill_null(until))
        .filter(pl.col("state").is_in(_OUT))
        .select("node_id", begin="ts", end="end", reason=pl.lit("taken out of scheduling"))
    )
    return _days(spans.collect())


def _repairs(lake: Lake, cluster: str, since: datetime, until: datetime) -> pl.DataFrame:
    rows = lake.read("repair", since, until, ["ts", "cluster", "node_id"]).filter(pl.col("cluster") == cluster)
    return _days(rows.select("node_id", begin="ts", end="ts", reason=pl.lit("the day of a repair")))


def _days(spans: pl.DataFrame, since: datetime | None = None) -> pl.DataFrame:
    """The days from ``begin`` to ``end``, both included."""
    if spans.is_empty():
        return pl.DataFrame(schema=_DAY)
    begin = pl.col("begin").dt.date()
    if since is not None:
        begin = pl.max_horizontal(begin, pl.lit(since.date()))
    days = spans.filter(pl.col("node_id").is_not_null()).with_columns(begin=begin, end=pl.col("end").dt.date())
    kept = days.filter(pl.col("begin") <= pl.col("end"))
    listed = kept.select("node_id", pl.date_ranges("begin", "end").alias("day"), "reason")
    return listed.explode("day").match_to_schema(_DAY)


def _periods(labels: pl.DataFrame, reason: str) -> pl.DataFrame:
    rows = []
    for node_id, period in labels.select("node_id", "period").iter_rows():
        first = start_of(period).date() if "W" in period else date.fromisoformat(period)
        rows += [(node_id, first + timedelta(days=d), reason) for d in range(7 if "W" in period else 1)]
    return pl.DataFrame(rows, schema=_DAY, orient="row")


def midnight(moment: datetime) -> datetime:
    """The beginning of its day, UTC."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
