"""Whose a series is, by its labels: the key columns of ``gpu``, ``host`` and ``link`` rows.

A Prometheus knows names, not machines. A node is its dcgm-exporter's ``instance``, as it is for the agentless scraper,
so that scraping continues what was imported; nobody has confirmed it. Series of node-exporter belong to the node whose
exporter has the same host in its ``instance``, or the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from graynode.collectors.dcgm.labels import about
from graynode.collectors.dcgm.targets import NODE_LABELS, exporter_node_id

GROUPED: Final = ("instance", "Hostname", *NODE_LABELS)
"""All labels that say which node a series of dcgm-exporter is of."""


@dataclass(frozen=True, slots=True)
class Whose:
    """Key columns (and other texts that stay) of one entity; ``words`` are texts that change with time."""

    who: dict[str, Any]
    words: dict[str, str] = field(default_factory=dict)


class Homes:
    """The nodes of one cluster, by every name that they have been met under."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._instances: dict[str, str] = {}

    def note(self, labels: Mapping[str, str]) -> None:
        """An exporter of GPUs: from now on its host's other series are known to be of the same node."""
        instance = _instance(labels)
        for name in _names(labels):
            self._instances.setdefault(name, instance)

    def whose(self, table: str, labels: Mapping[str, str], *, of_instance: bool = True) -> Whose | str:
        """Whose a series of that table is, or why it is nobody's."""
        if table in ("gpu", "event"):
            return self.gpu(labels, of_instance=of_instance)
        return self.link(labels) if table == "link" else self.host(labels)

    def gpu(self, labels: Mapping[str, str], *, of_instance: bool) -> Whose | str:
        """The GPU of a dcgm-exporter series, or why it is about none. What is not a MIG instance's is its GPU's."""
        of = about(labels)
        if isinstance(of, str):
            return of
        part = of.instance if of_instance else None
        who = {
            **self._node(labels, _instance(labels)), "gpu_uuid": of.uuid, "mig_instance": part, "vendor": "NVIDIA",
            "gpu_index": of.number, "gpu_model": of.model, "pci_bus_id": of.bus,
        }  # fmt: skip
        return Whose(who, {"job_id": of.job} if of.job and part == of.instance else {})

    def host(self, labels: Mapping[str, str]) -> Whose:
        """The machine of a node-exporter series."""
        met = (self._instances[name] for name in _names(labels) if name in self._instances)
        return Whose(self._node(labels, next(met, _instance(labels))))

    def link(self, labels: Mapping[str, str]) -> Whose | str:
        """The port of a node_infiniband series, or why it is none."""
        device, port = labels.get("device"), labels.get("port")
        if not device or not port:
            return "no port is named"
        return Whose({**self.host(labels).who, "link": f"{device}/{port}", "link_kind": "infiniband"})

    def _node(self, labels: Mapping[str, str], instance: str) -> dict[str, Any]:
        name = next(_names(labels), instance)
        return {"cluster": self._cluster, "node": name, "node_id": exporter_node_id(self._cluster, instance)}


def _names(labels: Mapping[str, str]) -> Iterator[str]:
    """What a node is called, the best name first: the host part of ``[::1]:9400`` and ``host:9400`` comes last."""
    for label in (*NODE_LABELS, "Hostname"):
        if labels.get(label):
            yield labels[label]
    instance = labels.get("instance", "")
    host, colon, port = instance.rpartition(":")
    host = (host if colon and port.isdecimal() else instance).strip("[]")
    if host:
        yield host


def _instance(labels: Mapping[str, str]) -> str:
    return labels.get("instance") or next(_names(labels), "unknown")
