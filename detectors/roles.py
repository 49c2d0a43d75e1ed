"""Which ranks of a job do the same work, and which work on the same data.

Roles are given (pipeline stage), or learned from *which* operations a rank runs and in which order, or from a pattern
of rank numbers; never from how long they take: learning from levels makes a role of the slow nodes and absolves them.
A learned role spans at least two nodes, else a slow node could be a role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy import optimize

from graynode.detectors.frames import Bools, Floats, Ints

_LEAST_NODES: Final = 2
_SAME_DATA: Final = 0.6
_STANDS_OUT: Final = 0.3
"""Ranks that work on the same microbatches vary together from step to step; so much more than with the others."""


@dataclass(frozen=True, slots=True)
class Roles:
    """``code`` numbers each rank's role, −1 where it cannot be told.

    ``mixed`` marks ranks whose learned role may be several in truth (middle stages that run the same operations), each
    of at least ``width`` ranks. ``assumed``: nothing tells roles apart, and all ranks are taken to do the same.
    """

    code: Ints
    source: Literal["given", "learned", "assumed"]
    mixed: Bools
    width: int

    @property
    def count(self) -> int:
        """How many roles there are."""
        return len(np.unique(self.code[self.code >= 0]))


def given(code: Ints) -> Roles:
    """Roles as somebody who knows told them."""
    return Roles(code, "given", np.zeros(len(code), dtype=np.bool_), 0)


def learn(rank: Ints, node: Ints, traits: Mapping[str, Ints]) -> Roles:
    """Roles by the operations' signature, and where that leaves several stages in one, by the pattern of ranks."""
    code = np.zeros(len(rank), dtype=np.int64)
    for name in sorted(traits):
        code = _split(code, traits[name])
    if len(np.unique(code)) == 1:
        return Roles(code, "assumed", np.zeros(len(code), dtype=np.bool_), 0)
    sizes = np.bincount(code)
    width = int(sizes[sizes > 0].min())
    finer = _pattern(np.argsort(np.argsort(rank)), code, width)
    mixed = np.zeros(len(code), dtype=np.bool_) if finer is not None else sizes[code] > width
    code = code if finer is None else finer
    return Roles(np.where(_nodes_of(code, node)[code] >= _LEAST_NODES, code, -1), "learned", mixed, width)


def _split(code: Ints, trait: Ints) -> Ints:
    """Each role by the values of one trait."""
    _, joined = np.unique(np.stack([code, trait]), axis=1, return_inverse=True)
    return np.asarray(joined, dtype=np.int64).ravel()


def _nodes_of(code: Ints, node: Ints) -> Ints:
    """On how many nodes each role is found, by its number."""
    pairs = np.unique(np.stack([code, node]), axis=1)
    return np.bincount(pairs[0], minlength=int(code.max(initial=0)) + 1).astype(np.int64)


def _pattern(position: Ints, code: Ints, width: int) -> Ints | None:
    """Roles as blocks of equal size in the order of ranks, repeated: (position mod period) div block.

    Taken only where it explains all roles that the signature tells apart, and some of them are larger than the
    smallest. Permuted ranks show no such pattern, but for chance.
    """
    total = len(position)
    if not (np.bincount(code) > width).any():
        return None
    for period in _divisors(total):
        for block in _divisors(period):
            if total * block != width * period:
                continue
            finer = (position % period) // block
            if _refines(finer, code):
                return finer
    return None


def _divisors(number: int) -> list[int]:
    return [d for d in range(number, 0, -1) if number % d == 0]


def _refines(finer: Ints, code: Ints) -> bool:
    """Whether every group of ``finer`` lies within one group of ``code``."""
    return len(np.unique(np.stack([finer, code]), axis=1)[0]) == len(np.unique(finer))


def learn_pipelines(deviation: Floats, roles: Roles) -> Ints | None:
    """Which ranks work on the same data: those of different roles whose busy time varies together, step by step.

    ``deviation`` is ranks × steps, log seconds less the rank's own median and the role's at that step. ``None`` where
    roles are of unequal size or nothing varies together: then there is no common data to see.
    """
    groups = [np.flatnonzero(roles.code == r) for r in np.unique(roles.code[roles.code >= 0])]
    if len(groups) < 2 or len({len(g) for g in groups}) > 1 or len(groups[0]) < 2 or deviation.shape[1] < 5:
        return None
    unit = _standard(deviation)
    pipeline = np.full(len(roles.code), -1, dtype=np.int64)
    pipeline[groups[0]] = np.arange(len(groups[0]))
    for group in groups[1:]:
        alike = unit[groups[0]] @ unit[group].T
        first, second = optimize.linear_sum_assignment(-alike)
        matched = alike[first, second]
        others = (alike.sum() - matched.sum()) / max(alike.size - len(matched), 1)
        if matched.mean() < _SAME_DATA or matched.mean() - others < _STANDS_OUT:
            return None
        pipeline[group[second]] = first
    return pipeline


def _standard(deviation: Floats) -> Floats:
    filled = np.nan_to_num(deviation)
    centred = filled - filled.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12), dtype=np.float64)
