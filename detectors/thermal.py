"""Heat: hotter than the neighbours at the same power, memory drifting away from the core, no margin left.

Temperature is compared at the same power, what differs in power taken off by a fixed slope. A GPU's place in the
chassis makes degrees of difference for ever, so the own baseline comes off: one for each band of power, whatever
its work, because how well a GPU is cooled shows the more the more power it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import numpy as np
import polars as pl

from graynode.detectors import accumulate, baseline, capability, findings, memory, residual
from graynode.detectors.accumulate import Run
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import GPU_TEXTS, Floats, View, codes, epoch_s, gpus, moment
from graynode.detectors.residual import Peers, Residual
from graynode.detectors.thresholds import Thresholds, shipped

SIGNALS: Final = ("temp", "gradient")
TAU_C: Final = 12.0
"""Degrees over peers and past worth a ticket: a clogged filter or a failing fan gives that and more, and healthy GPUs
differ by half of it when the load changes, a tenth in cooling being 4 °C at 700 W."""
_MARGIN_C: Final = 2.0
_SLOPE: Final = 0.05
"""°C per W: about 35 °C over inlet at 700 W. A slope fitted in every window would move the own baseline with it."""
_BAND_W: Final = 250.0
"""An offset of 10 °C at the end of a band is 5 °C or more at its beginning from 250 W on, if all of it goes with power.
Wide, because at an edge a GPU has two pasts and two sums."""
_MARGIN_COLUMNS: Final = ("margin.strikes", "margin.since")
_SAME_POWER: Final = 0.15
"""Peers are compared at the same power: within 15 % of it what the slope leaves is two degrees at most."""
_NUMBERS: Final = (*capability.NUMBERS, "temp_c_mean", "mem_temp_c_mean", "temp_margin_c_min")
_SAID: Final = {
    "temp": "{0:.0f} °C, {1:.0f} °C hotter than {2} neighbours at the same power, its own past taken off",
    "gradient": "its memory is {0:.0f} °C over its core, {1:.0f} °C more than with {2} neighbours and in its own past",
}


class Thermal:
    """The detector."""

    name: ClassVar[str] = "thermal"
    version: ClassVar[int] = 1
    leaves_out_d: ClassVar[int] = 0
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {"gpu": (*_NUMBERS, *GPU_TEXTS)}

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score the window's temperatures."""
        view = gpus(round_.gpu, _NUMBERS)
        now_s = epoch_s(round_.start)
        keys = keys_by_power(view)
        remembered = memory.recall(state.get("gpu"), keys, columns())
        margins = memory.recall(state.get("margin"), view.keys, _MARGIN_COLUMNS)
        history = baseline.roll(remembered, state.get("history"), keys, SIGNALS, now_s)
        found = [*self._hot(view, remembered, round_.window_s), *self._margin(view, margins, round_.window_s)]
        after: dict[str, pl.DataFrame] = {
            "gpu": memory.remember(state.get("gpu"), keys, remembered, now_s),
            "margin": memory.remember(state.get("margin"), view.keys, margins, now_s),
        }
        if history is not None:
            after["history"] = history
        return Scored(findings.collect(self, round_, found), after)

    def learn(self, history: Round, state: State) -> State:
        """Daily medians of the residuals of past windows."""
        view = gpus(history.gpu, _NUMBERS)
        if not len(view):
            return state
        groups = residual.peers(view)
        at = at_equal_power(view, groups, history.window_s)
        keys = keys_by_power(view)
        known, entity = baseline.known(state.get("history"), keys, SIGNALS), codes(keys)
        whole = capability.throughout(view)
        excess = {s: residual.polished(np.where(whole, x, np.nan), known[s], groups, entity) for s, x in at.items()}
        days = baseline.daily_medians(keys, view.t_s, excess)
        newest = float(np.floor(view.t_s.max() / baseline.DAY_S))
        return {**state, "history": baseline.join(state.get("history"), days, newest)}

    def _hot(self, view: View, remembered: memory.Arrays, window_s: int) -> Iterator[Candidate]:
        measured = {"temp": view.x["temp_c_mean"], "gradient": view.x["mem_temp_c_mean"] - view.x["temp_c_mean"]}
        groups = residual.peers(view)
        for s, x in at_equal_power(view, groups, window_s).items():
            limit = self._thresholds.value(self.name, s, window_s)
            base = remembered[f"{s}.base"]
            r, own = residual.against_own_and_peers(x, base, groups)
            told = residual.widened(r, TAU_C / 2, remembered[f"{s}.firm"])
            run = accumulate.advance(remembered, s, told, view.t_s, TAU_C, limit)
            baseline.learn(remembered, s, own, run.sum < limit / 2, 3 * TAU_C)
            for i in np.flatnonzero((run.sum >= limit / 2) & ~np.isnan(r.excess)):
                yield _hot(view, int(i), s, measured[s][i], r, base[i], run, limit)

    def _margin(self, view: View, remembered: memory.Arrays, window_s: int) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "margin", window_s)
        margin = view.x["temp_margin_c_min"]
        bad, known = margin <= _MARGIN_C, ~np.isnan(margin)
        count, since = accumulate.strike(remembered, "margin", bad, known, view.t_s)
        for i in np.flatnonzero((count >= limit / 2) & bad):
            yield {
                **view.identity(int(i)),
                "subject": "gpu",
                "cause": "thermal",
                "signal": "margin",
                "unit": "°C",
                "value": margin[i],
                "score": count[i],
                "threshold": limit,
                "since": moment(float(since[i])),
                "severity": "ticket",
                "message": f"{view.gpu_name(int(i))}: {margin[i]:.0f} °C from its slowdown temperature",
                "action": "Check fans, airflow and inlet of this node before it throttles",
                "evidence": {"windows_in_a_row": count[i], "pci_bus_id": view.text("pci_bus_id_last")[int(i)]},
            }


