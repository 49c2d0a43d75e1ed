"""Slow GPUs: what a GPU can do, against its peers and its own past.

Signals of capability only. In a synchronous job all ranks slow together, so utilisation and step time say nothing
about which GPU it is; the clock under load and the time held below it do. A window counts as loaded by a kernel being
resident (which a slow clock does not lower), never by power or throughput (which it does).

*Change* (own history × peers, accumulated) can page. *Level* (always slower than its peers) and probes rank and
ask for a probe or a replacement; they never page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import numpy as np
import polars as pl

from graynode.detectors import accumulate, baseline, conformal, findings, memory, probes, residual
from graynode.detectors.accumulate import TAU, Run
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.capability import (
    NUMBERS,
    THROTTLES,
    driver_numbers,
    measured,
    text_numbers,
    throttled_share,
    throughout,
)
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import GPU_TEXTS, Floats, View, codes, epoch_s, gpus, keys_by_work, moment
from graynode.detectors.gpu_words import short
from graynode.detectors.residual import Residual
from graynode.detectors.thresholds import Thresholds, shipped

SIGNALS: Final = ("clock", "throttle", "power_at_clock")
_TAU: Final = {"clock": TAU, "throttle": TAU, "power_at_clock": 2 * TAU}
_WORDS: Final = {
    "clock": "its SM clock under load is {effect:.1%} lower",
    "throttle": "it is held below its clocks {effect:.1%} more of the time",
    "power_at_clock": "it takes {effect:.1%} more power at the same clock",
}
_CONTEXT: Final = ("power_limit", "mig_mode", "mig_profile", "driver")
_PAGE_EFFECT: Final = 0.10
"""Published practice swaps a node at about 10 % sustained at the next checkpoint; less is a ticket."""
_PROBES_KEPT: Final = 40


class Slow:
    """The detector. ``thresholds`` are the shipped ones unless a site has its own."""

    name: ClassVar[str] = "slow"
    version: ClassVar[int] = 1
    leaves_out_d: ClassVar[int] = 0
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {"gpu": (*NUMBERS, *GPU_TEXTS)}

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score the window's GPUs and new probe results; see the module for what pages."""
        view = gpus(round_.gpu, NUMBERS)
        keys, now_s = keys_by_work(view, round_.jobs), epoch_s(round_.start)
        remembered = memory.recall(state.get("gpu"), keys, columns())
        history = self._context(view, keys, remembered, state.get("history"), round_)
        history = baseline.roll(remembered, history, keys, SIGNALS, now_s)
        candidates = list(self._changes(round_, view, remembered))
        if history is not None and now_s % baseline.DAY_S < round_.window_s:
            candidates += _levels(view, keys, history, np.floor(now_s / baseline.DAY_S) - 1)
        gpu = memory.remember(state.get("gpu"), keys, remembered, now_s)
        after: dict[str, pl.DataFrame] = {"gpu": gpu}
        if history is not None:
            after["history"] = history
        kept = _keep(state.get("probes"), round_.probes)
        if kept is not None:
            after["probes"] = kept
            candidates += _probed(kept) if not round_.probes.is_empty() else []
        return Scored(findings.collect(self, round_, candidates), after)

    def learn(self, history: Round, state: State) -> State:
        """Daily medians of the residuals of past windows."""
        view = gpus(history.gpu, NUMBERS)
        if not len(view):
            return state
        groups = residual.peers(view)
        keys = keys_by_work(view, history.jobs)
        known, entity = baseline.known(state.get("history"), keys, SIGNALS), codes(keys)
        whole = throughout(view)
        excess = {
            s: residual.polished(np.where(whole, x, np.nan), known[s], groups, entity)
            for s, x in measured(view, history.window_s).items()
        }
        days = baseline.daily_medians(keys, view.t_s, excess)
        newest = float(np.floor(view.t_s.max() / baseline.DAY_S))
        return {**state, "history": baseline.join(state.get("history"), days, newest)}

    def _context(
        self, view: View, keys: pl.Series, remembered: memory.Arrays, history: pl.DataFrame | None, round_: Round
    ) -> pl.DataFrame | None:
        context = {
            "power_limit": view.x["power_limit_enforced_w_last"],
            "mig_mode": view.x["mig_mode_last"],
            "mig_profile": text_numbers(view.text("mig_profile_last")),
            "driver": driver_numbers(view, round_.host),
        }
        ended = baseline.changed(remembered, context)
        for s in SIGNALS:
            accumulate.forget(remembered, s, ended)
        return baseline.end(remembered, history, keys, SIGNALS, ended)

    def _changes(self, round_: Round, view: View, remembered: memory.Arrays) -> Iterator[Candidate]:
        groups = residual.peers(view)
        runs: dict[str, Run] = {}
        scored: dict[str, Residual] = {}
        for s, x in measured(view, round_.window_s).items():
            limit = self._thresholds.value(self.name, s, round_.window_s)
            r, own = residual.against_own_and_peers(x, remembered[f"{s}.base"], groups)
            told = residual.widened(r, _TAU[s] / 2, remembered[f"{s}.firm"])
            if s == "power_at_clock":  # it follows the load: only the same work for weeks makes it comparable
                told = np.where(r.wide | (remembered[f"{s}.firm"] != 1.0), np.nan, told)
            scored[s] = r
            runs[s] = accumulate.advance(remembered, s, told, view.t_s, _TAU[s], limit)
            baseline.learn(remembered, s, own, runs[s].sum < limit / 2, 3 * _TAU[s])
        for s, r in scored.items():
            limit = self._thresholds.value(self.name, s, round_.window_s)
            for i in np.flatnonzero((runs[s].sum >= limit / 2) & ~np.isnan(r.excess)):
                yield self._candidate(round_, view, remembered, s, r, runs, int(i), limit)

    def _candidate(
        self,
        round_: Round,
        view: View,
        remembered: memory.Arrays,
        signal: str,
        r: Residual,
        runs: dict[str, Run],
        i: int,
        limit: float,
    ) -> Candidate:
        run = runs[signal]
        effect = float(np.expm1(run.mean[i]))
        cause, held = _cause(view, runs, i)
        firm = bool(remembered[f"{signal}.firm"][i] == 1.0) and not r.wide[i]
        page = firm and signal != "power_at_clock" and effect >= _PAGE_EFFECT
        severity = "digest" if signal == "power_at_clock" else "page" if page else "ticket"
        others = "GPUs of its job and role" if not r.wide[i] else "GPUs of its model on the node"
        since = moment(float(run.since_s[i]))
        return {
            **view.identity(i),
            "subject": "gpu",
            "cause": cause,
            "signal": signal,
            "value": _measured(view, signal, round_.window_s)[i],
            "unit": _UNITS[signal],
            "baseline": _in_unit(signal, r.median[i] + remembered[f"{signal}.base"][i]),
            "peer_median": _in_unit(signal, r.median[i]),
            "peers": r.peers[i],
            "effect": effect,
            "score": run.sum[i],
            "threshold": limit,
            "since": since,
            "severity": severity,
            "message": f"{view.gpu_name(i)}: {_WORDS[signal].format(effect=effect)} "
            f"than that of {r.peers[i]} {others}, compared with its own past{held}",
            "action": _ACTIONS[cause],
            "evidence": {
                "residual_now": r.excess[i],
                "baseline_days": remembered[f"{signal}.days"][i],
                "baseline_firm": firm,
                "wide_peers": bool(r.wide[i]),
                "job_id": view.text("job_id_last")[i],
                "windows": remembered[f"{signal}.windows"][i],
                "thresholds": self._thresholds.version,
            },
        }


