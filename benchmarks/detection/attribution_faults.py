"""Faults and application causes made from a recorded job. Nothing here knows how they will be looked for.

Hardware: the slow excess that the trace has (its one worker far above its stage, per part of the work and step), scaled
to the wanted size and put on other workers; a flat excess where the trace has no such worker. Application causes are
synthetic: a stage with more work, sequences of unequal length, slow reading of data, a collective that all wait in.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graynode.benchmarks.detection.attribution_job import Trace
from graynode.benchmarks.detection.intervals import FloatArray, IntArray

_FAR_ABOVE: Final = 1.3
"""A worker at 1.3 times its stage's median is the trace's own slow one, and is made well for the base of the cases."""
_LEAST_ABOVE: Final = 0.03
_SPREADS: Final = 6.0
"""Slow, if less far: 3 % and six robust spreads of the workers. It is made well, and no profile is taken of it."""
_STEADY: Final = 0.25


@dataclass(frozen=True, slots=True)
class Profile:
    """What the recorded slow worker's excess looks like: by part of the work (its steps), around 1, and of the
    optimizer. ``worker`` is its rank, ``ratio`` its busy time over its stage's; ``None`` where there is none. ``well``
    are the ranks that were made well, it among them."""

    parts: Mapping[str, FloatArray]
    optimizer: FloatArray
    worker: int | None = None
    ratio: float | None = None
    well: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A job's seconds by rank and step, after microbatches are summed: what methods are given."""

    busy: Mapping[str, FloatArray]
    optimizer: FloatArray | None
    steady: FloatArray
    input: FloatArray | None
    wait: FloatArray
    wall: FloatArray

    @property
    def total(self) -> FloatArray:
        """Busy seconds of all parts."""
        return np.asarray(np.sum(list(self.busy.values()), axis=0), dtype=np.float64)


def sums(trace: Trace) -> Sums:
    """Microbatches summed; steps in which a rank ran other microbatches than its stage are as recorded."""
    busy = {part: np.where(np.isfinite(m).any(axis=2), np.nansum(m, axis=2), np.nan) for part, m in trace.micro.items()}
    return Sums(
        busy=busy,
        optimizer=trace.optimizer,
        steady=np.asarray(np.sum([_low(m) for m in trace.micro.values()], axis=0), dtype=np.float64),
        input=trace.input,
        wait=trace.wait,
        wall=trace.wall,
    )


def _low(micro: FloatArray) -> FloatArray:
    """The lower quartile over microbatches."""
    ordered = np.sort(micro, axis=2)
    count = np.isfinite(micro).sum(axis=2, keepdims=True)
    place = np.minimum((count * _STEADY).astype(np.int64), np.maximum(count - 1, 0))
    return np.take_along_axis(ordered, place, axis=2)[..., 0]


def healthy(trace: Trace) -> tuple[Trace, Profile]:
    """The job with its slow workers made well, and the slowest one's excess as a profile if that is far above.

    A slow worker left in the base would be named, rightly, in every job made of it and be counted as a false flag.
    """
    whole = sums(trace)
    flat = Profile({part: np.ones(trace.steps) for part in trace.micro}, np.ones(trace.steps))
    like = _like(trace)
    ratio = _over(whole.total, like, trace)
    slow = [int(w) for w in np.argsort(-ratio, kind="stable") if ratio[w] >= _outlying(ratio)]
    well = trace
    for each in slow:
        well = _well(well, whole, trace, like, each)
    named = tuple(int(trace.rank[w]) for w in slow)
    if not slow or ratio[slow[0]] < _FAR_ABOVE:
        return well, replace(flat, well=named)
    worker = slow[0]
    size = float(ratio[worker] - 1.0)
    parts = {part: _excess(s, like, trace, worker) / size for part, s in whole.busy.items()}
    optimizer = flat.optimizer if trace.optimizer is None else _excess(trace.optimizer, like, trace, worker) / size
    return well, Profile(parts, optimizer, int(trace.rank[worker]), float(ratio[worker]), named)


def _outlying(ratio: FloatArray) -> float:
    """From which ratio on a worker is slow in truth: far beyond what the other workers of this job differ by."""
    known = ratio[ratio > 0]
    spread = 1.4826 * float(np.median(np.abs(known - np.median(known)))) if known.size else 0.0
    return 1.0 + min(max(_LEAST_ABOVE, _SPREADS * spread), _FAR_ABOVE - 1.0)


