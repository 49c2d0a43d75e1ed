"""Sources on the node. Adding one: its module, one line here, its test; the contract suite picks it up.

The list holds names, not classes, so that importing it imports no source and none of their libraries.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

COLLECTORS: Final[tuple[tuple[str, str], ...]] = (
    ("nvml", "graynode.collectors.nvml.collector:Nvml"),
    ("kernel_log", "graynode.collectors.kernel_log.collector:KernelLog"),
    ("infiniband", "graynode.collectors.infiniband:Infiniband"),
    ("ethtool", "graynode.collectors.ethtool.collector:Ethtool"),
    ("dcgm", "graynode.collectors.dcgm.collector:Dcgm"),
    ("services", "graynode.collectors.services.collector:Services"),
    ("host", "graynode.collectors.host:Host"),
    ("kubernetes", "graynode.collectors.kubernetes.collector:Kubernetes"),
    ("kubernetes_cluster", "graynode.collectors.kubernetes.cluster:KubernetesCluster"),
    ("slurm", "graynode.collectors.slurm.collector:Slurm"),
    ("slurm_cluster", "graynode.collectors.slurm.cluster:SlurmCluster"),
    ("steps", "graynode.collectors.step_socket:StepSocket"),
    ("job_log", "graynode.collectors.job_log:JobLog"),
    ("replay", "graynode.collectors.replay:Replay"),
    ("simulated", "graynode.collectors.simulated.collector:Simulated"),
)
"""Name in the configuration, and where its class is."""


def load(name: str) -> Any:  # noqa: ANN401 (a class whose constructor is its own)
    """The class of a collector by its name; ``KeyError`` says which names there are."""
    places = dict(COLLECTORS)
    if name not in places:
        raise KeyError(f"no collector {name!r}; there are {', '.join(places)}")
    module, _, attribute = places[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