_UNITS: Final = {"clock": "MHz", "throttle": "share of time", "power_at_clock": "W/MHz"}
_ACTIONS: Final = {
    "slow_gpu": "Run a GEMM benchmark on it between jobs; if it confirms, take the node out and open a vendor case",
    "thermal": "Check fans, airflow and inlet of this node; then run a probe",
    "power_brake": "Check power supplies and power capping of this node and rack; then run a probe",
}


def _cause(view: View, runs: dict[str, Run], i: int) -> tuple[str, str]:
    if not runs["throttle"].sum[i] > 0:
        return "slow_gpu", ""
    seconds = {
        t: np.nan_to_num(view.x[f"{t}_s"][i]) + np.nan_to_num(view.x[f"throttle_{t}_ns_delta"][i]) / 1e9
        for t in THROTTLES
    }
    most = max(THROTTLES, key=lambda t: seconds[t])
    if seconds[most] <= 0:
        return "slow_gpu", ""
    return ("power_brake", "; the power brake holds it") if most == "hw_power_brake" else ("thermal", "; heat holds it")


def _measured(view: View, signal: str, window_s: int) -> Floats:
    if signal == "clock":
        return view.x["sm_clock_mhz_mean"]
    if signal == "throttle":
        return throttled_share(view, window_s)
    return view.x["power_w_mean"] / np.where(view.x["sm_clock_mhz_mean"] > 0, view.x["sm_clock_mhz_mean"], np.nan)


