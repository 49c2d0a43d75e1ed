"""The agent's own health: fields of table ``host`` that say how well this node is being watched."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from graynode.collectors.sysfs import whole_text
from graynode.collectors.worker import Worker

_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

Probe = Callable[[frozenset[int]], dict[str, Any]]
"""Given the classes that are due, gives fields of table ``host`` that one part knows: nvml, the spool, …"""


class Health:
    """Callable by the host collector once a round; amounts are those since the previous call.

    ``probes`` are parts to ask; ``workers`` and ``due`` are set by the agent, the latter at every round.
    """

    def __init__(self, monotonic: Callable[[], float], proc: Path = Path("/proc")) -> None:
        self._monotonic, self._proc = monotonic, proc
        self.workers: Sequence[Worker] = ()
        self.due: frozenset[int] = frozenset()
        self.probes: list[Probe] = []
        self._before = (0, 0, 0, 0)
        self._cpu_s: float | None = None
        self._cpu_at = 0.0

    def __call__(self) -> dict[str, Any]:
        """The fields known now; what is dear to read only in rounds that want it."""
        totals = [w.tally for w in self.workers]
        now = (
            sum(t.expected for t in totals),
            sum(t.taken for t in totals),
            sum(t.missed for t in totals),
            sum(t.errors for t in totals),
        )
        names = ("samples_expected", "samples_taken", "samples_missed", "collect_errors")
        fields: dict[str, Any] = {n: a - b for n, a, b in zip(names, now, self._before, strict=True)}
        self._before = now
        # a round that hangs has not ended: it counts as far as it has come
        fields["collect_max_ms"] = max((max(w.take_max_ms(), w.busy_s() * 1e3) for w in self.workers), default=None)
        if 10 in self.due:
            fields |= self._process()
        for probe in self.probes:
            fields |= probe(self.due)
        return fields

    def _process(self) -> dict[str, Any]:
        cpu_s, rss = process_tree(self._proc)
        now = self._monotonic()
        fields: dict[str, Any] = {"agent_rss_bytes": rss}
        if self._cpu_s is not None and now > self._cpu_at:
            fields["agent_cpu_percent"] = 100 * (cpu_s - self._cpu_s) / (now - self._cpu_at)
        self._cpu_s, self._cpu_at = cpu_s, now
        return fields


def process_tree(proc: Path = Path("/proc"), pid: int | None = None) -> tuple[float, int]:
    """CPU seconds (user and system) and resident bytes of this process and its living children.

    Children that have ended are in the CPU seconds too, so that the sum never falls.
    """
    own = resource.getrusage(resource.RUSAGE_SELF)
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = own.ru_utime + own.ru_stime + gone.ru_utime + gone.ru_stime
    pid = os.getpid() if pid is None else pid
    rss = parse_statm(whole_text(proc / str(pid) / "statm"))
    for child in children(proc, pid):
        cpu_s += parse_stat(whole_text(proc / str(child) / "stat"))
        rss += parse_statm(whole_text(proc / str(child) / "statm"))
    return cpu_s, rss


def children(proc: Path, pid: int) -> list[int]:
    """The processes that this one's threads have started, living ones only."""
    found: list[int] = []
    for task in (proc / str(pid) / "task").glob("[0-9]*"):
        found += map(int, whole_text(task / "children").split())
    return found


def parse_stat(text: str) -> float:
    """CPU seconds of ``/proc/<pid>/stat`` with its reaped children (proc(5) fields 14–17); 0 if it is gone."""
    words = text.rpartition(")")[2].split()  # the name in brackets may hold blanks and brackets
    return sum(map(int, words[11:15])) / _TICK if len(words) > 14 else 0.0


def parse_statm(text: str) -> int:
    """Resident bytes of ``/proc/<pid>/statm``; 0 if it is gone."""
    words = text.split()
    return int(words[1]) * _PAGE if len(words) > 1 else 0
