"""A program's Xid that comes again on one GPU, whoever runs there, is the GPU's: the one rule for live events and ends.

13, 31, 43 and what else the policy calls the application's is the program's as a rule. Three jobs of two users within
thirty days, each of which had such an error on this GPU and on none other of its own, share nothing but the GPU. One
user's jobs prove nothing: a scheduler gives GPU 0 first, and a program that is being debugged fails again and again.
Where users are not known three jobs are enough; without known jobs nothing is concluded.

Why three and thirty days: of r such jobs a month on N GPUs, chance alone puts two on one GPU r²/2N times a month and
three r³/6N² times: five pairs but 0.2 triples for a hundred on 1,000 GPUs. A week would ask a GPU at fault to end three
jobs in it, and a job of days does not. (NVIDIA's guide and NVSentinel ask for the field diagnostic at the second.)
45 is left out: the driver writes it after whatever ended a process, a user's own cancelling too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.detectors.placements import Placed
from graynode.detectors.policy import Policy

WITHIN: Final = timedelta(days=30)
JOBS: Final = 3
USERS: Final = 2
"""Of these jobs, where all are known."""
_CLEAN_UP: Final = 45
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


def codes(policy: Policy) -> frozenset[int]:
    """Xids that count."""
    return frozenset(code for code, xid in policy.xids.items() if xid.cause == "application_error") - {_CLEAN_UP}


class Repeats:
    """Bounded memory of programs' Xids by GPU and by job. ``counted``: the numbers that count (``codes``)."""

    def __init__(self, counted: frozenset[int]) -> None:
        self._counted = counted
        self._gpus: OrderedDict[str, list[_Hit]] = OrderedDict()
        self._jobs: OrderedDict[str, set[str]] = OrderedDict()

    def note(self, event: Mapping[str, Any], placed: Placed | None, facts: Mapping[str, Any]) -> Suspicion | None:
        """Take one Xid episode in; what it makes of the GPU where its job is new there."""
        gpu, new = _gpu(event), False
        if gpu is not None and placed is not None and event.get("code") in self._counted:
            new = self._take(gpu, event, placed, facts)
        return self.of(gpu) if gpu is not None and new else None

    def of(self, gpu: str, job: str | None = None) -> Suspicion | None:
        """What is to be said of the GPU (``gpu_key``); with ``job``, only where that job is one of those."""
        alone = self._alone(gpu)
        jobs = tuple(dict.fromkeys(h.job for h in alone))
        users = {h.user for h in alone}
        known = None not in users
        if len(jobs) < JOBS or (known and len(users) < USERS) or (job is not None and job not in jobs):
            return None
        units = {h.unit for h in alone}
        return Suspicion(
            jobs,
            len(users) if known else 0,
            tuple(sorted({h.code for h in alone})),
            min(h.ts for h in alone),
            tuple(sorted(u for u in units if u)) if None not in units else (),
        )

    def jobs(self, gpu: str) -> tuple[str, ...]:
        """Jobs that had such an error on this GPU and on none other of theirs, oldest first."""
        return tuple(dict.fromkeys(h.job for h in self._alone(gpu)))

    def _take(self, gpu: str, event: Mapping[str, Any], placed: Placed, facts: Mapping[str, Any]) -> bool:
        """Keep it; whether its job is new on this GPU."""
        self._jobs.setdefault(placed.job_id, set()).add(gpu)
        self._jobs.move_to_end(placed.job_id)
        hits = [h for h in self._gpus.setdefault(gpu, []) if abs(event["ts"] - h.ts) <= WITHIN]
        new = all(h.job != placed.job_id for h in hits)
        hit = _Hit(event["ts"], int(event["code"]), placed.job_id, placed.user, _unit(facts))
        # a job's first error of each number is enough: a flood of one job must not push the other jobs out
        if all((h.job, h.code) != (hit.job, hit.code) for h in hits):
            hits.append(hit)
        self._gpus[gpu] = hits[-_PER_GPU:]
        self._gpus.move_to_end(gpu)
        for held in (self._gpus, self._jobs):
            while len(held) > _KEPT:
                held.popitem(last=False)
        return new

    def _alone(self, gpu: str) -> list[_Hit]:
        return [h for h in self._gpus.get(gpu, ()) if self._jobs.get(h.job, set()) == {gpu}]


def gpu_key(node_id: str, gpu_uuid: str | None, pci_bus_id: str | None) -> str:
    """How a GPU of a machine is called here."""
    return f"{node_id}/{gpu_uuid or pci_bus_id}"


def _gpu(event: Mapping[str, Any]) -> str | None:
    uuid, pci = event.get("gpu_uuid"), event.get("pci_bus_id")
    return gpu_key(str(event["node_id"]), uuid, pci) if uuid or pci else None


def _unit(facts: Mapping[str, Any]) -> str | None:
    """The processing cluster that the line names."""
    gpc, tpc = facts.get("gpc"), facts.get("tpc")
    return f"GPC {gpc}, TPC {tpc}" if gpc is not None and tpc is not None else None
