"""Single ranks and nodes that compute longer than their peers, and whether that is hardware."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from graynode.detectors.frames import Bools, Ints
from graynode.detectors.straggler import Cause, Limits, Straggler
from graynode.detectors.straggler_excess import alike
from graynode.detectors.straggler_view import View

_FEW: Final = 3
"""With fewer peers nobody can say surely which of two is odd (``residual.MIN_PEERS``)."""
_HALF: Final = 0.5
_MOST_ROLES: Final = 2 / 3

Verdict = tuple[Cause, str]
_HARDWARE: Final[Verdict] = ("hardware", "slow_compute")


def slow(view: View, limits: Limits) -> list[Straggler]:
    """Ranks that stand out within their role, each with a cause; all ranks of one node with hardware are one node."""
    verdicts = {int(r): _of_rank(view, limits, int(r)) for r in np.flatnonzero(_candidates(view, limits))}
    verdicts = _not_alone(view, limits, verdicts)
    return _named(view, limits, verdicts)


def _candidates(view: View, limits: Limits) -> Bools:
    found = view.stands_out(view.total, limits)
    for part in view.parts.values():
        found |= view.stands_out(part, limits)
    return found


def _of_rank(view: View, limits: Limits, rank: int) -> Verdict:
    own = float(view.total.own[rank])
    parts = np.array([part.own[rank] for part in view.parts.values()])
    if parts.size and not _parts_alike(view, limits, rank):
        return ("application" if parts.min() < limits.parts_least * parts.max() else "unknown"), "other_work"
    if not view.stands_out(view.total, limits)[rank] or view.total.lasting[rank] < limits.lasting:
        return "unknown", "not_lasting"
    # How a stage answers to its data is known roughly, so what pipelines differ by blurs every rank by a part of it
    if own < limits.shared_part * view.total.apart:
        return "application", "shared_data"
    return ("unknown", "own_data") if _by_data(view, limits, rank) else _HARDWARE


def _parts_alike(view: View, limits: Limits, rank: int) -> bool:
    own = np.array([[part.own[rank]] for part in view.parts.values()])
    noise = np.array([np.sqrt(np.mean([part.noise[rank] ** 2 for part in view.parts.values()]))])
    return bool(np.isfinite(own).all() and alike(own, noise, limits.parts_least, limits.parts_alike)[0])


def _by_data(view: View, limits: Limits, rank: int) -> bool:
    """Whether the excess is the data's: fast microbatches do not show it, for lengths move sums more than quantiles;
    or, where nothing else tells the data's share, work without data does not."""
    least = limits.steady_least * float(view.total.own[rank])
    if view.steady is not None and bool(view.steady.own[rank] < least):
        return True
    return not view.separable and _optimizer_denies(view, limits, rank)


def _optimizer_denies(view: View, limits: Limits, rank: int) -> bool:
    if view.optimizer is None or not np.isfinite(view.optimizer.own[rank]):
        return False
    own, noise = view.total.own[rank], view.optimizer.noise[rank]
    return bool(view.optimizer.own[rank] + 2 * noise < limits.optimizer_least * own + noise)


def _not_alone(view: View, limits: Limits, verdicts: dict[int, Verdict]) -> dict[int, Verdict]:
    """Hardware is taken back where what is slow is too much of a role to be its odd one out."""
    slow_ranks = np.array([r for r, v in verdicts.items() if v == _HARDWARE], dtype=np.int64)
    if not slow_ranks.size:
        return verdicts
    if not view.separable and _in_most_roles(view, slow_ranks):
        return verdicts | dict.fromkeys(slow_ranks.tolist(), ("application", "shared_data"))
    changed = dict(verdicts)
    for role in np.unique(view.roles.code[slow_ranks]):
        here = slow_ranks[view.roles.code[slow_ranks] == role]
        if _may_be_a_role(view, limits, int(role), here):
            changed |= dict.fromkeys(here.tolist(), ("unknown", "not_told_apart"))
    return changed


