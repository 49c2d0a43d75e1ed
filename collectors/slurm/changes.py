"""What of Slurm's answers is new: rows of changes, and the memory that a restart of the agent keeps.

Rows about other machines carry ``node_id`` ``slurm:<ClusterName>/<NodeName>`` and the NodeName as ``node``: Slurm knows
no machine ids. A job that has no node yet is told under ``slurm:<ClusterName>``. ``docs/decisions/0010`` says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.collectors.base import Row
from graynode.collectors.slurm.jobs import Job
from graynode.collectors.slurm.nodes import Node, Partition, Reservation
from graynode.collectors.slurm.text import hosts
from graynode.pipeline.schema import JOB_ENDED, stable_id

_PLACED: Final = ("allocated", "running")
_ORDER: Final = {"queued": 0, "allocated": 1, "running": 2}
_MOST_LATER: Final = 10_000
FORGET_AFTER: Final = 3
"""Answers without a job after which it is gone: one may be cut, and what the accounting knows comes a little later."""


@dataclass(slots=True)
class Known:
    """What was last told of a job."""

    state: str | None
    requeues: int
    hosts: str
    missed: int = 0


class Jobs:
    """Changes of jobs. ``work`` is the kind of work by partition (``[slurm.work]``)."""

    def __init__(self, cluster_name: str, work: Mapping[str, str]) -> None:
        self.cluster_name, self._work = cluster_name, work
        self.known: dict[str, Known] = {}
        self._later: dict[str, Job] = {}

    def seen(self, jobs: Iterable[Job], now: datetime) -> Iterator[Row]:
        """Rows of what the whole queue's answer changes. Jobs that it lacks are ``missing`` afterwards."""
        there = set()
        for job in jobs:
            there.add(job.job_id)
            yield from self.learn(job, now)
        for job_id, known in list(self.known.items()):
            known.missed = 0 if job_id in there else known.missed + 1
            if known.missed >= FORGET_AFTER:
                if known.state not in JOB_ENDED:
                    yield from self._rows(
                        Job(job_id, None, reason="left the queue; how it ended is not known", hosts=known.hosts), now
                    )
                del self.known[job_id]

    def missing(self) -> list[str]:
        """Jobs that left the queue and whose end has not been told."""
        return [job_id for job_id, known in self.known.items() if known.missed and known.state not in JOB_ENDED]

    def ended(self, jobs: Iterable[Job], now: datetime) -> Iterator[Row]:
        """Rows of ends that the accounting or the completion log knows, and the queue does not show.

        What the queue still shows it tells better itself; the end is kept for the case that it forgets the job first.
        """
        for job in [*self._later.values(), *jobs]:
            known = self.known.get(job.job_id)
            if known is not None and not known.missed and known.state not in JOB_ENDED:
                if len(self._later) < _MOST_LATER:
                    self._later[job.job_id] = job
                continue
            self._later.pop(job.job_id, None)
            if job.state in JOB_ENDED or (job.state == "requeued" and known is None):
                yield from self.learn(job, now)

    def learn(self, job: Job, now: datetime) -> Iterator[Row]:
        """Rows of what one job's standing changes."""
        known, requeues = self.known.get(job.job_id), job.requeues or 0
        if known is not None and self._is_told(job, known):
            return
        if known is not None and known.state in _PLACED and (requeues > known.requeues or job.state == "queued"):
            back = Job(job.job_id, "requeued", job.alias, job.reason, job.user, job.account, job.partition, known.hosts)
            yield from self._rows(back, now, requeues=max(requeues, known.requeues + 1), ended=job.queued)
        self.known[job.job_id] = Known(job.state, requeues, job.hosts)
        yield from self._rows(job, now)

    def _is_told(self, job: Job, known: Known) -> bool:
        if job.state in JOB_ENDED and known.state in JOB_ENDED:
            return job.requeues is None or job.requeues == known.requeues
        same = job.state == known.state and (job.requeues or 0) == known.requeues
        return same and (job.hosts == known.hosts or job.state not in _PLACED)

    def _rows(
        self, job: Job, now: datetime, *, requeues: int | None = None, ended: datetime | None = None
    ) -> Iterator[Row]:
        ended = job.ended or ended
        moment = {"queued": job.queued, "allocated": job.started, "running": job.started}.get(job.state or "", ended)
        # Slurm's times are whole seconds: the microseconds keep a job's states in order inside one
        at = min(moment, now) + timedelta(microseconds=_ORDER.get(job.state or "", 3)) if moment else now
        row: Row = {
            "ts": at,
            "job_id": job.job_id, "job_alias": job.alias, "user": job.user, "account": job.account,
            "partition": job.partition, "work": self._work.get(job.partition or ""), "state": job.state,
            "reason": job.reason, "queued_ts": job.queued, "allocated_ts": job.started, "end_ts": ended,
            "exit_code": job.exit_code, "exit_signal": job.exit_signal,
            "requeues": job.requeues if requeues is None else requeues,
            "nodes": job.nodes, "gpus": job.gpus, "ranks": job.ranks,
        }  # fmt: skip
        placed = hosts(job.hosts) if job.state != "queued" else []
        for name in placed:
            yield {**row, **who(self.cluster_name, name)}
        if not placed:
            yield {**row, **who(self.cluster_name)}

    def kept(self) -> dict[str, list[Any]]:
        """For the state file."""
        return {job_id: [k.state, k.requeues, k.hosts] for job_id, k in self.known.items()}

    def restore(self, kept: Any) -> None:  # noqa: ANN401 (a file's content)
        """From the state file; an entry of another shape is passed over."""
        for job_id, entry in (kept if isinstance(kept, dict) else {}).items():
            match entry:
                case [str() | None as state, int() as requeues, str() as placed]:
                    self.known[job_id] = Known(state, requeues, placed)


