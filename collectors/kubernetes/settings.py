"""``[kubernetes]`` as the two collectors take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from graynode.collectors.kubernetes.api import Access, Api, in_cluster
from graynode.collectors.kubernetes.jobs import Labels

SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
OFF: Final = "off"
PATIENCE_S: Final = 30.0
"""The API server may be away for so long before anything is said: its rolling update takes less."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``api`` is empty inside a cluster, a URL outside, or ``off``; the URL of ``access`` is filled in here.

    ``keep_s``: how long the last knowledge is used when its source does not answer.
    """

    node_name: str = ""
    socket: Path = SOCKET
    api: str = ""
    access: Access = field(default_factory=lambda: Access(""))
    keep_s: float = 3600.0
    deadline_s: float = 2.0
    labels: Labels = field(default_factory=Labels)
    kueue: bool = True

    def connect(self, env: Mapping[str, str]) -> Api | None:
        """The API server, ``None`` where there is none. ``ValueError`` if ``api`` is no address."""
        if self.api == OFF:
            return None
        url = self.api or in_cluster(env)
        if not url:
            return None
        known = self.access
        return Api(Access(url, known.token_file, known.ca_file, known.timeout_s, known.silence_s))


def node_name(configured: str, env: Mapping[str, str], host_name: str) -> str:
    """What Kubernetes calls this node: configured, told by the downward API as ``NODE_NAME``, or the host's name."""
    return configured or env.get("NODE_NAME", "") or host_name.lower()
