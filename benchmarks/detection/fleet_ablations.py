"""The core with one part left out, at thresholds made for the whole of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from graynode.benchmarks.detection import faults, fleet_figures, fleet_sweep
from graynode.benchmarks.detection.fleet_core import DAY, Fleet, Limits, Method, Size
from graynode.benchmarks.detection.fleet_sweep import Case, generator
from graynode.benchmarks.detection.noise import Array, Noise
from graynode.benchmarks.detection.result import Figure, Figures
from graynode.detectors.accumulate import TAU

FIVE: Final = Case(faults.FAMILIES[0], faults.SEVERE_5PCT)
_EACH: Final = 300
_SMALL: Final = Size(jobs=16, gpus=16)
_LONG_D: Final = 24
"""Days that a fault lasts for its GPU's baseline to be made of faulty days alone, were they learned."""


def measured(noise: Noise, seed: int, limits: Limits) -> dict[str, Figures]:
    """False rate, recall and delay of a 5 % slowdown, and what each part is there for."""
    shift = np.float32(faults.lost(FIVE.severity))
    across = replace(limits, in_job=None)
    found = {
        "nothing": _figures(noise, seed, limits, Method()),
        "in_job": _figures(noise, seed, across, Method()),
        "across_jobs": _figures(noise, seed, replace(limits, across=None), Method()),
        "own_history": _figures(noise, seed, across, Method(own_history=False)),
        "peers": _figures(noise, seed, limits, Method(peers=False)),
        "accumulation": _figures(noise, seed, Limits(TAU, TAU), Method(accumulation=False)),
    }
    for name, method in (("nothing", Method()), ("peers", Method(peers=False))):
        found[name]["nodes_named_in_fleet_wide_slowdown"] = _all_at_once(noise, seed, limits, method, shift)
    for name, protected in (("nothing", True), ("learning_protection", False)):
        method = Method(learning_protection=protected)
        found.setdefault(name, {})["still_told_after_24_days"] = _long(noise, seed, limits, method, shift)
    return found


def _figures(noise: Noise, seed: int, limits: Limits, method: Method) -> Figures:
    days = fleet_sweep.node_days(noise, Size(jobs=50), 1, generator(seed, 30), method, limits)
    delay = fleet_sweep.enriched(noise, [FIVE], _EACH, limits, generator(seed, 31), method).delay_min[FIVE.name]
    return {
        "false_per_node_day": fleet_figures.rate(days.told(limits), len(days)),
        **fleet_figures.of_delays(FIVE.name, delay, generator(seed, 32)),
    }


def _all_at_once(noise: Noise, seed: int, limits: Limits, method: Method, shift: np.float32) -> Figure:
    """Nodes named in the hour after every GPU has become slower by the same share."""
    size = Size(jobs=50)
    fleet = Fleet(noise, size, generator(seed, 33), method)
    fleet.limits = limits
    effect: Array = np.zeros((size.jobs, size.gpus), dtype=np.float32)
    told = np.zeros(size.nodes, dtype=np.bool_)
    for window in range(360):
        if window == 240:
            effect[:] = shift
        fleet.step(effect)
        if window >= 240:
            told |= limits.told(fleet.across, fleet.in_job).reshape(size.nodes, -1).any(axis=1)
    return fleet_figures.share(int(told.sum()), size.nodes)


def _long(noise: Noise, seed: int, limits: Limits, method: Method, shift: np.float32) -> Figure:
    """Share of faults that are still told after so many days, seen at the end of each of that day's hours.

    In small fleets of windows as long as ever; only the sum across jobs counts, the other ends with the job.
    """
    fleet = Fleet(noise, _SMALL, generator(seed, 34), method)
    fleet.limits = limits
    effect: Array = np.zeros((_SMALL.jobs, _SMALL.gpus), dtype=np.float32)
    effect[:, 0] = shift
    told = 0
    for day in range(_LONG_D):
        for window in range(DAY):
            fleet.step(effect)
            if day == _LONG_D - 1 and window % 120 == 0 and limits.across is not None:
                told += int((fleet.across[:, 0] >= limits.across).sum())
        fleet.midnight()
    return fleet_figures.share(told, _SMALL.jobs * 24, "hours; n is hours, not faults")
