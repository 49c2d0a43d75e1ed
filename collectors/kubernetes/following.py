"""What the API server tells one node: its own pods, the workloads above them, their queue, its own Node object.

Everything happens in the watch's thread; readers take whole answers. Owners are looked up once and remembered, so a job
of a thousand pods costs each node as many requests as its chain has links.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from graynode.collectors.base import utc_now
from graynode.collectors.kubernetes.api import METADATA, Api, ApiError
from graynode.collectors.kubernetes.jobs import Labels, Queued, queued_of
from graynode.collectors.kubernetes.objects import (
    UNDECODABLE,
    Bare,
    Meta,
    Node,
    OwnerRef,
    Page,
    Pod,
    ResourceSlice,
    Workload,
)
from graynode.collectors.kubernetes.pods import PodFacts, end_of, trim
from graynode.collectors.kubernetes.store import Store
from graynode.collectors.kubernetes.watch import Standing, Watch
from graynode.collectors.kubernetes.workload import Work, path_of, work_of

KUEUE: Final = ("/apis/kueue.x-k8s.io/v1beta2", "/apis/kueue.x-k8s.io/v1beta1")
_SLICES: Final = tuple(f"/apis/resource.k8s.io/{v}/resourceslices" for v in ("v1", "v1beta2", "v1beta1"))
_MOST_PODS: Final = 2000
_TRIES: Final = 3
_AGAIN_S: Final = 600.0
"""The Node object, ResourceSlices and what was refused are asked again after so long."""
_QUEUE_S: Final = 60.0
_LONG_AGO: Final = timedelta(hours=1)
"""An agent that was away for less still tells how jobs ended meanwhile."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen:
    """Whole answers, replaced and never changed: workloads by pod uid, queues by job id, DRA devices by pool, name."""

    works: Mapping[str, Work] = field(default_factory=dict)
    queues: Mapping[str, Queued] = field(default_factory=dict)
    slices: Mapping[tuple[str, str], str] = field(default_factory=dict)
    node: Node | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    """Kinds of owners that this account may not read, and what the server said."""