def _in_most_roles(view: View, slow_ranks: Ints) -> bool:
    """Whether most roles have a rank that is about as slow: then they share what makes them slow."""
    about = view.total.own >= _HALF * float(view.total.own[slow_ranks].min())
    roles = np.unique(view.roles.code[about & (view.roles.code >= 0)])
    return view.roles.count > 1 and len(roles) > 1 and len(roles) >= _MOST_ROLES * view.roles.count


def _may_be_a_role(view: View, limits: Limits, role: int, slow_ranks: Ints) -> bool:
    members = view.roles.code == role
    about = members & (view.total.own >= _HALF * float(view.total.own[slow_ranks].min()))
    nodes, of = len(np.unique(view.work.node[about])), len(np.unique(view.work.node[members]))
    if view.roles.source == "given":
        return nodes > max(1.0, limits.most_nodes * of) or (of == 1 and bool(about.sum() > members.sum() / 2))
    wide = bool(view.roles.mixed[slow_ranks].any()) and int(about.sum()) >= view.roles.width
    first = view.roles.source == "assumed" and not view.parts and int(view.work.rank.argmin()) in slow_ranks
    return nodes > 1 or wide or first or bool(about.sum() > members.sum() / 2)


def _named(view: View, limits: Limits, verdicts: dict[int, Verdict]) -> list[Straggler]:
    found, node = [], view.work.node
    hardware = {r for r, v in verdicts.items() if v == _HARDWARE}
    for n in np.unique(node[sorted(hardware)]) if hardware else ():
        judged = set(np.flatnonzero((node == n) & np.isfinite(view.total.own)).tolist())
        if len(judged) > 1 and judged <= hardware:
            found.append(_straggler(view, limits, sorted(judged), _HARDWARE))
            hardware -= judged
    singles = sorted(hardware) + sorted(r for r, v in verdicts.items() if v != _HARDWARE)
    return found + [_straggler(view, limits, [r], verdicts[r]) for r in singles]


def _straggler(view: View, limits: Limits, ranks: list[int], verdict: Verdict) -> Straggler:
    cause, reason = verdict
    work = view.work
    return Straggler(
        where="node" if len(ranks) > 1 else "rank",
        ranks=tuple(int(r) for r in work.rank[ranks]),
        nodes=tuple(int(n) for n in np.unique(work.node[ranks])),
        cause=cause,
        reason=reason,
        excess=round(float(np.expm1(np.median(view.total.own[ranks]))), 4),
        confidence=_confidence(view, limits, ranks, cause),
        evidence=_evidence(view, ranks),
    )


def _confidence(view: View, limits: Limits, ranks: list[int], cause: Cause) -> float:
    """An order, not a rate: each thing that is not known or speaks against it takes a part away."""
    if cause == "unknown":
        return 0.5
    doubts = [
        (0.2, not view.parts),
        (0.1, view.roles.source == "learned"),
        (0.2, view.roles.source == "assumed"),
        (0.1, not view.separable),
        (0.1, _peers(view, ranks[0]) < _FEW),
        (0.05, view.optimizer is None),
        (0.2, cause == "hardware" and any(_optimizer_denies(view, limits, r) for r in ranks)),
    ]
    return round(max(0.95 - sum(part for part, doubt in doubts if doubt), 0.5), 2)


def _peers(view: View, rank: int) -> int:
    return int((view.roles.code == view.roles.code[rank]).sum()) - 1


def _evidence(view: View, ranks: list[int]) -> dict[str, Any]:
    rank = ranks[0]
    known = {"optimizer": view.optimizer, "steady": view.steady, **view.parts}
    ratios = {f"{name}_excess": _ratio(e.own[rank]) for name, e in known.items() if e is not None}
    return ratios | {
        "shared_excess": _ratio(view.total.shared[rank]),
        "noise": _ratio(view.total.noise[rank]),
        "p_value": _plain(view.total.p[rank], 12),
        "lasting": _plain(view.total.lasting[rank], 3),
        "peers": _peers(view, rank),
        "roles": view.roles.source,
        "data_told_apart": view.separable,
    }


def _ratio(log: float) -> float | None:
    return _plain(float(np.expm1(log)), 4)


def _plain(value: float, digits: int) -> float | None:
    return round(float(value), digits) if np.isfinite(value) else None
