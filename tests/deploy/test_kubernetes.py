"""The Kubernetes manifests: strict in what a schema cannot say, and true to the real configuration and command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line
import pytest
import yaml

from graynode.service.config import Config, parse

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
VERSIONS = {
    "Namespace": "v1", "ConfigMap": "v1", "Service": "v1", "ServiceAccount": "v1", "DaemonSet": "apps/v1",
    "Deployment": "apps/v1", "StatefulSet": "apps/v1", "CronJob": "batch/v1", "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1", "PersistentVolumeClaim": "v1", "ClusterRole": "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1", "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1", "Kustomization": "kustomize.config.k8s.io/v1beta1",
}  # fmt: skip
POD_KEYS = {
    "serviceAccountName", "priorityClassName", "nodeSelector", "tolerations", "runtimeClassName", "hostNetwork",
    "dnsPolicy", "automountServiceAccountToken", "terminationGracePeriodSeconds", "containers", "volumes",
    "securityContext", "restartPolicy",
}  # fmt: skip
CONTAINER_KEYS = {
    "name", "image", "imagePullPolicy", "args", "command", "env", "envFrom", "ports", "readinessProbe", "livenessProbe",
    "securityContext", "resources", "volumeMounts",
}  # fmt: skip


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of every file, with the file's name; patches are parts and left out."""
    for file in sorted(FOLDER.rglob("*.yaml")):
        if file.name != "privileged.yaml":
            for found in yaml.safe_load_all(file.read_text()):
                yield file.name, found


ALL = [(file, found) for file, found in documents()]
OBJECTS = {(d["kind"], d["metadata"]["name"]): d for _, d in ALL if d["kind"] != "Kustomization"}


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Pod specifications by the name of what makes them."""
    for (kind, name), found in OBJECTS.items():
        if kind in ("DaemonSet", "Deployment", "StatefulSet"):
            yield name, found["spec"]["template"]["spec"]
        if kind == "CronJob":
            yield name, found["spec"]["jobTemplate"]["spec"]["template"]["spec"]


PODS = dict(pods())


def configurations() -> dict[str, Config]:
    """What the ConfigMaps hold, parsed as the roles parse it."""
    return {
        name: parse(tomllib.loads(found["data"]["graynode.toml"]), name)
        for (kind, name), found in OBJECTS.items()
        if kind == "ConfigMap" and "graynode.toml" in found["data"]
    }


def test_every_object_is_of_a_known_kind_in_our_namespace() -> None:
    """Kind and version belong together; names are unique; what lives in a namespace lives in ours."""
    assert len(OBJECTS) == len([d for _, d in ALL if d["kind"] != "Kustomization"])
    for file, found in ALL:
        assert VERSIONS.get(found["kind"]) == found["apiVersion"], file
        if found["kind"] not in ("Namespace", "ClusterRole", "ClusterRoleBinding", "Kustomization"):
            assert found["metadata"]["namespace"] == "graynode", (file, found["metadata"]["name"])


def test_kustomizations_name_files_that_are_there() -> None:
    """And every manifest beside them is named, so that none is forgotten."""
    said = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert all((FOLDER / name).is_file() for name in said)
    optional = {"kustomization.yaml", "report-cronjob.yaml"}
    assert {p.name for p in FOLDER.glob("*.yaml")} - optional <= set(said)
    below = yaml.safe_load((FOLDER / "kernel-log/kustomization.yaml").read_text())
    assert all((FOLDER / "kernel-log" / p["path"]).is_file() for p in below["patches"])


@pytest.mark.parametrize("name", PODS)
def test_pod_is_well_formed(name: str) -> None:
    """Known keys only, every mount has its volume and every volume its mount, images have a version, memory a limit."""
    pod = PODS[name]
    assert set(pod) <= POD_KEYS
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    mounted = set()
    for container in pod["containers"]:
        assert set(container) <= CONTAINER_KEYS
        assert container["image"].rpartition(":")[2][0].isdecimal()
        assert container["resources"]["limits"]["memory"]
        assert "cpu" not in container["resources"]["limits"], "a throttled role is a late one"
        mounted |= {mount["name"] for mount in container["volumeMounts"]}
    assert volumes == mounted


@pytest.mark.parametrize("name", PODS)
def test_pod_gives_little_away(name: str) -> None:
    """No privilege, no capability, a read-only root, a seccomp profile; only the agent is root and the host's."""
    pod = PODS[name]
    whole = pod.get("securityContext", {})
    for container in pod["containers"]:
        own = {**whole, **container["securityContext"]}
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not own.get("privileged")
        if name != "graynode-agent":
            assert own["runAsNonRoot"] is True
            assert own["runAsUser"] >= 10_000
    hosts = [v["hostPath"]["path"] for v in pod.get("volumes", []) if "hostPath" in v]
    if name == "graynode-agent":
        assert hosts == [str(Config().agent.state_dir), str(Config().kubernetes.socket.parent)]
    else:
        assert hosts == []
        assert not pod.get("hostNetwork")
        assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", [name for name in PODS if name != "graynode-agent"])
