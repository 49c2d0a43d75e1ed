"""Numbers of the fleet beside its grid: availability, MTBF, MTTR, false alarms against the budget."""

from __future__ import annotations

from typing import Any, Final

from graynode.service.api.state import Served

_NAMES: Final = ("availability", "mtbf_h", "mttr_h", "false_per_node_day", "budget")


def numbers(served: Served) -> dict[str, Any]:
    """Each number, none where it could not be told."""
    return dict.fromkeys(_NAMES)
