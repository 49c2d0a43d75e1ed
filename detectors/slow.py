"""Slow GPUs: what a GPU can do, against its peers and its own past.

Signals of capability only. In a synchronous job all ranks slow together, so utilisation and step time say nothing
about which GPU it is; the clock under load and the time held below it do. A window counts as loaded by a kernel being
resident (which a slow clock does not lower), never by power or throughput (which it does).

*Change* is accumulated against two references, the GPU's own baseline and its beginning in this job
(``in_job``), and can page. Windows beyond τ that come and go are counted over a day (``bursts``). *Level* and *trend*
over days (``slow_daily``) and probes (``slow_probes``) rank and ask for a probe or a replacement; they never page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import numpy as np
import polars as pl

from graynode.detectors import (
    accumulate,
    baseline,
    bursts,
    findings,
    footing,
    in_job,
    memory,
    residual,
    slow_daily,
    slow_probes,
    slow_words,
)
from graynode.detectors.accumulate import TAU, Run
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.capability import NUMBERS, measured, throughout
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import GPU_TEXTS, Bools, Floats, View, codes, epoch_s, gpus, keys_by_work, moment
from graynode.detectors.residual import Peers
from graynode.detectors.slow_words import Change
from graynode.detectors.thresholds import Thresholds, shipped

SIGNALS: Final = ("clock", "throttle", "power_at_clock")
_IN_JOB: Final = ("clock", "throttle")
RUNS: Final = (*SIGNALS, *(f"{s}_in_job" for s in _IN_JOB))
"""What accumulates: each signal against the own baseline, and two against the beginning of the job."""
_TAU: Final = {"clock": TAU, "throttle": TAU, "power_at_clock": 2 * TAU}
_DAILY: Final = (*SIGNALS, "bursts")
"""What has an own baseline: the signals, and the share of windows beyond τ."""


class Slow:
    """The detector. ``thresholds`` are the shipped ones unless a site has its own."""

    name: ClassVar[str] = "slow"
    version: ClassVar[int] = 2
    leaves_out_d: ClassVar[int] = 0
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "gpu": (*NUMBERS, *GPU_TEXTS),
        "host": ("driver_version_last",),
    }

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score the window's GPUs and new probe results; see the module for what pages."""
        view = gpus(round_.gpu, NUMBERS)
        keys, now_s = keys_by_work(view, round_.jobs), epoch_s(round_.start)
        held = memory.recall(state.get("gpu"), keys, columns())
        known, ended = footing.recall(held, footing.read(view, round_))
        history = self._forget(held, state.get("history"), keys, ended)
        today, began = np.floor(now_s / baseline.DAY_S), np.nanmax(held["day"], initial=-1.0)
        history = baseline.roll(held, history, keys, _DAILY, now_s, self._suspect(held, round_.window_s))
        candidates = list(self._changes(round_, view, held, residual.peers(view, known)))
        if history is not None and began < today:
            candidates += slow_daily.level(view, keys, history, held, today - 1)
            limit = self._thresholds.value(self.name, "trend", round_.window_s)
            candidates += slow_daily.trend(view, keys, history, today, limit)
        after: dict[str, pl.DataFrame] = {"gpu": memory.remember(state.get("gpu"), keys, held, now_s)}
        if history is not None:
            after["history"] = history
        kept = slow_probes.keep(state.get("probes"), round_.probes)
        if kept is not None:
            after["probes"] = kept
            candidates += slow_probes.ranked(kept) if not round_.probes.is_empty() else []
        return Scored(findings.collect(self, round_, candidates), after)

    def learn(self, history: Round, state: State) -> State:
        """Daily medians of the residuals of past windows."""
        view = gpus(history.gpu, NUMBERS)
        if not len(view):
            return state
        groups = residual.peers(view, footing.read(view, history))
        keys = keys_by_work(view, history.jobs)
        known, entity = baseline.known(state.get("history"), keys, SIGNALS), codes(keys)
        # What was before a repair was another GPU
        whole = throughout(view) & ~(view.t_s < footing.repaired(view, history.repairs))
        excess = {
            s: residual.polished(np.where(whole, x, np.nan), known[s], groups, entity)
            for s, x in measured(view, history.window_s).items()
        }
        days = baseline.daily_medians(keys, view.t_s, {**excess, "bursts": np.full(len(view), np.nan)})
        newest = float(np.floor(view.t_s.max() / baseline.DAY_S))
        return {**state, "history": baseline.join(state.get("history"), days, newest)}

    def _forget(
        self, held: memory.Arrays, history: pl.DataFrame | None, keys: pl.Series, ended: Bools
    ) -> pl.DataFrame | None:
        """What was measured against another driver, power limit and so on is no measure any more."""
        if not ended.any():
            return history
        for s in RUNS:
            accumulate.forget(held, s, ended)
        for name in (*in_job.columns(_IN_JOB)[1:], *bursts.COLUMNS):
            held[name] = np.where(ended, np.nan, held[name])
        return baseline.end(held, history, keys, _DAILY, ended)

    def _suspect(self, held: memory.Arrays, window_s: int) -> Bools:
        """Who is under suspicion by any signal: nothing of it is learned, and no baseline moves."""
        sums = ((s, held[f"{s}.sum"]) for s in SIGNALS)
        high = [total >= self._thresholds.value(self.name, s, window_s) / 2 for s, total in sums]
        return np.asarray(np.any(high, axis=0), dtype=np.bool_)

    def _changes(self, round_: Round, view: View, held: memory.Arrays, groups: Peers) -> Iterator[Candidate]:
        in_a_job, anew = in_job.begin(held, view, _IN_JOB)
        for s in _IN_JOB:
            accumulate.forget(held, f"{s}_in_job", anew)
        changes: list[Change] = []
        own: dict[str, Floats] = {}
        beyond: list[Floats] = []
        for s, x in measured(view, round_.window_s).items():
            change, own[s], told = self._across(held, view, s, x, groups, round_.window_s)
            changes.append(change)
            if s in _IN_JOB:
                within, r = self._within(held, view, s, np.where(in_a_job, x, np.nan), groups, round_.window_s)
                changes.append(within)
                beyond += [told, r] if s == "clock" else []
        suspect = self._suspect(held, round_.window_s)
        # What the sums see already is no intermittent fault
        passing = np.where(suspect | (held["clock_in_job.sum"] >= changes[1].limit / 2), np.nan, np.fmin(*beyond))
        odd = bursts.advance(held, passing, TAU, view.t_s, round_.window_s)
        for s, said in own.items():
            baseline.learn(held, s, said, ~suspect, 3 * _TAU[s])
        limit = self._thresholds.value(self.name, "bursts", round_.window_s)
        share = np.where(np.isnan(passing), np.nan, (passing > TAU).astype(np.float64))
        baseline.learn(held, "bursts", share, odd < limit / 2, np.inf)
        steady = np.zeros(len(view), dtype=np.bool_)
        for c in changes:
            rows = np.flatnonzero((c.run.sum >= c.limit / 2) & ~np.isnan(c.residual.excess))
            p = residual.chance(c.residual, groups, slow_daily.Z_FLOOR) if rows.size else np.zeros(0)
            for i in rows:
                found = slow_words.change(view, c, held["throttle.sum"], int(i), round_.window_s, held)
                found["evidence"] |= {"thresholds": self._thresholds.version, "p_in_this_window": p[i]}
                yield found
            steady |= c.run.sum >= c.limit / 2
        for i in np.flatnonzero((odd >= limit / 2) & ~steady):
            yield _bursts(view, int(i), held, odd, limit)

    def _across(
        self, held: memory.Arrays, view: View, s: str, x: Floats, groups: Peers, window_s: int
    ) -> tuple[Change, Floats, Floats]:
        """Against the own baseline of days: the change, what the window says of that baseline, what accumulates."""
        limit = self._thresholds.value(self.name, s, window_s)
        base, firm = held[f"{s}.base"], held[f"{s}.firm"]
        r, own = residual.against_own_and_peers(x, base, groups)
        told = residual.widened(r, _TAU[s] / 2, firm)
        if s == "power_at_clock":  # it follows the load: only the same work for weeks makes it comparable
            told = np.where(r.wide | (firm != 1.0), np.nan, told)
        run = accumulate.advance(held, s, told, view.t_s, _TAU[s], limit)
        return Change(s, s, r, base, firm, run, limit), own, told

    def _within(
        self, held: memory.Arrays, view: View, s: str, x: Floats, groups: Peers, window_s: int
    ) -> tuple[Change, Floats]:
        """Against the beginning of the job, of which a GPU that is suspected by it teaches no more."""
        name = f"{s}_in_job"
        limit = self._thresholds.value(self.name, name, window_s)
        well = ~(held[f"{name}.sum"] >= limit / 2)
        r, reference, certain = in_job.score(held, s, x, groups, window_s, well)
        firm = certain.astype(np.float64)
        told = residual.widened(r, _TAU[s] / 2, firm)
        run = accumulate.advance(held, name, told, view.t_s, _TAU[s], limit)
        return Change(name, s, r, reference, firm, run, limit), told


