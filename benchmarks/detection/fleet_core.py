"""The statistical core at fleet size: one signal of many GPUs, window after window, through the product's accumulator.

What the product does to a signal in a round (``detectors.residual``, ``in_job``, ``accumulate``) on rows of equal jobs
instead of frames: the residual against own baseline and the leave-one-out median of the job, its sum S across jobs, and
a second sum against the job's own beginning. ``tests/evaluation/test_fleet_core.py`` holds that both give the
same numbers. Arrays are float32 of shape (jobs, GPUs of a job); log units, more is worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graynode.benchmarks.detection.noise import Array, Noise, Windows
from graynode.detectors import accumulate
from graynode.detectors.accumulate import TAU
from graynode.detectors.in_job import BLOCK_S, LEAST, MOST, Begun

WINDOW_S: Final = 30
DAY: Final = 86_400 // WINDOW_S
"""Windows of a day."""
_BLOCK: Final = int(BLOCK_S) // WINDOW_S
HALF_HOUR: Final = LEAST * _BLOCK
"""Windows of a job's beginning that its reference is made of at least."""
_LEARNS: Final = MOST * _BLOCK
_BETWEEN_GPUS: Final = 0.0171
"""Sigma between GPUs of one model (Longhorn sgemm): what a baseline takes away, and what is left without one."""
_DAYS_KEPT: Final = 28
_DAYS_OLD: Final = 21
"""Days −28 to −8: what a baseline is the median of."""
Whole = NDArray[np.int64]
Bools = NDArray[np.bool_]
_JOB_DAYS: Final = (1 / 6, 2.0)
"""Jobs last from four hours to two days, log-uniform: a stated choice."""


@dataclass(frozen=True, slots=True)
class Method:
    """What is left out in an ablation; the product leaves out nothing."""

    own_history: bool = True
    peers: bool = True
    accumulation: bool = True
    learning_protection: bool = True


