"""Who holds a job up, and why: hardware, application or unknown, from what its ranks computed step by step.

``unknown`` is an answer. Hardware is named only where one rank or one node computes longer than the ranks that do the
same work, in nearly all steps, and by near the same part in everything it computes; what a whole stage, a whole
pipeline (its data) or one part of the work shares is the application's. From wall seconds alone a place can be named
and never a cause. Sources: METHODS.md 1.9.3 (busy time within a role; forward against backward), 1.7 (most stragglers
of large jobs are stage imbalance and sequence lengths).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from graynode.detectors import straggler_causes, straggler_ranks, straggler_wall
from graynode.detectors.straggler import Limits, Straggler
from graynode.detectors.straggler_view import View
from graynode.detectors.work import Work, from_steps

DEFAULTS: Final = Limits()
_ORDER: Final = {"hardware": 0, "application": 1, "unknown": 2}


def of_steps(rows: pl.DataFrame, limits: Limits = DEFAULTS) -> dict[str, list[Straggler]]:
    """What the rows of table ``step`` say of each job in them. Wall seconds alone never say more than ``unknown``."""
    return {job: judge(work, limits) for job, work in from_steps(rows).items()}


def judge(work: Work, limits: Limits = DEFAULTS, *, split: bool = True) -> list[Straggler]:
    """All that can be said of one job: hardware first, then by excess. Empty: nobody stands out.

    Roles that ``work`` does not give are learned from its traits, pipelines from what varies together. Without
    ``split`` the parts of the work are taken as one: an ablation.
    """
    total = work.total
    if total is None:
        return straggler_wall.locate(work, limits)
    view = View(work, total, split=split)
    found = [*straggler_ranks.slow(view, limits), *straggler_causes.of_application(view, limits)]
    found = found or straggler_causes.of_waiting(view, limits)
    return sorted(found, key=lambda s: (_ORDER[s.cause], -(s.excess or 0.0), s.ranks))
