"""A site's terms for detection: its collectives' timeout, the page budget, what is due when, what a GPU-hour costs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import polars as pl
import structlog

from graynode.detectors import links
from graynode.detectors.event_rules import EventRules
from graynode.detectors.incidents import Incidents
from graynode.detectors.pages import Budget
from graynode.detectors.policy import Policy
from graynode.detectors.repeats import WITHIN, codes
from graynode.detectors.thresholds import Thresholds, for_site
from graynode.detectors.waiting import Terms
from graynode.pipeline.lake import Lake, LakeError
from graynode.service.config import Config

_JOBS: Final = timedelta(days=7)


def with_timeout(thresholds: Thresholds, config: Config) -> Thresholds:
    """The thresholds, with the site's timeout of collectives in them where it is configured."""
    seconds = config.detect.collective_timeout_s
    if not seconds:
        return thresholds
    return for_site(thresholds, links.timeout(seconds), f"{thresholds.version} with a timeout of {seconds:g} s")


def event_rules(policy: Policy, lake: Lake, cluster: str, now: datetime) -> EventRules:
    """Event rules that know programs' errors of the last weeks and whose they were: a restart must not forget them.

    Of machines without such an error only the jobs of the last week are taken: later ones are told by the bus.
    """
    rules = EventRules(policy)
    names = ["ts", "cluster", "node_id", "event_id", "kind", "code", "gpu_uuid", "pci_bus_id", "attributes"]
    placed = ["ts", "cluster", "node_id", "job_id", "user", "state", "allocated_ts", "end_ts", "gpu_uuids"]
    try:
        events = lake.read("event", now - WITHIN, now, names)
        ours = (pl.col("cluster") == cluster) & (pl.col("kind") == "xid") & pl.col("code").is_in(sorted(codes(policy)))
        events = events.filter(ours)
        recent = lake.read("job", now - _JOBS, now, placed)
        machines = events.get_column("node_id").unique().sort().to_list()
        earlier = lake.read("job", now - WITHIN, now - _JOBS, placed, machines) if machines else recent.clear()
    except LakeError as error:
        structlog.get_logger().warning("past application errors are not known", reason=str(error))
        return rules
    jobs = pl.concat([earlier, recent]).filter(pl.col("cluster") == cluster).sort("ts", "node_id", "job_id")
    rules.remember(events.iter_rows(named=True), jobs.to_dicts())
    return rules


def incidents(config: Config, lake: Lake) -> Incidents:
    """The incidents of the configured cluster, under the site's terms."""
    detect = config.detect
    prices, currency = _prices(config, lake)
    due = {"page": detect.due_page_h, "ticket": detect.due_ticket_h, "digest": detect.due_digest_h}
    return Incidents(
        config.cluster,
        detect.resolve_after_s,
        budget=Budget(detect.pages_per_shift, detect.shift_h * 3600.0),
        terms=Terms(prices, currency, config.cost.restart_h, due),
    )


def _prices(config: Config, lake: Lake) -> tuple[Mapping[str, float], str]:
    """Prices of the file; without any, the newest of each model in table ``price``, if they are of one currency."""
    if config.cost.per_gpu_hour:
        return config.cost.per_gpu_hour, config.cost.currency
    try:
        rows = lake.read("price", None, None, ["ts", "cluster", "gpu_model", "per_gpu_hour", "currency"])
    except LakeError:
        return {}, ""  # told without money; the next start asks again
    named = rows.drop_nulls(["gpu_model", "per_gpu_hour"]).sort("ts")
    ours = [row for row in named.iter_rows(named=True) if row["cluster"] == config.cluster]
    currencies = {row["currency"] or "" for row in ours}
    if len(currencies) != 1:
        return {}, ""
    return {row["gpu_model"]: row["per_gpu_hour"] for row in ours}, currencies.pop()
