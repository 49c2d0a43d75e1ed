"""The workload of a pod: the top of the chain of owners, as far as it may be read.

Pod → ReplicaSet → Deployment; Pod → Job → JobSet → TrainJob; Pod → RayCluster → RayJob; Pod → StatefulSet → Pod (the
leader) → StatefulSet → LeaderWorkerSet; Pod → PyTorchJob; Pod → Job of Volcano. What only starts jobs by the clock
(CronJob) is not climbed: each run is a job of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from graynode.collectors.kubernetes import pods
from graynode.collectors.kubernetes.objects import Meta, OwnerRef
from graynode.collectors.kubernetes.pods import PodFacts, controller

PLURALS: Final[Mapping[tuple[str, str], str]] = {
    ("", "Pod"): "pods",
    ("apps", "ReplicaSet"): "replicasets",
    ("apps", "Deployment"): "deployments",
    ("apps", "StatefulSet"): "statefulsets",
    ("apps", "DaemonSet"): "daemonsets",
    ("batch", "Job"): "jobs",
    ("jobset.x-k8s.io", "JobSet"): "jobsets",
    ("trainer.kubeflow.org", "TrainJob"): "trainjobs",
    ("kubeflow.org", "PyTorchJob"): "pytorchjobs",
    ("kubeflow.org", "TFJob"): "tfjobs",
    ("kubeflow.org", "MPIJob"): "mpijobs",
    ("kubeflow.org", "JAXJob"): "jaxjobs",
    ("kubeflow.org", "XGBoostJob"): "xgboostjobs",
    ("kubeflow.org", "PaddleJob"): "paddlejobs",
    ("kubeflow.org", "Notebook"): "notebooks",
    ("ray.io", "RayCluster"): "rayclusters",
    ("ray.io", "RayJob"): "rayjobs",
    ("ray.io", "RayService"): "rayservices",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): "leaderworkersets",
    ("batch.volcano.sh", "Job"): "jobs",
    ("workload.codeflare.dev", "AppWrapper"): "appwrappers",
    ("serving.kserve.io", "InferenceService"): "inferenceservices",
    ("argoproj.io", "Workflow"): "workflows",
}
"""Kinds that are looked up, so that their owners are found. Any other kind ends the chain, and is named."""

_NOT_WORK: Final = frozenset({"CronJob", "CronWorkflow", "ScheduledWorkflow", "Node"})
_DEEPEST: Final = 10
_TRAINING: Final = frozenset({"PyTorchJob", "TFJob", "MPIJob", "JAXJob", "XGBoostJob", "PaddleJob", "TrainJob"})
_INFERENCE: Final = frozenset({"InferenceService", "RayService"})


@dataclass(frozen=True, slots=True)
class Work:
    """The top of a chain. ``queue`` is Kueue's or Volcano's; ``queued_uid`` the object that Kueue queued; ``whole``
    false where permission or an answer was lacking on the way up."""

    namespace: str
    kind: str
    name: str
    created: datetime | None = None
    queue: str | None = None
    queued_uid: str | None = None
    labels: Mapping[str, str] | None = None
    whole: bool = True

    @property
    def job_id(self) -> str:
        """``<namespace>/<kind>/<name>``, the kind in lower case: a JobSet and a Job may bear the same name."""
        return f"{self.namespace}/{self.kind.lower()}/{self.name}"

    @property
    def work(self) -> str | None:
        """Kind of work in the words of table ``job``, where the kind of object leaves no doubt."""
        if self.kind in _TRAINING:
            return "training"
        if self.kind in _INFERENCE:
            return "inference"
        return "notebook" if self.kind == "Notebook" else None


Look = Callable[[OwnerRef, str], Meta | None]
"""The metadata of an owner in a namespace; ``None`` where they cannot be had."""


def path_of(owner: OwnerRef, namespace: str) -> str | None:
    """Where the API has that object, ``None`` for a kind that is not looked up."""
    group, _, version = owner.api_version.rpartition("/")
    plural = PLURALS.get((group, owner.kind))
    if plural is None or not version.isalnum():
        return None
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return f"{base}/namespaces/{quote(namespace, safe='')}/{plural}/{quote(owner.name, safe='')}"


def work_of(pod: PodFacts, look: Look, keep: frozenset[str] = frozenset()) -> Work:
    """Climb. ``keep`` are labels of the way that are wanted; those of the higher object win."""
    labels = dict(pod.said)
    queued_uid = pod.uid if pods.KUEUE_QUEUE in labels else None
    top: OwnerRef | None = None
    created, seen, whole, owner = pod.created, {pod.uid}, True, pod.owner
    while owner is not None and owner.kind not in _NOT_WORK and owner.uid not in seen and len(seen) < _DEEPEST:
        top, created = owner, None
        seen.add(owner.uid)
        meta = look(owner, pod.namespace) if path_of(owner, pod.namespace) else None
        if meta is None or meta.uid != owner.uid:
            whole = path_of(owner, pod.namespace) is None
            break
        created = meta.creation_timestamp
        own = meta.labels or {}
        labels |= {name: text[:253] for name, text in own.items() if name in keep or name in _QUEUES}
        queued_uid = meta.uid if pods.KUEUE_QUEUE in own else queued_uid
        owner = controller(meta)
    kind, name = ("Pod", pod.name) if top is None else (top.kind, top.name)
    if not whole:
        kind, name = _by_labels(pod, kind, name)
    queue = labels.get(pods.KUEUE_QUEUE) or labels.get(pods.VOLCANO_QUEUE)
    return Work(pod.namespace, kind, name, created, queue, queued_uid, labels, whole)


_QUEUES: Final = frozenset({pods.KUEUE_QUEUE, pods.VOLCANO_QUEUE})


def _by_labels(pod: PodFacts, kind: str, name: str) -> tuple[str, str]:
    """What the pod's own labels say of its workload: those who made it wrote them for that."""
    said = pod.said
    if said.get(pods.RAY_FROM_KIND) and said.get(pods.RAY_FROM_NAME):
        return said[pods.RAY_FROM_KIND], said[pods.RAY_FROM_NAME]
    for label, its_kind in ((pods.JOBSET_NAME, "JobSet"), (pods.LWS_NAME, "LeaderWorkerSet")):
        if said.get(label):
            return its_kind, said[label]
    suffix = f"-{said.get(pods.TEMPLATE_HASH, '')}"
    if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
        return "Deployment", name.removesuffix(suffix)
    return kind, name
