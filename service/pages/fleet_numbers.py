"""Numbers of the fleet beside its grid: availability, MTBF, MTTR, false alarms against the budget."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from graynode.service.api.fleet import read_fleet
from graynode.service.api.problems import Problem
from graynode.service.api.spans import Span
from graynode.service.api.state import Served


def numbers(served: Served) -> dict[str, Any]:
    """The fleet's one row of the last week of data; empty where the lake cannot be asked: the grid is worth showing."""
    at = served.at()
    try:
        return read_fleet(served, Span(at - timedelta(days=7), at, said=False))
    except Problem:
        return {}
