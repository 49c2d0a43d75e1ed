"""Range-AUC and the volume under the surface: how well a score finds anomalous ranges, without a threshold.

Paparrizos, Boniol, Palpanas, Tsay, Elmore, Franklin: "Volume Under the Surface" (VLDB 2022). A labelled range is
widened by a buffer whose weight falls as sqrt(1 − d/l) with the distance d to it; recall is scaled by the share of
ranges that are hit at all; the area is averaged over all buffers l from 0 to a longest one, so that no buffer is
chosen. As in the paper's own evaluation, 250 thresholds are taken evenly from the sorted scores, and the part of the
buffer that is hit counts half as much again to the positives. No point of a range is credited for a hit elsewhere in it
(no point-adjust).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from graynode.benchmarks.detection.intervals import FloatArray, IntArray

THRESHOLDS: Final = 250

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Volume:
    """Areas in [0, 1], averaged over the buffers. ``pr``: precision over range recall; ``roc``: recall over alarms."""

    pr: float
    roc: float


def vus(labels: Bools, score: FloatArray, longest: int) -> Volume:
    """The volume over buffers of 0 to ``longest`` samples. Larger scores are more anomalous.

    ``ValueError``: lengths differ, a score is not finite, or labels are all alike (there is nothing to tell apart).
    """
    _check(labels, score)
    ranks, alarms = _ranks(score)
    spans = ranges(labels)
    areas = np.array([_areas(labels, spans, ranks, alarms, buffer) for buffer in range(longest + 1)])
    pr, roc = areas.mean(axis=0)
    return Volume(float(pr), float(roc))


def range_auc(labels: Bools, score: FloatArray, buffer: int) -> Volume:
    """The areas with one buffer. Errors as ``vus``."""
    _check(labels, score)
    ranks, alarms = _ranks(score)
    pr, roc = _areas(labels, ranges(labels), ranks, alarms, buffer)
    return Volume(pr, roc)


def average_precision(labels: Bools, score: FloatArray) -> float:
    """Sum of precision times the step of recall, over every distinct score. Errors as ``vus``."""
    _check(labels, score)
    order = np.argsort(-score, kind="stable")
    last = np.append(np.diff(score[order]) != 0, True)
    hits = np.cumsum(labels[order])[last]
    alarms = np.flatnonzero(last) + 1.0
    return float(np.sum(hits / alarms * np.diff(hits, prepend=0)) / hits[-1])


def _check(labels: Bools, score: FloatArray) -> None:
    if labels.shape != score.shape or labels.ndim != 1:
        raise ValueError(f"labels {labels.shape} and scores {score.shape} are not of one length")
    if not np.isfinite(score).all():
        raise ValueError("a score is not finite")
    if not labels.any() or labels.all():
        raise ValueError("labels are all alike")


def _ranks(score: FloatArray) -> tuple[IntArray, FloatArray]:
    """Of each sample the first threshold that it reaches, and of each threshold how many samples reach it."""
    falling = -np.sort(-score)
    thresholds = falling[np.linspace(0, len(score) - 1, THRESHOLDS).astype(np.int64)]
    ranks = np.searchsorted(-thresholds, -score, side="left").astype(np.int64)
    return ranks, np.cumsum(np.bincount(ranks, minlength=THRESHOLDS)).astype(np.float64)


def ranges(labels: Bools) -> IntArray:
    """First and last sample of each labelled range, shape (ranges, 2)."""
    edges = np.diff(labels.astype(np.int8), prepend=0, append=0)
    return np.column_stack([np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1])


def _areas(labels: Bools, spans: IntArray, ranks: IntArray, alarms: FloatArray, buffer: int) -> tuple[float, float]:
    inside = np.cumsum(np.bincount(ranks[labels], minlength=THRESHOLDS))
    near = np.cumsum(np.bincount(ranks, weights=_buffer(labels, spans, buffer), minlength=THRESHOLDS))
    hits = inside + near
    positives = labels.sum() + near / 2.0
    recall = np.minimum(hits / positives, 1.0) * _met(spans, ranks, buffer)
    false = (alarms - hits) / (len(labels) - positives)
    pr = np.sum(np.diff(recall, prepend=0.0) * hits / alarms)
    x, y = np.concatenate([[0.0], false, [1.0]]), np.concatenate([[0.0], recall, [1.0]])
    return float(pr), float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2.0))


def _buffer(labels: Bools, spans: IntArray, buffer: int) -> FloatArray:
    """Weight of each sample outside the ranges: those of the ranges it is near, in sum at most 1."""
    reach = buffer // 2
    if not reach:
        return np.zeros(len(labels))
    away = np.arange(1, reach + 1)
    fall = np.tile(np.sqrt(1.0 - away / buffer), (2 * len(spans), 1))
    at = np.concatenate([spans[:, 1, None] + away, spans[:, 0, None] - away]) + reach
    weights = np.bincount(at.ravel(), weights=fall.ravel(), minlength=len(labels) + 2 * reach)
    inner = weights[reach : reach + len(labels)]
    return np.where(labels, 0.0, np.minimum(inner, 1.0))


def _met(spans: IntArray, ranks: IntArray, buffer: int) -> FloatArray:
    """Share of the widened ranges (those that touch are one) that each threshold hits."""
    reach = buffer // 2
    apart = np.flatnonzero(spans[1:, 0] - spans[:-1, 1] > 2 * reach)
    first = np.maximum(spans[np.append(0, apart + 1), 0] - reach, 0)
    last = np.minimum(spans[np.append(apart, len(spans) - 1), 1] + reach, len(ranks) - 1)
    best = np.array([ranks[a : b + 1].min() for a, b in zip(first, last, strict=True)])
    return np.asarray(np.cumsum(np.bincount(best, minlength=THRESHOLDS)) / len(best), dtype=np.float64)