def test_pod_starts_a_command(name: str) -> None:
    """The arguments are a command line that parses, and its file is the one that is mounted."""
    for container in PODS[name]["containers"]:
        words = [*container.get("command", [])[1:], *container["args"]]
        assert command_line.problem([str(word) for word in words]) == ""
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        if "--config" in words:
            assert words[words.index("--config") + 1] in mounts


def test_configurations_are_the_real_ones() -> None:
    """Each parses; files that it names lie below a mount of each pod that reads them; ports are the pods'."""
    found = configurations()
    assert set(found) >= {"graynode-agent", "graynode-server"}
    server = found["graynode-server"]
    listens = {
        "graynode-pipeline": server.pipeline.metrics_listen, "graynode-detect": server.detect.metrics_listen,
        "graynode-respond": server.respond.metrics_listen, "graynode-serve": server.serve.listen,
    }  # fmt: skip
    for name, listen in listens.items():
        (port,) = PODS[name]["containers"][0]["ports"]
        assert listen == f"0.0.0.0:{port['containerPort']}"
        (said,) = OBJECTS["Service", name]["spec"]["ports"]
        assert (said["port"], said["targetPort"]) == (port["containerPort"], port["name"])
    _mounted(found["graynode-agent"].bus.kafka.password_file, "graynode-agent")
    for name in listens:
        _mounted(server.bus.kafka.password_file, name)
        _mounted(server.bus.kafka.ca_file, name)
    _mounted(server.respond.webhooks["oncall"].secret_file, "graynode-respond")
    _mounted(server.serve.tokens_file, "graynode-serve")


def _mounted(file: Path | None, pod: str) -> None:
    assert file is not None
    assert str(file.parent) in {m["mountPath"] for m in PODS[pod]["containers"][0]["volumeMounts"]}, (pod, file)


def test_who_may_talk_to_whom() -> None:
    """Everything is denied first; then the ports that the roles have, and only they, are opened."""
    deny = OBJECTS["NetworkPolicy", "graynode-deny"]["spec"]
    assert (deny["podSelector"], deny["policyTypes"], "ingress" in deny) == ({}, ["Ingress", "Egress"], False)
    ports = {p["containerPort"] for pod in PODS.values() for c in pod["containers"] for p in c.get("ports", [])}
    opened = {p["port"] for p in OBJECTS["NetworkPolicy", "graynode-metrics"]["spec"]["ingress"][0]["ports"]}
    assert opened == ports
    brokers = {int(c.bus.kafka.bootstrap.rpartition(":")[2]) for c in configurations().values()}
    out = OBJECTS["NetworkPolicy", "graynode-out"]["spec"]["egress"]
    assert brokers <= {p["port"] for rule in out for p in rule["ports"]}


def test_selectors_find_their_pods() -> None:
    """A Service, a budget or a policy that selects nothing would do nothing, and say so nowhere."""
    labels = [
        d["spec"]["template"]["metadata"]["labels"]
        for (kind, _), d in OBJECTS.items()
        if kind in ("DaemonSet", "Deployment", "StatefulSet")
    ]
    for (kind, name), found in OBJECTS.items():
        if kind not in ("Service", "PodDisruptionBudget", "NetworkPolicy", "DaemonSet", "Deployment", "StatefulSet"):
            continue
        spec = found["spec"]
        selector = spec.get("podSelector") or spec.get("selector") or {}
        wanted = selector.get("matchLabels", selector)
        assert any(wanted.items() <= of.items() for of in labels), (kind, name)


def test_there_is_never_a_second_detect() -> None:
    """A StatefulSet of one: its pod is replaced only when the old one is gone."""
    found = OBJECTS["StatefulSet", "graynode-detect"]["spec"]
    assert (found["replicas"], found["serviceName"]) == (1, "graynode-detect")
    assert OBJECTS["Service", "graynode-detect"]["spec"]["clusterIP"] == "None"


def test_accounts_of_pods_exist() -> None:
    """The agent's account is the one that rbac.yaml makes."""
    assert ("ServiceAccount", PODS["graynode-agent"]["serviceAccountName"]) in OBJECTS


def test_the_kernel_log_needs_the_patch() -> None:
    """The patch changes the agent's container alone and adds just the device."""
    patch = yaml.safe_load((FOLDER / "kernel-log/privileged.yaml").read_text())
    pod = patch["spec"]["template"]["spec"]
    assert patch["metadata"]["name"] == "graynode-agent"
    assert [c["name"] for c in pod["containers"]] == ["agent"]
    assert [v["hostPath"]["path"] for v in pod["volumes"]] == [str(Config().agent.kmsg)]
