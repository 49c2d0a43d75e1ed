"""Heat: hotter than the neighbours at the power each of them takes, memory drifting away from the core, no margin left.

T = air in the node + what the GPU's own curve says at its power + what is wrong. The air is not measured; the GPUs at
work in the same chassis tell it: the median of their T less their own curves (``thermal_curve``). So it does not matter
who works how hard, and what a hot aisle does to a whole node is no GPU's fault. Core temperature follows power by a
minute or two, so power is taken as the last minutes' and windows in which it moves are not judged. Idle GPUs are
neither judged nor neighbours: fans follow the load, and at rest the air is another.

Memory over core is compared with GPUs of the same job and role, because the memory's own power follows the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import numpy as np
import polars as pl

from graynode.detectors import accumulate, baseline, capability, findings, footing, memory, residual, thermal_curve
from graynode.detectors.accumulate import Run
from graynode.detectors.base import Round, Scored, State
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import GPU_TEXTS, Bools, Floats, View, codes, epoch_s, gpus, moment
from graynode.detectors.residual import Peers, Residual
from graynode.detectors.thresholds import Thresholds, shipped

SIGNALS: Final = ("temp", "gradient")
TAU_C: Final = 12.0
"""Degrees of *level* over peers at the same power worth a look, where no own curve is known."""
CHANGE_C: Final = 8.0
"""Degrees over the own curve worth a ticket: a clogged filter or a failing fan gives that and more. Healthy GPUs stay
within 2 °C of their curve."""
_MARGIN_C: Final = 2.0
_SLOPE: Final = 0.05
"""°C per W: about 35 °C over inlet at 700 W; what the GPUs of a fleet differ from it by is learned."""
_MARGIN_COLUMNS: Final = ("margin.strikes", "margin.since")
_SAME_POWER: Final = 0.15
"""Without a curve peers are compared at the same power: within 15 % of it the slope leaves two degrees at most."""
_LAG_S: Final = 60.0
"""Time constant of a board's heat."""
_STEADY: Final = 0.1
_GAP_S: Final = 600.0
_DOUBTS: Final = 2.0
_POWER: Final = ("power.lagged", "power.at")
_PLACE: Final = "place"
_NUMBERS: Final = (*capability.NUMBERS, "temp_c_mean", "mem_temp_c_mean", "temp_margin_c_min")
_SAID: Final = {
    "temp": "{0:.0f} °C, {1:.0f} °C hotter than its own past and {2} neighbours make it at this power",
    "gradient": "its memory is {0:.0f} °C over its core, {1:.0f} °C more than in its past and with {2} GPUs of its job",
}


class Thermal:
    """The detector."""

    name: ClassVar[str] = "thermal"
    version: ClassVar[int] = 2
    leaves_out_d: ClassVar[int] = 0
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "gpu": (*_NUMBERS, *GPU_TEXTS),
        "host": ("driver_version_last",),
    }

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Score the window's temperatures."""
        view = gpus(round_.gpu, _NUMBERS)
        now_s, keys = epoch_s(round_.start), view.keys
        held = memory.recall(state.get("gpu"), keys, columns())
        known, ended = footing.recall(held, {**footing.read(view, round_), _PLACE: _place(view)})
        history = _forget(held, state.get("history"), keys, ended)
        suspect = self._suspect(held, round_.window_s)
        models = residual.models(view)
        history = thermal_curve.roll(held, history, keys, models, SIGNALS, now_s, round_.window_s, suspect)
        power = _settled(held, view, round_.window_s)
        found = [*self._hot(view, held, power, known, round_.window_s), *self._margin(view, held, round_.window_s)]
        after: dict[str, pl.DataFrame] = {"gpu": memory.remember(state.get("gpu"), keys, held, now_s)}
        if history is not None:
            after["history"] = history
        return Scored(findings.collect(self, round_, found), after)

    def learn(self, history: Round, state: State) -> State:
        """The sums of past days."""
        view = gpus(history.gpu, _NUMBERS)
        if not len(view):
            return state
        models, newest = residual.models(view), float(np.floor(view.t_s.max() / baseline.DAY_S))
        whole = capability.throughout(view) & ~(view.t_s < footing.repaired(view, history.repairs))
        power = np.where(whole & capability.loaded(view, history.window_s), view.x["power_w_mean"], np.nan)
        of = _neighbours(view, footing.read(view, history))
        over = {}
        for s, x in _measured(view, power).items():
            base = thermal_curve.fit(state.get("history"), view.keys, models, s, newest + 1.0).expected(power)
            over[s] = residual.polished(x, base, of[s], codes(view.keys))
        days = thermal_curve.days_of(view.keys, view.t_s, power, over, history.window_s)
        return {**state, "history": baseline.join(state.get("history"), days, newest)}

    def _suspect(self, held: memory.Arrays, window_s: int) -> Bools:
        limits = {s: self._thresholds.value(self.name, s, window_s) for s in SIGNALS}
        return np.asarray(np.any([held[f"{s}.sum"] >= h / 2 for s, h in limits.items()], axis=0), dtype=np.bool_)

    def _hot(
        self, view: View, held: memory.Arrays, power: Floats, known: memory.Arrays, window_s: int
    ) -> Iterator[Candidate]:
        of, runs = _neighbours(view, known), []
        for s, x in _measured(view, power).items():
            limit = self._thresholds.value(self.name, s, window_s)
            curve = thermal_curve.recall(held, s)
            r, own = residual.against_own_and_peers(x, curve.expected(power), of[s])
            unsure = _DOUBTS * curve.doubt(power)
            beyond = np.sign(r.excess) * np.maximum(np.abs(r.excess) - unsure, 0.0)
            told = residual.widened(Residual(beyond, r.median, r.peers, r.wide), CHANGE_C / 2, curve.firm)
            runs.append((s, accumulate.advance(held, s, told, view.t_s, CHANGE_C, limit), r, own, limit))
        suspect = self._suspect(held, window_s)
        for s, run, r, own, limit in runs:
            for i in np.flatnonzero((run.sum >= limit / 2) & ~np.isnan(r.excess)):
                yield _hot(view, int(i), s, power, r, held, run, limit)
            thermal_curve.learn(held, s, power, own, ~suspect, 3 * CHANGE_C)

    def _margin(self, view: View, held: memory.Arrays, window_s: int) -> Iterator[Candidate]:
        limit = self._thresholds.value(self.name, "margin", window_s)
        margin = view.x["temp_margin_c_min"]
        bad, known = margin <= _MARGIN_C, ~np.isnan(margin)
        count, since = accumulate.strike(held, "margin", bad, known, view.t_s)
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
    runs = (c for s in SIGNALS for c in Run.columns(s))
    return [*thermal_curve.columns(SIGNALS), *runs, *footing.COLUMNS, _PLACE, *_POWER, *_MARGIN_COLUMNS]


