"""Which clue began it, which were there at once, which followed; which machines an unknown cause leaves in doubt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from graynode.detectors.attribution_clues import APPLICATION, CASCADE, CONTEXT, INFRASTRUCTURE, Clue
from graynode.detectors.attribution_elsewhere import Elsewhere
from graynode.detectors.attribution_job import Placement

TOGETHER: Final = timedelta(seconds=60)
"""One cause on many machines is seen on all of them within so much: the slowest look is once a minute."""
_ONE_FAULT: Final = timedelta(seconds=5)
"""GPUs that show the same within so much show one fault: which of two ends is broken, it does not say."""
_TEARDOWN: Final = ("xid_43", "xid_45")


def speaker(first: Clue, machine: Sequence[Clue]) -> Clue:
    """Of what one fault shows at once, what names it best: what ends a job by itself, and an Xid before other words."""
    at_once = [c for c in machine if not first.surely_before(c)]
    return min(at_once, key=lambda c: (-c.weight, c.place != first.place, not c.detail.startswith("xid_"), c.order))


def beside(first: Clue | None, clues: Iterable[Clue]) -> tuple[Clue, ...]:
    """Clues of the same side and weight that were there at once on another GPU or machine."""
    if first is None or first.side != INFRASTRUCTURE:
        return ()
    strong = [c for c in sorted(clues, key=lambda c: c.order) if c.side == INFRASTRUCTURE and c.weight >= first.weight]
    return tuple(c for c in strong if c.place != first.place and _at_once(first, c))


def alike(first: Clue, machine: Iterable[Clue], within: timedelta = TOGETHER) -> set[str]:
    """Machines that showed the same kind of trouble at about the same time."""
    return {c.node_id for c in machine if c.node_id and c.kind == first.kind and abs(c.at - first.at) <= within}


def with_roles(clues: Iterable[Clue], first: Clue | None, at_once: Sequence[Clue]) -> tuple[Clue, ...]:
    """The clues in order of time, each with its role."""
    told = [replace(c, role=_role(c, first, at_once)) for c in clues]
    return tuple(sorted(told, key=lambda c: c.order))


def in_doubt(placed: Placement, clues: Iterable[Clue], elsewhere: Elsewhere) -> tuple[str, ...]:
    """The machines of a job of unknown end, the most doubtful first: by what they showed, and who else failed there."""
    doubt: dict[str, int] = dict.fromkeys(placed.machines, 0)
    for clue in clues:
        if clue.node_id in doubt and clue.side in (INFRASTRUCTURE, CONTEXT):
            doubt[clue.node_id] += 2
    for node_id, failed in elsewhere.failed_here.items():
        if node_id in doubt:
            doubt[node_id] += failed
    return tuple(sorted(doubt, key=lambda n: (-doubt[n], n)))


def _at_once(first: Clue, other: Clue) -> bool:
    if first.kind == other.kind and abs(other.at - first.at) <= _ONE_FAULT:
        return True
    return not first.surely_before(other) and not other.surely_before(first)


def _role(clue: Clue, first: Clue | None, at_once: Sequence[Clue]) -> str:
    if clue is first or any(clue is c for c in at_once):
        return "initiating"
    if clue.kind == "teardown" or clue.detail in _TEARDOWN:
        return "teardown"
    if clue.side == CASCADE:
        return "cascade"
    if first is None or first.side != INFRASTRUCTURE or clue.side not in (APPLICATION, INFRASTRUCTURE):
        return "context"
    return "cascade" if clue.at >= first.earliest else "context"
