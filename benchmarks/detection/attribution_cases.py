"""One case: a job as a method sees it, who is slow in truth, and what the method made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graynode.benchmarks.detection.attribution_faults import Sums
from graynode.benchmarks.detection.attribution_job import Trace
from graynode.benchmarks.detection.intervals import FloatArray, IntArray
from graynode.benchmarks.detection.result import Figure
from graynode.detectors.exact_bounds import clopper_pearson
from graynode.detectors.straggler import Limits, Straggler
from graynode.detectors.stragglers import judge
from graynode.detectors.work import Work


@dataclass(frozen=True, slots=True)
class Seen:
    """How a method sees a job: are roles given, and are labels as recorded or permuted."""

    roles_given: bool
    permuted: bool

    @property
    def name(self) -> str:
        """As it stands in the names of figures."""
        return f"roles_{'given' if self.roles_given else 'learned'}.labels_{'permuted' if self.permuted else 'as_is'}"


@dataclass(frozen=True, slots=True)
class Case:
    """What a method said (rows it named as hardware, its first cause) where ``victims`` (rows) are slow hardware."""

    victims: frozenset[int]
    named: frozenset[int]
    cause: str
    label: str

    @property
    def right(self) -> bool:
        """All victims are named."""
        return self.victims <= self.named

    @property
    def wrong(self) -> bool:
        """Somebody else is named."""
        return bool(self.named - self.victims)


Judge = Callable[[Trace, Sums, Seen, np.random.Generator], tuple[frozenset[int], str]]
"""Gives the rows named as hardware and the first cause, or an empty text where nothing is said."""


def as_work(trace: Trace, job: Sums, seen: Seen) -> Work:
    """What the product is given; without roles neither stage nor pipeline is told."""
    return Work(
        rank=trace.rank,
        node=trace.node,
        busy=job.busy,
        optimizer=job.optimizer,
        steady=job.steady,
        input=job.input,
        wait=job.wait,
        wall=job.wall,
        role=trace.role if seen.roles_given else None,
        pipeline=trace.pipeline if seen.roles_given else None,
        traits=trace.traits,
    )


def permuted(work: Work, rng: np.random.Generator) -> tuple[Work, IntArray]:
    """The same job under other names: rank numbers, nodes, roles and pipelines are renamed and rows lie in the order of
    the new numbers. Also gives the old row of each new one."""
    order = rng.permutation(len(work)).astype(np.int64)

    def renamed(code: IntArray | None) -> IntArray | None:
        if code is None:
            return None
        names = np.unique(code)
        return np.asarray(rng.permutation(names)[np.searchsorted(names, code)][order], dtype=np.int64)

    def moved(table: FloatArray | None) -> FloatArray | None:
        return None if table is None else table[order]

    made = Work(
        rank=np.sort(work.rank),
        node=renamed(work.node),  # type: ignore[arg-type]  # given, so renamed
        busy={part: s[order] for part, s in work.busy.items()},
        optimizer=moved(work.optimizer),
        steady=moved(work.steady),
        input=moved(work.input),
        wait=moved(work.wait),
        wall=moved(work.wall),
        role=renamed(work.role),
        pipeline=renamed(work.pipeline),
        traits={name: t[order] for name, t in work.traits.items()},
    )
    return made, order


Change = Callable[[Work], Work]


def ours(limits: Limits, change: Change = lambda work: work, *, split: bool = True) -> Judge:
    """The product's judgement; ``change`` and ``split`` take a part of it away."""

    def judged(trace: Trace, job: Sums, seen: Seen, rng: np.random.Generator) -> tuple[frozenset[int], str]:
        work, order = as_work(trace, job, seen), np.arange(len(trace.rank))
        if seen.permuted:
            work, order = permuted(work, rng)
        return _rows(judge(change(work), limits, split=split), work, order)

    return judged


def _rows(said: list[Straggler], work: Work, order: IntArray) -> tuple[frozenset[int], str]:
    row_of = dict(zip(work.rank.tolist(), order.tolist(), strict=True))
    named = frozenset(row_of[r] for s in said if s.cause == "hardware" for r in s.ranks)
    return named, said[0].cause if said else ""


def without_roles(work: Work) -> Work:
    """All ranks are taken to do the same."""
    return replace(work, role=None, pipeline=None, traits={})


def without_data(work: Work) -> Work:
    """What the data costs is not taken out."""
    return replace(work, pipeline=np.full(len(work), -1, dtype=np.int64))


def without_waits_apart(work: Work) -> Work:
    """Busy seconds and waits are one."""
    assert work.total is not None and work.wait is not None  # noqa: S101, PT018 (traces have both)
    return replace(work, busy={"all": work.total + np.nan_to_num(work.wait)}, optimizer=None, steady=None)


ABLATIONS: Final[dict[str, Callable[[Limits], Judge]]] = {
    "roles": lambda limits: ours(limits, without_roles),
    "busy_wait_split": lambda limits: ours(limits, without_waits_apart),
    "forward_backward_test": lambda limits: ours(limits, split=False),
    "data_taken_out": lambda limits: ours(limits, without_data),
}


def share(hits: Iterable[bool], note: str = "") -> Figure:
    """A share of independent cases with its exact interval; no value where there are none."""
    counted = list(hits)
    if not counted:
        return Figure(None, n=0, note=note or "no such case in this data")
    low, high = clopper_pearson(sum(counted), len(counted))
    return Figure(sum(counted) / len(counted), low, high, len(counted), note)
