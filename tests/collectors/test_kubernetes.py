"""A node in a Kubernetes cluster: the kubelet's answer joined with the API server's; either away, late, refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kube_api_stub as kube
import pod_resources_stub as stub
import pytest
from agent_fakes import until
from kube_api_stub import PODS, KubeApi, Trouble
from node_files import checked, node, round_at, write
from pod_resources_stub import ALLOCATABLE, LIST, KubeletStub

from graynode.collectors.base import NoSource
from graynode.collectors.context import GpuKey, JobContext, Placement
from graynode.collectors.kubernetes.api import Access
from graynode.collectors.kubernetes.collector import Kubernetes
from graynode.collectors.kubernetes.jobs import Labels
from graynode.collectors.kubernetes.settings import Settings

A = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
B = "GPU-a4f34abc-7715-3560-dcea-7238b9611a45"
C = "GPU-00000000-7715-3560-dcea-7238b9611a45"
MIG = "MIG-dc9f1a6d-6b56-5f8e-a0ba-1d1d8e0a1c11"
PYTORCH = kube.owner("PyTorchJob", "llm", "u-llm", "kubeflow.org/v1")
PYTORCH_PATH = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/llm"
K = "training.kubeflow.org/"
WORKER = {K + "replica-type": "worker", K + "replica-index": "0", K + "job-name": "llm"}


NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Rig:
    """A node with a kubelet and an API server; ``now`` is the collector's monotonic clock.

    ``states`` of jobs and ``quality`` are as the rows of all rounds left them.
    """

    def __init__(self, folder: Path, api: KubeApi, kubelet: KubeletStub) -> None:
        self.folder, self.api, self.kubelet, self.now, self.second = folder, api, kubelet, 0.0, 0
        self.context = JobContext()
        self.machine = node(folder)
        self.made: list[Kubernetes] = []
        self.states: dict[str, str | None] = {}
        self.quality: dict[tuple[str, str, str], tuple[str, str]] = {}

    def collector(self, **settings: Any) -> Kubernetes:
        known = {
            "socket": self.kubelet.path, "api": self.api.url, "access": Access("", None, None), "deadline_s": 1.0,
            "labels": Labels("owner", "", "work"),
        }  # fmt: skip
        made = Kubernetes(
            self.machine, self.context, Settings(**{**known, **settings}), env={}, monotonic=lambda: self.now,
            now=lambda: NOON, first_wait_s=0.02,
        )  # fmt: skip
        self.made.append(made)
        return made

    def gpus(self, **pods: tuple[str, ...]) -> None:
        """What the kubelet has given to which pod."""
        told = (stub.gpu_pod("team", name.replace("_", "-"), *ids) for name, ids in pods.items())
        self.kubelet.answers[LIST] = stub.listing(*told)

    def rows(self, collector: Kubernetes, *, seconds: float = 10.0) -> dict[str, list[dict[str, Any]]]:
        """The next round of the 10 s class."""
        self.now += seconds
        self.second += 60
        rows = checked(collector.collect(round_at(self.second)), Kubernetes.tables)
        self.states |= {row["job_id"]: row["state"] for row in rows.get("job", ())}
        for q in rows.get("quality", ()):
            self.quality[q["table_name"], q["entity"], q["field"]] = (q["state"], q["reason"])
        return {table: list(some) for table, some in rows.items()}

    def over(self) -> bool:
        """Whether all jobs that were told have ended."""
        return bool(self.states) and all(s in ("completed", "failed", "cancelled") for s in self.states.values())

    def jobs_until(self, collector: Kubernetes, done: Callable[[], bool]) -> list[dict[str, Any]]:
        """Job rows of rounds until it has come to pass."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found.extend(self.rows(collector, seconds=0.1).get("job", []))
            return done()

        assert until(look), (found, self.context.of(GpuKey(A)))
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    answers = {LIST: b"", ALLOCATABLE: stub.part(1, stub.devices("nvidia.com/gpu", A, B))}
    with KubeApi() as api, KubeletStub(tmp_path / "k/kubelet.sock", answers=answers) as kubelet:
        api.singles[PYTORCH_PATH] = kube.bare(
            "PyTorchJob", "llm", "u-llm", labels={"owner": "ada", "work": "fine_tuning"}
        )
        made = Rig(tmp_path, api, kubelet)
        yield made
        for collector in made.made:
            collector.close()


