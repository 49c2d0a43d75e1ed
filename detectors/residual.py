"""Residual: how much worse than its peers a GPU is now, and how much of that it always was.

r = sign · [log x − own baseline − leave-one-out median of that over the peers]. Peers do the same work at the same
time: same job, role and model. Where no job is known, peers are the jobless GPUs of the same model on the node, and
whoever uses such a residual widens the bands. A job that is too small has no peers: its neighbours do other work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors.frames import Bools, Floats, Ints, View, codes

MIN_PEERS: Final = 3
"""With fewer others the median is one of them, and nobody can say which of the two is odd."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Group numbers by job and by node, −1 for none."""

    job: Ints
    node: Ints


@dataclass(frozen=True, slots=True)
class Residual:
    """``excess`` over the peers' median (NaN: cannot tell), that median, how many peers, and whether they are weak."""

    excess: Floats
    median: Floats
    peers: Ints
    wide: Bools


def peers(view: View) -> Peers:
    """Who is compared with whom, window by window."""
    return view.once("peers", None, lambda: _peers(view))


def _peers(view: View) -> Peers:
    window, job = view.t_s.astype(np.int64), view.text("job_id_last")
    by_job = codes(job, view.text("job_role_last"), kinds(view), window)
    # Where no GPU is jobless, nobody has a use for groups by node
    by_node = codes(view.text("node_id"), kinds(view), window) if job.null_count() else np.full(len(view), -1)
    return Peers(by_job, np.where(by_job < 0, by_node, -1))


def models(view: View) -> Ints:
    """Group numbers by model; GPUs of unknown model are one."""
    return view.once("models", None, lambda: codes(view.text("gpu_model_last").fill_null("unknown")))


def kinds(view: View) -> Ints:
    """Group numbers by model and MIG profile: half of a GPU is no peer of a whole one, nor of the GPU that it is a half
    of. A GPU with MIG on has those with the same instances on them as peers."""
    return view.once("kinds", None, lambda: codes(models(view), view.text("mig_profile_last").fill_null("")))


def against_peers(x: Floats, groups: Peers) -> Residual:
    """``x`` minus the leave-one-out median of its peers. ``x`` NaN takes part nowhere."""
    by_job, jobs = leave_one_out_median(x, groups.job)
    by_node, nodes = leave_one_out_median(x, groups.node)
    wide = jobs < MIN_PEERS
    median, count = np.where(wide, by_node, by_job), np.where(wide, nodes, jobs)
    median = np.where(count < MIN_PEERS, np.nan, median)
    return Residual(x - median, median, count, wide)


def against_own_and_peers(x: Floats, base: Floats, groups: Peers) -> tuple[Residual, Floats]:
    """The residual against peers *and* past, and this window's say on what the own baseline is (``levels``).

    Peers are taken less their own baselines, so that it does not matter which GPUs happen to share a job: a median over
    few moves with who they are. Those without a baseline take no part, and have no ``excess``.
    """
    r = against_peers(x - base, groups)
    return r, np.where(np.isnan(r.excess), levels(x, base, groups), r.excess + base)


def polished(x: Floats, base: Floats, groups: Peers, entity: Ints) -> Floats:
    """``levels`` over many windows, where an entity without ``base`` gets one from these very windows first.

    Median polish of x = group in window + entity + rest (Tukey 1977), with the entities' known levels as its start: so
    GPUs that never shared a job are made comparable by those that worked with both.
    """
    first = levels(x, base, groups)
    own, _ = _group_median(first, entity)
    return levels(x, np.where(np.isnan(base), own, base), groups)


def levels(x: Floats, base: Floats, groups: Peers) -> Floats:
    """``x`` less what its group does: the group's median of x − ``base``, over those that have a ``base``.

    Where too few of a group have one, the centre of the group serves: all its GPUs are then new together.
    """
    group = np.where(
        groups.job >= 0, groups.job, np.where(groups.node >= 0, groups.node + groups.job.max(initial=0) + 1, -1)
    )
    shift, known = _median_for_all(x - base, group)
    return np.where(known > MIN_PEERS, x - shift, from_centre(x, groups))


