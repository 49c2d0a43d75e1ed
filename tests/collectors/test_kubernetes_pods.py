"""Pods read for what they say: devices to GPUs, control groups, owners, roles, ranks, states and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kube_api_stub as kube
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graynode.collectors.context import GpuKey
from graynode.collectors.kubernetes.cgroup import PodRef, pod_of
from graynode.collectors.kubernetes.devices import Known, by_number, gpu_minors, gpus_of, information
from graynode.collectors.kubernetes.objects import Meta, OwnerRef, Pod
from graynode.collectors.kubernetes.pods import End, PodFacts, end_of, index_of, role_of, state_of, trim
from graynode.collectors.kubernetes.wire import Claimed, Devices, Held
from graynode.collectors.kubernetes.workload import path_of, work_of

BUSY = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

A = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
B = "GPU-a4f34abc-7715-3560-dcea-7238b9611a45"
MIG = "MIG-dc9f1a6d-6b56-5f8e-a0ba-1d1d8e0a1c11"
KNOWN = Known({0: A, 1: B}, {MIG: GpuKey(B, "3")}, {("host-1", "gpu-7"): A, ("host-1", "gpu-1-mig-9-0-1"): MIG})


def facts(name: str = "train-0", **said: Any) -> PodFacts:
    return trim(msgspec.json.decode(msgspec.json.encode(kube.pod(name, **said)), type=Pod))


# --- devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id_", "found"),
    [
        (A, GpuKey(A)), (f"{A}::3", GpuKey(A)), (MIG, GpuKey(B, "3")), (f"{MIG}::1", GpuKey(B, "3")),
        (f"MIG-{A}/7/0", GpuKey(A, "7")), (f"MIG-{A}/07/0", GpuKey(A, "7")), ("nvidia1", GpuKey(B)),
        ("nvidia0/gi5", GpuKey(A, "5")), ("nvidia0/vgpu2", GpuKey(A)), ("nvidia9", None),
        ("MIG-00000000-0000-0000-0000-000000000000", None), ("GPU-x", None), ("", None), (f"{A}\n", None),
    ],
)  # fmt: skip
def test_device_ids_of_plugins(id_: str, found: GpuKey | None) -> None:
    """NVIDIA's ids plain, shared and of MIG, old and new; Google's by device file; what is none is unknown."""
    held = Held("team", "p", "c", (Devices("nvidia.com/gpu", (id_,)),))
    assert gpus_of(held, KNOWN) == (({found}, []) if found else (set(), [id_]))


def test_other_devices_are_no_unknown_gpus() -> None:
    """A network function or a KVM device is nobody's GPU, and a renamed resource with GPU UUIDs is one."""
    held = Held("t", "p", "c", (Devices("rdma/hca", ("mlx5_0",)), Devices("site.example/gpu", (B,))))
    assert gpus_of(held, KNOWN) == ({GpuKey(B)}, [])


@pytest.mark.parametrize(
    ("claim", "found", "unknown"),
    [
        (Claimed("gpu.nvidia.com", "host-1", "gpu-7"), {GpuKey(A)}, []),  # the slice, not the number, is exact
        (Claimed("gpu.nvidia.com", "host-1", "gpu-1"), {GpuKey(B)}, []),
        (Claimed("gpu.nvidia.com", "host-1", "gpu-1-mig-9-0-1"), {GpuKey(B, "3")}, []),
        (Claimed("gpu.nvidia.com", "host-1", "gpu-0-mig-9-0-1"), set(), ["gpu-0-mig-9-0-1"]),
        (Claimed("gpu.nvidia.com", "p", "x", (f"nvidia.com/gpu={A}", "bad")), {GpuKey(A)}, []),
        (Claimed("gpu.nvidia.com", "p", "gpu-8"), set(), ["gpu-8"]),
        (Claimed("dra.net", "p", "gpu-0"), set(), []),
    ],
)
def test_devices_of_dra(claim: Claimed, found: set[GpuKey], unknown: list[str]) -> None:
    """ResourceSlice, CDI name, device number, in this order; a MIG device is never taken for the whole GPU."""
    assert gpus_of(Held("t", "p", "c", (), (claim,)), KNOWN) == (found, unknown)