def _well(trace: Trace, recorded: Sums, told: Trace, like: IntArray, worker: int) -> Trace:
    def usual(values: FloatArray) -> float:
        by = 1.0 + float(np.median(_excess(values, like, told, worker)))
        return by if np.isfinite(by) and by > 0 else 1.0

    micro = {part: _scaled(m, worker, usual(recorded.busy[part])) for part, m in trace.micro.items()}
    optimizer = trace.optimizer
    if optimizer is not None and recorded.optimizer is not None:
        optimizer = _scaled(optimizer, worker, usual(recorded.optimizer))
    return replace(trace, micro=micro, optimizer=optimizer)


def _like(trace: Trace) -> IntArray:
    """Who does the same work: the stage, and where none is told, whoever runs the same operations."""
    if trace.role is not None:
        return trace.role
    if not trace.traits:
        return np.zeros(len(trace.rank), dtype=np.int64)
    every = np.column_stack(list(trace.traits.values()))
    return np.unique(every, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _over(values: FloatArray, like: IntArray, trace: Trace) -> FloatArray:
    """Of each worker, the median over steps of its seconds by those of the others that do the same, less what all
    stages of its pipeline share; 0: not known."""
    ratio = _silent_median(values, axis=1)
    for role in np.unique(like):
        ratio[like == role] /= _low_of_nodes(ratio[like == role][:, None], trace.node[like == role])
    if trace.pipeline is not None and len(np.unique(like)) > 1:
        for line in np.unique(trace.pipeline):
            ratio[trace.pipeline == line] /= _lower_median(ratio[trace.pipeline == line][:, None])
    return np.where(np.isfinite(ratio), ratio, 0.0)


def _low_of_nodes(values: FloatArray, node: IntArray) -> FloatArray:
    """By step the lower median over nodes (each by its median): the halves of a slow node are not each other's
    measure."""
    return _lower_median(np.array([_silent_median(values[node == n], axis=0) for n in np.unique(node)]))


def _lower_median(values: FloatArray) -> FloatArray:
    ordered = np.sort(values, axis=0)
    count = np.isfinite(values).sum(axis=0)
    place = np.maximum(count - 1, 0) // 2
    return np.asarray(np.take_along_axis(ordered, place[None], axis=0)[0], dtype=np.float64)


def _silent_median(values: FloatArray, axis: int) -> FloatArray:
    """NaN, without a warning, where nothing is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis), dtype=np.float64)


def _excess(values: FloatArray, like: IntArray, trace: Trace, worker: int) -> FloatArray:
    """By step, how much longer the worker took than the others that do the same; its usual where not known."""
    others = (like == like[worker]) & (np.arange(len(like)) != worker)
    if not others.any():
        return np.zeros(values.shape[1])
    excess = values[worker] / _low_of_nodes(values[others], trace.node[others]) - 1.0
    known = np.isfinite(excess)
    usual = float(np.median(excess[known])) if known.any() else 0.0
    return np.asarray(np.where(known, excess, usual), dtype=np.float64)


def _scaled(values: FloatArray, worker: int, by: float) -> FloatArray:
    made = values.copy()
    made[worker] /= by
    return made


def slow_hardware(base: Sums, profile: Profile, victims: IntArray, excess: float) -> Sums:
    """``victims`` (rows) compute ``excess`` longer, in the profile's shape; the others wait for them."""
    busy = {part: _longer(s, victims, excess * profile.parts[part]) for part, s in base.busy.items()}
    optimizer = None if base.optimizer is None else _longer(base.optimizer, victims, excess * profile.optimizer)
    shape = np.mean(list(profile.parts.values()), axis=0)
    made = replace(base, busy=busy, optimizer=optimizer, steady=_longer(base.steady, victims, excess * shape))
    return waiting(base, made)


def _longer(values: FloatArray, victims: IntArray, excess: FloatArray) -> FloatArray:
    made = values.copy()
    made[victims] *= 1.0 + excess
    return made


def waiting(base: Sums, made: Sums) -> Sums:
    """A synchronous step: it gets longer by the most that any rank's work did, and everybody else waits that long."""
    added = np.nan_to_num(made.total - base.total)
    if made.input is not None:
        added = added + np.nan_to_num(made.input - (0.0 if base.input is None else np.nan_to_num(base.input)))
    most = added.max(axis=0)
    return replace(made, wall=made.wall + most, wait=made.wait + (most - added))


Maker = Callable[[Trace, np.random.Generator], Trace]


def stage_imbalance(trace: Trace, rng: np.random.Generator) -> Trace:
    """One or some whole stages have 3 to 100 % more work, backward by another part than forward."""
    assert trace.role is not None  # noqa: S101 (``makers`` asks first)
    stages = np.unique(trace.role)
    chosen = rng.choice(stages, size=int(rng.integers(1, max(len(stages), 2))), replace=False)
    micro = {part: m.copy() for part, m in trace.micro.items()}
    for stage in chosen:
        more = float(np.exp(rng.uniform(np.log(0.03), 0.0)))
        for part, values in micro.items():
            values[trace.role == stage] *= 1.0 + (more if part == "forward" else more * float(rng.uniform(0.3, 1.7)))
    return replace(trace, micro=micro)


def sequence_length(trace: Trace, rng: np.random.Generator) -> Trace:
    """Each microbatch of each pipeline has its own length; some pipelines get longer ones all along.

    All stages see the same lengths, the last by another power (its loss does not grow as attention does), and backward
    grows by another power than forward.
    """
    shape = next(iter(trace.micro.values())).shape
    pipeline = np.zeros(shape[0], dtype=np.int64) if trace.pipeline is None else trace.pipeline
    lines = np.unique(pipeline)
    spread = float(rng.uniform(0.03, 0.5))
    biased = rng.uniform(0.0, 0.3, len(lines)) * (rng.random(len(lines)) < rng.uniform(0.0, 0.7))
    power = {part: 1.0 if part == "forward" else float(rng.uniform(0.6, 1.4)) for part in trace.micro}
    last = float(rng.uniform(0.7, 1.0))
    micro = {}
    slots = max(m.shape[2] for m in trace.micro.values())
    lengths = np.exp(rng.normal(0.0, spread, (len(lines), shape[1], slots)) + biased[:, None, None])
    lengths = lengths[np.searchsorted(lines, pipeline)]
    grows = np.where(_is_last(trace), last, 1.0)[:, None, None]
    for part, values in trace.micro.items():
        micro[part] = values * lengths[..., : values.shape[2]] ** (power[part] * grows)
    return replace(trace, micro=micro)


def _is_last(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if trace.role is None:
        return np.zeros(len(trace.rank), dtype=np.bool_)
    return np.asarray(trace.role == trace.role.max(), dtype=np.bool_)


def data_loading(trace: Trace, rng: np.random.Generator) -> Trace:
    """Some workers of the first stage wait for their data: seen as an operation of its own, or inside forward."""
    first = np.arange(len(trace.rank)) if trace.role is None else np.flatnonzero(trace.role == trace.role.min())
    chosen = rng.choice(first, size=int(rng.integers(1, len(first) + 1)), replace=False)
    part = next((p for p in trace.micro if p == "forward"), next(iter(trace.micro)))
    seconds = np.nansum(trace.micro[part], axis=2) * float(rng.uniform(0.05, 1.0))
    late = (rng.random(seconds.shape) < rng.uniform(0.3, 1.0)) * rng.uniform(0.5, 1.5, seconds.shape)
    added = np.zeros(seconds.shape)
    added[chosen] = (seconds * late)[chosen]
    if rng.random() < 0.5:
        return replace(trace, input=added if trace.input is None else np.nan_to_num(trace.input) + added)
    values = trace.micro[part].copy()
    slots = int(rng.integers(1, values.shape[2] + 1))
    values[..., :slots] += added[..., None] / slots
    return replace(trace, micro={**trace.micro, part: values})


def collective(trace: Trace, rng: np.random.Generator) -> Trace:
    """A collective of 10 to 100 % of the step that everybody waits in, all alike but for a little."""
    longer = np.nan_to_num(trace.wall, nan=1.0) * float(rng.uniform(0.1, 1.0))
    longer = longer * rng.normal(1.0, 0.01, longer.shape)
    return replace(trace, wait=np.nan_to_num(trace.wait) + longer, wall=trace.wall + longer)


def combined(trace: Trace, rng: np.random.Generator) -> Trace:
    """Two or three causes at once."""
    known = [m for name, m in makers(trace).items() if name != "combined"]
    for place in rng.choice(len(known), size=min(len(known), int(rng.integers(2, 4))), replace=False):
        trace = known[int(place)](trace, rng)
    return trace


def makers(trace: Trace) -> dict[str, Maker]:
    """The application causes that can be made of this trace: a stage's needs stages, lengths need pipelines."""
    found: dict[str, Maker] = {}
    if trace.role is not None and len(np.unique(trace.role)) > 1:
        found["stage_imbalance"] = stage_imbalance
    if trace.pipeline is not None:
        found["sequence_length"] = sequence_length
    return found | {"data_loading": data_loading, "collective": collective, "combined": combined}


def slowed(wall: FloatArray, worker: int, first: int, last: int, excess: float) -> FloatArray:
    """Wall seconds (workers × steps) with one worker (a row) slower by ``excess`` from step ``first`` to ``last``."""
    made: FloatArray = wall.copy()
    made[worker, first : last + 1] *= 1.0 + excess
    return made
