"""Who holds a job up, and why: hardware, application or unknown, from what its ranks computed step by step.

``unknown`` is an answer. Hardware is named only where one rank or one node computes longer than the ranks that do the
same work, in nearly all steps, and by near the same part in everything it computes; what a whole stage, a whole
pipeline (its data) or one part of the work shares is the application's. From wall seconds alone a place can be named
and never a cause. Sources: METHODS.md 1.9.3 (busy time within a role; forward against backward), 1.7 (most stragglers
of large jobs are stage imbalance and sequence lengths).

As a detector it judges running jobs by their last 64 steps and tells hardware alone, after several judgements in a row
and never as a page; what is the application's or unknown is for ``graynode explain --job``.
"""

from __future__ import annotations

from typing import ClassVar, Final

import polars as pl

from graynode.detectors import findings, step_memory, straggler_causes, straggler_ranks, straggler_wall, straggler_words
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import epoch_s
from graynode.detectors.straggler import Limits, Straggler
from graynode.detectors.straggler_view import View
from graynode.detectors.thresholds import Thresholds, shipped
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


class Stragglers:
    """The detector, over rows of table ``step`` with busy seconds. A finding about a rank is about its GPU, one about a
    whole node, or about a rank whose GPU is not known, about the node."""

    name: ClassVar[str] = "stragglers"
    version: ClassVar[int] = 1

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Take the new steps and judge the jobs that have enough of them; without any nothing is done."""
        now_s = epoch_s(round_.start)
        ranks = step_memory.take(state.get("rank"), round_.steps, now_s)
        if ranks is None:
            return Scored(findings.none(), state)
        jobs = step_memory.due(ranks, now_s, round_.window_s) if round_.steps.height else []
        if not jobs:
            return Scored(findings.none(), {"rank": ranks})
        said = of_steps(step_memory.steps_of(_by_model(ranks, round_.gpu), jobs, round_.window_s))
        hardware = [(job, s) for job, of_job in said.items() for s in of_job if s.cause == "hardware"]
        slow = [(job, rank) for job, s in hardware for rank in s.ranks]
        ranks = step_memory.judged(ranks, jobs, list(said), slow, now_s)
        found = [self._candidate(job, s, ranks, round_.window_s) for job, s in hardware]
        return Scored(findings.collect(self, round_, found), {"rank": ranks})

    def _candidate(self, job: str, said: Straggler, ranks: pl.DataFrame, window_s: int) -> Candidate:
        mine = ranks.filter((pl.col("job_id") == job) & pl.col("rank").is_in(said.ranks))
        threshold = self._thresholds.value(self.name, "slow_rank", window_s)
        return straggler_words.candidate(job, said, mine, threshold)


def _by_model(ranks: pl.DataFrame, gpu: pl.DataFrame) -> pl.DataFrame:
    """Roles that were told, apart by GPU model: an older model in a mixed job is slower and nobody's fault."""
    if gpu.is_empty() or not {"gpu_uuid", "gpu_model_last"} <= set(gpu.columns):
        return ranks
    models = gpu.group_by("gpu_uuid").agg(pl.col("gpu_model_last").cast(pl.String).max().alias("model"))
    both = ranks.join(models, on="gpu_uuid", how="left", maintain_order="left")
    role = pl.concat_str("role", "model", separator="/")
    return both.with_columns(pl.coalesce(role, "role").alias("role")).drop("model")
