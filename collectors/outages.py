"""Seconds down, in sum and in one piece, from a port's states at moments. Pure: no file, no clock.

Resolution is that of the looks, 1 s: the time between two looks belongs to the state at the first of them, so that
an outage seen by n looks a second apart is n seconds. A gap in the looks (the agent was away) counts as watched only
if the port's own counters say that nothing happened in it; otherwise it is time nobody saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

DOWN: Final = frozenset({"down", "init", "armed", "inactive"})
"""Not carrying traffic though nobody switched it off. ``init`` and ``armed``: trained, but the subnet manager has not
brought it up."""
GAP_S: Final = 2.5
"""Looks further apart than this leave time unwatched: one missed round is tolerated."""
_SATURATED: Final = 255
"""Classic InfiniBand counters of 8 bits stop here: at this value nothing can be told from them."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A port at its last look. ``outage_s`` is the length of the running outage so far, ``None`` while it is up.

    ``expected`` becomes true once the port has been active and false when it is switched off: a port that was never
    up is no outage.
    """

    state: str
    counters: Mapping[str, int | None]
    outage_s: float | None = None
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What happened since the last look. All null for a port that is not expected to be up."""

    down_s: float | None = None
    outage_s: float | None = None
    downs: int | None = None
    unseen_s: float | None = None
    went_down: bool = False
    came_up: bool = False
    flaps: int = 0


def first_look(state: str, counters: Mapping[str, int | None], *, expected: bool) -> tuple[Seen, Change]:
    """A port of which nothing is known of before, or nothing that still counts (another boot).

    ``expected`` says that it is known to have been active once: then it is down from now on, but that is not told as
    an event, because links train for seconds after a boot.
    """
    seen = Seen(state, dict(counters), None, expected or state == "active")
    if not seen.expected:
        return seen, Change()
    return replace(seen, outage_s=0.0 if state in DOWN else None), Change(0.0, 0.0, 0, 0.0)


def next_look(
    before: Seen, state: str, counters: Mapping[str, int | None], elapsed_s: float, *, gap_s: float = GAP_S
) -> tuple[Seen, Change]:
    """The port at the next look, ``elapsed_s`` later. ``gap_s``: looks further apart leave time unwatched."""
    if state == "disabled":
        return Seen(state, dict(counters)), _ended(before, elapsed_s)
    if not before.expected:
        return first_look(state, counters, expected=False)
    if state == "unknown":
        return before, Change(None, before.outage_s, None, elapsed_s)
    if elapsed_s > gap_s and not _nothing_happened(before, state, counters):
        return _after_gap(before, state, counters, elapsed_s)
    if before.outage_s is not None:
        return _was_down(before, state, counters, elapsed_s)
    if state in DOWN:
        return Seen(state, dict(counters), 0.0, expected=True), Change(0.0, 0.0, 1, 0.0, went_down=True)
    flaps = flaps_between(before.counters, counters)
    return Seen(state, dict(counters), None, expected=True), Change(0.0, 0.0, flaps, 0.0, flaps=flaps)


def flaps_between(before: Mapping[str, int | None], after: Mapping[str, int | None]) -> int:
    """Times that a port went down and came back between two looks at which it was up."""
    downed, changes = _rise(before, after, "link_downed"), _rise(before, after, "carrier_changes")
    return max(downed or 0, (changes or 0) // 2)  # the carrier counts both ways


def _was_down(before: Seen, state: str, counters: Mapping[str, int | None], elapsed_s: float) -> tuple[Seen, Change]:
    outage = (before.outage_s or 0.0) + elapsed_s
    if state in DOWN:
        return Seen(state, dict(counters), outage, expected=True), Change(elapsed_s, outage, 0, 0.0)
    return Seen(state, dict(counters), None, expected=True), Change(
        elapsed_s, outage, 0, 0.0, came_up=state == "active"
    )


def _ended(before: Seen, elapsed_s: float) -> Change:
    """Switched off by a person: a running outage ends here, and nothing else is said."""
    if before.outage_s is None:
        return Change()
    return Change(elapsed_s, before.outage_s + elapsed_s, 0, 0.0)


def _after_gap(before: Seen, state: str, counters: Mapping[str, int | None], elapsed_s: float) -> tuple[Seen, Change]:
    was_down, is_down = before.outage_s is not None, state in DOWN
    flaps = flaps_between(before.counters, counters)
    downs = max(flaps, 1 if is_down and (not was_down or flaps) else 0)
    change = Change(
        0.0,
        before.outage_s if was_down else 0.0,
        downs,
        elapsed_s,
        went_down=is_down and not was_down,
        came_up=was_down and state == "active",
        flaps=0 if is_down or was_down else flaps,
    )
    return Seen(state, dict(counters), 0.0 if is_down else None, expected=True), change


def _nothing_happened(before: Seen, state: str, counters: Mapping[str, int | None]) -> bool:
    """Whether the counters prove that the port stayed as it was. No counter, or a stopped one, proves nothing."""
    if (before.outage_s is not None) != (state in DOWN):
        return False
    proofs = [name for name in counters if counters[name] is not None and before.counters.get(name) is not None]
    usable = [name for name in proofs if name != "link_downed" or counters[name] != _SATURATED]
    return bool(usable) and all(counters[name] == before.counters[name] for name in proofs)


def _rise(before: Mapping[str, int | None], after: Mapping[str, int | None], name: str) -> int | None:
    first, last = before.get(name), after.get(name)
    return last - first if first is not None and last is not None and last >= first else None
