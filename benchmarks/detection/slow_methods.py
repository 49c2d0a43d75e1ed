"""The methods that the track ``slow`` compares, each as a ``Method`` over single runs of one signal.

Ours is ``detectors.run_level`` itself; an ablation is the same with one part left out. Baselines see what they see at
their source: the fleet's values at large, this GPU's own past, or several signals of the run at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.benchmarks.detection import baselines, baselines_panel
from graynode.benchmarks.detection.baselines import FloatArray, RowBaseline
from graynode.benchmarks.detection.intervals import IntArray
from graynode.benchmarks.detection.slow_data import Workload
from graynode.benchmarks.detection.slow_protocol import BoolArray, Method, Score
from graynode.detectors import run_level
from graynode.detectors.run_level import Judged, Runs

HOT_C: Final = 85.0
"""The fixed rule's temperature: about where a V100's software slowdown begins (83 to 87 °C by board)."""
SLOW: Final = 1.10
"""The fixed rule's time in parts of the fleet's median: the 10 % at which Greyhound and Guard act."""
_OF_FEATURES: Final = (baselines.isolation_forest(), baselines.pca(), baselines.mahalanobis(), baselines.kmeans())


@dataclass(frozen=True, slots=True)
class Case:
    """One signal of one workload: what every method is made from."""

    workload: Workload
    signal: str

    @property
    def worse(self) -> FloatArray:
        """The signal's log, higher is worse."""
        return self.workload.worse[self.signal]

    def judge(self, *, peers: bool = True) -> Judged:
        """The runs judged by own history and, unless told otherwise, by the runs beside them."""
        w = self.workload
        return run_level.judge(Runs(w.history, w.beside, w.time_s, self.worse), peers=peers)


def ours(case: Case, limit: float) -> Method:
    """Own history × peers, in spreads; ``limit`` is the one that the product ships with."""
    return Method("graynode", _run_level(case, case.judge()), limit)


def ablations(case: Case) -> list[Method]:
    """Ours without one part: own history, peers, the GPU's own spread."""
    judged = case.judge()
    return [
        Method("no_own_history", _peers_only(case)),
        Method("no_peers", _run_level(case, case.judge(peers=False))),
        Method("no_own_spread", lambda _train: lambda values, which: judged.excess_of(values, which)),
    ]


def all_baselines(case: Case, seed: int) -> list[Method]:
    """Every baseline that makes sense for single runs; the track's notes say which do not."""
    return [
        Method("fixed_rule", _fixed_rule(case), 1.0),
        *(_on_level(case, b) for b in (baselines.three_sigma(upper=True), baselines.mad(upper=True))),
        Method("own_three_sigma", _own_three_sigma(case), 3.0),
        Method("grafana_mad", _grafana_mad(case), baselines_panel.double_mad().limit),
        Method("grafana_dbscan", _grafana_dbscan(case), 1.0),
        *(_on_features(case, b, seed) for b in _OF_FEATURES),
        Method("ratio_0.75", _ratio(case), float(-np.log(0.75))),
        Method("ratio_0.75_own", _own_ratio(case), float(-np.log(0.75))),
        Method("load_regression", _load_regression(case), 1.0),
    ]


def _run_level(case: Case, judged: Judged) -> Callable[[BoolArray], Score]:
    step = run_level.resolution(case.worse)

    def fit(train: BoolArray) -> Score:
        spread = judged.spread(run_level.usual_spread(judged, step, train))
        return lambda values, which: judged.excess_of(values, which) / spread[which]

    return fit


def _peers_only(case: Case) -> Callable[[BoolArray], Score]:
    """Level against the training GPUs at the same work: a GPU that was always slow is as odd as one that became so."""
    work = case.workload.work

    def fit(train: BoolArray) -> Score:
        centre = _by_work(case.worse, work, train)
        return lambda values, which: values - centre[work[which]]

    return fit


def _by_work(worse: FloatArray, work: IntArray, train: BoolArray) -> FloatArray:
    """Median of the training runs of each kind of work; NaN where there is none. A loop over kinds: there are few."""
    centre = np.full(int(work.max(initial=0)) + 1, np.nan)
    known = train & ~np.isnan(worse)
    for kind in np.unique(work[known]):
        centre[kind] = np.median(worse[known & (work == kind)])
    return centre


def _on_level(case: Case, baseline: RowBaseline) -> Method:
    """A baseline of one feature: the signal itself, of all GPUs at the same work."""
    level = _peers_only(case)

    def fit(train: BoolArray) -> Score:
        learned, rows = level(train), np.flatnonzero(train)
        score = baseline.fit(learned(case.worse[rows], rows)[:, None], 0)
        return lambda values, which: score(learned(values, which)[:, None])

    return Method(baseline.name, fit, baseline.limit)


def _on_features(case: Case, baseline: RowBaseline, seed: int) -> Method:
    """A baseline of several features: time, clock, power and temperature of the run, of all GPUs at the same work."""
    w = case.workload
    others = [w.worse[s] for s in w.worse if s != case.signal] + [w.temp_c]

    def rows(values: FloatArray, which: IntArray, centres: list[FloatArray]) -> FloatArray:
        columns = [values, *(o[which] for o in others)]
        return np.column_stack([c - m[w.work[which]] for c, m in zip(columns, centres, strict=True)])

    def fit(train: BoolArray) -> Score:
        centres = [_by_work(c, w.work, train) for c in (case.worse, *others)]
        learned = np.flatnonzero(train)
        score = baseline.fit(rows(case.worse[learned], learned, centres), seed)
        return lambda values, which: score(rows(values, which, centres))

    return Method(baseline.name, fit, baseline.limit)


