"""Odd hosts: CPU, memory, disk and load in a combination that this fleet's hosts do not know.

The score is the distance to the nearest mode of operation (``graynode.detectors.host_modes``, measured by
``graynode evaluate host``) of what a host does beyond its own mean; whether that is rare is said by split-conformal
p-values over healthy scores that the modes were not fitted to, one window a host and six hours. It scores every tenth
round and never pages: its findings are a digest. What many hosts do at once is one shift and not many odd hosts.
"""

from __future__ import annotations

import functools
from typing import ClassVar, Final

import numpy as np
import polars as pl

from graynode.detectors import conformal, findings, host_modes, memory, oddity
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import Bools, Floats, View, codes, epoch_s, hosts
from graynode.detectors.oddity import Fitted
from graynode.detectors.thresholds import Thresholds, shipped

EVERY: Final = 10
"""Rounds from one scoring to the next."""
_PERCENT: Final = ("cpu_util_percent_mean", "cpu_iowait_percent_mean", "nvme_temp_max_c_mean")
_AMOUNTS: Final = ("load1_mean", "mem_available_bytes_mean", "swap_used_bytes_mean", "disk_io_ms_delta")
"""Judged by their logarithm: a load of 2 where 1 is usual is as odd as 200 where 100 is."""
_FEATURES: Final = (*_PERCENT, *_AMOUNTS)
_COLUMNS: Final = ("sum", "since", "scorings", *_FEATURES)
_SLOT_S: Final = 21_600.0
"""One window a host and six hours calibrates: a busy hour must not count as many."""
_KEPT_SLOTS: Final = 112
_KEPT_ROWS: Final = 8192
_ADDED_ROWS: Final = 1024
"""Of a larger fleet always the same part calibrates: else the oldest fall out at once and all is fitted anew."""
_LEAST: Final = 100
"""Healthy windows that each half needs before anything is scored."""
_LEAST_HOSTS: Final = 4
"""Of fewer hosts nobody can say which is odd."""
_SETTLED: Final = 12
_MEMORY: Final = 288.0
"""Scorings (an hour) before a host's own mean is trusted, and that it remembers (a day)."""
_SEED: Final = 20_262


