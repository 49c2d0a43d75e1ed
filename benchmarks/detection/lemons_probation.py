"""Probation and re-faults: what a probation of some days would have held, and how true the re-fault probability is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graynode.benchmarks.detection.intervals import FloatArray, IntArray, by_cluster
from graynode.benchmarks.detection.result import Figure, Figures
from graynode.detectors.fault_history import Faults, returns
from graynode.detectors.refault import hazard


def probation(faults: Faults, days: float, length_d: float, rng: np.random.Generator, draws: int) -> Figures:
    """Share of all faults that begin within ``length_d`` of a return, and of all node-days that lie there."""
    back = returns(faults)
    held: FloatArray = np.bincount(back.node[back.next_d < length_d], minlength=faults.nodes).astype(np.float64)
    spent = np.minimum(np.minimum(length_d, back.next_d), days - back.at_d)
    node_days: FloatArray = np.bincount(back.node, weights=spent, minlength=faults.nodes).astype(np.float64)
    return {
        "share_of_faults": _of_nodes(held, faults.counts(0.0, np.inf).astype(np.float64), rng, draws),
        "share_of_node_days": _of_nodes(node_days, np.full(faults.nodes, days), rng, draws),
    }


def _of_nodes(above: FloatArray, below: FloatArray, rng: np.random.Generator, draws: int) -> Figure:
    def statistic(weight: IntArray) -> float:
        total = float(weight @ below)
        return float(weight @ above) / total if total else float("nan")

    low, high = by_cluster(statistic, len(above), rng, draws)
    return Figure(statistic(np.ones(len(above), dtype=np.int64)), low, high, len(above), "n: nodes")


@dataclass(frozen=True, slots=True)
class Case:
    """One return whose outcome is known: ``y`` is whether the node faulted again within the horizon."""

    node: int
    at_d: float
    y: bool


@dataclass(frozen=True, slots=True)
class Foretold:
    """Cases and each method's probabilities for them."""

    cases: list[Case]
    nodes: int
    p: dict[str, FloatArray]

    @property
    def y(self) -> FloatArray:
        """Outcomes, 0 or 1."""
        return np.array([case.y for case in self.cases], dtype=np.float64)

    def since(self, at_d: float) -> Foretold:
        """The cases from ``at_d`` on."""
        late = np.array([case.at_d >= at_d for case in self.cases], dtype=bool)
        kept = [case for case in self.cases if case.at_d >= at_d]
        return Foretold(kept, self.nodes, {name: p[late] for name, p in self.p.items()})

    def brier(self, method: str, rng: np.random.Generator, draws: int) -> Figure:
        """Mean squared error of the probability."""
        return self._mean((self.p[method] - self.y) ** 2, rng, draws)

    def gain(self, method: str, over: str, rng: np.random.Generator, draws: int) -> Figure:
        """How much lower the Brier score of ``method`` is, on the same returns."""
        return self._mean((self.p[over] - self.y) ** 2 - (self.p[method] - self.y) ** 2, rng, draws)

    def mean(self, method: str | None, rng: np.random.Generator, draws: int) -> Figure:
        """Mean probability of a method, or the share that did fault again."""
        return self._mean(self.y if method is None else self.p[method], rng, draws)

    def _mean(self, values: FloatArray, rng: np.random.Generator, draws: int) -> Figure:
        if not self.cases:
            return Figure(None, note="no return with a known outcome after the first grid day")
        node = np.array([case.node for case in self.cases])
        total: FloatArray = np.bincount(node, weights=values, minlength=self.nodes).astype(np.float64)
        figure = _of_nodes(total, np.bincount(node, minlength=self.nodes).astype(np.float64), rng, draws)
        return Figure(figure.value, figure.ci_low, figure.ci_high, len(np.unique(node)), f"{len(node)} returns")


Method = Callable[[Faults, float, int, float], float]
"""History, moment, node, and for how long it has held since its return → probability of a fault by the horizon."""


def foretell(
    faults: Faults, days: float, first_d: float, horizon_d: float, methods: dict[str, Method], apart_d: float = 0.0,
    most: int | None = None,
) -> Foretold:  # fmt: skip
    """Ask every method at each return, ``apart_d`` after it, from what was known then.

    Each is fitted anew at each return, so that the time grows with their square: beyond ``most``, evenly taken ones.
    """
    back = returns(faults.merged(apart_d))
    usable = np.flatnonzero((back.at_d >= first_d) & (back.at_d + horizon_d <= days))
    if most is not None and len(usable) > most:
        usable = usable[np.linspace(0, len(usable) - 1, most).astype(np.int64)]
    cases, p = [], {name: [] for name in methods}  # type: ignore[var-annotated]
    for i in usable.tolist():
        node, came_d, next_d = int(back.node[i]), float(back.at_d[i]), float(back.next_d[i])
        at_d = came_d + apart_d
        past = faults.known(float(np.nextafter(at_d, np.inf))).merged(apart_d)  # the return itself is known
        cases.append(Case(node, came_d, next_d < horizon_d))
        for name, method in methods.items():
            p[name].append(method(past, at_d, node, apart_d))
    return Foretold(cases, faults.nodes, {name: np.array(values) for name, values in p.items()})


def ours(horizon_d: float, *, chain: bool = True, level: bool = True) -> Method:
    """The product's probability, or without one of its parts."""

    def method(past: Faults, at_d: float, node: int, held_d: float) -> float:
        back = returns(past)
        before = back.chain[back.node == node][-1:].astype(np.float64)
        fitted = hazard(past, at_d, chain=chain, level=level)
        return float(fitted.p_refault(before, np.full(len(before), held_d), horizon_d - held_d)[0])

    return method


def constant(horizon_d: float) -> Method:
    """The share of all earlier returns that did not last, of those whose outcome is known."""

    def method(past: Faults, at_d: float, node: int, held_d: float) -> float:
        del node
        return _share(past, at_d, horizon_d, held_d, None)

    return method


def two_bins(horizon_d: float) -> Method:
    """The same share, apart for returns after a repair that had not lasted a week and for the others."""

    def method(past: Faults, at_d: float, node: int, held_d: float) -> float:
        back = returns(past)
        return _share(past, at_d, horizon_d, held_d, bool(back.chain[back.node == node][-1] > 0))

    return method


def _share(past: Faults, at_d: float, horizon_d: float, held_d: float, chained: bool | None) -> float:
    back = returns(past)
    known = (back.at_d + horizon_d <= at_d) & (back.next_d >= held_d)
    if chained is not None:
        known &= (back.chain > 0) == chained
    return float(((back.next_d < horizon_d) & known).sum() + 1.0) / float(known.sum() + 2.0)
