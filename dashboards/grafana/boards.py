"""All dashboards. Importing this takes seconds: the SDK is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from graynode.dashboards.grafana import cost, fleet, health, incident, job, memory, net, node
from graynode.dashboards.grafana.board import Board

BOARDS: Final[tuple[Callable[[], Board], ...]] = (
    fleet.board,
    node.board,
    incident.board,
    net.board,
    memory.board,
    job.board,
    cost.board,
    health.board,
)
"""In the order in which a person comes to them."""
