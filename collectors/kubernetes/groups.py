"""The pods of each workload on this node, the ones that have just gone among them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from graynode.collectors.context import GpuKey
from graynode.collectors.kubernetes.jobs import Placed
from graynode.collectors.kubernetes.pods import index_of, role_of, state_of
from graynode.pipeline.schema import JOB_ENDED

_MOST_GONE: Final = 64
"""Pods of a workload that have gone and are remembered until the workload is over here."""


class Groups:
    """Remembers what a pod held: its devices are given for its life, but the kubelet forgets them before the pod is
    gone, and a job's end still names its GPUs."""

    def __init__(self) -> None:
        self._held: dict[str, frozenset[GpuKey]] = {}
        self._gone: dict[str, list[Placed]] = {}

    def group(self, there: Iterable[Placed], gone: Iterable[Placed]) -> dict[str, list[Placed]]:
        """Pods by job id: those that are there and, while any of a workload are or one has just gone, those that are
        gone. A pod that another has taken the place of is left out."""
        groups: dict[str, list[Placed]] = {}
        for placed in there:
            groups.setdefault(placed.work.job_id, []).append(self._with_gpus(placed))
        fresh: set[str] = set()
        for placed in gone:
            if self._held.get(placed.pod.uid) or placed.pod.gpus or placed.pod.claims:
                job = placed.work.job_id
                fresh.add(job)
                kept = self._gone.setdefault(job, [])
                kept.append(self._with_gpus(placed))
                del kept[:-_MOST_GONE]
        for job in list(self._gone):
            if job not in groups and job not in fresh:
                del self._gone[job]
        uids = {p.pod.uid for some in (*groups.values(), *self._gone.values()) for p in some}
        self._held = {uid: gpus for uid, gpus in self._held.items() if uid in uids}
        return {job: _current([*groups.get(job, ()), *self._gone.get(job, ())]) for job in {**groups, **self._gone}}

    def last_held(self, uid: str) -> frozenset[GpuKey]:
        """What a pod was last known to hold."""
        return self._held.get(uid, frozenset())

    def _with_gpus(self, placed: Placed) -> Placed:
        uid = placed.pod.uid
        held = self._held.get(uid, frozenset()) | placed.gpus
        if held:
            self._held[uid] = held
        return replace(placed, gpus=held)


def _current(pods: list[Placed]) -> list[Placed]:
    """Without the pods that have ended and whose place in the job a later pod has taken: tries before the last."""
    newest: Mapping[tuple[str | None, int | None], Placed] = {
        _place(p): p for p in sorted(pods, key=_age) if _place(p) != (None, None)
    }
    return [
        p for p in pods
        if newest.get(_place(p), p) is p or state_of(p.pod, gone=p.gone)[0] not in JOB_ENDED
    ]  # fmt: skip


def _place(placed: Placed) -> tuple[str | None, int | None]:
    return role_of(placed.pod), index_of(placed.pod)


def _age(placed: Placed) -> float:
    return placed.pod.created.timestamp() if placed.pod.created else 0.0
