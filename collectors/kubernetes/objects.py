"""What is read of Kubernetes' objects: the few fields that are wanted, decoded from JSON, the rest passed over.

Names are those of the API (``rename="camel"``). Every field has a default: absent is absent, never an error.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises for bytes that are no such object: cut, no UTF-8, another type, nested without end."""


class _Part(Struct, rename="camel", frozen=True, gc=False):
    """A part of an object."""


class OwnerRef(_Part, frozen=True):
    """An owner of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Meta(_Part, frozen=True):
    """``metadata`` of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerRef] | None = None


class Condition(_Part, frozen=True):
    """One of ``status.conditions``."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


class Resources(_Part, frozen=True):
    """What a container may use."""

    limits: dict[str, str | int] | None = None
    claims: list[msgspec.Raw] | None = None


class Container(_Part, frozen=True):
    """A container as it was asked for; its environment is not read."""

    name: str = ""
    resources: Resources = Resources()


class PodSpec(_Part, frozen=True):
    """``spec`` of a pod."""

    node_name: str | None = None
    containers: list[Container] | None = None
    resource_claims: list[msgspec.Raw] | None = None


class Terminated(_Part, frozen=True):
    """How a container ended."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    finished_at: datetime | None = None


class ContainerState(_Part, frozen=True):
    """A container's state; ``running`` is of no interest."""

    terminated: Terminated | None = None


class ContainerStatus(_Part, frozen=True):
    """A container as it is."""

    name: str = ""
    image_id: str = msgspec.field(name="imageID", default="")
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(_Part, frozen=True):
    """``status`` of a pod."""

    phase: str = ""
    reason: str | None = None
    start_time: datetime | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(_Part, frozen=True):
    """A pod."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(_Part, frozen=True):
    """What keeps pods off a node."""

    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(_Part, frozen=True):
    """``spec`` of a node."""

    provider_id: str | None = msgspec.field(name="providerID", default=None)
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeInfo(_Part, frozen=True):
    """``status.nodeInfo``: who the machine is, in the kubelet's words."""

    machine_id: str = msgspec.field(name="machineID", default="")
    system_uuid: str = msgspec.field(name="systemUUID", default="")
    boot_id: str = msgspec.field(name="bootID", default="")


class NodeStatus(_Part, frozen=True):
    """``status`` of a node."""

    conditions: list[Condition] | None = None
    node_info: NodeInfo = NodeInfo()


class Node(_Part, frozen=True):
    """A node."""

    metadata: Meta = Meta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PodTemplate(_Part, frozen=True):
    """The pod of a pod set."""

    spec: PodSpec = PodSpec()


class PodSet(_Part, frozen=True):
    """Pods of one kind in a Kueue Workload."""

    name: str = ""
    count: int = 0
    template: PodTemplate = PodTemplate()


class WorkloadSpec(_Part, frozen=True):
    """``spec`` of a Kueue Workload."""

    queue_name: str | None = None
    pod_sets: list[PodSet] | None = None


class Requeue(_Part, frozen=True):
    """How often Kueue has put a workload back."""

    count: int | None = None


class WorkloadStatus(_Part, frozen=True):
    """``status`` of a Kueue Workload."""

    conditions: list[Condition] | None = None
    requeue_state: Requeue | None = None


class Workload(_Part, frozen=True):
    """What Kueue makes of a job that it queues."""

    metadata: Meta = Meta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class Attribute(_Part, frozen=True):
    """An attribute of a DRA device, where it is a text."""

    string: str | None = None


class BasicDevice(_Part, frozen=True):
    """A device's attributes as the API had them up to v1beta1."""

    attributes: dict[str, Attribute] | None = None


class SliceDevice(_Part, frozen=True):
    """A device in a ResourceSlice."""

    name: str = ""
    attributes: dict[str, Attribute] | None = None
    basic: BasicDevice | None = None


class Pool(_Part, frozen=True):
    """A pool of devices; only its newest generation counts."""

    name: str = ""
    generation: int = 0


class SliceSpec(_Part, frozen=True):
    """``spec`` of a ResourceSlice."""

    driver: str = ""
    pool: Pool = Pool()
    devices: list[SliceDevice] | None = None


class ResourceSlice(_Part, frozen=True):
    """What a DRA driver offers on a node."""

    metadata: Meta = Meta()
    spec: SliceSpec = SliceSpec()


class ListMeta(_Part, frozen=True):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(_Part, frozen=True):
    """A page of a list; each item is decoded apart, so that a bad one costs itself alone."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class WatchEvent(_Part, frozen=True):
    """One line of a watch."""

    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class Bare(_Part, frozen=True):
    """An object of which the metadata alone are read."""

    metadata: Meta = Meta()


class Failure(_Part, frozen=True):
    """The ``Status`` object of a watch that fails."""

    code: int = 0
    reason: str | None = None
    message: str | None = None
