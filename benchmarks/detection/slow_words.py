"""What a result of the track ``slow`` says in words: what went wrong on which GPU, and what the figures do not say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from graynode.benchmarks.detection.slow_corroborated import Rule, corroborated, levels
from graynode.benchmarks.detection.slow_data import Read, Workload
from graynode.benchmarks.detection.slow_methods import Case
from graynode.benchmarks.detection.slow_protocol import Scored, alarms, limits, too_few

_NAMED: Final = 8
_SLOW: Final = 0.05


def failures(name: str, case: Case, scored: Scored, rates: Sequence[float]) -> list[str]:
    """The GPUs behind the false alarms and behind the 5 % slowdowns missed, at the lowest rate that may be stated."""
    stated = [r for r in rates if not too_few(scored, r)]
    if not stated:
        return []
    rate, ids = stated[0], case.workload.ids
    at = limits(scored, rate)
    runs, gpus = alarms(scored, at)
    excess = case.judge().excess
    said = []
    if len(runs):
        who = _counted(ids, gpus, {int(g): float(np.expm1(excess[runs[gpus == g]].max())) for g in np.unique(gpus)})
        said.append(f"{name}: false alarms at {rate:.1%} nominal ({len(runs)} runs): {who}")
    found, _ = alarms(scored, at, _SLOW)
    missed = np.setdiff1d(np.concatenate([f.test_run for f in scored.folds]), found)
    if len(missed):
        who = _counted(ids, case.workload.gpu[missed])
        said.append(f"{name}: slowdowns of {_SLOW:.0%} missed at {rate:.1%} nominal ({len(missed)} runs): {who}")
    return said


def _counted(ids: Sequence[str], gpus: np.ndarray, worst: dict[int, float] | None = None) -> str:
    numbers, counts = np.unique(gpus, return_counts=True)
    order = np.lexsort((numbers, -counts))
    parts = [
        f"{ids[numbers[i]]} ({counts[i]}" + (f", up to {worst[int(numbers[i])]:.1%} slower)" if worst else ")")
        for i in order[:_NAMED]
    ]
    more = f" and {len(order) - _NAMED} more GPUs" if len(order) > _NAMED else ""
    return ", ".join(parts) + more


def notes(found: Read, values: dict[str, Any]) -> list[str]:
    """What was read and dropped, which GPUs look slow in truth, and which baselines do not apply."""
    rule = Rule(**values["corroborated"])
    said = [_counts(w) for w in found.workloads]
    said += [line for w in found.workloads for line in _known(w, rule)]
    said += [f"{name}: not of this format, left out" for name in found.others]
    return [
        *said,
        "There are no fault labels: a false alarm is an alarm on a run as it was; some of these may be true.",
        "Slowdowns are single slowed runs of otherwise unchanged data; a fault that lasts also moves its own past.",
        "A slowdown of time leaves the clock as it was, and the other way round: detectors of several signals at once "
        "(PCA, Mahalanobis) see the two part, which a throttled GPU would not show them.",
        "Not run: Minder's 4-minute continuity (a run is one value, no series). Load regression has only the power "
        "drawn as load, which a fault moves too. Grafana's DBSCAN and MAD look at whole panels: k-th runs of all GPUs.",
        "Not ablated: roles, accumulation and learning protection, which single runs do not have.",
        f"own_limit: a baseline's is that of its source; graynode's is a score of {values['shipped_score']:g}, taken "
        "from Longhorn's sgemm, so in sample there.",
    ]


def _counts(w: Workload) -> str:
    return (
        f"{w.name}: {w.rows} rows; without a possible time {w.without_time}, exact repeats {w.duplicates}, otherwise "
        f"unusable {w.unusable}; {len(w.gpu)} runs of {len(w.ids)} GPUs"
    )


def _known(w: Workload, rule: Rule) -> list[str]:
    return [*(_cleaned(w, signal, rule) for signal in ("time", "clock")), *_always_slow(w)]


def _cleaned(w: Workload, signal: str, rule: Rule) -> str:
    out = [w.ids[i] for i in np.flatnonzero(corroborated(w, signal, rule))]
    who = ", ".join(out[: 2 * _NAMED]) + (" …" if len(out) > 2 * _NAMED else "")
    return f"{w.name}.{signal}.cleaned: without {len(out)} GPUs whose other signals show a fault: {who or 'none'}"


def _always_slow(w: Workload) -> list[str]:
    level = (
        levels(w, "time").filter(pl.col("excess") >= np.log1p(_SLOW)).sort("excess", "gpu", descending=[True, False])
    )
    rows = level.select("gpu", "excess", "runs").iter_rows()
    slow = [f"{w.ids[gpu]} {np.exp(excess):.3f}x ({runs} runs)" for gpu, excess, runs in rows]
    if not slow:
        return []
    more = f" and {len(slow) - _NAMED} more" if len(slow) > _NAMED else ""
    return [f"{w.name}: slower than the other GPUs, by the median of their runs: {', '.join(slow[:_NAMED])}{more}"]
