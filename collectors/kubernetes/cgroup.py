"""Which pod a process belongs to, from its control group: needs neither kubelet nor API, but tells only uids.

Forms seen in the field: drivers ``systemd`` and ``cgroupfs``, hierarchies v1 and v2, runtimes containerd, CRI-O and
Docker, paths relative to another cgroup namespace, static pods (whose uid is the 32 digits of a hash).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MOST: Final = 1 << 16
_POD: Final = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_NOT_A_CONTAINER: Final = ("crio-conmon-",)


class PodRef(NamedTuple):
    """A pod's uid as the API writes it, and the container's id where the path goes so deep."""

    uid: str
    container_id: str | None


def pod_of(text: str) -> PodRef | None:
    """The pod of a ``/proc/PID/cgroup``, ``None`` for a process outside of Kubernetes."""
    for line in text[:_MOST].splitlines():
        path = line.split(":", 2)[-1]
        pod = _POD.search(path)
        if pod is None or "kubepods" not in path:
            continue
        below = path[pod.end() :]
        container = None if any(word in below for word in _NOT_A_CONTAINER) else _CONTAINER.search(below)
        return PodRef(pod[1].replace("_", "-"), container[1] if container else None)
    return None