def test_a_gpu_has_the_job_of_its_pod(rig: Rig) -> None:
    """Kubelet: which pod; API server: whose job; the context has it for every GPU row, the job row says the rest."""
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH, labels=WORKER))
    rig.gpus(llm_worker_0=(A,))
    collector = rig.collector()
    (row,) = rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    assert rig.context.of(GpuKey(A)) == Placement("team/pytorchjob/llm", "worker", 1)
    assert rig.context.of(GpuKey(B)) is None
    assert rig.context.job_named("team/llm-worker-0") == "team/pytorchjob/llm"
    assert row | {"queued_ts": 0, "allocated_ts": 0} == {
        "job_id": "team/pytorchjob/llm", "user": "ada", "account": "team", "partition": None, "work": "fine_tuning",
        "state": "running", "reason": None, "queued_ts": 0, "allocated_ts": 0, "first_step_ts": None, "end_ts": None,
        "exit_code": None, "exit_signal": None, "requeues": 0, "gpus": None, "gpu_uuids": json.dumps([A]),
        "image_digest": "sha256:" + "ab" * 32,
    }  # fmt: skip
    assert (row["queued_ts"].hour, row["allocated_ts"].second) == (10, 5)
    assert "job" not in rig.rows(collector)


def test_a_pod_of_several_gpus_has_no_rank(rig: Rig) -> None:
    """Which of its processes uses which GPU a pod does not say, so nobody is told a rank that may be another's."""
    rig.api.put(PODS, kube.pod("llm-worker-0", gpus=2, owned_by=PYTORCH, labels=WORKER))
    rig.gpus(llm_worker_0=(A, B))
    rig.jobs_until(rig.collector(), lambda: rig.context.of(GpuKey(B)) is not None)
    assert rig.context.of(GpuKey(A)) == Placement("team/pytorchjob/llm", "worker", None)


def test_a_job_from_pending_to_its_end(rig: Rig) -> None:
    """One row a change; the end has code, signal, reason and still the GPUs, and the GPU is free again."""
    collector = rig.collector()
    rig.api.put(PODS, kube.pod("llm-worker-0", phase="Pending", owned_by=PYTORCH, labels=WORKER))
    told: list[dict[str, Any]] = []
    told += rig.jobs_until(collector, lambda: bool(rig.states))
    rig.gpus(llm_worker_0=(A,))
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH, labels=WORKER))
    told += rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    rig.gpus()
    end = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-03-01T11:30:00Z"}
    rig.api.put(PODS, kube.pod("llm-worker-0", phase="Failed", owned_by=PYTORCH, labels=WORKER, ended=end))
    told += rig.jobs_until(collector, rig.over)
    rig.api.drop(PODS, "uid-llm-worker-0")
    rig.api.put(PODS, kube.pod("marker"))
    told += rig.jobs_until(collector, lambda: "team/pod/marker" in rig.states)
    told = [row for row in told if row["job_id"] == "team/pytorchjob/llm"]
    states = [row["state"] for row in told]
    assert states[0] == "allocated"
    assert states[-1] == "failed"
    assert states.count("failed") == 1
    last = told[-1]
    assert (last["exit_code"], last["exit_signal"], last["reason"]) == (137, 9, "OOMKilled")
    assert last["end_ts"].isoformat() == "2026-03-01T11:30:00+00:00"
    assert last["gpu_uuids"] == json.dumps([A])
    assert rig.context.of(GpuKey(A)) is None


def test_a_pod_deleted_while_it_ran_was_cancelled(rig: Rig) -> None:
    """Preempted, evicted or deleted by a person: the reason is what the pod said last."""
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH))
    rig.gpus(llm_worker_0=(A,))
    collector = rig.collector()
    rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    rig.gpus()
    status = rig.api.objects[PODS]["uid-llm-worker-0"]["status"]
    why = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    rig.api.drop(PODS, "uid-llm-worker-0", status={**status, "conditions": [why]})
    (row,) = rig.jobs_until(collector, rig.over)
    assert (row["state"], row["reason"]) == ("cancelled", "PreemptionByScheduler")
    assert row["gpu_uuids"] == json.dumps([A])


