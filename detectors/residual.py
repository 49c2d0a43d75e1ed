"""Residual: how much worse than its peers a GPU is now, and how much of that it always was.

r = sign · [log x − own baseline − leave-one-out median of that over the peers]. Peers do the same work at the same
time on the same footing: same job, role, model, MIG profile, power limit, driver and VBIOS. Where those are too few,
driver and VBIOS may differ; where no job is known, peers are the jobless GPUs of the same model on the node. Whoever
uses such a residual widens the bands. A power limit or a MIG profile of its own leaves a GPU without peers, and so
does a job that is too small: its neighbours do other work. Then the answer is "cannot tell".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors import conformal
from graynode.detectors.frames import Bools, Floats, Ints, View, codes

MIN_PEERS: Final = 3
"""With fewer others the median is one of them, and nobody can say which of the two is odd."""
_STRICT: Final = ("power_limit",)
_FIRMWARE: Final = ("driver", "vbios")
"""What GPUs run under that may differ among peers in need; at most a few percent, and the own baseline holds it."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Group numbers, −1 for none: ``exact`` peers, and ``loose`` ones where the exact are too few."""

    exact: Ints
    loose: Ints


@dataclass(frozen=True, slots=True)
class Residual:
    """``excess`` over the peers' median (NaN: cannot tell), that median, how many peers, and whether they are weak."""

    excess: Floats
    median: Floats
    peers: Ints
    wide: Bools


def peers(view: View, under: Mapping[str, Floats] | None = None) -> Peers:
    """Who is compared with whom, window by window. ``under`` as ``footing.read`` gives it; without, all are on one."""
    window, job = view.t_s.astype(np.int64), view.text("job_id_last")
    by_job = view.once("by_job", None, lambda: codes(job, view.text("job_role_last"), kinds(view), window))
    held = {name: numbers for name, numbers in (under or {}).items() if not _alike(numbers)}
    strict = _within(by_job, [held[c] for c in _STRICT if c in held])
    exact = _within(strict, [held[c] for c in _FIRMWARE if c in held])
    if not job.null_count():
        return Peers(exact, np.full(len(view), -1) if exact is strict else strict)
    on_node = codes(view.text("node_id"), kinds(view), window)
    on_node = _within(on_node, [held[c] for c in _STRICT if c in held])
    return Peers(exact, np.where(by_job < 0, on_node + strict.max(initial=0) + 1, strict))


def _alike(numbers: Floats) -> bool:
    """Whether all are equal, or all unknown: then they divide nobody."""
    first = numbers[:1]
    return bool(np.array_equal(numbers, np.broadcast_to(first, numbers.shape), equal_nan=True))


def _within(groups: Ints, by: list[Floats]) -> Ints:
    """Groups divided further, an unknown value being one of its own; −1 stays."""
    if not by:
        return groups
    divided = codes(groups, *(np.nan_to_num(b, nan=-1.0).view(np.int64) for b in by))
    return np.where(groups < 0, -1, divided)


def models(view: View) -> Ints:
    """Group numbers by model; GPUs of unknown model are one."""
    return view.once("models", None, lambda: codes(view.text("gpu_model_last").fill_null("unknown")))


def kinds(view: View) -> Ints:
    """Group numbers by model and MIG profile: half of a GPU is no peer of a whole one, nor of the GPU that it is a half
    of. A GPU with MIG on has those with the same instances on them as peers."""
    return view.once("kinds", None, lambda: _kinds(view))


def _kinds(view: View) -> Ints:
    profile = view.text("mig_profile_last")
    return models(view) if profile.null_count() == len(view) else codes(models(view), profile.fill_null(""))


def against_peers(x: Floats, groups: Peers) -> Residual:
    """``x`` minus the leave-one-out median of its peers. ``x`` NaN takes part nowhere."""
    median, count = leave_one_out_median(x, groups.exact)
    wide = count < MIN_PEERS
    if np.any(wide & (groups.loose >= 0) & ~np.isnan(x)):
        loosely, others = leave_one_out_median(x, groups.loose)
        median, count = np.where(wide, loosely, median), np.where(wide, others, count)
    median = np.where(count < MIN_PEERS, np.nan, median)
    return Residual(x - median, median, count, wide)


