"""Budgets per account and calendar month (UTC), and their alerts at 80 and 100 %: alerts only, nothing is stopped.

An alert is a row of table ``event`` (``source`` cost, ``kind`` budget, ``code`` 80 or 100) whose ``event_id`` follows
from account, month and level: told once each period however often it is asked, and whoever routes events can route it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.collectors.base import utc_now
from graynode.pipeline.queries import Queries, quoted
from graynode.pipeline.schema import stable_id
from graynode.service import cost
from graynode.service.config import Config
from graynode.service.cost_days import KEPT, Days

LEVELS: Final = (80, 100)
_TOLD: Final = (
    "SELECT event_id FROM event WHERE kind = 'budget' AND cluster = {cluster} AND ts >= TIMESTAMPTZ '{since}'"
)


def read(queries: Queries, config: Config, *, at: datetime | None = None, days: Days = KEPT) -> dict[str, Any]:
    """A row an account with a budget: used of it in the month that ``at`` ends, its share, the level reached.

    Worst first. In money where every GPU-hour of the account has a price, else in GPU-hours: ``unit`` says which. At a
    month's first midnight the month that ended is whole, and told.
    """
    until = (at or utc_now()).astimezone(UTC)
    since = (until - timedelta(microseconds=1)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    until = until.replace(minute=0, second=0, microsecond=0)
    period, notes = f"{since:%Y-%m}", list[str]()
    prices = cost.known_prices(queries, config)
    unit = prices.currency or "money" if prices else "GPU-hours"
    told = {"period": period, "unit": unit, "at": until, "rows": [], "notes": notes}
    if not config.cost.budgets:
        return {**told, "cluster": config.cluster}
    cluster, rows = cost.hours(queries, config, since, until, days)
    spent = cost.with_money(rows.filter(pl.col("job_id").is_not_null()), prices)
    column = "cost" if prices else "gpu_hours"
    sums = spent.group_by("account").agg(pl.col(column).sum().alias("used"), pl.col(column).null_count().alias("none"))
    used = {account: (amount, none) for account, amount, none in sums.iter_rows()}
    made = []
    for account, budget in config.cost.budgets.items():
        amount, none = used.get(account, (0.0, 0))
        share = amount / budget
        level = max((lv for lv in LEVELS if share >= lv / 100.0), default=0)
        made.append({"account": account, "period": period, "budget": budget, "unit": unit, "used": amount,
                     "share": share, "level": level})  # fmt: skip
        if none:
            notes.append(f"{account}: some of its GPU-hours have no price, so more is used than is told")
    return {**told, "cluster": cluster, "rows": sorted(made, key=lambda r: (-r["share"], r["account"]))}


def alerts(found: Mapping[str, Any], now: datetime) -> list[dict[str, Any]]:
    """Rows of table ``event`` for the levels that were reached, both of an account that is over."""
    made = []
    for row in found["rows"]:
        for level in (lv for lv in LEVELS if row["level"] >= lv):
            said = f"account {row['account']} has used {row['share']:.0%} of its budget of {row['period']}: " + (
                f"{row['used']:,.0f} of {row['budget']:,.0f} {row['unit']}"
            )
            facts = {k: row[k] for k in ("account", "period", "budget", "used", "unit")} | {"level": level}
            made.append({
                "ts": now, "cluster": found["cluster"], "node_id": "cost", "node": None, "source": "cost",
                "kind": "budget", "code": level,
                "event_id": stable_id("budget", found["cluster"], row["account"], row["period"], level),
                "message": said, "attributes": json.dumps(facts, sort_keys=True), "observed_ts": now,
                "ts_quality": "observed",
            })  # fmt: skip
    return made


def untold(queries: Queries, found: Mapping[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that the lake does not have yet."""
    since = f"{found['period']}-01T00:00:00+00:00"
    known = {r["event_id"] for r in queries.rows(_TOLD.format(cluster=quoted(found["cluster"]), since=since))}
    return [row for row in rows if row["event_id"] not in known]
