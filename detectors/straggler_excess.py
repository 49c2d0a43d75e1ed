"""How much longer a rank computes than its peers, with what the role and what the data cost taken out.

log busy = role at that step + data of the pipeline + rank + rest. Medians over steps come first, then references that a
slow minority cannot move: the lower median over *nodes* of a role, so that the two halves of a slow node are not each
other's measure, and the lower median over a pipeline's roles, so that a slow rank is not taken for long sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors.conformal import robust_tail
from graynode.detectors.frames import Bools, Floats, Ints
from graynode.detectors.residual import log_of

_SPREAD_FLOOR: Final = 0.002
"""Least spread between ranks in log units: 0.2 %, twice a GPU's own run-to-run spread in sgemm (METHODS.md 1.9.2)."""
_MOST_CORRELATED: Final = 0.9
_CLEARLY: Final = 2.0
"""What pipelines share varies so many times more than what is left: then it can be seen how each role answers to it."""
_POWERS: Final = (0.3, 3.0)


@dataclass(frozen=True, slots=True)
class Excess:
    """Per rank, in log units: ``own`` excess, ``shared`` by its pipeline, ``level`` of its role over the other roles'
    median, ``noise`` (between ranks, or of the rank's own median if larger), tail ``p`` of own against noise, and
    the share of steps in which at least half of ``own`` is there. NaN: cannot tell.

    ``varies`` is how much the data of pipelines moves busy time from step to step.
    """

    own: Floats
    shared: Floats
    level: Floats
    noise: Floats
    p: Floats
    lasting: Floats
    varies: float


def deviations(seconds: Floats, role: Ints) -> tuple[Floats, Floats]:
    """Each rank's median over steps of log seconds less its role's median at that step, and what is left per step."""
    log = log_of(seconds)
    log[role < 0] = np.nan
    at_step = log - _over(log, role, _median)
    own = _median(at_step, axis=1)
    return own, at_step - own[:, None]


def measure(seconds: Floats, role: Ints, pipeline: Ints | None, node: Ints) -> Excess:
    """The excess of busy ``seconds`` (ranks × steps) of one part of the work."""
    own, rest = deviations(seconds, role)
    level = own - _reference(own, role, node)
    shared, varies = np.zeros(len(own)), 0.0
    if pipeline is not None and len(np.unique(role[role >= 0])) > 1:
        together = np.nan_to_num(_of_pipelines(rest, role, pipeline, _median))
        varies = float(1.4826 * np.median(np.abs(together)))
        answer = _answers(rest, together, role)
        rest = rest - answer[:, None] * together
        shared = answer * np.nan_to_num(_of_pipelines((level / answer)[:, None], role, pipeline, _lower)[:, 0])
    left = level - shared
    left = left - _reference(left, role, node)
    spread, count = _spread(left, role)
    noise = np.fmax(spread, _standard_error(rest))
    p = robust_tail(left / noise, np.full(len(left), count))
    return Excess(
        own=left,
        shared=shared,
        level=_role_level(seconds, role, node),
        noise=noise,
        p=p,
        lasting=_lasting(left, rest),
        varies=varies,
    )


def _answers(rest: Floats, together: Floats, role: Ints) -> Floats:
    """By what power each role's work grows with what its pipelines share, from how both vary; 1 where little varies.

    Attention grows with a sequence's square and a loss layer does not: a stage that grows more is not slow for it.
    """
    clear = float(np.mean(together**2)) > _CLEARLY**2 * float(np.nanmean((rest - together) ** 2))
    if not clear:
        return np.ones(len(role))
    both = _over(np.nan_to_num(rest * together).sum(axis=1, keepdims=True), role, _sum)[:, 0]
    power = both / np.maximum(_over((together**2).sum(axis=1, keepdims=True), role, _sum)[:, 0], 1e-30)
    return np.nan_to_num(np.clip(power, *_POWERS), nan=1.0)


def _median(values: Floats, axis: int = 0) -> Floats:
    """The median of what is known; NaN where nothing is. (numpy's own is many times slower on short rows.)"""
    return _middle(values, axis, upper=True)


def _lower(values: Floats, axis: int = 0) -> Floats:
    """The lower median: of an even number, the smaller of the middle two."""
    return _middle(values, axis, upper=False)


def _middle(values: Floats, axis: int, *, upper: bool) -> Floats:
    ordered = np.sort(values, axis=axis)
    count = np.isfinite(values).sum(axis=axis, keepdims=True)
    lower = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=axis)
    if upper:
        lower = (lower + np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis=axis)) / 2
    return np.asarray(np.squeeze(np.where(count > 0, lower, np.nan), axis), dtype=np.float64)


def _groups(code: Ints) -> tuple[Ints, Ints]:
    """The rows of each group as a table (groups × largest size, filled with −1), and each row's group there or −1."""
    known = np.flatnonzero(code >= 0)
    names, place = np.unique(code[known], return_inverse=True)
    order = np.argsort(place, kind="stable")
    size = np.bincount(place, minlength=len(names))
    within = np.arange(len(known)) - np.repeat(np.cumsum(size) - size, size)
    table = np.full((len(names), int(size.max(initial=0))), -1, dtype=np.int64)
    table[place[order], within] = known[order]
    of = np.full(len(code), -1, dtype=np.int64)
    of[known] = place
    return table, of