class Following:
    """Follows the pods of ``node_name``. ``want`` says which of them hold GPUs though they did not ask for any."""

    def __init__(
        self,
        api: Api,
        node_name: str,
        labels: Labels,
        *,
        kueue: bool = True,
        first_wait_s: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._now = now
        self._api, self._node_name, self._kueue, self._monotonic = api, node_name, kueue, monotonic
        self._keep = labels.names
        store = Store(Pod, lambda pod: trim(pod, labels.names), _MOST_PODS)
        selector = {"fieldSelector": f"spec.nodeName={node_name}"}
        self.watch = Watch(
            api, ("/api/v1/pods",), store, query=selector, cached=True, between=self._between,
            first_wait_s=first_wait_s, monotonic=monotonic,
        )  # fmt: skip
        self.store: Store[Pod, PodFacts] = store
        self.seen = Seen()
        self.resolved = False
        """Whether the workloads of all pods that have to do with GPUs are known."""
        self._owners: dict[str, Meta | None] = {}
        self._tries: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}
        self._no_kueue_until = monotonic()
        self._wanted: frozenset[tuple[str, str]] = frozenset()

    def start(self) -> None:
        """Begin; a second time does nothing."""
        self.watch.start()

    @property
    def standing(self) -> Standing:
        """How it stands with the API server."""
        return self.watch.standing

    def want(self, keys: Iterable[tuple[str, str]]) -> None:
        """Pods (namespace, name) whose workloads are wanted whatever they asked for."""
        self._wanted = frozenset(keys)

    def close(self) -> None:
        """End; twice is as good as once."""
        self.watch.close()

    # --- in the watch's thread ----------------------------------------------------------------------------

    def _between(self) -> None:
        facts = self.store.facts()
        mine = {uid: pod for uid, pod in facts.items() if self._matters(pod)}
        works = {
            uid: work for uid, work in self.seen.works.items() if uid in facts or len(self.seen.works) < _MOST_PODS
        }
        refused = dict(self.seen.refused)
        for uid, pod in mine.items():
            if uid not in works:
                work = self._work(pod, refused)
                if work is not None:
                    works[uid] = work
        queues = self._queues({work.job_id: work for uid, work in works.items() if uid in mine})
        slices = self.seen.slices
        if any(pod.claims for pod in mine.values()) and self._due("slices"):
            slices = self._slices()
        self.resolved = mine.keys() <= works.keys()
        node = self._node() if self._due("node") else self.seen.node
        self.seen = Seen(works, queues, slices, node, refused)

    def _matters(self, pod: PodFacts) -> bool:
        """Whether it has to do with GPUs and did not end long ago: a node can have a thousand such pods, kept by their
        makers."""
        if not (pod.gpus or pod.claims or pod.key in self._wanted):
            return False
        end = end_of(pod) if pod.ended and pod.uid not in self.seen.works else None
        return end is None or end.at is None or self._now() - end.at < _LONG_AGO

    def _due(self, what: str, every_s: float = _AGAIN_S) -> bool:
        now, asked = self._monotonic(), self._asked_at.get(what)
        if asked is not None and now - asked < every_s:
            return False
        if len(self._asked_at) > _MOST_PODS:
            self._asked_at.clear()
        self._asked_at[what] = now
        return True

    def _work(self, pod: PodFacts, refused: dict[str, str]) -> Work | None:
        """The pod's workload; ``None`` where the server failed, so that it is asked again at the next change."""

        def look(owner: OwnerRef, namespace: str) -> Meta | None:
            try:
                return self._owner(owner, namespace)
            except ApiError as error:
                if error.refused:
                    refused[owner.kind] = str(error)
                elif error.status != 404 and self._tries.get(pod.uid, 0) < _TRIES:
                    raise
                return None

        try:
            return work_of(pod, look, self._keep)
        except ApiError:
            self._tries = {**dict(list(self._tries.items())[-_MOST_PODS:]), pod.uid: self._tries.get(pod.uid, 0) + 1}
            return None

    def _owner(self, owner: OwnerRef, namespace: str) -> Meta | None:
        if owner.uid not in self._owners:
            path = path_of(owner, namespace)
            found = None if path is None else self._decode(self._api.get(path, accept=METADATA), Bare)
            if len(self._owners) >= _MOST_PODS:
                self._owners.clear()
            self._owners[owner.uid] = found.metadata if found else None
        return self._owners[owner.uid]

    def _queues(self, works: Mapping[str, Work]) -> dict[str, Queued]:
        """Kueue's word on each workload that it queues; asked until it was let in, then kept."""
        known = {job: queue for job, queue in self.seen.queues.items() if job in works}
        for job_id, work in works.items():
            settled = job_id in known and known[job_id].admitted is not None
            if not self._kueue or self._monotonic() < self._no_kueue_until:
                break
            if work.queued_uid and not settled and self._due(f"queue {job_id}", _QUEUE_S):
                found = self._workload(work)
                if found is not None:
                    known[job_id] = queued_of(found)
        return known

    def _workload(self, work: Work) -> Workload | None:
        query = {"labelSelector": f"kueue.x-k8s.io/job-uid={work.queued_uid}"}
        for base in KUEUE:
            try:
                body = self._api.get(f"{base}/namespaces/{quote(work.namespace, safe='')}/workloads", query)
            except ApiError as error:
                if error.status == 404:
                    continue
                if error.refused:
                    self._no_kueue_until = self._monotonic() + _AGAIN_S
                return None
            found = self._items(body, Workload)
            return found[0] if found else None
        self._no_kueue_until = self._monotonic() + _AGAIN_S  # it is not installed here
        return None

    def _slices(self) -> Mapping[tuple[str, str], str]:
        """UUIDs of the DRA devices of this node; of a pool only the newest generation counts."""
        for path in _SLICES:
            try:
                body = self._api.get(path, {"fieldSelector": f"spec.nodeName={self._node_name}"})
            except ApiError as error:
                if error.status == 404:
                    continue
                return self.seen.slices
            return uuids(self._items(body, ResourceSlice))
        return {}

    def _node(self) -> Node | None:
        try:
            return self._decode(self._api.get(f"/api/v1/nodes/{quote(self._node_name, safe='')}"), Node)
        except ApiError:
            return self.seen.node

    def _items(self, body: bytes, kind: type[T]) -> list[T]:
        page = self._decode(body, Page)
        found = (self._decode(bytes(raw), kind) for raw in (page.items if page else None) or ())
        return [item for item in found if item is not None]

    @staticmethod
    def _decode(body: bytes, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(body, type=kind)
        except UNDECODABLE:
            return None


def uuids(slices: Iterable[ResourceSlice]) -> dict[tuple[str, str], str]:
    """Device UUIDs by (pool, device) of NVIDIA's slices."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for one in slices:
        pool = one.spec.pool
        for device in one.spec.devices or ():
            attributes: Mapping[str, Any] = (
                device.attributes or (device.basic.attributes if device.basic else None) or {}
            )
            uuid = attributes.get("uuid") or attributes.get("gpu.nvidia.com/uuid")
            known = found.get((pool.name, device.name))
            if uuid is not None and uuid.string and (known is None or known[0] <= pool.generation):
                found[pool.name, device.name] = (pool.generation, uuid.string)
    return {name: uuid for name, (_, uuid) in found.items()}