class Hosts:
    """The detector."""

    name: ClassVar[str] = "hosts"
    version: ClassVar[int] = 1
    reads: ClassVar[dict[str, tuple[str, ...]]] = {"host": _FEATURES}
    leaves_out_d: ClassVar[int] = 0

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def learn(self, history: Round, state: State) -> State:
        """Own means from past windows. Calibration is not: hours are steadier than the half minutes judged later."""
        view = hosts(history.host, _FEATURES)
        if not len(view):
            return state
        x = _features(view, history.window_s)
        names = view.keys.unique().sort()
        at = np.searchsorted(names.to_numpy(), view.keys.to_numpy())
        held = memory.recall(state.get("host"), names, _COLUMNS)
        before = np.nan_to_num(held["scorings"])
        for j, f in enumerate(_FEATURES):
            known = np.isfinite(x[:, j])
            total = np.bincount(at[known], weights=x[known, j], minlength=len(names))
            many = np.bincount(at[known], minlength=len(names))
            old = np.where(np.isnan(held[f]), 0.0, before)
            sums = np.where(old > 0, held[f], 0.0) * old + total
            held[f] = np.where(old + many > 0, sums / np.maximum(old + many, 1.0), np.nan)
        held["scorings"] = np.minimum(before + np.bincount(at, minlength=len(names)), _MEMORY)
        return {**state, "host": memory.remember(state.get("host"), names, held, float(view.t_s.max()))}

    def score(self, round_: Round, state: State) -> Scored:
        """Score every tenth round; the other rounds give nothing and change nothing."""
        now_s = epoch_s(round_.start)
        if int(now_s // round_.window_s) % EVERY:
            return Scored(findings.none(), state)
        view = hosts(round_.host, _FEATURES)
        x = _features(view, round_.window_s)
        held = memory.recall(state.get("host"), view.keys, _COLUMNS)
        excess = x - np.column_stack([held[f] for f in _FEATURES])
        judged = np.isfinite(excess).any(axis=1) & (held["scorings"] >= _SETTLED)
        p = _p_values(state.get("history"), excess, judged)
        limit = self._thresholds.value(self.name, "odd", round_.window_s)
        odd = oddity.accumulate(view, held, p, limit)
        found = [_candidate(view, int(i), held, p, limit) for i in odd]
        healthy = ~(held["sum"] >= limit / 2)
        history = _learn(state.get("history"), view, excess, np.asarray(judged & healthy, dtype=np.bool_))
        _settle(held, x, healthy)
        after = {"host": memory.remember(state.get("host"), view.keys, held, now_s), "history": history}
        return Scored(findings.collect(self, round_, found), after)


def _features(view: View, window_s: int) -> Floats:
    columns = [view.x[f] for f in _PERCENT]
    for f in _AMOUNTS:
        amount = view.x[f] / window_s if f == "disk_io_ms_delta" else view.x[f]
        columns.append(np.log1p(np.where(amount >= 0, amount, np.nan)))
    return np.column_stack(columns)


def _candidate(view: View, i: int, held: memory.Arrays, p: Floats, limit: float) -> Candidate:
    name = view.text("node")[i] or view.text("node_id")[i]
    message = f"{name}: CPU, memory, disk and load as on no other host"
    action = "Look at what runs there beside the job, and at its disks"
    evidence = {f.removesuffix("_mean"): float(view.x[f][i]) for f in _FEATURES if np.isfinite(view.x[f][i])}
    return oddity.candidate(view, i, held, p, limit, subject="node", message=message, action=action, evidence=evidence)


def _settle(held: memory.Arrays, x: Floats, healthy: Bools) -> None:
    """Take this window into each healthy host's own mean, in place, after it was scored."""
    seen = healthy & np.isfinite(x).any(axis=1)
    before = np.nan_to_num(held["scorings"])
    now = np.minimum(before + seen, _MEMORY)
    for j, f in enumerate(_FEATURES):
        mean, value = held[f], x[:, j]
        moved = np.where(np.isnan(mean), value, mean + (value - mean) / np.maximum(now, 1.0))
        held[f] = np.where(seen & np.isfinite(value), moved, mean)
    held["scorings"] = now


def _learn(history: pl.DataFrame | None, view: View, excess: Floats, healthy: Bools) -> pl.DataFrame:
    """History with the first healthy window of each host and six hours."""
    slot = np.floor(view.t_s / _SLOT_S)
    columns = {f: excess[:, j].astype(np.float32) for j, f in enumerate(_FEATURES)}
    fresh = pl.DataFrame({"key": view.keys, "slot": slot, **columns}, schema_overrides={"key": pl.String})
    part = view.keys.hash() % max(1, len(view) // _ADDED_ROWS) == 0
    fresh = fresh.filter(pl.Series(healthy, dtype=pl.Boolean) & part)
    fresh = fresh.unique(["key", "slot"], keep="first", maintain_order=True)
    if history is None:
        return fresh.sort("slot", "key").tail(_KEPT_ROWS)
    fresh = fresh.join(history.select("key", "slot"), on=["key", "slot"], how="anti")
    if fresh.is_empty():
        return history
    newest = float(fresh.get_column("slot").max())  # type: ignore[arg-type]  # numbers
    kept = history.filter(pl.col("slot") > newest - _KEPT_SLOTS)
    return pl.concat([kept, fresh]).sort("slot", "key").tail(_KEPT_ROWS)


def _p_values(history: pl.DataFrame | None, excess: Floats, judged: Bools) -> Floats:
    p = np.full(len(excess), np.nan)
    if history is None or history.height < 2 * _LEAST or not judged.any():
        return p
    if history.get_column("key").n_unique() < _LEAST_HOSTS:
        return p
    modes, calibration = _fit(Fitted(history, _FEATURES))
    if modes is not None:
        p[judged] = conformal.p_values(calibration, modes.score(excess[judged]))
    return p


@functools.lru_cache(maxsize=2)
def _fit(history: Fitted) -> tuple[host_modes.Modes | None, Floats]:
    """Modes of one half of the host-slots, and the scores of the other; none where a half is too small."""
    rows = history.frame.select(_FEATURES).to_numpy().astype(np.float64)
    half = codes(history.frame.get_column("key"), history.frame.get_column("slot")) % 2 == 0
    if min(half.sum(), (~half).sum()) < _LEAST:
        return None, np.zeros(0)
    modes = host_modes.fit(rows[half], _SEED)
    return modes, modes.score(rows[~half])
