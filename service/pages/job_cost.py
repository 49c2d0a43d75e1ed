"""What one job cost, in a few facts; empty where cost cannot be told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from graynode.dashboards.pages import words
from graynode.service.api.answers import Row
from graynode.service.api.bounded import lake_problems
from graynode.service.api.state import Served


def cost_facts(served: Served, it: Row) -> list[tuple[str, str]]:
    """Names and values: GPU-hours, cost, what was lost and to whom that is owed."""
    from graynode.service import cost_jobs
    from graynode.service.config import ConfigError

    begin = it["allocated_ts"]
    if begin is None:
        return []
    until = (it["end_ts"] or served.at()) + timedelta(seconds=1)
    try:
        with lake_problems():
            told = cost_jobs.read(served.queries, served.config, since=begin, until=until, job_id=str(it["job_id"]))
    except ConfigError as error:
        return [("Cost", f"cannot be told: {error}")]
    return [fact for row in told["rows"] for fact in _facts(row, told.get("currency"))]


def _facts(row: dict[str, Any], currency: str | None) -> list[tuple[str, str]]:
    """Only what is known."""
    hours = (("GPU-hours", "gpu_hours"), ("GPU-hours lost", "lost_gpu_hours"))
    lengths = (("Work that was repeated", "repeated_s"), ("Time to resume", "resume_s"))
    told = [(name, words.short(row.get(key))) for name, key in hours]
    told += [(name, words.span(row.get(key))) for name, key in lengths]
    told += [("Cost", words.money(row.get("cost"), currency)), ("Owed to", words.spaced(row.get("owed_to")))]
    return [(name, value) for name, value in told if value is not None]
