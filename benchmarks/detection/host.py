"""Track ``host``: anomalies of a host's metrics, by the volume under the range-precision-recall surface.

Per machine of SMD's format: fitted to its training series alone, scored on its test series, judged by VUS-PR
(``vus``). Labels are read by the judge only. Beside it the same score as an alarm, its threshold from the last fifth of
the training series: ranges found, minutes until then, false alarms a day. Intervals by bootstrap over machines.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graynode.benchmarks.detection import baselines, vus
from graynode.benchmarks.detection.frozen import frozen
from graynode.benchmarks.detection.host_data import Machine, read
from graynode.benchmarks.detection.intervals import FloatArray, IntArray, by_cluster
from graynode.benchmarks.detection.result import DataError, Figure, Figures, Result, digests
from graynode.detectors import host_modes

_MINUTES_A_DAY: Final = 1440.0
_FAILURES: Final = 20
_LEAST_SPREAD: Final = 1e-9
_MEASURES: Final = ("vus_pr", "vus_roc", "average_precision")
_NOTES: Final = (
    "VUS-PR over buffers of 0 to 100 minutes and 250 thresholds, as its authors compute it; no point-adjust.",
    "Metrics that never moved in training are left out for the baselines too: one of them would decide alone.",
    "Left out: DBSCAN and the Minder-like distance compare machines at one moment, load regression needs a load; "
    "a machine here stands alone. A fixed rule needs limits that the set does not give.",
)


def run(data: Path | None, seed: int, *, full: bool = False) -> Result:
    """Evaluate a folder in SMD's format. ``full`` only draws the intervals finer."""
    if data is None:
        raise DataError("track host needs --data FOLDER in the format of SMD (Server Machine Dataset)")
    settings, digest = frozen("host")
    machines = read(data)
    result = Result(track="host", seed=seed, n=len(machines), figures={}, thresholds_sha256=digest)
    result.data_sha256.update(digests(file for m in machines for file in m.files))
    judged = [m for m in machines if m.labels.any() and not m.labels.all()]
    result.notes.extend(_NOTES)
    result.notes.extend(
        f"{m.name}: its labels are all alike, so there is nothing to judge" for m in machines if m not in judged
    )
    draws = settings["draws"] * (10 if full else 1)
    values = _judge(judged, seed, settings["longest_buffer"])
    for name, table in values.items():
        _into(result, name).update(_figures(judged, table, values, seed, draws))
    if not judged:
        result.figures |= {f"mean.{key}": _mean(np.array([]), seed, draws) for key in _MEASURES}
    result.figures |= _alarms(result, judged, seed, settings, draws)
    return result


def _scores(machine: Machine, seed: int) -> dict[str, FloatArray]:
    """Each method's score of the test rows; names say whether it is a baseline, or ours without a part."""
    train, test = machine.train, machine.test
    fitted = host_modes.fit(train, seed)
    found = {
        "ours": fitted.score(test),
        "without:modes (one only)": host_modes.fit(train, seed, modes=1).score(test),
        "without:relations within modes": host_modes.fit(train, seed, related=False).score(test),
        "baseline:robust_z_top5": _robust_top(train, test),
        "baseline:chance": np.random.default_rng(seed).random(len(test)),
    }
    seen = np.isfinite(train)
    count = np.maximum(seen.sum(axis=0), 1)
    off = np.where(seen, train - np.where(seen, train, 0.0).sum(axis=0) / count, 0.0)
    moved = np.sqrt(np.square(off).sum(axis=0) / count) > _LEAST_SPREAD
    for baseline in (*baselines.rows_baselines(), replace(baselines.kmeans(host_modes.MODES), name="kmeans_20")):
        found[f"baseline:{baseline.name}"] = (
            baseline.fit(train[:, moved], seed)(test[:, moved]) if moved.any() else np.full(len(test), np.nan)
        )
    return found


def _robust_top(train: FloatArray, rows: FloatArray) -> FloatArray:
    """Mean of the five largest robust z: median and MAD of training, the MAD floored at the 1 to 99 % range."""
    known = np.isfinite(train).any(axis=0)
    train, rows = train[:, known], rows[:, known]
    median = np.nanmedian(train, axis=0)
    low, high = np.nanquantile(train, [0.01, 0.99], axis=0)
    spread = np.maximum(1.4826 * np.nanmedian(np.abs(train - median), axis=0), (high - low) / 4.65)
    z = np.nan_to_num(np.abs(rows - median)) / np.where(spread > 0, spread, np.inf)
    return np.asarray(np.sort(z, axis=1)[:, -5:].mean(axis=1), dtype=np.float64)


