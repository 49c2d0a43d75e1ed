"""Protocol of the track ``slow``: folds by GPU, limits from training GPUs, rates and recalls with intervals by GPU.

A method learns from the runs of the training GPUs and then scores runs; the limit for a nominal rate is an order
statistic of the training GPUs' own scores (split-conformal). The GPUs of the test fold never touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from graynode.benchmarks.detection.baselines import FloatArray, threshold_at
from graynode.benchmarks.detection.intervals import IntArray
from graynode.benchmarks.detection.result import Figure
from graynode.benchmarks.detection.slow_inject import slowed
from graynode.detectors.exact_bounds import clopper_pearson

BoolArray = npt.NDArray[np.bool_]
Score = Callable[[FloatArray, IntArray], FloatArray]
"""What the runs of these numbers would score, each if its own value were this one and all else as it is."""
Fit = Callable[[BoolArray], Score]
"""Learn from the runs that are true (those of training GPUs)."""

RUNS_PER_FALSE_ALARM: Final = 3
"""Below 3/rate runs a rate is not measured: even none in 3/rate only bounds it at 95 % (rule of three)."""
_CHUNK: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Method:
    """A name, how it learns, and the limit it alarms above by its own source (NaN: it has none)."""

    name: str
    fit: Fit
    published: float = float("nan")


@dataclass(frozen=True, slots=True)
class Fold:
    """One fold scored: training scores and, by slowdown (0: none), test scores, each with the GPU of its runs."""

    train: FloatArray
    train_gpu: IntArray
    test_gpu: IntArray
    test_run: IntArray
    test: dict[float, FloatArray]


@dataclass(frozen=True, slots=True)
class Scored:
    """All folds of one method on one set of runs."""

    folds: tuple[Fold, ...]
    gpus: int
    published: float = float("nan")
    runs: int = field(default=0)

    @property
    def train_runs(self) -> int:
        """The runs that the smallest training set sets its limit on."""
        return min((int((~np.isnan(f.train)).sum()) for f in self.folds), default=0)


def folds(gpus: int, number: int, seed: int) -> IntArray:
    """A fold for every GPU, as even as can be, drawn by ``seed``."""
    return np.asarray(np.random.default_rng(seed).permutation(gpus) % number, dtype=np.int64)


def score(
    method: Method, worse: FloatArray, gpu: IntArray, fold: IntArray, judged: BoolArray, slowdowns: Sequence[float]
) -> Scored:
    """Fit and score every fold; ``judged`` are the runs that take part, in training as in test."""
    scored = []
    for number in np.unique(fold[gpu[judged]]):
        test = np.flatnonzero(judged & (fold[gpu] == number))
        train = judged & (fold[gpu] != number)
        of, learned = method.fit(train), np.flatnonzero(train)
        slow = {s: of(slowed(worse[test], s) if s else worse[test], test) for s in (0.0, *slowdowns)}
        scored.append(Fold(of(worse[learned], learned), gpu[learned], gpu[test], test, slow))
    return Scored(tuple(scored), int(fold.size), method.published, int(judged.sum()))


def too_few(scored: Scored, rate: float) -> str:
    """Why no figure may be stated at this nominal rate; empty where one may."""
    needed = round(RUNS_PER_FALSE_ALARM / rate)
    if scored.train_runs >= needed:
        return ""
    return (
        f"too few runs: a limit at {rate:.2%} needs {needed} training runs, the smallest fold has {scored.train_runs}"
    )


def limits(scored: Scored, rate: float) -> list[float]:
    """Each fold's limit at the nominal rate."""
    return [threshold_at(f.train, rate) for f in scored.folds]


def alarms(scored: Scored, at: Sequence[float], slowdown: float = 0.0) -> tuple[IntArray, IntArray]:
    """The runs (their numbers) that alarm above the folds' limits when slowed by so much, and the GPU of each."""
    above = [f.test[slowdown] > limit for f, limit in zip(scored.folds, at, strict=True)]
    runs = [f.test_run[a] for f, a in zip(scored.folds, above, strict=True)]
    gpus = [f.test_gpu[a] for f, a in zip(scored.folds, above, strict=True)]
    return np.concatenate(runs), np.concatenate(gpus)


def figures(scored: Scored, rate: float, slowdowns: Sequence[float], draws: int, seed: int) -> dict[float, Figure]:
    """By slowdown (0: the realised false-positive rate) the share of runs that alarm at the nominal ``rate``.

    Intervals are by whole GPUs, the limits of every draw being set anew on that draw's training GPUs: a limit that
    hangs on two GPUs has the interval of one that hangs on two GPUs.
    """
    why = too_few(scored, rate)
    if why:
        return {s: Figure(None, n=_taking_part(scored), note=why) for s in (0.0, *slowdowns)}
    at = limits(scored, rate)
    return _shares(scored, at, lambda weights: _drawn_limits(scored, rate, weights), slowdowns, draws, seed)