def columns() -> list[str]:
    """Names under which a GPU's memory is held."""
    return [*baseline.columns(SIGNALS), *(c for s in SIGNALS for c in Run.columns(s))]


def keys_by_power(view: View) -> pl.Series:
    """Keys of GPUs in a band of power: what one is hotter than another grows with it."""
    power = view.x["power_w_mean"]
    band = np.where(np.isnan(power), -1.0, np.nan_to_num(power) // _BAND_W).astype(np.int64)
    names = [key if at < 0 else f"{key}|{at}" for key, at in zip(view.keys, band.tolist(), strict=True)]
    return pl.Series("key", names, dtype=pl.String)


def at_equal_power(view: View, groups: Peers, window_s: int) -> dict[str, Floats]:
    """Core temperature less what its power explains, and memory over core; NaN without load or at another power.

    Heat follows power by a minute or two, so idling GPUs are no peers; nor are those that wait while others work.
    """
    judged = capability.loaded(view, window_s)
    power = np.where(judged, view.x["power_w_mean"], np.nan)
    of_peers = residual.against_peers(power, groups).median
    same = np.abs(power - of_peers) <= _SAME_POWER * of_peers
    temp = np.where(same, view.x["temp_c_mean"], np.nan)
    return {"temp": temp - _SLOPE * power, "gradient": view.x["mem_temp_c_mean"] - temp}


def _hot(view: View, i: int, signal: str, value: float, r: Residual, base: float, run: Run, limit: float) -> Candidate:
    excess = float(run.mean[i])
    return {
        **view.identity(i),
        "subject": "gpu",
        "cause": "thermal",
        "signal": signal,
        "value": value,
        "unit": "°C",
        "baseline": value - r.excess[i] + base,
        "peer_median": value - r.excess[i],
        "peers": r.peers[i],
        "score": run.sum[i],
        "threshold": limit,
        "since": moment(float(run.since_s[i])),
        "severity": "ticket",
        "message": f"{view.gpu_name(i)}: {_SAID[signal].format(value, excess, r.peers[i])}",
        "action": "Check fans, filters, airflow and the cold plate of this GPU; compare its inlet with the neighbours'",
        "evidence": {
            "degrees_over": excess,
            "power_w": view.x["power_w_mean"][i],
            "wide_peers": bool(r.wide[i]),
            "pci_bus_id": view.text("pci_bus_id_last")[i],
        },
    }
