"""Sources on the node. Adding one: its module, one line here, its test; the contract suite picks it up.

The list holds names, not classes, so that importing it imports no source and none of their libraries.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

COLLECTORS: Final[tuple[tuple[str, str], ...]] = (
    ("nvml", "graynode.collectors.nvml:Nvml"),
    ("kernel_log", "graynode.collectors.kernel_log:KernelLog"),
    ("infiniband", "graynode.collectors.infiniband:Infiniband"),
    ("ethtool", "graynode.collectors.ethtool:Ethtool"),
    ("dcgm", "graynode.collectors.dcgm:Dcgm"),
    ("services", "graynode.collectors.services:Services"),
    ("host", "graynode.collectors.host:Host"),
    ("kubernetes", "graynode.collectors.kubernetes:Kubernetes"),
    ("kubernetes_cluster", "graynode.collectors.kubernetes_cluster:KubernetesCluster"),
    ("slurm", "graynode.collectors.slurm:Slurm"),
    ("slurm_cluster", "graynode.collectors.slurm_cluster:SlurmCluster"),
    ("steps", "graynode.collectors.step_socket:StepSocket"),
    ("job_log", "graynode.collectors.job_log:JobLog"),
    ("replay", "graynode.collectors.replay:Replay"),
    ("simulated", "graynode.collectors.simulated:Simulated"),
)
"""Name in the configuration, and where its class is."""


def load(name: str) -> Any:  # noqa: ANN401 (a class whose constructor is its own)
    """The class of a collector by its name; ``KeyError`` says which names there are."""
    places = dict(COLLECTORS)
    if name not in places:
        raise KeyError(f"no collector {name!r}; there are {', '.join(places)}")
    module, _, attribute = places[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