@dataclass(frozen=True, slots=True)
class Size:
    """``jobs`` of ``gpus`` each run at any time. Nodes have ``per_node`` GPUs and belong to one job."""

    jobs: int = 125
    gpus: int = 80
    per_node: int = 8

    @property
    def nodes(self) -> int:
        """Machines of the fleet."""
        return self.jobs * self.gpus // self.per_node

    def by_node(self, values: Array) -> Array:
        """The largest value of each node's GPUs."""
        largest: Array = values.reshape(self.nodes, self.per_node).max(axis=1)
        return largest


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds of S across jobs and in the job; ``None`` where that reference tells nothing at this noise."""

    across: float | None
    in_job: float | None

    def told(self, across: Array, in_job: Array) -> Bools:
        """Which sums are findings."""
        told = np.zeros(across.shape, dtype=np.bool_)
        for values, limit in ((across, self.across), (in_job, self.in_job)):
            if limit is not None:
                told |= values >= limit
        return told


class Fleet:
    """Healthy GPUs under load, their baselines and sums. ``step`` is one window; ``across`` and ``in_job`` are S."""

    def __init__(
        self, noise: Noise, size: Size, rng: np.random.Generator, method: Method | None = None,
        job_windows: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.size, self._rng, self._method = size, rng, method or Method()
        shape = (size.jobs, size.gpus)
        self._noise = Windows(noise, shape, rng)
        self._lasts = job_windows or (round(_JOB_DAYS[0] * DAY), round(_JOB_DAYS[1] * DAY))
        self._days: Array = noise.offset * rng.standard_normal((_DAYS_KEPT, *shape), dtype=np.float32)
        self.base: Array = self._baseline()
        self.offset: Array = self._noise.offsets(*shape)
        self._level: Array = np.zeros(shape, dtype=np.float32)
        if not self._method.own_history:
            self._level = np.float32(_BETWEEN_GPUS) * rng.standard_normal(shape, dtype=np.float32)
        self.age = np.zeros(size.jobs, dtype=np.int64)
        self._ends = self._left(size.jobs)
        self.across: Array = np.zeros(shape, dtype=np.float32)
        self.in_job: Array = np.zeros(shape, dtype=np.float32)
        self._reference: Array = np.full(shape, np.nan, dtype=np.float32)
        self._firm = np.zeros(shape, dtype=np.bool_)
        self._begun: Array = np.zeros((4, *shape), dtype=np.float32)
        self._today: Array = np.zeros(shape, dtype=np.float32)
        self._windows: Array = np.zeros(shape, dtype=np.float32)
        self.limits = Limits(None, None)
        """Sums are held within twice the limit, and from half of it on a GPU's windows are not learned."""

    def step(self, effect: Array | None = None) -> None:
        """One window of healthy noise, worse by ``effect`` where given."""
        x = self.window()
        self.score(x if effect is None else x + effect)

    def window(self) -> Array:
        """The next window's values of healthy GPUs; jobs that are over have made room for others."""
        self._change_jobs()
        return self._noise.next() + self.offset

    def score(self, x: Array) -> None:
        """One window's values through residual and sums."""
        known = x - self.base if self._method.own_history else x + self._level
        r = self._against_peers(known)
        self.across = self._sum(self.across, r, self.limits.across)
        self.in_job = self._sum(self.in_job, self._since_job_began(x), self.limits.in_job)
        self._learn(r)
        self.age += 1

    def midnight(self) -> None:
        """A day has passed: its centre joins the history, and baselines are made anew."""
        fresh = np.divide(self._today, self._windows, out=self.base.copy(), where=self._windows >= 10)
        self._days = np.concatenate([self._days[1:], fresh[None]])
        self._today[:], self._windows[:] = 0.0, 0.0
        self.base = self._baseline()

    def _baseline(self) -> Array:
        median: Array = np.median(self._days[:_DAYS_OLD], axis=0).astype(np.float32)
        return median

    def _against_peers(self, values: Array) -> Array:
        return values - others_median(values) if self._method.peers else values

    def _sum(self, before: Array, r: Array, limit: float | None) -> Array:
        if not self._method.accumulation:
            return np.where(np.isnan(r), before, np.maximum(r, 0.0))
        after: Array = accumulate.cusum(before, r, TAU)  # type: ignore[arg-type, assignment]  # float32 all the way
        return after if limit is None else np.minimum(after, np.float32(2.0 * limit), out=after)

    def _since_job_began(self, x: Array) -> Array:
        r = self._against_peers(x - self._reference)
        unsure = ~self._firm.all(axis=1)
        begins = np.flatnonzero(unsure & (self.age < _LEARNS))
        uncertain = np.flatnonzero(unsure & (self.age >= HALF_HOUR))
        told = r.copy() if len(uncertain) else r
        zone = np.maximum(np.abs(r[uncertain]) - np.float32(TAU / 2), 0.0) * np.sign(r[uncertain])
        told[uncertain] = np.where(self._firm[uncertain], r[uncertain], zone)
        if len(begins):
            self._begin(begins, x[begins], r[begins])
        return told

    def _begin(self, jobs: Whole, x: Array, r: Array) -> None:
        """Windows of the beginning of ``jobs``, as ``in_job`` learns them."""
        own = r + self._reference[jobs]
        own = np.where(np.isnan(own), x - np.median(x, axis=1, keepdims=True), own)
        well = np.ones(own.shape, dtype=np.bool_)
        if self.limits.in_job is not None:
            well = self.in_job[jobs] < self.limits.in_job / 2
        begun = Begun(_BLOCK, *self._begun[:, jobs]).learned(own, self._firm[jobs], well)  # type: ignore[arg-type]
        self._begun[:, jobs] = begun.windows, begun.block, begun.means, begun.squares
        self._reference[jobs], self._firm[jobs] = begun.known()

    def _learn(self, r: Array) -> None:
        """Today's centre, of the windows of those that are not suspected; one window's say is bounded."""
        own = np.clip(r, -3 * TAU, 3 * TAU) + self.base
        if self._method.learning_protection and self.limits.across is not None:
            healthy = self.across < self.limits.across / 2
            self._today += np.where(healthy, own, 0.0)
            self._windows += healthy
        else:
            self._today += own
            self._windows += 1.0

    def _change_jobs(self) -> None:
        over = np.flatnonzero(self.age >= self._ends)
        if len(over):
            self.offset[over] = self._noise.offsets(len(over), self.size.gpus)
            self.age[over], self._ends[over] = 0, self._lengths(len(over))
            self._begun[:, over], self._reference[over], self._firm[over] = 0.0, np.nan, False
            self.in_job[over] = 0.0

    def _lengths(self, count: int) -> Whole:
        low, high = (float(np.log(windows)) for windows in self._lasts)
        lengths: Whole = np.exp(self._rng.uniform(low, high, count)).astype(np.int64)
        return lengths

    def _left(self, count: int) -> Whole:
        """What is left of the jobs that run at any one moment: log-uniform lengths, met in proportion to length."""
        low, high = self._lasts
        left: Whole = (self._rng.uniform(low, high, count) * self._rng.random(count)).astype(np.int64)
        return left


def others_median(values: Array) -> Array:
    """``residual.leave_one_out_median`` of rows without gaps: for those below the middle it is the value above."""
    count = values.shape[1]
    ordered = np.sort(values, axis=1)
    half = count // 2
    if count % 2 == 0:
        low, high = ordered[:, half - 1 : half], ordered[:, half : half + 1]
        return np.where(values <= low, high, low)
    below, middle, above = (ordered[:, half + i : half + i + 1] for i in (-1, 0, 1))
    rest = np.where(values > middle, below + middle, below + above)
    found: Array = np.where(values < middle, middle + above, rest) * np.float32(0.5)
    return found
