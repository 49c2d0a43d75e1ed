"""Track ``slow``: single runs of GPUs (Longhorn's format), and how small a slowdown is found at which false-alarm rate.

Every run of a test GPU is judged by what was strictly before it and beside it, once as it was and once slowed. Limits
are set on the training GPUs' runs. Figures are ``WORKLOAD.SIGNAL.SET.NAME``: signal time or clock; set ``all`` GPUs, or
``cleaned`` of those whose other signals show a fault (``slow_corroborated``). See docs/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graynode.benchmarks.detection.frozen import frozen
from graynode.benchmarks.detection.intervals import IntArray
from graynode.benchmarks.detection.result import DataError, Figure, Figures, Result, digests
from graynode.benchmarks.detection.slow_corroborated import Rule, corroborated
from graynode.benchmarks.detection.slow_data import Read, read
from graynode.benchmarks.detection.slow_inject import SLOWDOWNS
from graynode.benchmarks.detection.slow_methods import Case, ablations, all_baselines, ours
from graynode.benchmarks.detection.slow_protocol import (
    RUNS_PER_FALSE_ALARM,
    BoolArray,
    Method,
    Scored,
    figures,
    folds,
    limit_figures,
    published_figures,
    score,
)
from graynode.benchmarks.detection.slow_words import failures, notes

_SIGNALS = ("time", "clock")
_OTHERS_SLOWDOWNS = (0.02, 0.05)


@dataclass(frozen=True, slots=True)
class Cell:
    """One signal of one workload on one set of GPUs: the runs that are judged, and the fold of every GPU."""

    name: str
    case: Case
    judged: BoolArray
    fold: IntArray
    seed: int

    def scored(self, method: Method, slowdowns: Sequence[float]) -> Scored:
        """The method over all folds."""
        return score(method, self.case.worse, self.case.workload.gpu, self.fold, self.judged, slowdowns)


def run(data: Path | None, seed: int, *, full: bool = False) -> Result:
    """Evaluate every workload in ``data``. ``full`` draws ten times as many bootstrap samples."""
    if data is None:
        raise DataError("track slow needs --data: a folder with runs in the format of Longhorn (gpu-variability)")
    values, digest = frozen("slow")
    if full:
        values = values | {"draws": 10 * values["draws"], "draws_of_others": 10 * values["draws_of_others"]}
    result = evaluate(data, seed, values)
    result.thresholds_sha256 = digest
    return result


def evaluate(data: Path, seed: int, values: dict[str, Any], *, compare: bool = True) -> Result:
    """The same with other ``values`` than the frozen ones; without baselines and ablations if not to ``compare``."""
    found = read(data)
    result = Result(
        track="slow",
        seed=seed,
        n=sum(len(w.ids) for w in found.workloads),
        figures={},
        data_sha256=digests(found.files),
        notes=notes(found, values),
    )
    for cell in _cells(found, values, seed):
        _ours(cell, values, result)
        if compare:
            _others(cell, values, result)
    _against_targets(result, values["targets"])
    return result


def _cells(found: Read, values: dict[str, Any], seed: int) -> Iterator[Cell]:
    for workload in found.workloads:
        fold = folds(len(workload.ids), min(values["folds"], max(len(workload.ids), 2)), seed)
        for signal in _SIGNALS:
            case = Case(workload, signal)
            if np.isnan(case.worse).all():
                continue
            everyone = _judged(case, fold, values)
            out = corroborated(workload, signal, Rule(**values["corroborated"]))
            name = f"{workload.name}.{signal}"
            yield Cell(f"{name}.all", case, everyone, fold, seed)
            yield Cell(f"{name}.cleaned", case, everyone & ~out[workload.gpu], fold, seed)


def _judged(case: Case, fold: IntArray, values: dict[str, Any]) -> BoolArray:
    """Runs with so long a past as the data affords: see ``history_source`` in the frozen values."""
    judged = case.judge()
    known = ~np.isnan(judged.excess)
    of = fold[case.workload.gpu]
    for rate in values["rates"]:
        for earlier in values["history"]:
            long_enough = known & (judged.earlier >= earlier)
            least = long_enough.sum() - np.bincount(of[long_enough], minlength=1).max()
            if least >= RUNS_PER_FALSE_ALARM / rate:
                return np.asarray(long_enough, dtype=np.bool_)
    return np.asarray(known & (judged.earlier >= values["history"][-1]), dtype=np.bool_)


def _ours(cell: Cell, values: dict[str, Any], result: Result) -> None:
    scored = cell.scored(ours(cell.case, values["shipped_score"]), SLOWDOWNS)
    result.figures |= _figures(cell, scored, SLOWDOWNS, values, values["draws"])
    result.failures += failures(cell.name, cell.case, scored, values["rates"])


def _others(cell: Cell, values: dict[str, Any], result: Result) -> None:
    others = [(result.baselines, m) for m in all_baselines(cell.case, cell.seed)]
    others += [(result.ablations, m) for m in ablations(cell.case)]
    for kind, method in others:
        scored = cell.scored(method, _OTHERS_SLOWDOWNS)
        named = _figures(cell, scored, _OTHERS_SLOWDOWNS, values, values["draws_of_others"])
        kind.setdefault(method.name, {}).update(named)


def _figures(cell: Cell, scored: Scored, slowdowns: Sequence[float], values: dict[str, Any], draws: int) -> Figures:
    named: Figures = {}
    for rate in values["rates"]:
        shares = figures(scored, rate, slowdowns, draws, cell.seed)
        at = {_what(s): figure for s, figure in shares.items()} | limit_figures(scored, rate)
        named |= {f"{cell.name}.{what}_at_fpr_{_pct(rate)}": figure for what, figure in at.items()}
    if np.isfinite(scored.published):
        shares = published_figures(scored, slowdowns, draws, cell.seed)
        named |= {f"{cell.name}.{_what(s)}_at_own_limit": figure for s, figure in shares.items()}
    return named


def _what(slowdown: float) -> str:
    return f"recall_{_pct(slowdown)}" if slowdown else "fpr"


def _pct(part: float) -> str:
    return f"{100 * part:g}pct"


def _against_targets(result: Result, targets: dict[str, float]) -> None:
    """Say beside a figure that has one what was to be reached, and among the failures where it was not."""
    for name, least in targets.items():
        figure = result.figures.get(name)
        if figure is None:
            continue
        reached = figure.value is not None and figure.value >= least
        said = f"to reach {least:g}: {'reached' if reached else 'not reached'}"
        note = "; ".join(filter(None, (figure.note, said)))
        result.figures[name] = Figure(figure.value, figure.ci_low, figure.ci_high, figure.n, note)
        if not reached:
            result.failures.insert(0, f"{name}: {said} ({figure.note or f'{figure.value:.4g}'})")
