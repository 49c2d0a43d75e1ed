"""Odd combinations that no rule names: an isolation forest on residuals, read through conformal p-values.

The forest only ranks. Whether a score is rare is said by split-conformal p-values over healthy scores that it was
not fitted on, one window per GPU and day, so that one GPU's busy hour does not count as many. ``contamination`` is an
asserted prevalence and decides nothing. It scores every tenth round and never pages: its findings are a digest.

Residuals are those against the peers of the job, less the GPU's own mean of them in this job: a GPU that always clocks
lower is not odd. That mean forgets with a day's memory, so a slow ramp is not seen here; ``slow`` and ``thermal`` are
there for it. Only GPUs that do the same at the same time are compared: training and fine-tuning, or work whose kind is
not known. A serving replica with more requests than its neighbour is no oddity.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Final

import numpy as np
import polars as pl

from graynode.detectors import capability, conformal, findings, footing, memory, oddity, residual
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import Bools, Floats, View, codes, epoch_s, gpus, keys_by_work
from graynode.detectors.oddity import Fitted
from graynode.detectors.residual import Peers
from graynode.detectors.thresholds import Thresholds, shipped

EVERY: Final = 10
"""Rounds from one scoring to the next."""
_FEATURES: Final = (
    "sm_clock_mhz_mean", "mem_clock_mhz_mean", "power_w_mean", "temp_c_mean", "mem_temp_c_mean",
    "gpu_util_percent_mean",
    "sm_active_ratio_mean", "dram_active_ratio_mean",
)  # fmt: skip
_NUMBERS: Final = (*dict.fromkeys((*capability.NUMBERS, *_FEATURES)),)
_KEPT_DAYS: Final = 8
_KEPT_ROWS: Final = 8192
_LEAST: Final = 100
"""Healthy GPU-days that each half needs before anything is scored."""
_SETTLED: Final = 12
"""Scorings (an hour) before a GPU's own mean is trusted."""
_MEMORY: Final = 288.0
"""Scorings that the own mean remembers: a day."""
_COLUMNS: Final = ("sum", "since", "job", "scorings", *_FEATURES, *footing.COLUMNS)
_SYNCHRONOUS: Final = ("training", "fine_tuning")
_SEED: Final = 20_261


class Forest:
    """The detector."""

    name: ClassVar[str] = "forest"
    version: ClassVar[int] = 2

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score every tenth round; the other rounds give nothing and change nothing."""
        now_s = epoch_s(round_.start)
        if int(now_s // round_.window_s) % EVERY:
            return Scored(findings.none(), state)
        view = gpus(round_.gpu, _NUMBERS)
        remembered = memory.recall(state.get("gpu"), view.keys, _COLUMNS)
        under, ended = footing.recall(remembered, footing.read(view, round_))
        groups = residual.peers(view, under)
        excess = np.where(_synchronous(view, round_.jobs)[:, None], _features(view, round_.window_s, groups), np.nan)
        _new_jobs(view, remembered, ended)
        features = excess - np.column_stack([remembered[f] for f in _FEATURES])
        judged = ~np.all(np.isnan(features), axis=1) & (remembered["scorings"] >= _SETTLED)
        p = _p_values(state.get("history"), features, judged)
        limit = self._thresholds.value(self.name, "odd", round_.window_s)
        odd = oddity.accumulate(view, remembered, p, limit)
        found = [_candidate(view, int(i), remembered, p, limit) for i in odd]
        day, healthy = np.floor(now_s / 86_400.0), ~(remembered["sum"] >= limit / 2)
        history = _learn(state.get("history"), view, features, judged & healthy, day)
        _settle(remembered, excess, healthy)
        after = {"gpu": memory.remember(state.get("gpu"), view.keys, remembered, now_s), "history": history}
        return Scored(findings.collect(self, round_, found), after)


def _features(view: View, window_s: int, groups: Peers) -> Floats:
    judged = capability.loaded(view, window_s)
    columns = []
    for f in _FEATURES:
        r = residual.against_peers(np.where(judged, residual.log_of(view.x[f]), np.nan), groups)
        columns.append(np.where(r.wide, np.nan, r.excess))
    return np.column_stack(columns)


def _synchronous(view: View, jobs: pl.DataFrame) -> Bools:
    kinds = keys_by_work(view, jobs).str.extract(r"\|(.*)$").fill_null(_SYNCHRONOUS[0])
    return kinds.is_in(_SYNCHRONOUS).to_numpy()


def _new_jobs(view: View, remembered: memory.Arrays, ended: Bools) -> None:
    """What a GPU's mean was in another job, or before a repair or a new driver, says nothing about it now. In place."""
    job = np.nan_to_num(footing.numbers(view.text("job_id_last")), nan=-1.0)
    other = (job != remembered["job"]) | ended
    for c in ("sum", "since", "scorings", *_FEATURES):
        remembered[c] = np.where(other, np.nan, remembered[c])
    remembered["job"] = job