def test_a_try_that_failed_does_not_fail_the_job(rig: Rig) -> None:
    """The pod that took its place decides."""
    index = {"batch.kubernetes.io/job-completion-index": "0"}
    job = kube.owner("Job", "fit", "u-fit")
    end = {"exitCode": 1, "reason": "Error"}
    rig.api.put(PODS, kube.pod("fit-0-x", phase="Failed", owned_by=job, labels=index, ended=end))
    rig.api.put(PODS, kube.pod("fit-0-y", owned_by=job, labels=index, created="2026-03-01T11:10:00Z"))
    rig.gpus(fit_0_y=(A,))
    collector = rig.collector()
    rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    done = kube.pod("fit-0-y", phase="Succeeded", owned_by=job, labels=index, created="2026-03-01T11:10:00Z",
                    ended={"exitCode": 0, "reason": "Completed"})  # fmt: skip
    rig.gpus()
    rig.api.put(PODS, done)
    rows = rig.jobs_until(collector, rig.over)
    assert [row["state"] for row in rows] == ["completed"]


def test_a_restarted_agent_tells_nothing_twice_and_misses_no_end(rig: Rig) -> None:
    """What was told is remembered; a job that is gone by then has ended nobody knows how."""
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH))
    rig.api.put(PODS, kube.pod("other"))
    rig.gpus(llm_worker_0=(A,), other=(B,))
    first = rig.collector()
    assert len(rig.jobs_until(first, lambda: rig.context.of(GpuKey(A)) is not None)) == 2
    first.close()
    rig.api.drop(PODS, "uid-other")
    rig.gpus(llm_worker_0=(A,))
    rig.context.place("kubernetes", {})
    rows = rig.jobs_until(rig.collector(), lambda: rig.context.of(GpuKey(A)) is not None)
    assert rows == [
        {"job_id": "team/pod/other", "state": None, "reason": "no longer on this node; how it ended is not known"}
    ]


def test_a_job_whose_owner_cannot_be_had_after_a_restart_is_not_gone(rig: Rig) -> None:
    """The agent starts again while the server is busy: the pods are there and nobody knows yet whose they are."""
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH))
    rig.gpus(llm_worker_0=(A,))
    first = rig.collector()
    rig.jobs_until(first, lambda: rig.context.of(GpuKey(A)) is not None)
    first.close()
    rig.context.place("kubernetes", {})
    rig.api.trouble = lambda asked: Trouble(500, "busy") if asked.path == PYTORCH_PATH else None
    again = rig.collector()
    listed = ("job", "machine-1", "*")
    rig.quality.clear()
    assert rig.jobs_until(again, lambda: listed in rig.quality) == []
    assert rig.context.of(GpuKey(A)) is None
    rig.api.trouble = lambda asked: None
    rig.api.put(PODS, kube.pod("cpu-only", gpus=0))
    assert rig.jobs_until(again, lambda: rig.context.of(GpuKey(A)) is not None) == []


def test_pods_that_ended_long_ago_are_left_alone(rig: Rig) -> None:
    """Whoever made them keeps them by the thousand: neither looked up nor told; those of the last hour are, once."""
    for n in range(50):
        job = kube.owner("Job", f"j{n}", f"u-j{n}")
        rig.api.singles[f"/apis/batch/v1/namespaces/team/jobs/j{n}"] = kube.bare("Job", f"j{n}", f"u-j{n}")
        end = {"exitCode": 0, "finishedAt": "2026-03-01T11:30:00Z" if n < 3 else "2026-03-01T10:59:00Z"}
        rig.api.put(PODS, kube.pod(f"j{n}-x", phase="Succeeded", owned_by=job, ended=end))
    collector = rig.collector()
    rows = rig.jobs_until(collector, rig.over)
    for _ in range(3):
        rows += rig.rows(collector).get("job", [])
    assert sorted(row["job_id"] for row in rows) == ["team/job/j0", "team/job/j1", "team/job/j2"]
    assert len([a for a in rig.api.asked if a.path.startswith("/apis/batch")]) == 3


