"""A site's terms for incidents: the page budget, what is due when, what a GPU-hour costs."""

from __future__ import annotations

from collections.abc import Mapping

from graynode.detectors.incidents import Incidents
from graynode.detectors.pages import Budget
from graynode.detectors.waiting import Terms
from graynode.pipeline.lake import Lake, LakeError
from graynode.service.config import Config


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
