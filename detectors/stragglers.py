"""Who holds a job up, and why: hardware, application or unknown, from what its ranks computed step by step.

``unknown`` is an answer. Hardware is named only where one rank or one node computes longer than the ranks that do the
same work, in nearly all steps, and by near the same part in everything it computes; what a whole stage, a whole
pipeline (its data) or one part of the work shares is the application's. From wall seconds alone a place can be named
and never a cause. Sources: METHODS.md 1.9.3 (busy time within a role; forward against backward), 1.7 (most stragglers
of large jobs are stage imbalance and sequence lengths).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from graynode.detectors import roles as role_names
from graynode.detectors import straggler_wall
from graynode.detectors.frames import Bools, Floats, Ints
from graynode.detectors.roles import Roles
from graynode.detectors.straggler_excess import Excess, alike, deviations, measure
from graynode.detectors.work import Work, from_steps

Cause = Literal["hardware", "application", "unknown"]
Where = Literal["rank", "node", "role", "pipeline", "job"]


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on what is said. The values are frozen in ``benchmarks/detection/frozen/attribution.json`` with their
    sources; the defaults here are the same."""

    least_excess: float = 0.03
    alpha: float = 1e-3
    parts_least: float = 0.5
    parts_alike: float = 0.7
    lasting: float = 0.8
    steady_least: float = 0.5
    optimizer_least: float = 0.25
    shared_part: float = 0.5
    role_level: float = 0.1
    data_varies: float = 0.05
    input_share: float = 0.05
    wait_share: float = 0.3
    most_nodes: float = 0.34


@dataclass(frozen=True, slots=True)
class Straggler:
    """One statement: ``ranks`` at a place (``where``) are slower by ``excess`` (0.05 is 5 %), for this ``cause``.

    ``reason`` says in a word what decided (``_REASONS``), ``confidence`` runs from 0 to 1, ``evidence`` holds the
    numbers. ``nodes`` are node numbers of ``Work``.
    """

    where: Where
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    cause: Cause
    reason: str
    excess: float | None
    confidence: float
    evidence: Mapping[str, Any] = field(default_factory=dict)


_REASONS: Final = {
    "slow_compute": "computes longer than ranks of the same role, in all parts of the work and in nearly all steps",
    "other_work": "computes longer in one part of the work only, as where it has other work to do",
    "not_lasting": "computes longer in some steps only",
    "not_told_apart": "may do other work than its peers: several nodes or as many ranks as a stage has are alike",
    "own_data": "computes longer, but not where the work does not depend on data",
    "shared_data": "all stages that work on the same data compute longer",
    "data_varies": "the data's lengths move the busy time of whole pipelines from step to step",
    "stage_imbalance": "the whole stage computes longer than the others",
    "data_loading": "reading data takes a part of the step",
    "all_wait": "nobody computes longer than its peers, and all wait: the network, a collective, or the schedule",
    "wall_only": "only wall seconds are known: they tell a place, and no cause",
}


def explain(reason: str) -> str:
    """The sentence for a ``reason``."""
    return _REASONS[reason]


def of_steps(rows: pl.DataFrame, limits: Limits = Limits()) -> dict[str, list[Straggler]]:  # noqa: B008 (frozen)
    """What the rows of table ``step`` say of each job in them. Wall seconds alone never say more than ``unknown``."""
    return {job: judge(work, limits=limits) for job, work in from_steps(rows).items()}


def judge(work: Work, *, limits: Limits = Limits(), roles: Roles | None = None) -> list[Straggler]:  # noqa: B008
    """All that can be said of one job, hardware first, then by excess. Empty: nobody stands out.

    ``roles`` overrides what ``work`` knows; without either they are learned from its traits.
    """
    if not work.busy:
        return straggler_wall.locate(work) if work.wall is not None else []
    roles = roles or (role_names.given(work.role) if work.role is not None else _learned(work))
    view = _measured(work, roles)
    found = [*_ranks(view, limits), *_pipelines(view, limits), *_roles(view, limits), *_input(view, limits)]
    found = found or _all_wait(view, limits)
    order = {"hardware": 0, "application": 1, "unknown": 2}
    return sorted(found, key=lambda s: (order[s.cause], -(s.excess or 0.0), s.ranks))