def _forget(held: memory.Arrays, history: pl.DataFrame | None, keys: pl.Series, ended: Bools) -> pl.DataFrame | None:
    """A GPU repaired, in another place or on another footing has another curve."""
    if not ended.any():
        return history
    for s in SIGNALS:
        accumulate.forget(held, s, ended)
    for name in thermal_curve.columns(SIGNALS)[1:]:
        held[name] = np.where(ended, np.nan, held[name])
    return None if history is None else history.filter(~pl.col("key").is_in(keys.filter(ended).implode()))


def _place(view: View) -> Floats:
    """Machine and slot as one number: a GPU moved elsewhere sits in other air."""
    slot = footing.numbers(view.text("pci_bus_id_last"))
    return footing.numbers(view.text("node_id")) * 2.0**20 + np.mod(slot, 2.0**20)


def _neighbours(view: View, under: memory.Arrays) -> Mapping[str, Peers]:
    """Whose temperatures tell the air, and whose memory does the same work."""
    same_job = residual.peers(view, under)
    chassis = view.once("chassis", None, lambda: codes(view.text("node_id"), residual.models(view), _window(view)))
    return {"temp": Peers(chassis, same_job.exact), "gradient": same_job}


def _window(view: View) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return view.t_s.astype(np.int64)


def _measured(view: View, power: Floats) -> dict[str, Floats]:
    """°C: core less what power explains in every GPU, and memory over core; NaN where power is."""
    temp = np.where(np.isnan(power), np.nan, view.x["temp_c_mean"])
    return {"temp": temp - _SLOPE * power, "gradient": view.x["mem_temp_c_mean"] - temp}


def _settled(held: memory.Arrays, view: View, window_s: int) -> Floats:
    """Power of the last minutes of GPUs at work, in place for ``held``; NaN where it moves or has just begun."""
    power, before = view.x["power_w_mean"], held["power.lagged"]
    kept = np.exp(-window_s / _LAG_S)
    begins = np.isnan(before) | (view.t_s - held["power.at"] > _GAP_S)
    lagged = np.where(begins, power, kept * before + (1.0 - kept) * power)
    known = ~np.isnan(power)
    held["power.lagged"] = np.where(known, lagged, before)
    held["power.at"] = np.where(known, view.t_s, held["power.at"])
    moving = np.abs(power - lagged) > _STEADY * lagged
    begins &= window_s < 5 * _LAG_S
    return np.where(capability.loaded(view, window_s) & ~begins & ~moving, lagged, np.nan)


def at_equal_power(view: View, groups: Peers, window_s: int) -> dict[str, Floats]:
    """For levels without any past: core less what power explains, and memory over core; NaN at another power.

    Idling GPUs are no peers; nor are those that wait while others work.
    """
    judged = capability.loaded(view, window_s)
    power = np.where(judged, view.x["power_w_mean"], np.nan)
    of_peers = residual.against_peers(power, groups).median
    return _measured(view, np.where(np.abs(power - of_peers) <= _SAME_POWER * of_peers, power, np.nan))


def _hot(
    view: View, i: int, signal: str, power: Floats, r: Residual, held: memory.Arrays, run: Run, limit: float
) -> Candidate:
    excess = float(run.mean[i])
    value = float(view.x["temp_c_mean"][i])
    if signal == "gradient":
        value = float(view.x["mem_temp_c_mean"][i]) - value
    normal = value - float(r.excess[i])
    curve = thermal_curve.recall(held, signal)
    return {
        **view.identity(i),
        "subject": "gpu",
        "cause": "thermal",
        "signal": signal,
        "value": value,
        "unit": "°C",
        "baseline": normal,
        "peer_median": normal - float(curve.expected(power)[i]),
        "peers": r.peers[i],
        "score": run.sum[i],
        "threshold": limit,
        "since": moment(float(run.since_s[i])),
        "severity": "ticket",
        "message": f"{view.gpu_name(i)}: {_SAID[signal].format(value, excess, r.peers[i])}",
        "action": "Check fans, filters, airflow and the cold plate of this GPU; compare its inlet with the neighbours'",
        "evidence": {
            "degrees_over": excess,
            "power_w": power[i],
            "own_curve_c_per_w": _SLOPE * (signal == "temp") + float(curve.slope[i]),
            "own_curve_days": curve.days[i],
            "own_curve_doubt_c": float(curve.doubt(power)[i]),
            "wide_peers": bool(r.wide[i]),
            "pci_bus_id": view.text("pci_bus_id_last")[i],
        },
    }
