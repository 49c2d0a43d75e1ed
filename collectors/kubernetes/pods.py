"""What is kept of a pod, and what it says of itself: its workload's names, role, rank, state and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from graynode.collectors.kubernetes.objects import Condition, ContainerStatus, Meta, OwnerRef, Pod, Terminated

KUBEFLOW_TYPE: Final = "training.kubeflow.org/replica-type"
KUBEFLOW_INDEX: Final = "training.kubeflow.org/replica-index"
JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_ROLE: Final = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_REPLICAS: Final = "jobset.sigs.k8s.io/replicatedjob-replicas"
JOBSET_ATTEMPT: Final = "jobset.sigs.k8s.io/restart-attempt"
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
LWS_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
VOLCANO_TASK: Final = "volcano.sh/task-spec"
VOLCANO_INDEX: Final = "volcano.sh/task-index"
RAY_TYPE: Final = "ray.io/node-type"
RAY_CLUSTER: Final = "ray.io/cluster"
RAY_FROM_KIND: Final = "ray.io/originated-from-crd"
RAY_FROM_NAME: Final = "ray.io/originated-from-cr-name"
TEMPLATE_HASH: Final = "pod-template-hash"
KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
VOLCANO_QUEUE: Final = "volcano.sh/queue-name"
CONFIG_HASH: Final = "kubernetes.io/config.hash"
_KEPT: Final = frozenset({
    KUBEFLOW_TYPE, KUBEFLOW_INDEX, JOBSET_NAME, JOBSET_ROLE, JOBSET_REPLICAS, JOBSET_ATTEMPT, COMPLETION_INDEX,
    POD_INDEX, LWS_NAME, LWS_INDEX, VOLCANO_TASK, VOLCANO_INDEX, RAY_TYPE, RAY_CLUSTER, RAY_FROM_KIND, RAY_FROM_NAME,
    TEMPLATE_HASH, KUEUE_QUEUE, VOLCANO_QUEUE, CONFIG_HASH,
})  # fmt: skip
_GPU_RESOURCES: Final = "nvidia.com/"
_MOST_RANK: Final = 1_000_000
_SIGNALLED: Final = range(129, 129 + 64)
"""A container ended by signal n exits with 128 + n, as runtimes and shells write it."""
LOST_NODE: Final = frozenset({
    "DeletionByTaintManager", "DeletionByPodGC", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity",
})  # fmt: skip
"""Reasons that speak of the node, not of the pod."""


@dataclass(frozen=True, slots=True)
class End:
    """How a container ended; ``name`` is the container's."""

    name: str
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of this node. ``said`` are the labels and annotations that we know; ``disruption`` why it is taken away;
    ``gpus`` and ``claims`` how many it asks for."""

    uid: str
    namespace: str
    name: str
    said: Mapping[str, str]
    owner: OwnerRef | None
    phase: str
    reason: str | None
    created: datetime | None
    scheduled: datetime | None
    started: datetime | None
    deleted: datetime | None
    disruption: str | None
    gpus: int
    claims: int
    restarts: int
    ends: tuple[End, ...]
    images: Mapping[str, str]

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name: all that the kubelet tells of a pod."""
        return self.namespace, self.name

    @property
    def ended(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")


def only_named(namespace: str, name: str) -> PodFacts:
    """A pod of which the kubelet told the name, and nobody anything else."""
    return PodFacts(
        uid=f"{namespace}/{name}", namespace=namespace, name=name, said={}, owner=None, phase="Running", reason=None,
        created=None, scheduled=None, started=None, deleted=None, disruption=None, gpus=0, claims=0,
        restarts=0, ends=(), images={},
    )  # fmt: skip


def controller(meta: Meta) -> OwnerRef | None:
    """The owner that made an object: the one marked as its controller, or the only one."""
    owners = meta.owner_references or []
    marked = [owner for owner in owners if owner.controller]
    return marked[0] if marked else owners[0] if len(owners) == 1 else None


def trim(pod: Pod, labels: Iterable[str] = ()) -> PodFacts:
    """What is kept of a pod; ``labels`` are further ones to keep."""
    kept = _KEPT.union(labels)
    meta, status = pod.metadata, pod.status
    said = {k: v[:253] for k, v in {**(meta.annotations or {}), **(meta.labels or {})}.items() if k in kept}
    conditions = {c.type: c for c in status.conditions or ()}
    scheduled = conditions.get("PodScheduled")
    containers = status.container_statuses or []
    # a job's end and its image are those of the containers that have the devices, not of what runs beside them
    main = {c.name for c in pod.spec.containers or () if gpus_asked(c.resources.limits) or c.resources.claims}
    ends = [end for c in containers if (not main or c.name in main) and (end := _end(c)) is not None]
    return PodFacts(
        uid=meta.uid, namespace=meta.namespace, name=meta.name, said=said, owner=controller(meta),
        phase=status.phase, reason=status.reason, created=meta.creation_timestamp,
        scheduled=scheduled.last_transition_time if scheduled and scheduled.status == "True" else None,
        started=status.start_time, deleted=meta.deletion_timestamp,
        disruption=_disruption(conditions.get("DisruptionTarget")),
        gpus=sum(gpus_asked(c.resources.limits) for c in pod.spec.containers or ()),
        claims=len(pod.spec.resource_claims or ()),
        restarts=sum(c.restart_count for c in containers), ends=tuple(ends),
        images={c.name: d for c in containers if (not main or c.name in main) and (d := _digest(c.image_id))},
    )  # fmt: skip


def gpus_asked(limits: Mapping[str, str | int] | None) -> int:
    """NVIDIA devices among a container's limits; extended resources are whole numbers."""
    return sum(
        int(count)
        for name, count in (limits or {}).items()
        if name.startswith(_GPU_RESOURCES) and str(count).isdecimal() and len(str(count)) < 6
    )


def role_of(pod: PodFacts) -> str | None:
    """The pod's part in its job, in the words of who made it."""
    said = pod.said
    if LWS_INDEX in said:
        return "leader" if said[LWS_INDEX] == "0" else "worker"
    for name in (KUBEFLOW_TYPE, JOBSET_ROLE, VOLCANO_TASK, RAY_TYPE):
        if said.get(name):
            return said[name].lower()
    return None


def index_of(pod: PodFacts) -> int | None:
    """The pod's place in its job, from 0, ``None`` where it cannot be told.

    Kubeflow: replica index; the workers of a PyTorchJob come after the one master. A JobSet tells an index inside each
    Job only: with several Jobs of one role the place in the whole cannot be told.
    """
    said = pod.said
    if KUBEFLOW_INDEX in said:
        place = _number(said[KUBEFLOW_INDEX])
        after_master = pod.owner is not None and pod.owner.kind == "PyTorchJob" and role_of(pod) == "worker"
        return place + 1 if place is not None and after_master else place
    if JOBSET_NAME in said and said.get(JOBSET_REPLICAS) != "1":
        return None
    for name in (LWS_INDEX, VOLCANO_INDEX, COMPLETION_INDEX, POD_INDEX):
        if name in said:
            return _number(said[name])
    return None


def state_of(pod: PodFacts, *, gone: bool = False) -> tuple[str | None, str | None]:
    """State in the words of table ``job``, and the reason. ``gone``: the pod has been deleted, so it cannot go on."""
    why = (
        pod.disruption or pod.reason or next((e.reason for e in pod.ends if e.reason not in (None, "Completed")), None)
    )
    if pod.phase == "Succeeded":
        return "completed", None
    if why in LOST_NODE and (gone or pod.phase == "Failed"):
        return "node_fail", why
    if pod.phase == "Failed":
        return ("timeout" if why == "DeadlineExceeded" else "failed"), why
    if gone:
        return "cancelled", why or "deleted"
    return ("running" if pod.phase == "Running" else "allocated"), why


def end_of(pod: PodFacts) -> End | None:
    """How the pod's worst container ended: the first that failed, else the last that ended well."""
    failed = [end for end in pod.ends if end.exit_code]
    return failed[0] if failed else pod.ends[-1] if pod.ends else None


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 8 and int(text) < _MOST_RANK else None


def _disruption(condition: Condition | None) -> str | None:
    return (condition.reason or "disrupted")[:100] if condition and condition.status == "True" else None


def _end(status: ContainerStatus) -> End | None:
    ended = status.state.terminated or status.last_state.terminated
    if ended is None:
        return None
    reason = ended.reason[:100] if ended.reason else None
    return End(status.name, _code(ended), _signal(ended), reason, ended.finished_at)


def _code(ended: Terminated) -> int | None:
    return ended.exit_code if ended.exit_code is not None and abs(ended.exit_code) < 2**31 else None


def _signal(ended: Terminated) -> int | None:
    if ended.signal:
        return ended.signal if 0 < ended.signal < 256 else None
    return ended.exit_code - 128 if ended.exit_code in _SIGNALLED and ended.exit_code else None


def _digest(image_id: str) -> str | None:
    _, at, digest = image_id.rpartition("@")
    if not at and not image_id.startswith("sha256:"):
        return None
    return digest[:200]