def test_mig_and_dra_devices(rig: Rig) -> None:
    """A MIG device is an instance of its GPU as NVML names it; a DRA device is what its ResourceSlice says."""
    pod = kube.pod("dra", gpus=0)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu"}]
    rig.api.put(PODS, pod)
    rig.api.put(PODS, kube.pod("mig"))
    attributes = {"uuid": {"string": C}, "index": {"int": 0}, "type": {"string": "gpu"}}
    rig.api.objects["/apis/resource.k8s.io/v1/resourceslices"] = {
        str(n): {
            "metadata": {"name": f"s{n}", "uid": str(n)},
            "spec": {"driver": "gpu.nvidia.com", "nodeName": "host-1", "pool": {"name": "host-1", "generation": n},
                     "devices": [{"name": "gpu-0", "attributes": attributes if n == 2 else {"uuid": {"string": A}}}]},
        }
        for n in (1, 2)
    }  # fmt: skip
    rig.context.set_mig({MIG: GpuKey(B, "3")})
    rig.kubelet.answers[LIST] = stub.listing(
        stub.gpu_pod("team", "mig", MIG, resource="nvidia.com/mig-1g.10gb"),
        stub.pod("team", "dra", stub.container("main", claims=[stub.claim("gpu.nvidia.com", "host-1", "gpu-0")])),
    )
    rig.jobs_until(rig.collector(), lambda: rig.context.of(GpuKey(C)) is not None)
    assert rig.context.of(GpuKey(B, "3")) == Placement("team/pod/mig")
    assert rig.context.of(GpuKey(B)) is None
    assert rig.context.of(GpuKey(A)) is None


def test_a_device_that_leads_to_no_gpu_is_said(rig: Rig) -> None:
    """Its pod has a job, its GPU is not guessed, and ``quality`` says which device it was, until it is known."""
    rig.api.put(PODS, kube.pod("mig"))
    rig.kubelet.answers[LIST] = stub.listing(stub.gpu_pod("team", "mig", MIG))
    collector = rig.collector()
    where = ("gpu", "machine-1", "job_id")

    def look() -> bool:
        rig.rows(collector)
        return MIG in rig.quality.get(where, ("", ""))[1]

    assert until(look)
    rig.context.set_mig({MIG: GpuKey(B, "3")})
    quality = rig.rows(collector)["quality"]
    assert [(q["entity"], q["field"], q["state"]) for q in quality] == [("machine-1", "job_id", "measured")]


def test_a_shared_gpu_is_nobodys(rig: Rig) -> None:
    """Time slicing: two jobs on one GPU; neither is named for it, ``quality`` says both, and when it is one again."""
    rig.api.put(PODS, kube.pod("a"))
    rig.api.put(PODS, kube.pod("b"))
    rig.gpus(a=(f"{A}::0",), b=(f"{A}::1",))
    collector = rig.collector()
    where = ("gpu", A, "job_id")

    def look(state: str) -> bool:
        rig.rows(collector)
        return rig.quality.get(where, ("", ""))[0] == state

    assert until(lambda: look("unsupported"))
    assert rig.context.of(GpuKey(A)) is None
    assert "team/pod/a, team/pod/b" in rig.quality[where][1]
    rig.gpus(a=(f"{A}::0",))
    assert until(lambda: look("measured"))
    assert rig.context.of(GpuKey(A)) == Placement("team/pod/a")


# --- sources that fail ------------------------------------------------------------------------------------