@BUSY
@given(st.text(max_size=60), st.text(max_size=20))
def test_any_text_is_a_device_or_unknown(id_: str, resource: str) -> None:
    """Fuzz: ids are other people's texts."""
    found, unknown = gpus_of(
        Held("t", "p", "c", (Devices(resource, (id_,)),), (Claimed(id_, id_, id_, (id_,)),)), KNOWN
    )
    assert len(found) + len(unknown) <= 2


def test_device_numbers_are_read_only_where_they_are_needed() -> None:
    """The driver's files are left alone where ids are UUIDs."""
    claim = Held("t", "p", "c", (), (Claimed("gpu.nvidia.com", "p", "gpu-0"),))
    assert not by_number([Held("t", "p", "c", (Devices("nvidia.com/gpu", (A, MIG)),))])
    assert by_number([Held("t", "p", "c", (Devices("nvidia.com/gpu", ("nvidia0",)),))])
    assert by_number([claim])


def test_minors_of_the_driver(tmp_path: Path) -> None:
    """The driver's own files give the device numbers; a file without UUID or of other text gives none."""
    at = tmp_path / "driver/nvidia/gpus"
    texts = {"0000:9b:00.0": f"Model: \t NVIDIA H100\nGPU UUID: \t {A}\nDevice Minor: \t 2\n", "0000:9c:00.0": "x"}
    for bus, text in (texts | {"0000:9d:00.0": "GPU UUID:   GPU-????????-????\nDevice Minor:  1\n"}).items():
        (at / bus).mkdir(parents=True)
        (at / bus / "information").write_text(text)
    assert gpu_minors(tmp_path) == {2: A}
    assert information("Device Minor: 99999\nGPU UUID: " + A) == (None, A)


# --- control groups ---------------------------------------------------------------------------------------

UID, CID = "ccf19bc6-503b-4dd0-b33d-e5717fe6613c", "0" * 32 + "af" * 16
FLAT = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("text", "container"),
    [
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/cri-containerd-{CID}.scope",
            CID,
        ),
        (f"0::/kubepods.slice/kubepods-pod{FLAT}.slice/crio-{CID}.scope/container", CID),
        (f"0::/kubepods/besteffort/pod{UID}/{CID}", CID),
        (f"0::/../../kubepods-besteffort-pod{FLAT}.slice/cri-containerd-{CID}.scope", CID),
        (
            f"12:pids:/system.slice/sshd.service\n4:cpu,cpuacct:/kubepods/burstable/pod{UID}/{CID}\n1:name=systemd:/",
            CID,
        ),
        (f"0::/kubepods.slice/kubepods-pod{FLAT}.slice/docker-{CID}.scope", CID),
        (f"5:devices:/system.slice/containerd.service/kubepods-pod{FLAT}.slice:cri-containerd:{CID}", CID),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{FLAT}.slice/crio-conmon-{CID}.scope", None),
        (f"0::/kubepods/pod{UID}", None),
    ],
)
def test_the_pod_of_a_process(text: str, container: str | None) -> None:
    """Drivers systemd and cgroupfs, v1 and v2, three runtimes, a foreign cgroup namespace."""
    assert pod_of(text) == PodRef(UID, container)


def test_a_static_pod_has_a_hash_for_a_uid() -> None:
    """Its uid in the API is another one, so the hash is what is told."""
    found = pod_of(f"0::/kubepods/burstable/pod{'7f' * 16}/{CID}")
    assert found == PodRef("7f" * 16, CID)


@pytest.mark.parametrize(
    "text",
    ["", "0::/", "0::/user.slice/user-1000.slice", f"0::/system.slice/docker-{CID}.scope", f"0::/pod{UID}",
     "0::/kubepods/podxyz", f"0::/kubepods/pod{UID}a", "\x00" * 99, "x" * 1_000_000],
)  # fmt: skip
def test_processes_outside_of_kubernetes(text: str) -> None:
    """Sessions, services, plain containers and rubbish belong to no pod."""
    assert pod_of(text) is None


