"""Memory errors that grow: corrected ECC errors beyond what GPU and fleet explain, and spare rows running out.

An hour of a kind of work in which this model has more errors is a longer exposure (``work_rates``). Uncorrected errors,
pending and failed remaps and the vendor's return limits need no statistics and belong to ``rules``. A first corrected
error ever goes to the digest only: with 5 % of GPUs ever showing one, 10,000 GPUs give about one such a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import numpy as np
import polars as pl

from graynode.detectors import findings, growth, headroom, memory, work_rates
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import Floats, View, codes, epoch_s, gpus, moment
from graynode.detectors.growth import Growth, Prior
from graynode.detectors.headroom import BANKS, Forecast
from graynode.detectors.thresholds import Thresholds, shipped

_NUMBERS: Final = (
    "samples", "samples_expected", "ecc_sbe_volatile_delta", "ecc_sbe_aggregate_delta", "ecc_sbe_aggregate_last",
    *(f"bank_remap_{b}_last" for b in BANKS),
)  # fmt: skip
PRIOR: Final = Prior(0.05, 25.0)
"""About 5 % of Ampere GPUs ever show a corrected error, and those that do show it in about one hour in a day
(published counts of three systems, 67.8 M GPU-hours): mean 0.002 error-hours an hour, most of the mass near zero."""
_LARGEST_TAIL: Final = 300.0
_LIKE_ANY_WORK: Final = 0.05
_SOON_D: Final = 14.0
"""A bank that is forecast to run out within two weeks is a ticket: a repair takes about as long to come."""


class Ecc:
    """The detector."""

    name: ClassVar[str] = "ecc"
    version: ClassVar[int] = 2
    leaves_out_d: ClassVar[int] = 7
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {"gpu": (*_NUMBERS, "gpu_model_last", "job_id_last")}

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score the window's corrected errors and bank headroom."""
        view = gpus(round_.gpu, _NUMBERS)
        remembered = memory.recall(state.get("gpu"), view.keys, (*growth.columns(), *BANKS))
        delta, powered = _delta(view), _powered_h(view, round_.window_s)
        work = work_rates.kinds(view, round_.jobs)
        ratio = work_rates.ratios(state.get("work"), work)
        grown = growth.advance(
            remembered, _grew(delta), powered * ratio, view.t_s, PRIOR, codes(view.text("gpu_model_last").fill_null(""))
        )
        banks, shrinking = self._shrinking(view, remembered, state.get("banks"), round_)
        found = [*self._growing(view, grown, delta, work, ratio, round_.window_s), *shrinking]
        known = ~np.isnan(delta)
        after = {
            "gpu": memory.remember(state.get("gpu"), view.keys, remembered, epoch_s(round_.start)),
            "work": work_rates.learnt(
                state.get("work"), work, grown.new_hour.astype(np.float64), np.where(known, powered, 0.0)
            ),
            "banks": banks,
        }
        return Scored(findings.collect(self, round_, found), after)

    def learn(self, history: Round, state: State) -> State:
        """Error-hours of past windows, by GPU and by kind of work."""
        view = gpus(history.gpu, _NUMBERS)
        if not len(view):
            return state
        delta, banks = _delta(view), {b: view.x[f"bank_remap_{b}_last"] for b in BANKS}
        powered, work = _powered_h(view, history.window_s), work_rates.kinds(view, history.jobs)
        exposure = powered * work_rates.ratios(state.get("work"), work)
        frame = growth.learn(state.get("gpu"), view, (*growth.columns(), *BANKS), _grew(delta), exposure, banks)
        known = np.where(np.isnan(delta), 0.0, powered)
        learnt = work_rates.learnt(state.get("work"), work, np.nan_to_num(delta > 0).astype(np.float64), known)
        return {**state, "work": learnt} if frame is None else {**state, "gpu": frame, "work": learnt}

    def recent(self, history: Round, state: State) -> State:
        """The last day's error-hours, which a start without stored state would not know of."""
        view = gpus(history.gpu, _NUMBERS)
        if not len(view):
            return state
        powered = _powered_h(view, history.window_s)
        frame = growth.recent(state.get("gpu"), view, (*growth.columns(), *BANKS), _grew(_delta(view)), powered)
        return state if frame is None else {**state, "gpu": frame}

    def _growing(
        self, view: View, grown: Growth, delta: Floats, work: pl.Series, ratio: Floats, window_s: int
    ) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "growth", window_s)
        score = np.minimum(-np.log10(np.maximum(grown.p, 10.0**-_LARGEST_TAIL)), _LARGEST_TAIL)
        first = grown.first_ever & ~(view.x["ecc_sbe_aggregate_last"] - delta > 0)
        for i in np.flatnonzero((delta > 0) & (first | (score >= limit / 2))):
            is_first = bool(first[i]) and score[i] < limit
            yield {
                **_growth_words(view, int(i), grown, float(ratio[i]), is_first=is_first),
                "score": limit if is_first else score[i],
                "threshold": limit,
                "evidence": {
                    "errors_this_window": delta[i],
                    "lifetime_errors": view.x["ecc_sbe_aggregate_last"][i],
                    "pci_bus_id": view.text("pci_bus_id_last")[int(i)],
                    "job": view.text("job_id_last")[int(i)],
                    "work": work[int(i)].rpartition("|")[2] or None,
                    "rate_in_this_work": ratio[i],
                    "error_hours_in_a_run": grown.cluster[i],
                    "thresholds": self._thresholds.version,
                },
            }

    def _shrinking(
        self, view: View, remembered: memory.Arrays, known: pl.DataFrame | None, round_: Round
    ) -> tuple[pl.DataFrame, list[Candidate]]:
        """Candidates of GPUs whose spare rows have become fewer, and the changes so far of all that ever had one."""
        # A count below zero is none: what a broken reader once said is no spare row that has gone
        before = {b: np.where(remembered[b] >= 0, remembered[b], np.nan) for b in BANKS}
        read = {b: view.x[f"bank_remap_{b}_last"] for b in BANKS}
        now = {b: np.where(x >= 0, x, np.nan) for b, x in read.items()}
        for b in BANKS:
            remembered[b] = np.where(np.isnan(now[b]), before[b], now[b])
        scarce = np.nan_to_num(now["low"] - before["low"]) + 2 * np.nan_to_num(now["none"] - before["none"])
        worn = np.nan_to_num(before["max"] - now["max"])
        left, now_s = headroom.worst([now[b] for b in BANKS]), epoch_s(round_.start)
        fell = left < headroom.worst([before[b] for b in BANKS])
        rows = np.flatnonzero((scarce > 0) | (worn > 0) | fell)
        keys = view.keys.gather(rows)
        history = memory.recall(known, keys, headroom.columns())
        limit = self._thresholds.value(self.name, "bank_headroom", round_.window_s)
        found = []
        for n, i in enumerate(rows):
            t_s, lefts = (np.array([history[f"{w}.{p}"][n] for p in range(headroom.POINTS)]) for w in ("t", "left"))
            t_s, lefts = headroom.note(t_s, lefts, now_s, float(left[i]))
            for p in range(headroom.POINTS):
                history[f"t.{p}"][n], history[f"left.{p}"][n] = t_s[p], lefts[p]
            ahead = headroom.forecast(t_s, lefts, now_s)
            found.append(_headroom_words(view, int(i), now, before, ahead, scarce=bool(scarce[i] > 0), limit=limit))
        return memory.remember(known, keys, history, now_s, forget_s=headroom.FORGET_S), found


