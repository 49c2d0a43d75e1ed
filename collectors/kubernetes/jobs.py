"""Pods become placements: rows of table ``job`` when something changes, and which job has which GPU now. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from graynode.collectors.base import Row
from graynode.collectors.context import GpuKey, Placement
from graynode.collectors.kubernetes.objects import Condition, Workload
from graynode.collectors.kubernetes.pods import (
    JOBSET_ATTEMPT,
    PodFacts,
    end_of,
    gpus_asked,
    index_of,
    role_of,
    state_of,
)
from graynode.collectors.kubernetes.workload import Work
from graynode.pipeline.schema import JOB_ENDED

_LIVELIEST: Final = ("running", "allocated", "failed", "node_fail", "timeout", "cancelled", "completed")
"""A placement is what its liveliest pod is; of pods that have all ended, what the worst of them is."""
UNKNOWN_END: Final = "no longer on this node; how it ended is not known"
_LONG_LIVED: Final = frozenset({
    "Deployment", "StatefulSet", "DaemonSet", "LeaderWorkerSet", "Notebook", "InferenceService", "RayService",
    "RayCluster",
})  # fmt: skip
KINDS_OF_WORK: Final = (
    "training", "fine_tuning", "quantisation", "batch_inference", "inference", "notebook", "other",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Queued:
    """What Kueue tells of a workload: since when it waited, when it was let in, and its size as a whole."""

    queue: str | None = None
    since: datetime | None = None
    admitted: datetime | None = None
    requeues: int | None = None
    gpus: int | None = None
    state: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Labels:
    """``[kubernetes]``: labels that a site uses for the user, the account and the kind of work."""

    user: str = ""
    account: str = ""
    work: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Those that are set."""
        return frozenset(filter(None, (self.user, self.account, self.work)))


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod of this node with what is known of it; ``gone`` once it has been deleted."""

    pod: PodFacts
    work: Work
    gpus: frozenset[GpuKey] = frozenset()
    queued: Queued = field(default_factory=Queued)
    gone: bool = False


def queued_of(workload: Workload) -> Queued:
    """What a Kueue Workload says."""
    spec, status = workload.spec, workload.status
    sets = spec.pod_sets or []
    conditions = {c.type: c for c in status.conditions or ()}
    admitted = _since(conditions.get("Admitted")) or _since(conditions.get("QuotaReserved"))
    state, reason = _queue_state(conditions)
    return Queued(
        queue=spec.queue_name,
        since=workload.metadata.creation_timestamp, admitted=admitted,
        requeues=status.requeue_state.count if status.requeue_state else None,
        gpus=_whole(sum(s.count * sum(gpus_asked(c.resources.limits) for c in s.template.spec.containers or ())
                        for s in sets)) if sets else None,
        state=state, reason=reason,
    )  # fmt: skip


def placements(pods: Iterable[Placed]) -> tuple[dict[GpuKey, Placement], dict[GpuKey, set[str]]]:
    """The job of each GPU, and the GPUs that several jobs share, of which none can be named."""
    on: dict[GpuKey, list[Placed]] = {}
    for placed in pods:
        for gpu in () if placed.gone or placed.pod.ended else placed.gpus:
            on.setdefault(gpu, []).append(placed)
    found: dict[GpuKey, Placement] = {}
    shared: dict[GpuKey, set[str]] = {}
    for gpu, there in on.items():
        jobs = {placed.work.job_id for placed in there}
        if len(jobs) > 1:
            shared[gpu] = jobs
            continue
        first = there[0]
        # a pod's place is a rank only where the pod is one rank: which GPU of several has which, a pod does not say
        alone = len(there) == 1 and len(first.gpus) == 1
        found[gpu] = Placement(first.work.job_id, role_of(first.pod), index_of(first.pod) if alone else None)
    return found, shared


def job_row(pods: list[Placed], labels: Labels, first_step: datetime | None) -> Row:
    """The row of one placement: all pods of one workload that are or were on this node together."""
    states = [(state_of(p.pod, gone=p.gone), p) for p in pods]
    (state, reason), chosen = min(states, key=lambda one: _LIVELIEST.index(one[0][0] or "completed"))
    work, queued, end = chosen.work, chosen.queued, end_of(chosen.pod)
    said = {**chosen.pod.said, **(work.labels or {})}
    over = state in JOB_ENDED
    gpus = sorted({gpu.gpu_uuid for p in pods for gpu in p.gpus})
    return {
        "job_id": work.job_id,
        "user": said.get(labels.user) if labels.user else None,
        "account": (said.get(labels.account) if labels.account else None) or work.namespace,
        "partition": queued.queue or work.queue,
        "work": _kind_of_work(said.get(labels.work) if labels.work else None, work),
        "state": state,
        "reason": reason,
        "queued_ts": queued.since or _created(work, pods),
        "allocated_ts": queued.admitted or _first(p.pod.scheduled for p in pods),
        "first_step_ts": first_step,
        "end_ts": (end.at if end else None) or chosen.pod.deleted if over else None,
        "exit_code": end.exit_code if end and (over or end.exit_code) else None,
        "exit_signal": end.signal if end else None,
        "requeues": max(_attempts(p) for p in pods) + (queued.requeues or 0),
        "gpus": queued.gpus,
        "gpu_uuids": json.dumps(gpus) if gpus else None,
        "image_digest": _image(chosen.pod),
    }


class Changes:
    """What of the placements is new; ``told`` is what was last told of each job that has not ended."""

    def __init__(self) -> None:
        self.told: dict[str, list[Any]] = {}
        self._ended: dict[str, list[Any]] = {}

    def rows(self, found: Iterable[Row], *, whole: bool = True) -> Iterator[Row]:
        """Rows that differ from the last ones told. If what was found is the whole, a job that is not in it, and was
        not told to have ended, is gone: state null."""
        seen: set[str] = set()
        for row in found:
            job_id, key = row["job_id"], _key(row)
            seen.add(job_id)
            if self.told.get(job_id) == key or self._ended.get(job_id) == key:
                continue
            if row["state"] in JOB_ENDED:
                self.told.pop(job_id, None)
                self._ended[job_id] = key
            else:
                self._ended.pop(job_id, None)
                self.told[job_id] = key
            yield row
        if not whole:
            return
        self._ended = {job_id: key for job_id, key in self._ended.items() if job_id in seen}
        for job_id in [known for known in self.told if known not in seen]:
            del self.told[job_id]
            yield {"job_id": job_id, "state": None, "reason": UNKNOWN_END}

    def kept(self) -> dict[str, Any]:
        """For the state file."""
        return {"told": self.told, "ended": self._ended}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """From the state file; what has another shape counts as never told."""
        for name, into in (("told", self.told), ("ended", self._ended)):
            some = kept.get(name)
            if isinstance(some, dict):
                into.update({job: key for job, key in some.items() if isinstance(key, list)})


def _key(row: Row) -> list[Any]:
    wanted = ("state", "reason", "exit_code", "requeues", "gpu_uuids", "partition")
    return [*(row[name] for name in wanted), *(str(row[name]) for name in ("allocated_ts", "first_step_ts"))]


def _attempts(placed: Placed) -> int:
    attempt = placed.pod.said.get(JOBSET_ATTEMPT, "")
    restarted = int(attempt) if attempt.isdecimal() and len(attempt) < 6 else 0
    return restarted + min(placed.pod.restarts, 1_000_000)


def _image(pod: PodFacts) -> str | None:
    """The digest of the pod's one image; of several containers' none can be chosen, unless they agree."""
    digests = set(pod.images.values())
    return digests.pop() if len(digests) == 1 else None


def _kind_of_work(labelled: str | None, work: Work) -> str | None:
    return labelled if labelled in KINDS_OF_WORK else work.work


def _created(work: Work, pods: list[Placed]) -> datetime | None:
    """Since when the placement waited: the workload was made and began at once, but what serves for months, or is tried
    again, waited only since its pods were made."""
    tried = any(_attempts(p) for p in pods)
    made = None if tried or work.kind in _LONG_LIVED else work.created
    return made or _first(p.pod.created for p in pods)


def _first(moments: Iterable[datetime | None]) -> datetime | None:
    return min(filter(None, moments), default=None)


def _since(condition: Condition | None) -> datetime | None:
    return condition.last_transition_time if condition and condition.status == "True" else None


def _queue_state(conditions: Mapping[str, Condition]) -> tuple[str, str | None]:
    """A Workload's state in the words of table ``job``, and the reason that Kueue gives."""
    true = {name: c for name, c in conditions.items() if c.status == "True"}
    if "Finished" in true:
        bad = true["Finished"].reason not in ("Succeeded", "JobFinished", None)
        return ("failed" if bad else "completed"), true["Finished"].reason
    if "Admitted" in true:
        return "allocated", None
    if "Evicted" in true:
        return "requeued", true["Evicted"].reason
    waiting = conditions.get("QuotaReserved")
    return "queued", waiting.reason if waiting else None


def _whole(count: int) -> int | None:
    return count if 0 < count < 2**31 else None