@BUSY
@given(st.text())
def test_any_text_is_no_crash(text: str) -> None:
    """Fuzz."""
    assert pod_of(text) is None or pod_of(text)


# --- owners -----------------------------------------------------------------------------------------------


def _climb(pod: PodFacts, *objects: dict[str, Any]) -> tuple[str, list[str]]:
    metas = {(o["kind"], o["metadata"]["name"]): msgspec.convert(o["metadata"], Meta) for o in objects}
    looked: list[str] = []

    def look(owner: OwnerRef, namespace: str) -> Meta | None:
        looked.append(f"{namespace}/{owner.kind}/{owner.name}")
        return metas.get((owner.kind, owner.name))

    return work_of(pod, look).job_id, looked


JOBSET = kube.owner("JobSet", "llm", "u-jobset", "jobset.x-k8s.io/v1alpha2")
TRAIN = kube.owner("TrainJob", "llm", "u-train", "trainer.kubeflow.org/v1alpha1")
LWS = kube.owner("LeaderWorkerSet", "serve", "u-lws", "leaderworkerset.x-k8s.io/v1")
RAYJOB = kube.owner("RayJob", "tune", "u-rayjob", "ray.io/v1")


@pytest.mark.parametrize(
    ("owned_by", "objects", "job_id"),
    [
        (None, [], "team/pod/train-0"),
        (kube.owner("PyTorchJob", "llm", "u1", "kubeflow.org/v1"), [kube.bare("PyTorchJob", "llm", "u1")],
         "team/pytorchjob/llm"),
        (kube.owner("Job", "llm-workers-0", "u1"),
         [kube.bare("Job", "llm-workers-0", "u1", owned_by=JOBSET),
          kube.bare("JobSet", "llm", "u-jobset", owned_by=TRAIN),
          kube.bare("TrainJob", "llm", "u-train")], "team/trainjob/llm"),
        (kube.owner("ReplicaSet", "web-5d9", "u1", "apps/v1"),
         [kube.bare("ReplicaSet", "web-5d9", "u1", owned_by=kube.owner("Deployment", "web", "u2", "apps/v1")),
          kube.bare("Deployment", "web", "u2")], "team/deployment/web"),
        (kube.owner("RayCluster", "tune-x", "u1", "ray.io/v1"),
         [kube.bare("RayCluster", "tune-x", "u1", owned_by=RAYJOB), kube.bare("RayJob", "tune", "u-rayjob")],
         "team/rayjob/tune"),
        (kube.owner("StatefulSet", "serve-0", "u1", "apps/v1"),
         [kube.bare("StatefulSet", "serve-0", "u1", owned_by=kube.owner("Pod", "serve-0", "u2", "v1")),
          kube.bare("Pod", "serve-0", "u2", owned_by=kube.owner("StatefulSet", "serve", "u3", "apps/v1")),
          kube.bare("StatefulSet", "serve", "u3", owned_by=LWS), kube.bare("LeaderWorkerSet", "serve", "u-lws")],
         "team/leaderworkerset/serve"),
        (kube.owner("Job", "vc", "u1", "batch.volcano.sh/v1alpha1"), [kube.bare("Job", "vc", "u1")], "team/job/vc"),
        (kube.owner("Job", "night-123", "u1"),
         [kube.bare("Job", "night-123", "u1", owned_by=kube.owner("CronJob", "night", "u2"))], "team/job/night-123"),
        (kube.owner("Node", "host-1", "u1", "v1"), [], "team/pod/train-0"),
        (kube.owner("Strange", "thing", "u1", "example.com/v1"), [], "team/strange/thing"),
        (kube.owner("Job", "again", "u1"), [kube.bare("Job", "again", "u-of-a-later-one", owned_by=JOBSET)],
         "team/job/again"),
        (kube.owner("Job", "loop", "u1"), [kube.bare("Job", "loop", "u1", owned_by=kube.owner("Job", "loop", "u1"))],
         "team/job/loop"),
    ],
)  # fmt: skip
def test_the_workload_is_the_top_of_the_chain(owned_by: Any, objects: list[Any], job_id: str) -> None:
    """Every common kind; schedules and nodes are not climbed; other objects of an owner's name and circles end it."""
    assert _climb(facts(owned_by=owned_by), *objects)[0] == job_id