class Nodes:
    """Changes of nodes, partitions and reservations."""

    def __init__(self, cluster: str, cluster_name: str) -> None:
        self._cluster, self._cluster_name = cluster, cluster_name
        self.told: dict[str, dict[str, list[Any]]] = {"node": {}, "partition": {}, "reservation": {}}

    def nodes(self, nodes: Iterable[Node], now: datetime) -> Iterator[Row]:
        """``node_state`` rows. A node that is no longer configured has null as the scheduler's state."""
        seen = {}
        for node in nodes:
            # whether the backfill scheduler plans a job here flips by the minute and changes nothing
            state = "+".join(word for word in node.state.split("+") if word != "PLANNED")
            seen[node.name] = [state, node.reason, node.who]
            if self.told["node"].get(node.name) != seen[node.name]:
                told = self.told["node"].get(node.name, [None, None, None])
                # Slurm knows when a reason was given, not when a state began
                ts = node.since if node.since and told[1] != node.reason else now
                yield {
                    "ts": min(ts, now), **who(self._cluster_name, node.name),
                    "scheduler_state": node.state, "reason": node.reason, "who": node.who,
                }  # fmt: skip
        for name in self.told["node"].keys() - seen.keys():
            yield {"ts": now, **who(self._cluster_name, name), "reason": "no longer in Slurm's configuration"}
        self.told["node"] = seen

    def partitions(self, partitions: Iterable[Partition], now: datetime) -> Iterator[Row]:
        """Events ``partition_state``."""
        seen: dict[str, list[Any]] = {p.name: [p.state, p.nodes] for p in partitions}
        for name, (state, nodes) in seen.items():
            before = self.told["partition"].get(name)
            if before is None or before[0] != state:
                was = f" (was {before[0]})" if before else ""
                facts = {"partition": name, "state": state, "nodes": nodes}
                yield self._event("partition_state", f"partition {name} is {state}{was}", facts, now)
        self.told["partition"] = seen

    def reservations(self, reservations: Iterable[Reservation], now: datetime) -> Iterator[Row]:
        """Events ``reservation`` (made or changed) and ``reservation_end``; flag MAINT is planned maintenance."""
        seen: dict[str, list[Any]] = {}
        for r in reservations:
            start, end = (t.isoformat() if t else None for t in (r.start, r.end))
            seen[r.name] = [start, end, r.nodes, r.flags]
            if self.told["reservation"].get(r.name) != seen[r.name]:
                what = "maintenance" if "MAINT" in r.flags.split(",") else "reservation"
                facts = {"name": r.name, "start": start, "end": end, "nodes": r.nodes, "flags": r.flags}
                text = f"{what} {r.name}: {r.nodes or 'no nodes'} from {start} to {end}"
                yield self._event("reservation", text, facts, now)
        for name in self.told["reservation"].keys() - seen.keys():
            facts = {"name": name, "end": self.told["reservation"][name][1]}
            yield self._event("reservation_end", f"reservation {name} is over or was removed", facts, now)
        self.told["reservation"] = seen

    def _event(self, kind: str, message: str, facts: Mapping[str, Any], now: datetime) -> Row:
        said = json.dumps(facts, sort_keys=True)
        told_at = "" if kind == "reservation" else now.isoformat()  # the others come again with the same facts
        return {
            "ts": now, **who(self._cluster_name),
            "event_id": stable_id("event", self._cluster, "slurm", self._cluster_name, kind, said, told_at),
            "source": "slurm", "kind": kind, "message": message, "attributes": said,
            "observed_ts": now, "ts_quality": "observed",
        }  # fmt: skip

    def restore(self, kept: Any) -> None:  # noqa: ANN401 (a file's content)
        """From the state file; what has another shape counts as never told."""
        for kind in self.told:
            some = kept.get(kind) if isinstance(kept, dict) else None
            if isinstance(some, dict):
                self.told[kind] = {name: entry for name, entry in some.items() if isinstance(entry, list) and entry}


def who(cluster_name: str, host: str | None = None) -> Row:
    """The keys of a row about a node of Slurm's, or about the cluster as a whole."""
    if host is None:
        return {"node_id": f"slurm:{cluster_name}"}
    return {"node_id": f"slurm:{cluster_name}/{host}", "node": host}