def against_own_and_peers(x: Floats, base: Floats, groups: Peers) -> tuple[Residual, Floats]:
    """The residual against peers *and* past, and this window's say on what the own baseline is (``levels``).

    Peers are taken less their own baselines, so that it does not matter which GPUs happen to share a job: a median over
    few moves with who they are. Those without a baseline take no part, and have no ``excess``.
    """
    r = against_peers(x - base, groups)
    own = r.excess + base
    unknown = np.isnan(own)
    return r, np.where(unknown, levels(x, base, groups), own) if np.any(unknown & ~np.isnan(x)) else own


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
    shift, known = _median_for_all(x - base, groups.exact)
    few = known <= MIN_PEERS
    if np.any(few & (groups.loose >= 0)):
        loosely, others = _median_for_all(x - base, groups.loose)
        shift, known = np.where(few, loosely, shift), np.where(few, others, known)
    few = known <= MIN_PEERS
    return np.where(few, from_centre(x, groups), x - shift) if few.any() else x - shift


def from_centre(x: Floats, groups: Peers) -> Floats:
    """``x`` minus the median of its whole group: what baselines are made of.

    Not the median of the others: where half of a node runs cooler, "the others" of the cool half are the hot half and
    the other way round, and baselines made so would not add up.
    """
    centre, size = _group_median(x, groups.exact)
    few = size <= MIN_PEERS
    if np.any(few & (groups.loose >= 0)):
        loosely, others = _group_median(x, groups.loose)
        centre, size = np.where(few, loosely, centre), np.where(few, others, size)
    return np.where(size <= MIN_PEERS, np.nan, x - centre)


def _median_for_all(values: Floats, groups: Ints) -> tuple[Floats, Ints]:
    """Each group's median of what is known, for those too of whom nothing is known, and how many are known."""
    median, size = _group_median(values, groups)
    if not np.any(np.isnan(values) & (groups >= 0)):
        return median, size
    known = np.flatnonzero(size > 0)
    of = np.full(groups.max(initial=-1) + 1, -1, dtype=np.int64)
    of[groups[known]] = known
    place = np.where(groups >= 0, of[groups], -1)
    return np.where(place >= 0, median[place], np.nan), np.where(place >= 0, size[place], 0)


def _group_median(values: Floats, groups: Ints) -> tuple[Floats, Ints]:
    median, size = np.full(len(values), np.nan), np.zeros(len(values), dtype=np.int64)
    order, first = in_groups(values, groups)
    if order.size:
        v, count = values[order], np.diff(np.r_[first, len(order)])
        middle = (v[first + (count - 1) // 2] + v[first + count // 2]) / 2
        median[order], size[order] = np.repeat(middle, count), np.repeat(count, count)
    return median, size


def in_groups(values: Floats, groups: Ints) -> tuple[Ints, Ints]:
    """Rows by group and within it by value, and where in them each group begins; NaN and group −1 left out.

    A sort of the values and then a stable one of the groups, 16 bits at a time, for which numpy has a radix sort: a
    sixth of the time of ``lexsort``.
    """
    order = np.flatnonzero(~np.isnan(values) & (groups >= 0))
    if not order.size:
        return order, np.zeros(0, dtype=np.int64)
    order = order[np.argsort(values[order])]
    for shift in range(0, int(groups.max()).bit_length(), 16):
        digit = (groups[order] >> shift & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
    g = groups[order]
    return order, np.flatnonzero(np.r_[True, g[1:] != g[:-1]])


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
    order, first = in_groups(values, groups)
    if not order.size:
        return median, others
    v, size = values[order], np.diff(np.r_[first, len(order)])
    start, n = np.repeat(first, size), np.repeat(size, size) - 1
    rank = np.arange(len(order)) - start
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


def chance(r: Residual, groups: Peers, floor: float) -> Floats:
    """How often a healthy GPU among so many peers shows as much in one window: it explains, and decides nothing.

    The fewer the peers, the less is certain: z = 8 is one healthy window in 1,000 among 7 and in 7·10⁷ among 63.
    """
    spread, _ = leave_one_out_median(np.abs(r.excess), groups.exact)
    if np.any(r.wide & (groups.loose >= 0)):
        loosely, _ = leave_one_out_median(np.abs(r.excess), groups.loose)
        spread = np.where(r.wide, loosely, spread)
    z = 0.6745 * r.excess / np.maximum(spread, floor)
    return np.where(np.isnan(z), np.nan, conformal.robust_tail(np.nan_to_num(z), r.peers))


def log_of(x: Floats) -> Floats:
    """Natural logarithm; NaN where x is not positive."""
    return np.log(np.where(x > 0, x, np.nan))
