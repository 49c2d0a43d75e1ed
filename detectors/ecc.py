"""Memory errors that grow: corrected ECC errors beyond what GPU and fleet explain, and spare rows running out.

Uncorrected errors, pending and failed remaps need no statistics and belong to ``rules``. A first corrected error
ever goes to the digest only: with 5 % of GPUs ever showing one, 10,000 GPUs give about one such a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import numpy as np

from graynode.detectors import findings, growth, memory
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import Floats, View, epoch_s, gpus, moment
from graynode.detectors.growth import Growth, Prior
from graynode.detectors.thresholds import Thresholds, shipped

_BANKS: Final = ("max", "high", "partial", "low", "none")
_NUMBERS: Final = (
    "samples", "samples_expected", "ecc_sbe_volatile_delta", "ecc_sbe_aggregate_delta", "ecc_sbe_aggregate_last",
    *(f"bank_remap_{b}_last" for b in _BANKS),
)  # fmt: skip
PRIOR: Final = Prior(0.05, 25.0)
"""About 5 % of Ampere GPUs ever show a corrected error, and those that do show it in about one hour in a day
(published counts of three systems, 67.8 M GPU-hours): mean 0.002 error-hours an hour, most of the mass near zero."""
_LARGEST_TAIL: Final = 300.0


class Ecc:
    """The detector."""

    name: ClassVar[str] = "ecc"
    version: ClassVar[int] = 1
    leaves_out_d: ClassVar[int] = 7
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {"gpu": _NUMBERS}

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score the window's corrected errors and bank headroom."""
        view = gpus(round_.gpu, _NUMBERS)
        remembered = memory.recall(state.get("gpu"), view.keys, (*growth.columns(), *_BANKS))
        delta = _delta(view)
        grown = growth.advance(
            remembered,
            _grew(delta),
            _powered_h(view, round_.window_s),
            view.t_s,
            PRIOR,
        )
        candidates = [
            *self._growing(view, grown, delta, round_.window_s),
            *self._shrinking(view, remembered, round_.window_s),
        ]
        after = memory.remember(state.get("gpu"), view.keys, remembered, epoch_s(round_.start))
        return Scored(findings.collect(self, round_, candidates), {"gpu": after})

    def learn(self, history: Round, state: State) -> State:
        """Error-hours of past windows."""
        view = gpus(history.gpu, _NUMBERS)
        delta, banks = _delta(view), {b: view.x[f"bank_remap_{b}_last"] for b in _BANKS}
        powered = _powered_h(view, history.window_s)
        frame = growth.learn(state.get("gpu"), view, (*growth.columns(), *_BANKS), _grew(delta), powered, banks)
        return state if frame is None else {**state, "gpu": frame}

    def _growing(self, view: View, grown: Growth, delta: Floats, window_s: int) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "growth", window_s)
        score = np.minimum(-np.log10(np.maximum(grown.p, 10.0**-_LARGEST_TAIL)), _LARGEST_TAIL)
        lifetime = view.x["ecc_sbe_aggregate_last"]
        first = grown.first_ever & ~(lifetime - delta > 0)
        for i in np.flatnonzero((delta > 0) & (first | (score >= limit / 2))):
            hours, past_h = int(grown.count[i]), grown.history_h[i]
            is_first = bool(first[i]) and score[i] < limit
            rate = grown.history[i] / past_h if past_h > 0 else np.nan
            said = (
                "its first corrected memory error ever"
                if is_first
                else f"corrected memory errors in {hours} clock hours while watched under power for "
                f"{grown.exposure_h[i]:.1f} h; before, in {int(grown.history[i])} of {past_h:.0f} h"
            )
            yield {
                **view.identity(int(i)),
                "subject": "gpu",
                "cause": "memory_errors",
                "unit": "error-hours",
                "signal": "first_ever" if is_first else "growth",
                "value": grown.count[i],
                "baseline": rate * grown.exposure_h[i],
                "score": limit if is_first else score[i],
                "threshold": limit,
                "p_value": grown.p[i],
                "since": moment(float(grown.since_s[i])),
                "severity": "digest" if is_first else "ticket",
                "message": f"{view.gpu_name(int(i))}: {said}",
                "action": "Watch it"
                if is_first
                else "Let the job end, reset the GPU, look at its row remaps; if it goes on, run the field diagnostic",
                "evidence": {
                    "errors_this_window": delta[i],
                    "lifetime_errors": lifetime[i],
                    "pci_bus_id": view.text("pci_bus_id_last")[int(i)],
                    "thresholds": self._thresholds.version,
                },
            }

    def _shrinking(self, view: View, remembered: memory.Arrays, window_s: int) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "bank_headroom", window_s)
        before = {b: remembered[b] for b in _BANKS}
        now = {b: view.x[f"bank_remap_{b}_last"] for b in _BANKS}
        for b in _BANKS:
            remembered[b] = np.where(np.isnan(now[b]), before[b], now[b])
        scarce = np.nan_to_num(now["low"] - before["low"]) + 2 * np.nan_to_num(now["none"] - before["none"])
        worn = np.nan_to_num(before["max"] - now["max"])
        for i in np.flatnonzero((scarce > 0) | (worn > 0)):
            some = bool(scarce[i] > 0)
            yield {
                **view.identity(int(i)),
                "subject": "gpu",
                "cause": "memory_degraded",
                "signal": "bank_headroom",
                "unit": "banks",
                "value": now["max"][i],
                "baseline": before["max"][i],
                "score": limit if some else limit / 2,
                "threshold": limit,
                "severity": "ticket" if some else "digest",
                "message": f"{view.gpu_name(int(i))}: spare rows are being used up; banks with low or no "
                f"spare rows: {np.nan_to_num(now['low'][i]) + np.nan_to_num(now['none'][i]):.0f}",
                "action": "Plan a reset after the job; without spare rows in a bank the next remap fails",
                "evidence": {**{b: now[b][i] for b in _BANKS}, "pci_bus_id": view.text("pci_bus_id_last")[int(i)]},
            }


def _delta(view: View) -> Floats:
    volatile = view.x["ecc_sbe_volatile_delta"]
    return np.where(np.isnan(volatile), view.x["ecc_sbe_aggregate_delta"], volatile)


def _grew(delta: Floats) -> Floats:
    return np.where(np.isnan(delta), np.nan, delta > 0)


def _powered_h(view: View, window_s: int) -> Floats:
    share = view.x["samples"] / np.where(view.x["samples_expected"] > 0, view.x["samples_expected"], np.nan)
    return np.clip(np.where(np.isnan(share), 1.0, share), 0.0, 1.0) * window_s / 3600.0
