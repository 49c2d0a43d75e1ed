"""MIG devices as Kubernetes calls them, by UUID: the driver says which instance of which GPU each of them is."""

from __future__ import annotations

from pathlib import Path

import nvml_standin as standin
import pod_resources_stub as stub
import pytest
from node_files import round_at
from nvml_rig import rig
from pod_resources_stub import LIST, KubeletStub

from graynode.collectors.context import GpuKey, JobContext, Placement
from graynode.collectors.kubernetes.collector import Kubernetes
from graynode.collectors.kubernetes.settings import OFF, Settings

pytestmark = pytest.mark.nvml


def test_a_pod_on_a_mig_device_is_on_its_instance(tmp_path: Path) -> None:
    """From NVML's child through the job context to the rows of the instance; forgotten when it is destroyed."""
    context = JobContext()
    with rig(tmp_path, gpus=1, context=context) as node:
        standin.mig(node.scenario)
        node.round()
        node.round()
        uuid = node.scenario.uuid(0)
        mig = node.scenario.values["0", "mig.1.uuid"]
        assert context.mig[mig] == GpuKey(uuid, "2")
        held = stub.listing(stub.gpu_pod("team", "fit", mig, resource="nvidia.com/mig-4g.40gb"))
        with KubeletStub(tmp_path / "k.sock", answers={LIST: held}) as kubelet:
            collector = Kubernetes(node.machine, context, Settings(socket=kubelet.path, api=OFF), env={})
            collector.collect(round_at(60))
            collector.close()
        assert context.of(GpuKey(uuid, "2")) == Placement("team/pod/fit")
        assert context.of(GpuKey(uuid, "1")) is None
        node.round(1)
        assert mig in context.mig
        standin.no_instance(node.scenario, 0, 1).write()
        node.round()
        assert set(context.mig.values()) == {GpuKey(uuid, "1")}
