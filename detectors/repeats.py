"""An application's Xid that comes again on one GPU, whoever runs there, is the GPU's.

13, 31, 43 and 45 are an application's errors as a rule. When jobs of different users fail with them on the same GPU,
and in each of these no other GPU had one, the jobs share nothing but the GPU (NVSentinel and NVIDIA's guide ask for
the field diagnostic at the second on the same GPU). One user's jobs prove nothing: a scheduler gives GPU 0 first, and a
program that is being debugged fails again and again. Without known jobs nothing is concluded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.detectors.placements import Placed

CODES: Final = frozenset({13, 31, 43, 45})
WITHIN: Final = timedelta(days=7)
_JOBS: Final = 2
_JOBS_OF_UNKNOWN_USERS: Final = 3
_KEPT: Final = 20_000
_PER_GPU: Final = 20


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Jobs that failed on this GPU alone, oldest first, the codes, and since when."""

    jobs: tuple[str, ...]
    users: int
    codes: tuple[int, ...]
    since: datetime
    units: tuple[str, ...]

    def words(self) -> str:
        """For a person."""
        by = f" of {self.users} users" if self.users else ""
        units = f", always in {self.units[0]}" if len(self.units) == 1 else ""
        xids = " and ".join(str(c) for c in self.codes)
        return f"Xid {xids} ended {len(self.jobs)} jobs{by} on this GPU and on no other GPU of theirs{units}"


@dataclass(slots=True)
class _Hit:
    ts: datetime
    code: int
    job: str
    user: str | None
    unit: str | None


class Repeats:
    """Bounded memory of application Xids by GPU and by job."""

    def __init__(self) -> None:
        self._gpus: OrderedDict[str, list[_Hit]] = OrderedDict()
        self._jobs: OrderedDict[str, set[str]] = OrderedDict()

    def note(self, event: Mapping[str, Any], placed: Placed | None, facts: Mapping[str, Any]) -> Suspicion | None:
        """Take one Xid episode in; what it makes of the GPU where its job is new there."""
        code, entity = event.get("code"), event.get("gpu_uuid") or event.get("pci_bus_id")
        if code not in CODES or placed is None or not entity:
            return None
        gpu = f"{event['node_id']}/{entity}"
        self._jobs.setdefault(placed.job_id, set()).add(gpu)
        self._jobs.move_to_end(placed.job_id)
        hits = [h for h in self._gpus.setdefault(gpu, []) if abs(event["ts"] - h.ts) <= WITHIN]
        new = all(h.job != placed.job_id for h in hits)
        hits.append(_Hit(event["ts"], int(code), placed.job_id, placed.user, _unit(facts)))
        self._gpus[gpu] = hits[-_PER_GPU:]
        self._gpus.move_to_end(gpu)
        for held in (self._gpus, self._jobs):
            while len(held) > _KEPT:
                held.popitem(last=False)
        return self._suspicion(gpu) if new else None

    def _suspicion(self, gpu: str) -> Suspicion | None:
        alone = [h for h in self._gpus[gpu] if self._jobs.get(h.job, set()) == {gpu}]
        jobs = tuple(dict.fromkeys(h.job for h in alone))
        users = {h.user for h in alone}
        known = None not in users
        enough = len(users) >= _JOBS if known else len(jobs) >= _JOBS_OF_UNKNOWN_USERS
        if len(jobs) < _JOBS or not enough:
            return None
        units = {h.unit for h in alone}
        return Suspicion(
            jobs,
            len(users) if known else 0,
            tuple(sorted({h.code for h in alone})),
            min(h.ts for h in alone),
            tuple(sorted(u for u in units if u)) if None not in units else (),
        )


def _unit(facts: Mapping[str, Any]) -> str | None:
    """The processing cluster that the line names."""
    gpc, tpc = facts.get("gpc"), facts.get("tpc")
    return f"GPC {gpc}, TPC {tpc}" if gpc is not None and tpc is not None else None