def _growth_words(view: View, i: int, grown: Growth, ratio: float, *, is_first: bool) -> Candidate:
    hours, past_h = int(grown.count[i]), grown.history_h[i]
    rate = grown.history[i] / past_h if past_h > 0 else np.nan
    weighed = "" if abs(ratio - 1.0) < _LIKE_ANY_WORK else " (hours weighed by the kind of work)"
    said = (
        "its first corrected memory error ever"
        if is_first
        else f"corrected memory errors in {hours} clock hours while watched under power for "
        f"{grown.exposure_h[i]:.1f} h{weighed}; before, in {int(grown.history[i])} of {past_h:.0f} h"
    )
    return {
        **view.identity(i),
        "subject": "gpu",
        "cause": "memory_errors",
        "unit": "error-hours",
        "signal": "first_ever" if is_first else "growth",
        "value": grown.count[i],
        "baseline": rate * grown.exposure_h[i],
        "p_value": grown.p[i],
        "since": moment(float(grown.since_s[i])),
        "severity": "digest" if is_first else "ticket",
        "message": f"{view.gpu_name(i)}: {said}",
        "action": "Watch it"
        if is_first
        else "Let the job end, reset the GPU, look at its row remaps; if it goes on, run the field diagnostic",
    }


def _headroom_words(
    view: View,
    i: int,
    now: Mapping[str, Floats],
    before: Mapping[str, Floats],
    ahead: Forecast | None,
    *,
    scarce: bool,
    limit: float,
) -> Candidate:
    soon = ahead is not None and ahead.days <= _SOON_D
    few = np.nan_to_num(now["low"][i]) + np.nan_to_num(now["none"][i])
    lasts = f"; the worst bank's last for {ahead.words()}" if ahead is not None else ""
    evidence: dict[str, object] = {**{b: now[b][i] for b in BANKS}, "pci_bus_id": view.text("pci_bus_id_last")[i]}
    if ahead is not None:
        evidence |= {"days_left": ahead.days, "days_left_low": ahead.low, "days_left_high": ahead.high}
        evidence["due_h"] = max(ahead.low * 24.0 / 2.0, 1.0)
    return {
        **view.identity(i),
        "subject": "gpu",
        "cause": "memory_degraded",
        "signal": "bank_headroom",
        "unit": "banks",
        "value": now["max"][i],
        "baseline": before["max"][i],
        "score": limit if scarce or soon else limit / 2,
        "threshold": limit,
        "severity": "ticket" if scarce or soon else "digest",
        "message": f"{view.gpu_name(i)}: spare rows are being used up; "
        f"banks with low or no spare rows: {few:.0f}{lasts}",
        "action": "Plan a reset after the job; without spare rows in a bank the next remap fails",
        "evidence": evidence,
    }


def _delta(view: View) -> Floats:
    volatile = view.x["ecc_sbe_volatile_delta"]
    return np.where(np.isnan(volatile), view.x["ecc_sbe_aggregate_delta"], volatile)


def _grew(delta: Floats) -> Floats:
    return np.where(np.isnan(delta), np.nan, delta > 0)


def _powered_h(view: View, window_s: int) -> Floats:
    share = view.x["samples"] / np.where(view.x["samples_expected"] > 0, view.x["samples_expected"], np.nan)
    return np.clip(np.where(np.isnan(share), 1.0, share), 0.0, 1.0) * window_s / 3600.0