def test_without_a_kubelet_control_groups_tell(rig: Rig) -> None:
    """The processes on a GPU belong to a pod by their control group; static pods by the hash of their manifest."""
    rig.api.put(PODS, kube.pod("llm-worker-0", uid="ccf19bc6-503b-4dd0-b33d-e5717fe6613c", owned_by=PYTORCH))
    static = kube.pod("static", uid="real-uid")
    static["metadata"]["annotations"]["kubernetes.io/config.hash"] = "7f" * 16
    rig.api.put(PODS, static)
    rig.kubelet.__exit__()
    write(rig.machine.proc / "41/cgroup", "0::/kubepods/podccf19bc6-503b-4dd0-b33d-e5717fe6613c/" + "a" * 64)
    write(rig.machine.proc / "42/cgroup", f"0::/kubepods/pod{'7f' * 16}/" + "b" * 64)
    write(rig.machine.proc / "43/cgroup", "0::/user.slice")
    rig.context.set_pids({GpuKey(A): [41], GpuKey(B): [42], GpuKey(C): [43, 44]})
    collector = rig.collector()
    rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    assert rig.context.of(GpuKey(A)) == Placement("team/pytorchjob/llm")
    assert rig.context.of(GpuKey(B)) == Placement("team/pod/static")
    assert rig.context.of(GpuKey(C)) is None
    state, reason = rig.quality["gpu", "machine-1", "job_id"]
    assert state == "error"
    assert "No such file or directory; by the processes' control groups instead" in reason


def test_with_neither_answer_no_job_is_known(rig: Rig) -> None:
    """No API server configured and a kubelet that is away: that is said, and nothing is made up."""
    rig.kubelet.__exit__()
    rig.context.set_pids({GpuKey(A): [41]})
    assert rig.rows(rig.collector(api="off")).keys() == {"quality"}
    state, reason = rig.quality["gpu", "machine-1", "job_id"]
    assert (state, reason.endswith("kubelet.sock: No such file or directory; no job is known")) == ("error", True)
    assert rig.context.of(GpuKey(A)) is None


def test_a_kubelet_away_for_long_is_no_longer_believed(rig: Rig) -> None:
    """Its last answer holds for ``keep_s``, no longer."""
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH))
    rig.gpus(llm_worker_0=(A,))
    collector = rig.collector(keep_s=600.0)
    rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    rig.kubelet.__exit__()
    rig.rows(collector, seconds=599.0)
    assert rig.context.of(GpuKey(A)) is not None
    rig.rows(collector, seconds=60.0)
    assert rig.context.of(GpuKey(A)) is None


def test_an_api_server_away_for_an_hour(rig: Rig) -> None:
    """Kept and called stale, then withdrawn and called lost, then told again; no job ends for it."""
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH))
    rig.gpus(llm_worker_0=(A,))
    collector = rig.collector(keep_s=3600.0)
    rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    rig.api.trouble = lambda asked: Trouble(500, "away")
    rig.api.say(PODS, None)
    assert until(lambda: len(rig.api.of(PODS)) >= 4)
    told: list[dict[str, Any]] = []
    for seconds in (10.0, 30.0, 3000.0, 900.0):
        rows = rig.rows(collector, seconds=seconds)
        assert "job" not in rows
        told += [q for q in rows.get("quality", []) if q["table_name"] == "job"]
        kept = rig.context.of(GpuKey(A)) is not None
        assert kept == (seconds != 900.0)
    assert [q["state"] for q in told] == ["stale", "lost"]
    assert "HTTP 500: away; what was known is kept for 3600 s" in told[0]["reason"]
    rig.api.trouble = lambda asked: None
    assert rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None) == []
    assert rig.quality["job", "machine-1", "*"] == ("measured", "kubernetes: the API server answers")


def test_an_api_server_that_refuses_leaves_the_kubelets_names(rig: Rig) -> None:
    """Without permission to read pods a job is called after its pod, and ``quality`` says what to permit."""
    rig.api.trouble = lambda asked: Trouble(403, 'pods is forbidden: cannot list resource "pods"')
    rig.gpus(llm_worker_0=(A,))
    collector = rig.collector()
    (row,) = rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    assert rig.context.of(GpuKey(A)) == Placement("team/pod/llm-worker-0")
    assert (row["job_id"], row["state"]) == ("team/pod/llm-worker-0", "running")
    state, reason = rig.quality["job", "machine-1", "*"]
    assert state == "not_permitted"
    assert 'cannot list resource "pods"; jobs are named after their pods' in reason


