"""The queue of a simulated fleet: jobs arrive, wait, are placed on free GPUs, run and end.

Drawn once and in order from one counter-based generator, so that a longer horizon only adds jobs at the end.
Shares and lengths are stated guesses in the shape of published clusters (few large jobs hold most GPU time; about
two fifths of jobs do not complete: AcmeTrace ``cluster_summary.csv``, Kalos: 54 % completed, 6 % cancelled).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graynode.collectors.simulated.faults import Fault
from graynode.collectors.simulated.noise import generator

OCCUPANCY: Final = 0.9
"""Share of GPU time that the arriving work asks for."""
_RUN: Final = 0.8
"""Share of its asked time that a job runs on average: those that fail or are cancelled end half-way."""
_HEAD_WAITS_S: Final = 3600.0
"""A large job that has waited this long at the head is no longer passed by smaller ones."""
_BACKFILL: Final = 32
"""So many waiting jobs are looked at when GPUs come free."""
_REPAIR_S: Final = 600.0
"""A node whose GPU was lost takes work again this long after its reboot began."""


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work. ``nodes`` are whole-node sizes, ``gpus`` sizes inside a node; one of them is empty.

    ``load`` is the band of load ranks (0 the least, 1 the most of all busy GPUs of the quantile data).
    """

    name: str
    share: float
    nodes: tuple[int, ...]
    gpus: tuple[int, ...]
    median_h: float
    sigma: float
    load: tuple[float, float]
    synchronous: bool
    hourly: bool
    partition: str


WORKS: Final = (
    Work("training", 0.62, (2, 2, 4, 4, 8, 16), (), 40.0, 0.8, (0.2, 1.0), True, False, "train"),
    Work("fine_tuning", 0.11, (1, 1, 2), (), 5.0, 0.8, (0.15, 1.0), True, False, "train"),
    Work("batch_inference", 0.07, (1,), (), 3.0, 0.7, (0.1, 0.9), False, False, "batch"),
    Work("quantisation", 0.03, (), (1, 2, 4), 0.7, 0.6, (0.1, 0.7), False, False, "batch"),
    Work("inference", 0.12, (), (1, 2, 4), 60.0, 0.6, (0.0, 0.6), False, True, "serve"),
    Work("notebook", 0.05, (), (1,), 6.0, 0.7, (0.0, 0.15), False, True, "interactive"),
)
"""``share`` is the share of GPU time asked for."""


@dataclass(frozen=True, slots=True)
class Job:
    """One placement. ``gpus`` are fleet-wide GPU numbers in rank order; times are seconds on the fleet's axis."""

    number: int
    work: int
    gpus: tuple[int, ...]
    queued: float
    start: float
    end: float
    state: str
    exit_code: int
    load: float
    stages: int
    requeues: int = 0

    @property
    def kind(self) -> Work:
        """Its kind of work."""
        return WORKS[self.work]


@dataclass(frozen=True, slots=True)
class _Asked:
    number: int
    work: int
    nodes: int
    gpus: int
    queued: float
    lasts: float
    state: str
    load: float
    requeues: int = 0


def schedule(seed: int, nodes: int, per_node: int, horizon_s: float, lost: Sequence[Fault]) -> list[Job]:
    """Jobs that start before ``horizon_s``, in order of start. ``lost`` GPUs end jobs and close their node."""
    placing = _Placing(nodes, per_node, lost)
    for asked in _arrivals(seed, nodes, per_node, horizon_s):
        placing.until(asked.queued)
        placing.ask(asked)
    placing.until(horizon_s)
    return sorted(placing.jobs, key=lambda job: (job.start, job.number))