def _fixed_rule(case: Case) -> Callable[[BoolArray], Score]:
    level = _peers_only(case)

    def fit(train: BoolArray) -> Score:
        learned = level(train)
        rule = baselines.fixed_rule([SLOW, HOT_C]).fit(np.empty((0, 2)), 0)
        temp = case.workload.temp_c
        return lambda values, which: rule(np.column_stack([np.exp(learned(values, which)), temp[which]]))

    return fit


def _own_three_sigma(case: Case) -> Callable[[BoolArray], Score]:
    """Distance from the mean of the own earlier runs in their standard deviations, at least two of them."""
    mean, spread = _earlier_moments(case)
    return lambda _train: lambda values, which: (values - mean[which]) / spread[which]


def _earlier_moments(case: Case) -> tuple[FloatArray, FloatArray]:
    panel, rows, columns = _panel(case)
    known = ~np.isnan(panel)
    # About the first value of each column, so that the difference of squares loses nothing
    off = np.where(known, panel - panel[0], 0.0)
    count = _before(np.cumsum(known, axis=0))
    total, square = _before(np.cumsum(off, axis=0)), _before(np.cumsum(np.square(off), axis=0))
    mean = np.divide(total, count, out=np.full(panel.shape, np.nan), where=count > 0)
    left = np.maximum(square - count * np.square(np.nan_to_num(mean)), 0.0)
    variance = np.divide(left, count - 1, out=np.full(panel.shape, np.nan), where=count > 1)
    floor = max(run_level.resolution(case.worse) / 2.0, 1e-6)
    return (mean + panel[0])[rows, columns], np.maximum(np.sqrt(variance), floor)[rows, columns]


def _panel(case: Case) -> tuple[FloatArray, IntArray, IntArray]:
    """Runs by GPU and work (columns) in the order of their times (rows), and the place of every run in it."""
    w = case.workload
    _, column = np.unique(w.history, return_inverse=True)
    order = np.lexsort((w.time_s, column))
    sorted_columns = column[order]
    first = np.flatnonzero(np.r_[True, sorted_columns[1:] != sorted_columns[:-1]])
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)]))
    panel = np.full((int(row.max()) + 1, len(first)), np.nan)
    panel[row, column] = case.worse
    return panel, row, column.astype(np.int64)


def _before(running: FloatArray) -> FloatArray:
    """What the running sum was before this row."""
    return np.vstack([np.zeros((1, running.shape[1])), running[:-1]])


def _grafana_mad(case: Case) -> Callable[[BoolArray], Score]:
    def fit(train: BoolArray) -> Score:
        return lambda values, _which: baselines_panel.sided_deviation(values, case.worse[train])

    return fit


def _grafana_dbscan(case: Case) -> Callable[[BoolArray], Score]:
    """At each step (the k-th run of every GPU), as ``baselines_panel.dbscan``: the others' cluster is as it is, the
    span that of the panel and this value. As there, the panel is looked at whole: nothing is learned from others.
    """
    panel, row, _ = _panel(case)
    low, high = float(np.nanmin(panel)), float(np.nanmax(panel))
    sensitivity = 0.5
    span = max(high - low, 0.1)
    bottom, top, units = (c[:, 0] for c in baselines_panel.main_cluster(panel, (1 - sensitivity) * span * 1.1))

    def score(values: FloatArray, which: IntArray) -> FloatArray:
        at = row[which]
        spans = np.maximum(np.maximum(values, high) - np.minimum(values, low), 0.1)
        away = np.maximum(np.maximum(bottom[at] - values, values - top[at]), 0.0)
        scores = np.where(np.isnan(bottom[at]), 1.0 + 1e-9, away / ((1 - sensitivity) * spans * 1.1))
        return np.where(units[at] <= 2, 0.0, scores)

    return lambda _train: score


def _ratio(case: Case) -> Callable[[BoolArray], Score]:
    """This run by the best of the training runs of the same work."""
    work = case.workload.work

    def fit(train: BoolArray) -> Score:
        best = np.full(int(work.max(initial=0)) + 1, np.inf)
        known = np.flatnonzero(train & ~np.isnan(case.worse))
        np.minimum.at(best, work[known], case.worse[known])
        return lambda values, which: values - best[work[which]]

    return fit


def _own_ratio(case: Case) -> Callable[[BoolArray], Score]:
    """This run by the best of its GPU's earlier runs."""
    panel, row, column = _panel(case)
    best = np.fmin.accumulate(panel, axis=0)
    before = np.vstack([np.full((1, panel.shape[1]), np.nan), best[:-1]])[row, column]
    return lambda _train: lambda values, which: values - before[which]


def _load_regression(case: Case) -> Callable[[BoolArray], Score]:
    """Time (or the clock's inverse) on the power drawn: the only thing in a run's row that stands for its load."""
    load = -case.workload.worse["power"] if case.signal != "power" else case.workload.worse["time"]

    def fit(train: BoolArray) -> Score:
        score = baselines_panel.load_regression(np.exp(case.worse[train])[:, None], load[train][:, None], window=1)
        return lambda values, which: score(np.exp(values)[:, None], load[which][:, None])[:, 0]

    return fit