def published_figures(scored: Scored, slowdowns: Sequence[float], draws: int, seed: int) -> dict[float, Figure]:
    """The same above the method's own limit, whatever its false-positive rate then is."""
    if not scored.train_runs:
        why = "no other GPU with an earlier run to learn from"
        return {s: Figure(None, n=_taking_part(scored), note=why) for s in (0.0, *slowdowns)}
    at = [scored.published] * len(scored.folds)
    return _shares(scored, at, lambda w: np.full((len(at), len(w)), scored.published), slowdowns, draws, seed)


def limit_figures(scored: Scored, rate: float) -> dict[str, Figure]:
    """The limit itself, in the method's own unit (median of the folds), and how many GPUs the false alarms are of."""
    why, taking_part = too_few(scored, rate), _taking_part(scored)
    if why:
        return dict.fromkeys(("limit", "false_alarm_gpus"), Figure(None, n=taking_part, note=why))
    at = limits(scored, rate)
    behind = len(np.unique(alarms(scored, at)[1]))
    spread = f"folds {min(at):.3g} to {max(at):.3g}"
    return {
        "limit": Figure(float(np.median(at)), n=taking_part, note=spread),
        "false_alarm_gpus": Figure(float(behind), n=taking_part),
    }


def _taking_part(scored: Scored) -> int:
    return len(np.unique(np.concatenate([f.test_gpu for f in scored.folds]))) if scored.folds else 0


def _shares(
    scored: Scored,
    at: Sequence[float],
    drawn: Callable[[IntArray], FloatArray],
    slowdowns: Sequence[float],
    draws: int,
    seed: int,
) -> dict[float, Figure]:
    gpus = _taking_part(scored)
    bounds = _bounds(scored, (0.0, *slowdowns), drawn, draws, seed)
    found = {}
    for s in (0.0, *slowdowns):
        runs, of = alarms(scored, at, s)
        # No draw of GPUs that all say the same says anything else: the bound is then that of so many GPUs
        all_or_none = len(runs) in (0, scored.runs)
        low, high = clopper_pearson(gpus if len(runs) else 0, gpus) if all_or_none else bounds[s]
        note = f"{len(runs)} of {scored.runs} runs, of {len(np.unique(of))} GPUs" if s == 0 else ""
        found[s] = Figure(len(runs) / scored.runs, low, high, gpus, note)
    return found


def _bounds(
    scored: Scored, slowdowns: Sequence[float], limit: Callable[[IntArray], FloatArray], draws: int, seed: int
) -> dict[float, tuple[float, float]]:
    """95 % percentile bootstrap over GPUs. ``limit`` gives folds × draws from draws × GPUs of weights."""
    rng = np.random.default_rng(seed)
    even = np.full(scored.gpus, 1.0 / scored.gpus)
    step = max(1, _CHUNK // max(scored.runs, 1))
    values: dict[float, list[FloatArray]] = {s: [] for s in slowdowns}
    for first in range(0, draws, step):
        weights = rng.multinomial(scored.gpus, even, size=min(step, draws - first)).astype(np.int64)
        at = limit(weights)
        total = sum(weights @ np.bincount(f.test_gpu, minlength=scored.gpus) for f in scored.folds)
        for s in slowdowns:
            hits = sum(_hits(f.test[s], f.test_gpu, a, weights) for f, a in zip(scored.folds, at, strict=True))
            values[s].append(np.asarray(hits / np.maximum(total, 1), dtype=np.float64))
    found = {}
    for s, v in values.items():
        low, high = np.quantile(np.concatenate(v), [0.025, 0.975])
        found[s] = (float(low), float(high))
    return found


def _hits(scores: FloatArray, gpu: IntArray, at: FloatArray, weights: IntArray) -> FloatArray:
    """How many runs alarm, draw by draw. Only those between the lowest and the highest limit differ between draws."""
    always = scores > at.max()
    between = np.flatnonzero((scores > at.min()) & ~always)
    fixed = weights @ np.bincount(gpu[always], minlength=weights.shape[1])
    moving = ((scores[between] > at[:, None]) * weights[:, gpu[between]]).sum(axis=1)
    return np.asarray(fixed + moving, dtype=np.float64)


def _drawn_limits(scored: Scored, rate: float, weights: IntArray) -> FloatArray:
    """``threshold_at`` of the training runs repeated as often as their GPU was drawn: folds × draws."""
    return np.stack([_drawn_limit(f.train, f.train_gpu, rate, weights) for f in scored.folds])


def _drawn_limit(train: FloatArray, gpu: IntArray, rate: float, weights: IntArray) -> FloatArray:
    known = ~np.isnan(train)
    order = np.argsort(-train[known], kind="stable")
    high, who = train[known][order], gpu[known][order]
    total = weights @ np.bincount(who, minlength=weights.shape[1])
    beyond = np.maximum(np.floor(rate * (total + 1) + 1e-9), 1)
    # The limit lies among the highest: the rest of the runs need not be counted
    part = min(len(high), int(np.ceil(20 * rate * len(high))) + 200)
    reached = np.cumsum(weights[:, who[:part]], axis=1) >= beyond[:, None]
    limit = np.where(reached.any(axis=1), high[np.argmax(reached, axis=1)], high[part - 1])
    return np.asarray(limit, dtype=np.float64)
