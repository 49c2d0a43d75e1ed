"""What is said of a straggler: where, why, how sure, from which numbers; and from when on it is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Cause = Literal["hardware", "application", "unknown"]
Where = Literal["rank", "node", "role", "pipeline", "job"]

REASONS: Final = {
    "slow_compute": "computes longer than ranks of the same role, in all parts of the work and in nearly all steps",
    "other_work": "computes longer in one part of the work only, as where there is other work to do",
    "not_lasting": "computes longer in some steps only",
    "not_told_apart": "may do other work than its peers: several nodes, or as many ranks as a stage has, are alike",
    "own_data": "computes longer, but not where the work does not depend on data",
    "shared_data": "all stages that work on the same data compute longer",
    "data_varies": "the data moves the busy time of whole pipelines from step to step",
    "stage_imbalance": "the whole stage computes longer than the others",
    "data_loading": "reading data takes a part of the step",
    "all_wait": "nobody computes longer than its peers, and all wait: the network, a collective, or the schedule",
    "wall_only": "only wall seconds are known: they tell a place, and no cause",
}
"""A sentence for each reason."""


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on what is said; frozen with sources in ``benchmarks/detection/limits/attribution.json``, equal there.

    ``least_excess``: least relative excess that is said. ``alpha``: chance that any healthy rank of a job passes for
    slow by noise alone. The smallest excess of a part of the work is at least ``parts_alike`` of the largest less the
    noise, and never under ``parts_least``, where hardware is slow. ``lasting``: share of steps. ``steady_least`` and
    ``optimizer_least``: of the excess, that fast microbatches and the optimizer show where the data is not to blame.
    ``shared_part``: of what pipelines differ by, that a rank must exceed. ``role_level``, ``data_varies``,
    ``input_share`` and ``wait_share``: from when on these causes are said. ``most_nodes``: share of a role's nodes
    beyond which a minority is no minority. ``wall_excess`` and ``wall_steps``: least change of wall seconds that is
    located, and for how many steps.
    """

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
    wall_excess: float = 0.07
    wall_steps: int = 5


@dataclass(frozen=True, slots=True)
class Straggler:
    """One statement: ``ranks`` at a place (``where``) are slower by ``excess`` (0.05 is 5 %), for this ``cause``.

    ``reason`` says in a word what decided (``REASONS``), ``confidence`` runs from 0 to 1 and is a statement of order,
    not a measured rate. ``evidence`` holds the numbers. ``nodes`` are node numbers of ``Work``.
    """

    where: Where
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    cause: Cause
    reason: str
    excess: float | None
    confidence: float
    evidence: Mapping[str, Any] = field(default_factory=dict)
