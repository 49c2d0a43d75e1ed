"""The Kubernetes collectors with a small cluster to read, for the contract suite; its servers end with them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kube_api_stub as kube
import pod_resources_stub as stub
from kube_api_stub import KubeApi
from node_files import node
from pod_resources_stub import LIST, KubeletStub

from graynode.collectors import load
from graynode.collectors.base import Collector, Round, Rows
from graynode.collectors.kubernetes.api import Access
from graynode.collectors.kubernetes.settings import Settings

GPU = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"


class WithServers:
    """A collector and what it reads. A round that brings nothing leaves its thread the time to hear something."""

    def __init__(self, collector: Collector, servers: ExitStack) -> None:
        self._collector, self._servers = collector, servers
        self.name, self.tables = collector.name, collector.tables

    def collect(self, round_: Round) -> Rows:
        rows = self._collector.collect(round_)
        if not any(rows.values()):
            time.sleep(0.005)
        return rows

    def close(self) -> None:
        self._collector.close()
        self._servers.close()


def on_a_node(folder: Path) -> Any:
    """``kubernetes``: two pods, one of them with a GPU; the node is this machine."""
    servers = ExitStack()
    api = servers.enter_context(_cluster(folder))
    held = stub.listing(stub.gpu_pod("team", "fit-0", GPU))
    kubelet = servers.enter_context(KubeletStub(folder / "k/kubelet.sock", answers={LIST: held}))
    settings = Settings(socket=kubelet.path, api=api.url, access=Access("", None, None))
    return WithServers(load("kubernetes")(node(folder), settings=settings, env={}), servers)


def of_a_cluster(folder: Path) -> Any:
    """``kubernetes_cluster``: one node, and one job in the queue."""
    servers = ExitStack()
    settings = Settings(api=servers.enter_context(_cluster(folder)).url, access=Access("", None, None))
    return WithServers(load("kubernetes_cluster")(node(folder), settings, env={}), servers)


def _cluster(folder: Path) -> KubeApi:
    api = KubeApi()
    job = kube.owner("Job", "fit", "u-fit")
    own = kube.node(boot_id=node(folder).boot_id)
    api.put(kube.NODES, own)
    api.singles[f"{kube.NODES}/host-1"] = own
    api.singles["/apis/batch/v1/namespaces/team/jobs/fit"] = kube.bare("Job", "fit", "u-fit")
    api.put("/apis/kueue.x-k8s.io/v1beta2/workloads", kube.workload("w", job))
    api.put(kube.PODS, kube.pod("fit-0", owned_by=job))
    api.put(kube.PODS, kube.pod("web", gpus=0))
    return api