def _settle(remembered: memory.Arrays, excess: Floats, healthy: Bools) -> None:
    """Take this window into each healthy GPU's own mean, in place, after it was scored."""
    before = np.nan_to_num(remembered["scorings"])
    seen = healthy & ~np.all(np.isnan(excess), axis=1)
    now = np.minimum(before + seen, _MEMORY)
    for j, f in enumerate(_FEATURES):
        mean = remembered[f]
        step = (excess[:, j] - np.where(np.isnan(mean), excess[:, j], mean)) / np.maximum(now, 1.0)
        moved = np.where(np.isnan(mean), excess[:, j], mean + step)
        remembered[f] = np.where(seen & ~np.isnan(excess[:, j]), moved, mean)
    remembered["scorings"] = now


def _candidate(view: View, i: int, held: memory.Arrays, p: Floats, limit: float) -> Candidate:
    message = f"{view.gpu_name(i)} behaves unlike its peers in a way no rule names"
    action = "Look at its clocks, power and heat beside its neighbours'"
    evidence = {"pci_bus_id": view.text("pci_bus_id_last")[i]}
    return oddity.candidate(view, i, held, p, limit, subject="gpu", message=message, action=action, evidence=evidence)


def _learn(history: pl.DataFrame | None, view: View, features: Floats, healthy: Bools, day: float) -> pl.DataFrame:
    """History with one window of each GPU and day: the first loaded one that is scored."""
    fresh = pl.DataFrame(
        {
            "key": view.keys,
            "day": np.full(len(view), day),
            **{f: features[:, j].astype(np.float32) for j, f in enumerate(_FEATURES)},
        },
        schema_overrides={"key": pl.String},
    ).filter(pl.Series(healthy, dtype=pl.Boolean))
    if history is None:
        return fresh
    fresh = fresh.join(history.filter(pl.col("day") == day).select("key"), on="key", how="anti")
    if fresh.is_empty():
        return history
    return pl.concat([history.filter(pl.col("day") > day - _KEPT_DAYS), fresh]).sort("day", "key").tail(_KEPT_ROWS)


def _p_values(history: pl.DataFrame | None, features: Floats, judged: Bools) -> Floats:
    p = np.full(len(features), np.nan)
    if history is None or history.height < 2 * _LEAST or not judged.any():
        return p
    model, medians, calibration = _fit(Fitted(history, _FEATURES))
    if model is None:
        return p
    p[judged] = conformal.p_values(calibration, _odd(model, features[judged], medians))
    return p


@functools.lru_cache(maxsize=2)
def _fit(history: Fitted) -> tuple[Any, Floats, Floats]:
    """Forest, feature medians and the calibration scores; the forest is ``None`` where a half is too small."""
    from sklearn.ensemble import IsolationForest  # a second and 130 MiB: only where there is something to fit

    rows = history.frame.select(_FEATURES).to_numpy().astype(np.float64)
    half = codes(history.frame.get_column("key"), history.frame.get_column("day")) % 2 == 0
    fit, calibrate = rows[half], rows[~half]
    known = ~np.isnan(fit)
    medians = np.array([np.median(c[k]) if k.any() else 0.0 for c, k in zip(fit.T, known.T, strict=True)])
    if min(len(fit), len(calibrate)) < _LEAST:
        return None, medians, np.zeros(0)
    model = IsolationForest(n_estimators=100, max_samples=min(256, len(fit)), random_state=_SEED, n_jobs=1)
    model.fit(np.where(known, fit, medians))
    return model, medians, _odd(model, calibrate, medians)


def _odd(model: Any, features: Floats, medians: Floats) -> Floats:  # noqa: ANN401 (scikit-learn has no types)
    return -np.asarray(model.score_samples(np.where(np.isnan(features), medians, features)), dtype=np.float64)
