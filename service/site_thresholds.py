"""A site's accepted thresholds, its budget, and whether its statistics speak yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.detectors import calibration
from graynode.detectors.calibration import Key, Rate
from graynode.detectors.drift import Drift, drifted
from graynode.detectors.thresholds import Thresholds, for_site, shipped
from graynode.pipeline.lake import Lake
from graynode.service.config import Config
from graynode.service.healthy_days import HealthyDays, midnight, read

SHIPPED: Final = "shipped"
LOOKED_AT: Final = timedelta(days=90)
_RECENT: Final = timedelta(days=7)
_DAYS_OF_WEEK: Final = 7.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A set that somebody has put in force, or a candidate."""

    set_id: str
    at: datetime
    state: str
    who: str
    why: str
    rows: pl.DataFrame

    @property
    def values(self) -> dict[Key, float]:
        """Thresholds."""
        return {(d, s, w): v for d, s, w, v in self.rows.select("detector", "signal", "window_s", "value").iter_rows()}

    @property
    def usual_most(self) -> dict[Key, float]:
        """The quantile of the maxima behind each, where a site's own days are behind it."""
        rows = self.rows.drop_nulls("usual_most").select("detector", "signal", "window_s", "usual_most")
        return {(d, s, w): v for d, s, w, v in rows.iter_rows()}

    def first(self, column: str) -> Any:  # noqa: ANN401 (a column's own type)
        """What all rows of a set share."""
        return self.rows.get_column(column)[0]


def sets(lake: Lake, cluster: str) -> list[Accepted]:
    """All sets of the lake, the latest first; one that was accepted is there as candidate and as accepted."""
    rows = lake.read("threshold").filter((pl.col("cluster") == cluster) & pl.col("set_id").is_not_null())
    once = rows.unique(["set_id", "ts", "state", "detector", "signal", "window_s"], keep="first")
    found = []
    for (ts, set_id, state), part in once.group_by(["ts", "set_id", "state"]):
        ordered = part.sort("detector", "signal", "window_s")
        who, why = ordered.get_column("who")[0] or "", ordered.get_column("why")[0] or ""
        assert isinstance(ts, datetime)  # noqa: S101 (a timestamp column; narrows the type)
        found.append(Accepted(str(set_id), ts, str(state), who, why, ordered))
    return sorted(found, key=lambda s: (s.at, s.state, s.set_id), reverse=True)


def accepted(lake: Lake, cluster: str) -> Accepted | None:
    """The set in force, if the site has one."""
    return next((s for s in sets(lake, cluster) if s.state == "accepted"), None)


def in_force(of: Accepted | None) -> Thresholds:
    """The thresholds that detectors decide by."""
    if of is None or of.set_id.startswith(SHIPPED):
        return shipped()
    return for_site(shipped(), of.values, of.set_id)


@dataclass(frozen=True, slots=True)
class Budget:
    """False findings per node-day, and what that is a week where the number of nodes is known."""

    per_node_day: float
    nodes: int
    key: str

    @property
    def per_week(self) -> float:
        """For the whole fleet."""
        return self.per_node_day * self.nodes * _DAYS_OF_WEEK

    @property
    def text(self) -> str:
        """Both, for a person."""
        week = f", {self.per_week:.2g} a week for {self.nodes:,} nodes" if self.nodes else ""
        return f"{self.per_node_day:.2g} false findings a node-day{week} ([detect] {self.key})"


def budget(config: Config, nodes: int) -> Budget:
    """As configured: a week of the fleet's where that is set and the fleet is known, else a node-day's."""
    section = config.detect
    if section.budget_per_week > 0 and nodes > 0:
        return Budget(section.budget_per_week / (nodes * _DAYS_OF_WEEK), nodes, "budget_per_week")
    return Budget(section.budget_per_node_day, nodes, "budget_per_node_day")


def fleet(lake: Lake, cluster: str, now: datetime) -> int:
    """How many nodes there were in the last week: by their days, or where none has ended yet by their windows."""
    for table, back in (
        ("node_day", _RECENT + timedelta(days=1)),
        ("host_30s", timedelta(hours=1)),
        ("gpu_1h", _RECENT),
    ):
        rows = lake.read(table, now - back, None, ["cluster", "node_id"])
        nodes = rows.filter(pl.col("cluster") == cluster).get_column("node_id").n_unique()
        if nodes:
            return nodes
    return 0


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a site: its set, budget, healthy days and their false rate; whether its statistics speak."""

    accepted: Accepted | None
    thresholds: Thresholds
    budget: Budget
    days: HealthyDays
    rate: Rate
    shadow: bool
    because: str


def standing(config: Config, lake: Lake, now: datetime, since: datetime | None = None) -> Standing:
    """Read it all; ``LakeError`` where the lake cannot be read."""
    chosen = accepted(lake, config.cluster)
    days = read(lake, config.cluster, midnight(since or now - LOOKED_AT), now)
    limit = budget(config, fleet(lake, config.cluster, now))
    since_set = days.node_days if chosen is None else days.node_days.filter(pl.col("day") > chosen.at.date())
    rate = calibration.false_rate(since_set)
    shadow, because = speaks(config, chosen, limit, calibration.false_rate(days.node_days))
    return Standing(chosen, in_force(chosen), limit, days, rate, shadow, because)


def speaks(config: Config, chosen: Accepted | None, limit: Budget, rate: Rate) -> tuple[bool, str]:
    """Whether statistics are in shadow, and why; ``rules`` always speak.

    A site leaves the shadow when somebody accepts thresholds, or when its own healthy node-days certify the budget for
    those in force: that takes about 3 / budget of them.
    """
    need = calibration.needed(limit.per_node_day)
    if not config.detect.shadow:
        return False, "[detect] shadow = false"
    if chosen is not None:
        return False, f"set {chosen.set_id} was accepted by {chosen.who} on {chosen.at:%Y-%m-%d}"
    if rate.node_days < need:
        return True, f"{rate.node_days:,} healthy node-days of {need:,} that certify the budget, and no set is accepted"
    if rate.upper > limit.per_node_day:
        return True, (
            f"{rate.told} findings on {rate.node_days:,} healthy node-days: up to {rate.upper:.2g} a node-day, over "
            "the budget; graynode thresholds fit"
        )
    return False, f"{rate.node_days:,} healthy node-days certify the budget"


def drift(of: Accepted | None, days: HealthyDays, now: datetime) -> list[Drift]:
    """Signals whose last week of healthy node-days is not what the set was made of."""
    usual: Mapping[Key, float] = of.usual_most if of is not None else {}
    if not usual:
        return []
    recent = days.maxima.filter(pl.col("day") >= (now - _RECENT).date())
    return drifted(recent, usual)