def from_centre(x: Floats, groups: Peers) -> Floats:
    """``x`` minus the median of its whole group: what baselines are made of.

    Not the median of the others: where half of a node runs cooler, "the others" of the cool half are the hot half and
    the other way round, and baselines made so would not add up.
    """
    return np.where(np.isnan(against_peers(x, groups).excess), np.nan, x - _centre(x, groups))


def _centre(x: Floats, groups: Peers) -> Floats:
    by_job, jobs = _group_median(x, groups.job)
    by_node, _ = _group_median(x, groups.node)
    return np.where(jobs <= MIN_PEERS, by_node, by_job)


def _median_for_all(values: Floats, groups: Ints) -> tuple[Floats, Ints]:
    """Each group's median of what is known, for those too of whom nothing is known, and how many are known."""
    median, size = _group_median(values, groups)
    known = np.flatnonzero(size > 0)
    numbers, first = np.unique(groups[known], return_index=True)
    if not len(numbers):
        return median, size
    place = np.searchsorted(numbers, groups).clip(max=len(numbers) - 1)
    here = numbers[place] == groups
    of = known[first][place]
    return np.where(here, median[of], np.nan), np.where(here, size[of], 0)


def _group_median(values: Floats, groups: Ints) -> tuple[Floats, Ints]:
    median, size = np.full(len(values), np.nan), np.zeros(len(values), dtype=np.int64)
    part = np.flatnonzero(~np.isnan(values) & (groups >= 0))
    if part.size:
        order = part[np.lexsort((values[part], groups[part]))]
        v, g = values[order], groups[order]
        first = np.flatnonzero(np.r_[True, g[1:] != g[:-1]])
        count = np.diff(np.r_[first, len(g)])
        middle = (v[first + (count - 1) // 2] + v[first + count // 2]) / 2
        median[order], size[order] = np.repeat(middle, count), np.repeat(count, count)
    return median, size


def widened(r: Residual, band: float, firm: Floats | None = None) -> Floats:
    """The excess, less ``band`` towards zero where peers or past are weak: only what is beyond it counts.

    A past is weak that is not ``firm`` (1): a site's first ten days, or a kind of work that a GPU seldom does.
    """
    beyond = np.sign(r.excess) * np.maximum(np.abs(r.excess) - band, 0.0)
    weak = r.wide if firm is None else r.wide | (firm != 1.0)
    return np.where(weak, beyond, r.excess)


def leave_one_out_median(values: Floats, groups: Ints) -> tuple[Floats, Ints]:
    """Median of the others of the same group, and how many they are; NaN where there is none."""
    median, others = np.full(len(values), np.nan), np.zeros(len(values), dtype=np.int64)
    taking_part = np.flatnonzero(~np.isnan(values) & (groups >= 0))
    if taking_part.size == 0:
        return median, others
    order = taking_part[np.lexsort((values[taking_part], groups[taking_part]))]
    v, g = values[order], groups[order]
    first = np.flatnonzero(np.r_[True, g[1:] != g[:-1]])
    size = np.diff(np.r_[first, len(g)])
    start, n = np.repeat(first, size), np.repeat(size, size) - 1
    rank = np.arange(len(g)) - start
    low, high = (n - 1) // 2, n // 2
    low, high = low + (low >= rank), high + (high >= rank)
    alone = n == 0
    found = (v[np.where(alone, 0, start + low)] + v[np.where(alone, 0, start + high)]) / 2
    median[order], others[order] = np.where(alone, np.nan, found), n
    return median, others


def robust_z(values: Floats, groups: Ints, floor: float) -> tuple[Floats, Floats, Ints]:
    """0.6745 (x − median) / MAD with self left out of both, the excess itself, and the number of peers.

    ``floor`` bounds the MAD from below: peers that agree to the last digit make no microscopic difference a fault.
    """
    median, count = leave_one_out_median(values, groups)
    excess = values - median
    spread, _ = leave_one_out_median(np.abs(excess), groups)
    z = 0.6745 * excess / np.maximum(spread, floor)
    return np.where(count < MIN_PEERS, np.nan, z), excess, count


def log_of(x: Floats) -> Floats:
    """Natural logarithm; NaN where x is not positive."""
    return np.log(np.where(x > 0, x, np.nan))
