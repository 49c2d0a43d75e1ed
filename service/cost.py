"""``graynode cost``: where the GPU-hours went, what they cost, and utilisation beside what it hides.

A user's, account's or kind of work's hours are those of its jobs, working or not. Hours without a job (free, stranded,
reserved, out of service, held, blind) are nobody's and stand under ``(no job)``; they are not spread over users.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.collectors.base import utc_now
from graynode.pipeline.gpu_hours import CATEGORIES
from graynode.pipeline.queries import Queries, quoted
from graynode.service.config import Config, ConfigError
from graynode.service.cost_days import KEPT, MEANS, Days
from graynode.service.cost_prices import Prices, WrongPrice
from graynode.service.cost_work import with_rules

BY: Final = ("category", "user", "account", "team", "partition", "work", "model")
NO_JOB: Final = "(no job)"
UNKNOWN: Final = "(unknown)"
_COLUMN: Final = {"model": "gpu_model"}
_PRICES: Final = "SELECT ts, gpu_model, per_gpu_hour, currency FROM price WHERE cluster IS NULL OR cluster = "
_DEFAULT: Final = timedelta(days=7)


def read(
    queries: Queries, config: Config, *, since: datetime | None = None, until: datetime | None = None,
    by: str = "category", days: Days = KEPT,
) -> dict[str, Any]:  # fmt: skip
    """GPU-hours, money, energy and activity by ``by``, most hours first, and in all; the last week if not said.

    ``ConfigError`` for another ``by``, a stretch that ends before it begins, or a wrong price.
    """
    if by not in BY:
        raise ConfigError(f"--by {by!r}: one of {', '.join(BY)}")
    since, until = stretch(since, until)
    cluster, rows = hours(queries, config, since, until, days)
    prices = known_prices(queries, config)
    costed = with_money(rows, prices)
    key = pl.col(_COLUMN.get(by, by))
    if by not in ("category", "model"):
        key = pl.when(pl.col("job_id").is_null()).then(pl.lit(NO_JOB)).otherwise(key)
    summed = _summed(costed.with_columns(key.fill_null(UNKNOWN).alias("key")), bool(prices))
    total = summed.pop() if summed else {}
    return {
        "cluster": cluster, "since": since, "until": until, "by": by, "currency": prices.currency or None,
        "rows": summed, "total": total, "notes": _notes(costed, prices, total),
    }  # fmt: skip


def stretch(since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    """The stretch asked for; without an end until the last whole hour, without a beginning a week of it."""
    end = (until or utc_now().replace(minute=0, second=0, microsecond=0)).astimezone(UTC)
    begin = (since or end - _DEFAULT).astimezone(UTC)
    if begin >= end:
        raise ConfigError(f"--since {begin.isoformat()}: is not before --until {end.isoformat()}")
    return begin, end


def hours(
    queries: Queries, config: Config, since: datetime, until: datetime, days: Days = KEPT
) -> tuple[str, pl.DataFrame]:
    """The cluster asked (the only one there is, where that has nothing) and its rows of ``cost_days``, by the rules."""
    rows = days.between(queries, since, until)
    there = rows.get_column("cluster").unique().to_list()
    cluster = there[0] if config.cluster not in there and len(there) == 1 else config.cluster
    return cluster, with_rules(rows.filter(pl.col("cluster") == cluster), config.cost)


def known_prices(queries: Queries, config: Config) -> Prices:
    """Prices in force; ``ConfigError`` where the configured ones cannot be meant."""
    try:
        return Prices(config.cost, queries.rows(_PRICES + quoted(config.cluster)))
    except WrongPrice as error:
        raise ConfigError(str(error)) from error


def with_money(rows: pl.DataFrame, prices: Prices) -> pl.DataFrame:
    """Rows with ``cost`` (null where no price is known) and ``energy_kwh`` (null where power was never measured)."""
    pairs = rows.select("gpu_model", "day").unique().sort("gpu_model", "day")
    found = [prices.of(model, day) for model, day in pairs.iter_rows()]
    priced = pairs.with_columns(
        pl.Series(name, [getattr(p, name) if p else None for p in found], pl.Float64)
        for name in ("fixed", "per_kwh", "host_w")
    )
    measured = pl.when(pl.col("power_w_of_h") > 0).then(pl.col("power_w_h") / 1000.0)
    drawn = measured.fill_null(0.0) + pl.col("host_w") * pl.col("gpu_hours") / 1000.0
    return rows.join(priced, on=["gpu_model", "day"], how="left", nulls_equal=True).with_columns(
        measured.alias("energy_kwh"),
        (pl.col("fixed") * pl.col("gpu_hours") + pl.col("per_kwh") * drawn).alias("cost"),
    )


def _summed(rows: pl.DataFrame, priced: bool) -> list[dict[str, Any]]:
    """A flat row a key, most hours first, and the total as the last; empty where there is nothing."""
    if rows.is_empty():
        return []
    by_key = rows.group_by("key").agg(_measures(priced)).sort(["gpu_hours", "key"], descending=[True, False])
    both = pl.concat([by_key, rows.select(pl.lit("total").alias("key"), *_measures(priced))])
    owned = both.get_column("gpu_hours")[-1]
    made = both.with_columns((pl.col("gpu_hours") / owned if owned else pl.lit(None)).alias("share"))
    return made.to_dicts()


def _measures(priced: bool) -> Iterable[pl.Expr]:
    """Sums of a group. Money is null, not too little, where a part of its hours has no price."""
    yield pl.col("gpu_hours").sum()
    known = pl.col("cost").is_not_null().all() & pl.lit(priced)
    yield pl.when(known).then(pl.col("cost").sum()).alias("cost")
    measured = pl.col("energy_kwh").is_not_null().any()
    yield pl.when(measured).then(pl.col("energy_kwh").sum()).alias("energy_kwh")
    for mean in MEANS:
        seen = pl.col(f"{mean}_of_h").sum()
        yield pl.when(seen > 0).then(pl.col(f"{mean}_h").sum() / seen).alias(mean)
    for category in CATEGORIES:
        yield pl.col("gpu_hours").filter(pl.col("category") == category).sum().alias(f"{category}_gpu_h")


def _notes(rows: pl.DataFrame, prices: Prices, total: dict[str, Any]) -> list[str]:
    notes = list(prices.notes)
    if not total:
        return [*notes, "no GPU was owned then as far as the lake knows: gpu_1h has no rows of that stretch"]
    if not prices:
        notes.append("no price is configured, so nothing is told in money (docs/cost.md)")
    elif total["cost"] is None:
        unpriced = rows.filter(pl.col("cost").is_null())
        models = ", ".join(sorted(str(m) for m in unpriced.get_column("gpu_model").unique().to_list())[:5])
        notes.append(f"no price for {unpriced.get_column('gpu_hours').sum():,.0f} GPU-hours of {models}")
    blind = total["blind_gpu_h"] / total["gpu_hours"] if total["gpu_hours"] else 0.0
    if blind > 0.05:
        notes.append(f"{blind:.0%} of the hours were not measured: what they were used for is not known")
    return notes
