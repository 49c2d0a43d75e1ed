"""The page budget: how often a person may be woken. What exceeds it is grouped under the page that is open, not lost.

A page asks for a decision that no machine can take. One in twelve hours is the target (at most two a shift is a common
upper limit, Site Reliability Engineering, ch. 11). A further one joins the open page, which says so in its next
revision, and is told as a ticket; when that page is resolved first, it pages by itself. Without an open page to join
it pages: the budget is a target and silence is no way to keep it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

SHIFT_S: Final = 43_200.0
_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Budget:
    """``most`` pages of their own in any ``shift_s`` seconds; ``most`` 0 sets no limit."""

    most: int = 1
    shift_s: float = SHIFT_S


class Pages:
    """Which incidents have paged by themselves, and when."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._paged: OrderedDict[str, datetime] = OrderedDict()

    def note(self, incident_id: str, when: datetime) -> None:
        """This incident has paged then; the first time counts."""
        self._paged.setdefault(incident_id, when)
        while len(self._paged) > _KEPT:
            self._paged.popitem(last=False)

    def has_paged(self, incident_id: str) -> bool:
        """Whether it has paged by itself."""
        return incident_id in self._paged

    def leader(self, open_ids: frozenset[str], now: datetime) -> str | None:
        """The open incident that a further page joins; ``None``: it may page by itself."""
        if self._budget.most < 1:
            return None
        shift = timedelta(seconds=self._budget.shift_s)
        recent = [i for i, when in self._paged.items() if now - when < shift]
        if len(recent) < self._budget.most:
            return None
        still = [i for i in self._paged if i in open_ids]
        return max(still, key=lambda i: self._paged[i]) if still else None

    def within(self, now: datetime) -> int:
        """Pages in the shift that ends now."""
        shift = timedelta(seconds=self._budget.shift_s)
        return sum(now - when < shift for when in self._paged.values())
