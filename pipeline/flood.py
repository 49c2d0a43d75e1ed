"""When unreadable messages are too many: one machine is no longer read, or the whole consumer stops. Pure.

Times are the bus's arrival times, so that reading the same messages again decides the same.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import Final, Literal

_MOST_NODES: Final = 10_000
"""Machines remembered at most; names that a hostile sender invents must not fill the memory."""


Verdict = Literal["keep", "count", "shut out"]
"""Keep it in the dead letters; only count it; count it and know that from now on its machine is skipped."""


class FloodStop(Exception):
    """Several machines send what cannot be read: reading on would empty the topic into the dead letters."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``kept_per_node`` unreadable messages of a machine are kept per ``per_s``. Beyond that, if at least half
    of what it sends is unreadable, it is not read but for one message every ``probe_s``, and read again when
    that one is readable. The consumer stops when, of the last ``recent`` messages, more than ``share`` and at
    least ``least`` from at least ``nodes`` machines were unreadable.
    """

    kept_per_node: int = 100
    per_s: float = 600.0
    probe_s: float = 60.0
    recent: int = 2000
    share: float = 0.1
    least: int = 50
    nodes: int = 3


DEFAULT: Final = Limits()


@dataclass(slots=True)
class _Node:
    since_s: float
    failed: int = 0
    read: int = 0
    probe_s: float = 0.0


class FloodGate:
    """Is told of every message whether it could be read; says what to keep, to skip, and when to stop."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._nodes: OrderedDict[str, _Node] = OrderedDict()
        self._recent: deque[str | None] = deque()
        self._failing: Counter[str] = Counter()

    def skips(self, node: str, at_s: float) -> bool:
        """Whether to pass over this machine's message unread, because it floods."""
        state = self._nodes.get(node)
        if state is None or not self._floods(state, at_s):
            return False
        if at_s < state.probe_s:
            return True
        state.probe_s = at_s + self._limits.probe_s
        return False

    def readable(self, node: str, at_s: float) -> None:
        """A message of the machine was read."""
        self._remember(None)
        state = self._nodes.get(node)
        if state is None:
            return
        if self._floods(state, at_s):
            del self._nodes[node]
        else:
            state.read += 1

    def unreadable(self, node: str, at_s: float) -> Verdict:
        """A message of the machine could not be read: what to do. ``FloodStop`` when too many machines do this."""
        self._remember(node)
        self._stop_at_flood()
        state = self._state(node, at_s)
        state.failed += 1
        if self._floods(state, at_s) and not state.probe_s:
            state.probe_s = at_s + self._limits.probe_s
            return "shut out"
        return "keep" if state.failed <= self._limits.kept_per_node else "count"

    def _floods(self, state: _Node, at_s: float) -> bool:
        # A window that has run out still floods while it is probed: time alone does not mend a machine.
        within = at_s - state.since_s < self._limits.per_s or state.probe_s > 0
        return within and state.failed > self._limits.kept_per_node and state.failed >= state.read

    def _state(self, node: str, at_s: float) -> _Node:
        state = self._nodes.get(node)
        if state is None or (at_s - state.since_s >= self._limits.per_s and not state.probe_s):
            state = self._nodes[node] = _Node(since_s=at_s)
            if len(self._nodes) > _MOST_NODES:
                self._nodes.popitem(last=False)
        return state

    def _remember(self, failing: str | None) -> None:
        self._recent.append(failing)
        if failing is not None:
            self._failing[failing] += 1
        if len(self._recent) > self._limits.recent:
            old = self._recent.popleft()
            if old is not None:
                self._failing[old] -= 1
                if not self._failing[old]:
                    del self._failing[old]

    def _stop_at_flood(self) -> None:
        limits, failed = self._limits, self._failing.total()
        if len(self._failing) < limits.nodes or failed < limits.least:
            return
        if failed > limits.share * len(self._recent):
            names = ", ".join(node for node, _ in self._failing.most_common(5))
            raise FloodStop(
                f"{failed} of the last {len(self._recent)} messages, from {len(self._failing)} machines ({names}),"
                " cannot be read; they stay on the bus. Look at the newest agent or pipeline that was rolled out"
            )
