"""node-exporter series that fit the tables ``host`` and ``link``: which expression gives which field.

``{x}`` stands for the selector's labels, ``{r}`` for the range that a step looks back. Names as node-exporter's own
collectors give them (``infiniband_linux.go``, ``netclass``, ``meminfo``, ``cpu``, ``timex``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Wanted:
    """One query of a chunk: the expression whose values, times ``factor``, are ``table.field``.

    ``needs`` are the metrics without which it is not asked. ``words`` turns numbers into a state's words.
    """

    table: str
    field: str
    expression: str
    needs: tuple[str, ...]
    factor: float = 1.0
    words: Mapping[int, str] | None = None


def last(metric: str) -> str:
    """The newest sample of the step itself: a plain selector would repeat one that is up to five minutes old."""
    return f"last_over_time({metric}{{{{x}}}}[{{r}}])".replace("{{x}}", "{{{x}}}")


def _plain(table: str, field: str, metric: str, factor: float = 1.0, words: Mapping[int, str] | None = None) -> Wanted:
    return Wanted(table, field, last(metric), (metric,), factor, words)


_STATES: Final = {1: "down", 2: "init", 3: "armed", 4: "active"}
_PHYSICAL: Final = {1: "Sleep", 2: "Polling", 3: "Disabled", 5: "LinkUp", 6: "LinkErrorRecovery"}
