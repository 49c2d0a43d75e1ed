"""Two tests once a day over each GPU's daily centres: who is always slower, and who becomes slower bit by bit.

*Level* compares yesterday with GPUs of the same model, kind of work, MIG profile and power limit. It finds what was
never well, which no comparison with the own past can, ranks it and asks for a probe: a digest, because GPUs of one
model differ by several percent and are well.

*Trend* is for a fault that grows over weeks. The own baseline, days −28 to −7, follows a ramp by 17 days, so one below
τ/2 in that time (0.14 % a day) never shows against it. Theil-Sen's slope over the days kept says how far it has gone;
Mann-Kendall says whether days could fall so by chance (Hamed, Rao 1998, in the form of Yue, Wang 2004, for days that
resemble the day before).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from scipy import special

from graynode.detectors import baseline, conformal, residual
from graynode.detectors.accumulate import TAU
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import Floats, Ints, View, codes, moment
from graynode.detectors.memory import Arrays

Z_FLOOR: Final = 0.002
"""Least MAD in log units: peers that agree to the last digit make no microscopic difference a fault."""
_TREND_DAYS: Final = 14
"""Days with a centre that a trend needs: with fewer, one job of other GPUs beside it is half of them."""
_CHUNK: Final = 4096
"""GPUs at once: 595 pairs of days each."""


def level(view: View, keys: pl.Series, history: pl.DataFrame, memory: Arrays, day: float) -> list[Candidate]:
    """Whose clock was below that of its like over the whole of ``day``: a list, Benjamini-Hochberg at 5 %."""
    wanted = keys.alias("key").to_frame()
    found = wanted.join(history.filter(pl.col("day") == day), on="key", how="left", maintain_order="left")
    if "clock" not in found.columns:
        return []
    centre = found.get_column("clock").cast(pl.Float64).fill_null(float("nan")).to_numpy()
    limit = np.nan_to_num(memory["power_limit"], nan=-1.0).view(np.int64)
    groups = codes(residual.kinds(view), keys.str.extract(r"\|(.*)$"), limit)
    z, excess, peers = residual.robust_z(centre, groups, Z_FLOOR)
    p = np.where(np.isnan(z), np.nan, conformal.robust_tail(np.nan_to_num(z), peers))
    listed = conformal.benjamini_hochberg(p) & (excess >= np.log1p(TAU))
    return [
        _level(view, int(i), excess, p[i], int(peers[i]), int(np.sum(excess[groups == groups[i]] >= excess[i])))
        for i in np.flatnonzero(listed)
    ]


def _level(view: View, i: int, excess: Floats, p: float, peers: int, rank: int) -> Candidate:
    effect = float(np.expm1(excess[i]))
    return {
        **view.identity(i),
        "subject": "gpu",
        "cause": "slow_gpu",
        "signal": "level",
        "effect": effect,
        "value": effect,
        "unit": "ratio",
        "score": effect,
        "threshold": TAU,
        "p_value": p,
        "peers": peers,
        "severity": "digest",
        "message": f"{view.gpu_name(i)}: over the whole of yesterday its clock under load "
        f"was {effect:.1%} below that of {peers} GPUs of its model",
        "action": "Run a GEMM benchmark on it between jobs: it may always have been slow",
        "evidence": {"test": "level", "rank": rank, "of": peers + 1},
    }


def trend(view: View, keys: pl.Series, history: pl.DataFrame, today: float, limit: float) -> list[Candidate]:
    """Whose clock has fallen, day by day, by ``limit`` or more (log units) over the days kept."""
    days = baseline.by_day(history, keys, ("clock",), today)["clock"]
    drift, p = drifts(days)
    listed = conformal.benjamini_hochberg(p) & (drift >= limit / 2)
    return [_trend(view, int(i), drift[i], p[i], days[i], today, limit) for i in np.flatnonzero(listed)]


def _trend(view: View, i: int, drift: float, p: float, days: Floats, today: float, limit: float) -> Candidate:
    known = np.flatnonzero(~np.isnan(days))
    span = int(known[-1] - known[0])
    effect = float(np.expm1(drift))
    since = moment((today - days.size + known[0]) * baseline.DAY_S)
    return {
        **view.identity(i),
        "subject": "gpu",
        "cause": "slow_gpu",
        "signal": "trend",
        "effect": effect,
        "value": effect,
        "unit": "ratio",
        "score": drift,
        "threshold": limit,
        "p_value": p,
        "since": since,
        "severity": "ticket" if drift >= TAU else "digest",
        "message": f"{view.gpu_name(i)}: its clock under load has fallen against its peers' by {effect:.1%} "
        f"in {span} days",
        "action": "Run a GEMM benchmark on it between jobs and compare with its last; look at its heat and power",
        "evidence": {"test": "trend", "days": int(known.size), "per_day": drift / max(span, 1)},
    }  # fmt: skip


def drifts(days: Floats) -> tuple[Floats, Floats]:
    """Theil-Sen slope times the span of each row's known days, and the one-sided p that it rises by chance.

    NaN with fewer than ``_TREND_DAYS`` days. Rows whose end is not above their beginning are not looked at further:
    drift 0, p 1.
    """
    drift, p = np.full(len(days), np.nan), np.full(len(days), np.nan)
    enough = np.flatnonzero((~np.isnan(days)).sum(axis=1) >= _TREND_DAYS)
    drift[enough], p[enough] = 0.0, 1.0
    half = days.shape[1] // 2
    for begin in range(0, len(enough), _CHUNK):
        rows = enough[begin : begin + _CHUNK]
        early, late = _means(days[rows][:, :half]), _means(days[rows][:, half:])
        rows = rows[late - early > TAU / 8]
        if rows.size:
            drift[rows], p[rows] = _theil_sen_mann_kendall(days[rows])
    return drift, p


def _means(x: Floats) -> Floats:
    known = ~np.isnan(x)
    count = known.sum(axis=1)
    mean: Floats = np.divide(np.where(known, x, 0.0).sum(axis=1), count, out=np.full(len(x), np.nan), where=count > 0)
    return mean


def _theil_sen_mann_kendall(x: Floats) -> tuple[Floats, Floats]:
    n_days = x.shape[1]
    i, j = np.triu_indices(n_days, 1)
    rise = x[:, j] - x[:, i]
    slope = np.nanmedian(rise / (j - i), axis=1)
    known = ~np.isnan(x)
    n = known.sum(axis=1)
    s = np.nansum(np.sign(rise), axis=1)
    variance = n * (n - 1) * (2 * n + 5) / 18.0 * _inflation(x - slope[:, None] * np.arange(n_days), n)
    z = np.where(s > 0, s - 1, 0.0) / np.sqrt(variance)
    first, last = known.argmax(axis=1), n_days - 1 - known[:, ::-1].argmax(axis=1)
    return np.maximum(slope * (last - first), 0.0), special.ndtr(-z)


def _inflation(rest: Floats, n: Ints) -> Floats:
    """How many times the variance grows because a day resembles the day before (lag one, never below 1)."""
    off = rest - np.nanmean(rest, axis=1, keepdims=True)
    power = np.nansum(off * off, axis=1)
    lag = np.divide(np.nansum(off[:, 1:] * off[:, :-1], axis=1), power, out=np.zeros(len(rest)), where=power > 0)
    lag = np.clip(lag, 0.0, 1.0 - 2.0 / n)
    return np.asarray((1 + lag) / (1 - lag), dtype=np.float64)
