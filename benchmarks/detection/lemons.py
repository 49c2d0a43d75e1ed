"""Track ``lemons``: which nodes fault next, what a probation holds, and how true a re-fault probability is.

Prospective: at each moment of a weekly grid from day 60 on, every method is given the faults that had begun before it,
with the ends that had come, and the faults of the next 28 and 7 days are counted on the tenth of the nodes that it
ranks highest; equal scores are drawn by chance (in expectation). All of it again with re-faults within a day counted
as part of the fault before. Intervals by bootstrap over nodes, gains paired.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from graynode.benchmarks.detection import lemons_baselines as others
from graynode.benchmarks.detection import lemons_probation as back
from graynode.benchmarks.detection.frozen import frozen
from graynode.benchmarks.detection.lemons_ranking import Held, Scorer, Setting, gain_over, grid, held, share_of
from graynode.benchmarks.detection.lemons_trace import Trace, read
from graynode.benchmarks.detection.result import DataError, Figure, Figures, Result, digests
from graynode.detectors.fault_history import Faults
from graynode.detectors.lemon_rates import outlook

_NOTES: Final = (
    "Nodes that are down at the moment of ranking are ranked like the others: they return, and fault again.",
    "second_half.* are the same figures on grid moments, or returns, in the second half of the trace.",
    "MAD, DBSCAN, isolation forest, PCA, Mahalanobis, k-means, the Minder-like distance and load regression make no "
    "sense here: a node's history is a handful of dates, most nodes' is empty, and the MAD of the counts is 0.",
    "chance holds the looked-at share by definition; hindsight ranks by the faults of the whole trace and is none.",
)
_FAILURES: Final = 10
_MOST_RETURNS: Final = 2500
"""So many are foretold in minutes, whatever the size of the fleet."""


def run(data: Path | None, seed: int, *, full: bool = False) -> Result:
    """Evaluate a folder in InfiniteHBD's format. ``full`` only draws the intervals finer."""
    if data is None:
        raise DataError("track lemons needs --data FOLDER with a fault_trace.json in InfiniteHBD's format")
    frame, digest = frozen("lemons")
    trace = read(data)
    settings = {**frame, "draws": frame["draws"] * (10 if full else 1), "days": trace.days, "seed": seed}
    settings["most_returns"] = None if full else _MOST_RETURNS
    result = Result(track="lemons", seed=seed, n=trace.faults.nodes, figures={}, thresholds_sha256=digest)
    result.data_sha256.update(digests(trace.files))
    for name, apart_d in (("all", None), ("apart", float(frame["apart_d"]))):
        for horizon_d in frame["horizons_d"]:
            _rank(result, trace, settings, f"{name}.next_{horizon_d}d", float(horizon_d), apart_d)
        _refault(result, trace.faults, settings, name, apart_d)
    result.notes.extend([*_NOTES, *trace.notes])
    return result