def _judge(machines: list[Machine], seed: int, longest: int) -> dict[str, dict[str, FloatArray]]:
    """By method and measure one value a machine."""
    values: dict[str, dict[str, FloatArray]] = {}
    for i, machine in enumerate(machines):
        for name, score in _scores(machine, seed).items():
            known = _finite(score)
            volume = vus.vus(machine.labels, known, longest)
            measured = (volume.pr, volume.roc, vus.average_precision(machine.labels, known))
            table = values.setdefault(name, {key: np.full(len(machines), np.nan) for key in _MEASURES})
            for key, value in zip(_MEASURES, measured, strict=True):
                table[key][i] = value
    return values


def _finite(score: FloatArray) -> FloatArray:
    """A row that cannot be scored ranks lowest; beyond all bounds is the largest number."""
    return np.nan_to_num(score, nan=-1e300, posinf=1e300, neginf=-1e300)


def _into(result: Result, name: str) -> Figures:
    kind, _, method = name.partition(":")
    if kind == "ours":
        return result.figures
    return (result.baselines if kind == "baseline" else result.ablations).setdefault(method, {})


def _figures(
    machines: list[Machine],
    table: dict[str, FloatArray],
    every: dict[str, dict[str, FloatArray]],
    seed: int,
    draws: int,
) -> Figures:
    figures = {f"mean.{key}": _mean(values, seed, draws) for key, values in table.items()}
    figures |= {
        f"mean.vus_pr_gain_over_{rival}": _mean(table["vus_pr"] - every[f"baseline:{rival}"]["vus_pr"], seed, draws)
        for rival in ("pca", "kmeans", "kmeans_20")
    }
    for i, machine in enumerate(machines):
        figures[f"{machine.name}.vus_pr"] = Figure(float(table["vus_pr"][i]), n=1)
    return figures


def _mean(values: FloatArray, seed: int, draws: int, what: str = "machines") -> Figure:
    values = values[np.isfinite(values)]
    if not len(values):
        return Figure(None, note="no machine can be judged")
    mean = Figure(float(values.mean()), n=len(values), note=f"n: {what}")
    if len(values) < 3:
        return Figure(mean.value, n=mean.n, note=f"n: {what}; too few for an interval")

    def statistic(weight: IntArray) -> float:
        return float(weight @ values / weight.sum())

    low, high = by_cluster(statistic, len(values), np.random.default_rng(seed), draws)
    return Figure(mean.value, low, high, mean.n, mean.note)


def _alarms(result: Result, machines: list[Machine], seed: int, settings: dict[str, Any], draws: int) -> Figures:
    """The score as an alarm: the threshold lets ``false_share`` of held-out training rows pass."""
    found, false = np.full(len(machines), np.nan), np.full(len(machines), np.nan)
    delays: list[float] = []
    for i, machine in enumerate(machines):
        alarm = _alarm(machine, seed, settings)
        if alarm is None:
            least = int(np.ceil((1.0 / settings["false_share"] - 1.0) / settings["held_out"]))
            result.notes.append(
                f"{machine.name}: {len(machine.train)} training rows set no threshold that {settings['false_share']:g} "
                f"of them pass (about {least} with values are needed): it takes no part in alarm.*"
            )
            continue
        ranges = vus.ranges(machine.labels)
        first = [np.flatnonzero(alarm[a : b + 1]) for a, b in ranges]
        found[i] = np.mean([len(hits) > 0 for hits in first])
        delays += [float(hits[0]) if len(hits) else float("inf") for hits in first]
        outside = alarm & ~machine.labels
        begins = outside & ~np.concatenate([[False], alarm[:-1]])
        false[i] = begins.sum() / (float((~machine.labels).sum()) / _MINUTES_A_DAY)
        result.failures.extend(
            f"{machine.name}: range of rows {a} to {b} got no alarm"
            for (a, b), hits in zip(ranges, first, strict=True)
            if not len(hits)
        )
    if len(result.failures) > _FAILURES:
        result.failures[_FAILURES:] = [f"and {len(result.failures) - _FAILURES} more ranges"]
    middle = float(np.median(delays)) if delays else float("nan")
    return {
        "alarm.ranges_found": _mean(found, seed, draws),
        "alarm.false_per_machine_day": _mean(false, seed, draws),
        "alarm.median_delay_min": Figure(
            middle if np.isfinite(middle) else None,
            n=len(delays),
            note="n: ranges; one that is missed counts as endless" if delays else "no machine can be judged",
        ),
    }


def _alarm(machine: Machine, seed: int, settings: dict[str, Any]) -> npt.NDArray[np.bool_] | None:
    """Whether each test row is above the threshold of the held-out training rows; none where they are too few."""
    cut = int(len(machine.train) * (1.0 - settings["held_out"]))
    fitted = host_modes.fit(machine.train[:cut], seed)
    limit = baselines.threshold_at(fitted.score(machine.train[cut:]), settings["false_share"])
    return None if np.isnan(limit) else np.asarray(fitted.score(machine.test) > limit, dtype=np.bool_)