def _arrivals(seed: int, nodes: int, per_node: int, horizon_s: float) -> Iterator[_Asked]:
    rng = generator(seed, 1)
    sizes = [[n for n in w.nodes if n <= max(1, nodes // 4)] or ([1] if w.nodes else []) for w in WORKS]
    gpus = [np.mean(s) * per_node if s else np.mean(w.gpus) for s, w in zip(sizes, WORKS, strict=True)]
    rates = np.array(
        [
            w.share * OCCUPANCY / _RUN * nodes * per_node / (g * w.median_h * math.exp(w.sigma**2 / 2))
            for w, g in zip(WORKS, gpus, strict=True)
        ]
    )
    t, number = 0.0, 1000
    while True:
        t += rng.exponential(3600.0 / rates.sum()) / _by_day(t)
        if t >= horizon_s:
            return
        k = int(rng.choice(len(WORKS), p=rates / rates.sum()))
        work, number = WORKS[k], number + 1
        lasts = 3600.0 * min(work.median_h * math.exp(work.sigma * rng.standard_normal()), 14 * 24.0)
        state = str(rng.choice(("completed", "failed", "cancelled"), p=(0.6, 0.33, 0.07)))
        yield _Asked(
            number, k,
            int(rng.choice(sizes[k])) if sizes[k] else 0,
            0 if sizes[k] else min(int(rng.choice(work.gpus)), per_node),
            t, max(lasts, 300.0), state, float(rng.uniform(*work.load)),
        )  # fmt: skip


def _by_day(t: float) -> float:
    """More is submitted by day than by night; the mean over a day is one."""
    return 1.0 + 0.45 * math.sin(2 * math.pi * (t / 86400.0 - 0.375))


class _Placing:
    """Free GPUs, the waiting queue, and what ends when."""

    def __init__(self, nodes: int, per_node: int, lost: Sequence[Fault]) -> None:
        self.jobs: list[Job] = []
        self._per_node, self._lost = per_node, sorted(lost, key=lambda f: f.start)
        self._free = np.ones((nodes, per_node), bool)
        self._closed = np.zeros(nodes, int)
        self._ends: list[tuple[float, int, Job | int, int]] = []
        self._order = 0
        self._queue: deque[_Asked] = deque()
        for fault in self._lost:
            self._push(fault.start, fault.node, 1)
            if math.isfinite(fault.end):
                self._push(fault.end + _REPAIR_S, fault.node, -1)

    def _push(self, t: float, what: Job | int, closes: int) -> None:
        self._order += 1
        heapq.heappush(self._ends, (t, self._order, what, closes))

    def until(self, t: float) -> None:
        while self._ends and self._ends[0][0] <= t:
            now, _, what, closes = heapq.heappop(self._ends)
            if isinstance(what, Job):
                self._free.reshape(-1)[list(what.gpus)] = True
            else:
                self._closed[what] += closes
            self._place(now)

    def ask(self, asked: _Asked) -> None:
        self._queue.append(asked)
        self._place(asked.queued)

    def _place(self, now: float) -> None:
        waiting: deque[_Asked] = deque()
        head_blocks = False
        while self._queue and len(waiting) < _BACKFILL:
            asked = self._queue.popleft()
            gpus = None if head_blocks or asked.queued > now else self._find(asked)
            if gpus is None:
                head_blocks = head_blocks or (not waiting and now - asked.queued > _HEAD_WAITS_S)
                waiting.append(asked)
            else:
                self._start(asked, gpus, now)
        self._queue.extendleft(reversed(waiting))

    def _find(self, asked: _Asked) -> tuple[int, ...] | None:
        usable = self._free & (self._closed == 0)[:, None]
        count = usable.sum(axis=1)
        if asked.nodes:
            whole = np.nonzero(count == self._per_node)[0]
            if len(whole) < asked.nodes:
                return None
            first = asked.number % len(whole)  # rotated, so that no node is always the idle one
            chosen = np.sort(np.roll(whole, -first)[: asked.nodes])
            return tuple(int(n) * self._per_node + g for n in chosen for g in range(self._per_node))
        fits = np.nonzero(count >= asked.gpus)[0]
        if not len(fits):
            return None
        node = int(fits[np.argmin(count[fits])])
        slots = np.nonzero(usable[node])[0][: asked.gpus]
        return tuple(int(node * self._per_node + g) for g in slots)

    def _start(self, asked: _Asked, gpus: tuple[int, ...], now: float) -> None:
        end = now + (asked.lasts if asked.state == "completed" else asked.lasts * 0.5)
        state, code = asked.state, {"completed": 0, "failed": 1, "cancelled": 0}[asked.state]
        nodes = {g // self._per_node for g in gpus}
        hit = next((f for f in self._lost if now < f.start < end and f.node in nodes), None)
        if hit is not None:
            # The process on the lost GPU dies at once; the others are told by the collective's watchdog.
            end, state, code = hit.start + 30.0, "node_fail", 137
        job = Job(
            asked.number, asked.work, gpus, asked.queued, now, end, state, code, asked.load,
            stages=4 if asked.nodes >= 4 else 1, requeues=asked.requeues,
        )  # fmt: skip
        self.jobs.append(job)
        self._free.reshape(-1)[list(gpus)] = False
        self._push(end, job, 0)
        if hit is not None:
            left = max(asked.lasts - (end - now), 300.0)
            self._queue.append(replace(asked, queued=end + 1.0, lasts=left, requeues=asked.requeues + 1))