def _bursts(view: View, i: int, held: memory.Arrays, odd: Floats, limit: float) -> Candidate:
    effect = float(np.expm1(bursts.effect(held)[i]))
    count, judged = held["bursts.count"][i], held["bursts.judged"][i]
    cause, by = slow_words.cause_of(view, held["throttle.sum"], i)
    return {
        **view.identity(i),
        "subject": "gpu",
        "cause": cause,
        "signal": "bursts",
        "value": count / judged,
        "baseline": held["bursts.base"][i],
        "unit": "share of windows",
        "effect": effect,
        "score": odd[i],
        "threshold": limit,
        "p_value": 10.0 ** -odd[i],
        "since": moment(float(held["bursts.since"][i])),
        "severity": "ticket",
        "message": f"{view.gpu_name(i)}: again and again its SM clock under load is {effect:.1%} lower than that of "
        f"its peers, in {count / judged:.1%} of the day's windows{by}",
        "action": slow_words.ACTIONS[cause],
        "evidence": {"windows_beyond": count, "windows_judged": judged, "job_id": view.text("job_id_last")[i]},
    }


def columns() -> list[str]:
    """Names under which a GPU's memory is held."""
    return [
        *baseline.columns(_DAILY),
        *(c for s in RUNS for c in Run.columns(s)),
        *footing.COLUMNS,
        *in_job.columns(_IN_JOB),
        *bursts.COLUMNS,
    ]