def test_owners_that_may_not_be_read(rig: Rig) -> None:
    """The direct owner names the job, and ``quality`` says which kind is refused."""
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH))
    rig.api.trouble = lambda asked: Trouble(403, "forbidden") if asked.path == PYTORCH_PATH else None
    rig.gpus(llm_worker_0=(A,))
    collector = rig.collector()
    rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    assert rig.context.of(GpuKey(A)) == Placement("team/pytorchjob/llm")
    state, reason = rig.quality["job", "machine-1", "job_id"]
    assert (state, "PyTorchJob may not be read" in reason) == ("not_permitted", True)


def test_an_owner_that_cannot_be_had_now_is_waited_for(rig: Rig) -> None:
    """A job is not told under a name that would change: it waits until the server has answered, three times at most."""
    calls: list[str] = []

    def fail(asked: kube.Asked) -> Trouble | None:
        calls.append(asked.path)
        return Trouble(500, "busy") if asked.path == PYTORCH_PATH and calls.count(PYTORCH_PATH) < 2 else None

    rig.api.trouble = fail
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH))
    rig.gpus(llm_worker_0=(A,))
    collector = rig.collector()
    rig.rows(collector)
    assert until(lambda: rig.api.watching(PODS) == 1)
    assert rig.rows(collector).get("job") is None
    rig.api.put(PODS, kube.pod("cpu-only", gpus=0))
    (row,) = rig.jobs_until(collector, lambda: rig.context.of(GpuKey(A)) is not None)
    assert row["user"] == "ada"


def test_kueue_tells_how_long_a_job_waited(rig: Rig) -> None:
    """The Workload of the job has queue, times and size; the newest API that the server has is asked."""
    queue = {"kueue.x-k8s.io/queue-name": "gpu-queue"}
    rig.api.singles[PYTORCH_PATH] = kube.bare("PyTorchJob", "llm", "u-llm", labels=queue)
    admitted = {"status": "True", "reason": "Admitted", "lastTransitionTime": "2026-03-01T10:59:00Z"}
    path = "/apis/kueue.x-k8s.io/v1beta1/namespaces/team/workloads"
    rig.api.objects[path] = {"w": kube.workload("w", PYTORCH, Admitted=admitted)}
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH))
    rig.gpus(llm_worker_0=(A,))
    (row,) = rig.jobs_until(rig.collector(), lambda: rig.context.of(GpuKey(A)) is not None)
    assert (row["partition"], row["gpus"]) == ("gpu-queue", 16)
    assert (row["queued_ts"].hour, row["allocated_ts"].minute) == (9, 59)


def test_a_server_of_months_did_not_wait_for_months(rig: Rig) -> None:
    """The wait of what serves, or is tried again, began with its pods; that of a job with the job."""
    web = kube.owner("Deployment", "web", "u-web", "apps/v1")
    rig.api.singles["/apis/apps/v1/namespaces/team/deployments/web"] = kube.bare("Deployment", "web", "u-web")
    rig.api.put(PODS, kube.pod("web-1", owned_by=web))
    rig.api.put(PODS, kube.pod("llm-worker-0", owned_by=PYTORCH))
    rig.gpus(web_1=(A,), llm_worker_0=(B,))
    rows = rig.jobs_until(rig.collector(), lambda: len(rig.states) == 2)
    assert {r["job_id"]: r["queued_ts"].hour for r in rows} == {"team/deployment/web": 11, "team/pytorchjob/llm": 10}


def test_only_pods_with_gpus_cost_requests(rig: Rig) -> None:
    """A hundred other pods of the node are watched and their owners never looked up; a job's owner is, once."""
    for n in range(100):
        rig.api.put(PODS, kube.pod(f"web-{n}", gpus=0, owned_by=kube.owner("ReplicaSet", "web", "u", "apps/v1")))
    for n in range(8):
        rig.api.put(PODS, kube.pod(f"llm-worker-{n}", owned_by=PYTORCH))
    collector = rig.collector()
    rig.jobs_until(collector, lambda: bool(rig.states))
    gets = [a.path for a in rig.api.asked if not a.watch and a.path != PODS]
    assert sorted(gets) == ["/api/v1/nodes/host-1", PYTORCH_PATH]


# --- identity ---------------------------------------------------------------------------------------------