def _by_group(values: Floats, table: Ints, statistic: Callable[..., Floats]) -> Floats:
    """A statistic over the rows of each group: groups × steps."""
    rows = np.where((table >= 0)[..., None], values[table], np.nan)
    return statistic(rows, axis=1)


def _over(values: Floats, group: Ints, statistic: Callable[..., Floats]) -> Floats:
    """A statistic over the rows of each group, laid out on those rows; NaN for rows of no group."""
    table, of = _groups(group)
    if not table.size:
        return np.full(values.shape, np.nan)
    return np.where((of >= 0)[:, None], _by_group(values, table, statistic)[of], np.nan)


def _of_pipelines(values: Floats, role: Ints, pipeline: Ints, statistic: Callable[..., Floats]) -> Floats:
    """A statistic over the roles of each pipeline, each role's ranks there being one by their median.

    NaN for a pipeline that has one role only.
    """
    known = (role >= 0) & (pipeline >= 0)
    cell, of_cell = _groups(np.where(known, pipeline * (role.max(initial=0) + 1) + role, -1))
    if not cell.size:
        return np.full(values.shape, np.nan)
    cells = _by_group(values, cell, _median)
    lines, of_line = _groups(pipeline[cell[:, 0]])
    of_lines = np.where((lines >= 0).sum(axis=1)[:, None] > 1, _by_group(cells, lines, statistic), np.nan)
    return np.where((of_cell >= 0)[:, None], of_lines[of_line[of_cell]], np.nan)


def _reference(level: Floats, role: Ints, node: Ints) -> Floats:
    """Per rank the level of its role that a slow node cannot move; of a role on one node, by ranks."""
    known = np.isfinite(level) & (role >= 0)
    by_rank = _over(level[:, None], role, _lower)[:, 0]
    cell, of_cell = _groups(np.where(known, role * (node.max(initial=0) + 1) + node, -1))
    if not cell.size:
        return by_rank
    homes, of_role = _groups(role[cell[:, 0]])
    lower = _by_group(_by_group(level[:, None], cell, _median), homes, _lower)[:, 0]
    by_node = np.full(len(level), np.nan)
    by_node[known] = np.where((homes >= 0).sum(axis=1) > 1, lower, np.nan)[of_role[of_cell[known]]]
    # A rank without a level of its own has its role's all the same
    by_node = _over(by_node[:, None], role, _median)[:, 0]
    return np.where(np.isnan(by_node), by_rank, by_node)


def _spread(own: Floats, role: Ints) -> tuple[float, int]:
    """Robust standard deviation between ranks of one role, pooled over roles, and from how many ranks."""
    centre = _over(own[:, None], role, _median)[:, 0]
    size = _over(np.isfinite(own).astype(np.float64)[:, None], role, _sum)[:, 0]
    # Deviations from a centre made of the same n values are too small by sqrt((n - 1)/n)
    apart = np.where(size > 1, (own - centre) * np.sqrt(size / np.maximum(size - 1, 1)), np.nan)
    pooled = apart[np.isfinite(apart)]
    if not pooled.size:
        return float("nan"), 0
    return max(1.4826 * float(np.median(np.abs(pooled))), _SPREAD_FLOOR), len(pooled)


def _sum(values: Floats, axis: int = 0) -> Floats:
    return np.asarray(np.nansum(values, axis=axis), dtype=np.float64)


def _standard_error(rest: Floats) -> Floats:
    """Of each rank's median over steps; steps that follow one another are alike: their lag-1 correlation widens it."""
    count = np.maximum((~np.isnan(rest)).sum(axis=1), 1)
    spread = 1.4826 * _median(np.abs(rest), axis=1)
    filled = np.nan_to_num(np.clip(rest, -3 * spread[:, None], 3 * spread[:, None]))
    power = np.maximum((filled**2).sum(axis=1), 1e-30)
    alike = np.clip((filled[:, 1:] * filled[:, :-1]).sum(axis=1) / power, 0.0, _MOST_CORRELATED)
    return np.asarray(1.2533 * spread * np.sqrt((1 + alike) / (1 - alike)) / np.sqrt(count), dtype=np.float64)


def _lasting(own: Floats, rest: Floats) -> Floats:
    known = (~np.isnan(rest)).sum(axis=1)
    there = (rest + own[:, None] >= own[:, None] / 2).sum(axis=1)
    return np.where(known > 0, there / np.maximum(known, 1), np.nan)


def _role_level(seconds: Floats, role: Ints, node: Ints) -> Floats:
    """How much longer each rank's role computes than the lower median role, in log units; NaN where there is one."""
    levels = _reference(_median(log_of(seconds), axis=1), role, node)
    roles, first = np.unique(role[role >= 0], return_index=True)
    if len(roles) < 2:
        return np.full(len(role), np.nan)
    return np.asarray(levels - _lower(levels[role >= 0][first]), dtype=np.float64)


def alike(parts: Floats, noise: Floats, least: float, surely: float) -> Bools:
    """Whether the excess of all parts of the work (parts × ranks) is near equal: the smallest is at least ``surely`` of
    the largest, less twice the noise, but never under ``least`` of it."""
    low, high = parts.min(axis=0), np.maximum(parts.max(axis=0), 1e-9)
    return np.asarray(low >= high * np.maximum(least, surely - 2.0 * noise / high), dtype=np.bool_)