def ours(past: Faults, at_d: float, horizon_d: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The product's rank."""
    return outlook(past, at_d, horizon_d).rate_per_day


def _fixed(half_life_d: float) -> Scorer:
    return lambda past, at_d, horizon_d: outlook(past, at_d, horizon_d, np.array([half_life_d])).rate_per_day


def _methods(settings: dict[str, Any], faults: Faults) -> dict[str, dict[str, Scorer]]:
    every = np.bincount(faults.node, minlength=faults.nodes).astype(np.float64)
    return {
        "baselines": {
            "count_28d": others.count(28.0),
            "count_all": others.count(1e9),
            "chance": others.chance,
            "three_faults_28d": others.three_faults,
            "three_sigma": others.three_sigma,
            "poisson_bh": others.poisson_flags,
            "logit": others.logit(settings["grid_step_d"]),
            "gradient_boosting": others.boosting(settings["grid_step_d"], settings["seed"]),
            "hindsight": lambda past, at_d, horizon_d: every,
        },
        "ablations": {
            "learned_memory (7 d for all)": _fixed(7.0),
            "forgetting": _fixed(3.65e4),
        },
    }


def _rank(
    result: Result, trace: Trace, settings: dict[str, Any], name: str, horizon_d: float, apart_d: float | None
) -> None:
    moments = grid(trace.days, horizon_d, settings["grid_from_d"], settings["grid_step_d"])
    late = tuple(m for m in moments if m >= trace.days / 2)
    for part, chosen in ((name, moments), (f"second_half.{name}", late)):
        setting = Setting(chosen, horizon_d, settings["share"], apart_d)
        own = held(trace.faults, ours, setting)
        if part == name and apart_d is None and horizon_d == max(settings["horizons_d"]):
            result.failures.extend(_missed(trace, own, horizon_d))
        methods = _methods(settings, setting.target(trace.faults))
        count = held(trace.faults, methods["baselines"]["count_28d"], setting)
        result.figures |= _figures(part, own, count, settings)
        if part != name:
            continue
        for kind, table in (("baselines", result.baselines), ("ablations", result.ablations)):
            for method, scorer in methods[kind].items():
                other = held(trace.faults, scorer, setting)
                table.setdefault(method, {}).update(_figures(part, other, count, settings))


def _figures(name: str, one: Held, count: Held, settings: dict[str, Any]) -> Figures:
    rng = np.random.default_rng([settings["seed"], len(name)])
    return {
        f"{name}.faults_in_top_10pct": share_of(one, rng, settings["draws"]),
        f"{name}.gain_over_count_28d": gain_over(one, count, rng, settings["draws"]),
    }


def _missed(trace: Trace, own: Held, horizon_d: float) -> list[str]:
    missed = own.faults - own.hits
    worst = np.argsort(-missed, kind="stable")[:_FAILURES]
    return [
        f"node {trace.names[i]}: {missed[i]:.1f} of {own.faults[i]:.0f} faults within {horizon_d:.0f} d of a ranking "
        "came while it was not in the top 10 %"
        for i in worst
        if missed[i] > 0
    ]


def _refault(result: Result, faults: Faults, settings: dict[str, Any], name: str, apart_d: float | None) -> None:
    rng, draws, days = np.random.default_rng([settings["seed"], 99]), settings["draws"], settings["days"]
    target = faults if apart_d is None else faults.merged(apart_d)
    for length_d in sorted({1.0, float(settings["probation_d"]), 14.0, 28.0}):
        for key, figure in back.probation(target, days, length_d, rng, draws).items():
            result.figures[f"{name}.probation_{length_d:.0f}d.{key}"] = figure
    horizon_d = float(settings["refault_d"])
    methods = {
        "ours": back.ours(horizon_d),
        "constant": back.constant(horizon_d),
        "two_bins": back.two_bins(horizon_d),
        "repairs in a row": back.ours(horizon_d, chain=False),
        "level of the fleet": back.ours(horizon_d, level=False),
    }
    told = back.foretell(
        faults, days, settings["grid_from_d"], horizon_d, methods, apart_d or 0.0, settings["most_returns"]
    )
    if len(told.cases) == settings["most_returns"]:
        result.notes.append(f"{name}: {len(told.cases)} returns, evenly taken, are foretold; --full takes all")
    key = f"{name}.refault_{horizon_d:.0f}d"
    result.figures |= {
        f"{key}.brier": told.brier("ours", rng, draws),
        f"{key}.gain_over_constant": told.gain("ours", "constant", rng, draws),
        f"{key}.foretold": told.mean("ours", rng, draws),
        f"{key}.happened": told.mean(None, rng, draws),
        f"second_half.{key}.brier": told.since(days / 2).brier("ours", rng, draws),
        f"second_half.{key}.gain_over_constant": told.since(days / 2).gain("ours", "constant", rng, draws),
    }
    for method, table in (
        ("constant", result.baselines),
        ("two_bins", result.baselines),
        ("repairs in a row", result.ablations),
        ("level of the fleet", result.ablations),
    ):
        table.setdefault(method, {})[f"{key}.brier"] = told.brier(method, rng, draws)
    base = told.y.mean() if told.cases else float("nan")
    result.baselines.setdefault("constant_hindsight", {})[f"{key}.brier"] = Figure(
        float(base * (1 - base)) if told.cases else None, note="the best constant, known only afterwards"
    )