def test_this_machines_name_in_kubernetes(rig: Rig) -> None:
    """Bound by the boot id that the kubelet read too; name, uid and ids are told once, over a restart too."""
    rig.api.singles["/api/v1/nodes/host-1"] = kube.node(boot_id=rig.machine.boot_id)
    collector = rig.collector()
    told: list[dict[str, Any]] = []
    assert until(lambda: bool(told.extend(rig.rows(collector).get("inventory", [])) or told))
    (row,) = told
    assert (row["kind"], row["entity"]) == ("node_name", "kubernetes")
    assert json.loads(row["attributes"]) == {
        "name": "host-1", "uid": "uid-host-1", "provider_id": "kind://host-1", "machine_id": "m" * 32,
        "system_uuid": kube.SYSTEM_UUID, "allocatable": {"nvidia.com/gpu": 2},
    }  # fmt: skip
    collector.close()
    again = rig.collector()
    rig.api.put(PODS, kube.pod("marker"))
    rig.jobs_until(again, lambda: "team/pod/marker" in rig.states)
    assert len(rig.api.of("/api/v1/nodes/host-1")) == 2
    assert "inventory" not in rig.rows(again)


def test_another_machines_name_is_not_taken(rig: Rig) -> None:
    """A wrong node name: neither boot id nor SMBIOS UUID fit, so nothing is bound and the key to set is named."""
    rig.api.singles["/api/v1/nodes/host-1"] = kube.node(boot_id="of another machine")
    collector = rig.collector()
    where = ("inventory", "machine-1", "attributes")
    assert until(lambda: rig.rows(collector) is not None and where in rig.quality)
    state, reason = rig.quality[where]
    assert state == "implausible"
    assert "set kubernetes.node_name" in reason
    assert "inventory" not in rig.rows(collector)
    write(rig.machine.sys / "class/dmi/id/product_uuid", kube.SYSTEM_UUID.lower() + "\n")
    assert "inventory" in rig.rows(collector)


# --- no Kubernetes ----------------------------------------------------------------------------------------


def test_no_kubernetes_is_no_source(tmp_path: Path) -> None:
    """Neither a kubelet's folder nor a pod's environment: said once, at the start."""
    with pytest.raises(NoSource, match="no kubelet"):
        Kubernetes(node(tmp_path), settings=Settings(socket=tmp_path / "none/kubelet.sock"), env={})


def test_a_kubelet_without_an_api_server(rig: Rig) -> None:
    """Outside of a pod and without ``kubernetes.api`` the kubelet's names are what there is."""
    rig.gpus(llm_worker_0=(A,))
    collector = rig.collector(api="off")
    (row,) = rig.rows(collector)["job"]
    assert (row["job_id"], row["account"], row["state"]) == ("team/pod/llm-worker-0", "team", "running")
    assert rig.context.of(GpuKey(A)) == Placement("team/pod/llm-worker-0")
    rig.gpus()
    (row,) = rig.rows(collector)["job"]
    assert (row["state"], row["reason"]) == (None, "no longer on this node; how it ended is not known")
    assert rig.context.of(GpuKey(A)) is None


def test_the_base_install_says_what_to_install(tmp_path: Path) -> None:
    """Without the extra the collector is absent and says which one it is; nothing else fails."""
    code = (
        "import sys\nsys.modules['h2'] = None\n"
        "from pathlib import Path\nfrom graynode.collectors.kubernetes.kubelet import Kubelet\n"
        "try: Kubelet(Path('x'))\nexcept Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "NoSource the kubelet speaks gRPC: pip install 'graynode[kubernetes]'\n", done.stderr


def test_rounds_of_other_classes_cost_nothing(rig: Rig) -> None:
    """The kubelet is asked every ten seconds, not every second."""
    collector = rig.collector(api="off")
    assert [collector.collect(round_at(n)) for n in range(1, 10)] == [{}] * 9
    assert rig.kubelet.calls == []
    started = time.process_time()
    for n in range(20):
        collector.collect(round_at(10 + 60 * n))
    assert time.process_time() - started < 2.0
    assert rig.kubelet.calls.count(LIST) == 20
