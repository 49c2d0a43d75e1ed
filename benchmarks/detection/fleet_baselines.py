"""Other methods on the same signal at the same noise, at the thresholds of their sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats

from graynode.benchmarks.detection import baselines, baselines_panel, faults, fleet_figures
from graynode.benchmarks.detection.delays import Bools, Floats
from graynode.benchmarks.detection.fleet_core import DAY, WINDOW_S, others_median
from graynode.benchmarks.detection.fleet_sweep import HORIZON, generator
from graynode.benchmarks.detection.noise import Noise, Windows
from graynode.benchmarks.detection.result import Figures

GPUS: Final = 80
_JOBS: Final = 4
_QUARTER: Final = 720
"""Four jobs of ten nodes, six healthy hours each: 10 node-days. What names a node every hour shows itself there."""
_FAULTS: Final = 60
_TRAIN: Final = 240
_TEXTBOOK_K, _TEXTBOOK_H = 0.5, 17.6
"""One-sided CUSUM in sigmas: h for one false alarm in 2.6e8 windows of white noise of a normal law."""
_Q: Final = 0.05

Alarms = Callable[["Panel", int], Bools]
"""Which windows of a panel's first so many GPUs alarm."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One job: log values over windows × GPUs (more is worse), less each GPU's own past; two hours to learn from."""

    train: Floats
    x: Floats

    def residual(self) -> Floats:
        """Against the median of the other GPUs."""
        return (self.x - others_median(self.x.astype(np.float32))).astype(np.float64)

    def train_residual(self) -> Floats:
        """The same of the two hours before."""
        return (self.train - others_median(self.train.astype(np.float32))).astype(np.float64)


def measured(noise: Noise, seed: int) -> dict[str, Figures]:
    """False findings among healthy nodes, and recall and delay of a 5 % slowdown within four hours."""
    rng = generator(seed, 40)
    healthy = [_panel(noise, _QUARTER, rng, None) for _ in range(_JOBS)]
    ill = [_panel(noise, HORIZON, rng, faults.SEVERE_5PCT) for _ in range(_FAULTS)]
    past = np.concatenate([p.train_residual().ravel() for p in healthy])
    found: dict[str, Figures] = {}
    note = "nodes with any alarm in six hours: 4 a node-day at most"
    for name, alarms in _methods(past, seed).items():
        nodes = sum(int(alarms(p, GPUS).reshape(len(p.x), -1, 8).any(axis=(0, 2)).sum()) for p in healthy)
        delay = np.array([_delay(alarms(p, 1)[:, 0]) for p in ill])
        found[name] = {
            "false_per_node_day": fleet_figures.rate(nodes, _JOBS * GPUS / 8 * _QUARTER / DAY, note),
            **fleet_figures.of_delays("slow.5pct", delay, generator(seed, 41)),
        }
    return found


def _panel(noise: Noise, windows: int, rng: np.random.Generator, severity: float | None) -> Panel:
    source = Windows(noise, (1, GPUS), rng)
    offset = source.offsets(1, GPUS)
    values = np.array([source.next()[0] + offset[0] for _ in range(_TRAIN + windows)], dtype=np.float64)
    if severity is not None:
        values[_TRAIN:, 0] += faults.windows(faults.constant, severity, float(WINDOW_S), windows)
    return Panel(values[:_TRAIN], values[_TRAIN:])


def _delay(alarm: Bools) -> float:
    first = np.flatnonzero(alarm)
    return (float(first[0]) + 1.0) * WINDOW_S / 60.0 if len(first) else np.inf


def _methods(past: Floats, seed: int) -> dict[str, Alarms]:
    """All of them. ``past`` are healthy residuals to learn from, without the GPUs that are judged with a fault."""
    sigma = float(past.std())
    rows = (baselines.three_sigma(upper=True), baselines.mad(upper=True), baselines.isolation_forest())
    panels = (b for b in baselines_panel.panel_baselines(sample_s=float(WINDOW_S)) if not b.name.endswith("_own"))
    return {
        **{b.name: _rows(b, past, seed) for b in rows},
        **{b.name: _panels(b) for b in panels},
        "cusum_textbook": lambda p, many: _textbook(p.residual()[:, :many] / sigma),
        "benjamini_hochberg_per_scan": lambda p, many: _per_scan(p.residual() / sigma)[:, :many],
    }


def _rows(baseline: baselines.RowBaseline, past: Floats, seed: int) -> Alarms:
    """Of each window's residual against the peers."""
    score = baseline.fit(past.reshape(-1, 1), seed)

    def alarms(p: Panel, many: int) -> Bools:
        r = p.residual()[:, :many]
        return np.asarray(score(r.reshape(-1, 1)).reshape(r.shape) > baseline.limit, dtype=np.bool_)

    return alarms


def _panels(baseline: baselines_panel.PanelBaseline) -> Alarms:
    """Of values as they come: times, larger is worse."""

    def alarms(p: Panel, many: int) -> Bools:
        return np.asarray(baseline.score(np.exp(p.x))[:, :many] > baseline.limit, dtype=np.bool_)

    return alarms


def _textbook(z: Floats) -> Bools:
    total, alarm = np.zeros(z.shape[1]), np.zeros(z.shape, dtype=np.bool_)
    for i, row in enumerate(z):
        total = np.maximum(0.0, total + row - _TEXTBOOK_K)
        alarm[i] = total >= _TEXTBOOK_H
        total[alarm[i]] = 0.0
    return alarm


def _per_scan(z: Floats) -> Bools:
    """p-values of a normal law in each window, Benjamini and Hochberg at 5 % over the job's GPUs."""
    tail = np.asarray(stats.norm.sf(z), dtype=np.float64)
    order = np.sort(tail, axis=1)
    passing = order <= _Q * np.arange(1, tail.shape[1] + 1) / tail.shape[1]
    limit = np.where(passing, order, -1.0).max(axis=1, keepdims=True)
    return np.asarray(tail <= limit, dtype=np.bool_)