@pytest.mark.parametrize(
    ("owned_by", "labels", "job_id"),
    [
        (kube.owner("Job", "llm-workers-0", "u1"), {"jobset.sigs.k8s.io/jobset-name": "llm"}, "team/jobset/llm"),
        (kube.owner("ReplicaSet", "web-5d9", "u1", "apps/v1"), {"pod-template-hash": "5d9"}, "team/deployment/web"),
        (kube.owner("RayCluster", "c", "u1", "ray.io/v1"),
         {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": "tune"}, "team/rayjob/tune"),
        (kube.owner("StatefulSet", "s-0", "u1", "apps/v1"), {"leaderworkerset.sigs.k8s.io/name": "s"},
         "team/leaderworkerset/s"),
        (kube.owner("Job", "plain", "u1"), {}, "team/job/plain"),
    ],
)  # fmt: skip
def test_where_owners_may_not_be_read_labels_name_the_workload(
    owned_by: Any, labels: dict[str, str], job_id: str
) -> None:
    """Without permission the pod's own labels are believed, else its direct owner."""
    assert _climb(facts(owned_by=owned_by, labels=labels))[0] == job_id


def test_names_from_outside_cannot_leave_their_place_in_a_path() -> None:
    """An owner's name is quoted, its version checked."""
    evil = OwnerRef(api_version="apps/v1", kind="Deployment", name="../../secrets/x?y=1", uid="u")
    assert path_of(evil, "a/b") == "/apis/apps/v1/namespaces/a%2Fb/deployments/..%2F..%2Fsecrets%2Fx%3Fy%3D1"
    assert path_of(OwnerRef(api_version="apps/../v1", kind="Deployment", name="x"), "team") is None


# --- role, rank, state ------------------------------------------------------------------------------------

K, J, L = "training.kubeflow.org/", "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/"
PYTORCH = kube.owner("PyTorchJob", "llm", "u1", "kubeflow.org/v1")
INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.mark.parametrize(
    ("owned_by", "labels", "role", "index"),
    [
        (PYTORCH, {K + "replica-type": "master", K + "replica-index": "0"}, "master", 0),
        (PYTORCH, {K + "replica-type": "Worker", K + "replica-index": "2"}, "worker", 3),
        (None, {K + "replica-type": "worker", K + "replica-index": "2"}, "worker", 2),
        (None, {J + "jobset-name": "s", J + "replicatedjob-name": "trainer", J + "replicatedjob-replicas": "1",
                INDEX: "5"}, "trainer", 5),
        (None, {J + "jobset-name": "s", J + "replicatedjob-name": "trainer", J + "replicatedjob-replicas": "4",
                INDEX: "5"}, "trainer", None),
        (None, {L + "name": "s", L + "worker-index": "0"}, "leader", 0),
        (None, {L + "name": "s", L + "worker-index": "3"}, "worker", 3),
        (None, {"volcano.sh/task-spec": "ps", "volcano.sh/task-index": "1"}, "ps", 1),
        (None, {"ray.io/node-type": "head"}, "head", None),
        (None, {"apps.kubernetes.io/pod-index": "6"}, None, 6),
        (None, {INDEX: "7"}, None, 7),
        (None, {INDEX: "-1"}, None, None), (None, {INDEX: "9" * 30}, None, None), (None, {INDEX: "x"}, None, None),
        (None, {}, None, None),
    ],
)  # fmt: skip
def test_role_and_place_in_the_job(owned_by: Any, labels: dict[str, str], role: str, index: int | None) -> None:
    """By the labels of each kind; what cannot be told is null."""
    pod = facts(owned_by=owned_by, labels=labels)
    assert (role_of(pod), index_of(pod)) == (role, index)


def _ended(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    return {"exitCode": code, "reason": reason, "finishedAt": "2026-03-01T11:30:00Z", **more}


def _disrupted(reason: str) -> list[dict[str, Any]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


@pytest.mark.parametrize(
    ("pod", "gone", "state"),
    [
        ({"phase": "Pending"}, False, ("allocated", None)),
        ({"phase": "Running"}, False, ("running", None)),
        ({"phase": "Succeeded", "ended": _ended(0, "Completed")}, False, ("completed", None)),
        ({"phase": "Failed", "ended": _ended(1)}, False, ("failed", "Error")),
        ({"phase": "Failed", "ended": _ended(137, "OOMKilled")}, False, ("failed", "OOMKilled")),
        ({"phase": "Failed", "reason": "Evicted"}, False, ("failed", "Evicted")),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, False, ("timeout", "DeadlineExceeded")),
        ({"phase": "Failed", "reason": "NodeLost"}, False, ("node_fail", "NodeLost")),
        ({"phase": "Failed", "conditions": _disrupted("DeletionByPodGC")}, False, ("node_fail", "DeletionByPodGC")),
        ({"phase": "Running", "conditions": _disrupted("PreemptionByScheduler")}, True,
         ("cancelled", "PreemptionByScheduler")),
        ({"phase": "Running", "conditions": _disrupted("DeletionByTaintManager")}, True,
         ("node_fail", "DeletionByTaintManager")),
        ({"phase": "Running"}, True, ("cancelled", "deleted")),
        ({"phase": ""}, False, ("allocated", None)),
    ],
)  # fmt: skip
def test_states_in_the_words_of_table_job(pod: dict[str, Any], gone: bool, state: tuple[str, str | None]) -> None:
    """Ends are told apart: failed, evicted, preempted, out of time, node lost, deleted."""
    assert state_of(facts(**pod), gone=gone) == state


@pytest.mark.parametrize(
    ("ended", "code", "signal"),
    [(_ended(1), 1, None), (_ended(137, "OOMKilled"), 137, 9), (_ended(143), 143, 15), (_ended(0, signal=11), 0, 11),
     (_ended(255), 255, None), (_ended(2**40), None, None), (_ended(1, signal=9999), 1, None)],
)  # fmt: skip
def test_exit_code_and_signal(ended: dict[str, Any], code: int | None, signal: int | None) -> None:
    """128 + n is signal n, as runtimes write it; numbers that are none are null."""
    end = end_of(facts(phase="Failed", ended=ended))
    assert isinstance(end, End)
    assert (end.exit_code, end.signal) == (code, signal)


def test_what_runs_beside_does_not_end_the_job() -> None:
    """A sidecar that is killed when the main container has failed has neither the job's exit code nor its image."""
    item = kube.pod("train-0", phase="Failed", ended=_ended(3))
    item["spec"]["containers"].insert(0, {"name": "beside", "resources": {}})
    beside = {"name": "beside", "imageID": "x@sha256:" + "cd" * 32, "state": {"terminated": _ended(137)}}
    item["status"]["containerStatuses"].insert(0, beside)
    pod = trim(msgspec.convert(item, Pod, strict=False))
    end = end_of(pod)
    assert (end.exit_code if end else None, list(pod.images)) == (3, ["main"])


def test_only_what_is_wanted_is_kept() -> None:
    """Neither environment nor foreign labels are remembered; the image's digest and the GPUs asked for are."""
    pod = facts(gpus=8, labels={"secret": "x", "volcano.sh/task-spec": "w" * 1000})
    assert pod.said == {"volcano.sh/task-spec": "w" * 253}
    assert pod.gpus == 8
    assert pod.images == {"main": "sha256:" + "ab" * 32}
    assert "never read" not in repr(pod)