def _in_unit(signal: str, log_median: float) -> float:
    if signal == "throttle":
        return float(np.expm1(log_median))
    return float(np.exp(-log_median if signal == "clock" else log_median))


def columns() -> list[str]:
    """Names under which a GPU's memory is held."""
    return [*baseline.columns(SIGNALS), *(c for s in SIGNALS for c in Run.columns(s)), *_CONTEXT]


def _levels(view: View, keys: pl.Series, history: pl.DataFrame, day: float) -> list[Candidate]:
    """The daily level test over yesterday's centres, once a day: a list, Benjamini–Hochberg at 5 %."""
    wanted = keys.alias("key").to_frame()
    found = wanted.join(history.filter(pl.col("day") == day), on="key", how="left", maintain_order="left")
    if "clock" not in found.columns:
        return []
    centre = found.get_column("clock").cast(pl.Float64).fill_null(float("nan")).to_numpy()
    groups = codes(residual.kinds(view), keys.str.extract(r"\|(.*)$"))
    z, excess, peers = residual.robust_z(centre, groups, 0.002)
    p = np.where(np.isnan(z), np.nan, conformal.robust_tail(np.nan_to_num(z), peers))
    listed = conformal.benjamini_hochberg(p) & (excess >= np.log1p(TAU))
    return [
        _level(view, int(i), float(np.expm1(excess[i])), float(p[i]), int(peers[i])) for i in np.flatnonzero(listed)
    ]


def _level(view: View, i: int, effect: float, p: float, peers: int) -> Candidate:
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
        "evidence": {"test": "level"},
    }


def _keep(kept: pl.DataFrame | None, new: pl.DataFrame) -> pl.DataFrame | None:
    if new.is_empty():
        return kept
    rows, _, _ = probes.clean(new if kept is None else pl.concat([kept, new], how="diagonal_relaxed"))
    same = ("gpu_uuid", "gpu_model", "operation", "dtype", "variant")
    return (
        rows.sort("ts", maintain_order=True)
        .group_by(*same, maintain_order=True)
        .tail(_PROBES_KEPT)
        .sort(*same, "ts", "value", nulls_last=True)
    )


def _probed(kept: pl.DataFrame) -> list[Candidate]:
    flagged = probes.rank(kept).table.filter("flagged")
    return [_probe(row) for row in flagged.iter_rows(named=True)]


def _probe(row: dict[str, Any]) -> Candidate:
    return {
        **{
            k: row[k]
            for k in ("cluster", "node_id", "node", "boot_id", "gpu_uuid", "value", "unit", "peer_median", "peers")
        },
        **{k: row[k] for k in ("effect", "p_value", "since")},
        "subject": "gpu",
        "cause": "slow_gpu",
        "signal": "probe",
        "score": row["effect"],
        "threshold": TAU,
        "severity": "ticket",
        "message": f"{short(row['gpu_uuid'])} on {row['node']}: {row['operation']} is {row['effect']:.1%} slower "
        f"than on {row['peers']} GPUs of its model, median of {row['runs']} runs",
        "action": "Run the probe once more on an idle node; if it confirms, take the node out and open a vendor case",
        "evidence": {
            "operation": row["operation"],
            "dtype": row["dtype"],
            "variant": row["variant"],
            "runs": row["runs"],
            "rank": row["rank"],
        },
    }
