"""Which job has which GPU of this node: what one source learns, the rows of another carry.

``nvml`` tells which processes are on a GPU; ``slurm``, ``kubernetes`` and others tell whose they are; the agent stamps
the answer on rows of table ``gpu`` before they are sent. A source gives its whole answer each time, so a job that has
ended is forgotten by not being told again. Sources run in threads of their own: each answer is put in place whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graynode.collectors.base import Rows


class GpuKey(NamedTuple):
    """A GPU, or one MIG instance of it (its GPU instance id as table ``gpu`` words it)."""

    gpu_uuid: str
    mig_instance: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """What the scheduler placed on a GPU. ``job_id`` is ``<namespace>/<workload>`` in Kubernetes."""

    job_id: str
    role: str | None = None
    rank: int | None = None


class JobContext:
    """The node's answers so far. Readers and writers may be any threads."""

    def __init__(self) -> None:
        self._pids: Mapping[GpuKey, Sequence[int]] = {}
        self._placed: dict[str, Mapping[GpuKey, Placement]] = {}

    @property
    def pids(self) -> Mapping[GpuKey, Sequence[int]]:
        """Compute processes by GPU as the driver told last; empty where it tells none."""
        return self._pids

    def set_pids(self, pids: Mapping[GpuKey, Sequence[int]]) -> None:
        """The driver's answer, whole."""
        self._pids = dict(pids)

    def place(self, source: str, placements: Mapping[GpuKey, Placement]) -> None:
        """A source's answer, whole; an empty one withdraws what it said."""
        self._placed[source] = dict(placements)

    def of(self, gpu: GpuKey) -> Placement | None:
        """What is placed on a GPU. The source that spoke first in this agent's life names the job; those that agree
        add role and rank. A whole GPU's placement holds for its MIG instances, never the reverse."""
        found: Placement | None = None
        for placements in tuple(self._placed.values()):
            said = placements.get(gpu) or placements.get(GpuKey(gpu.gpu_uuid))
            if said is None:
                continue
            if found is None:
                found = said
            elif found.job_id == said.job_id:
                role = said.role if found.role is None else found.role
                found = Placement(found.job_id, role, said.rank if found.rank is None else found.rank)
        return found

    def stamp(self, rows: Rows) -> None:
        """Fill ``job_id``, ``job_role`` and ``job_rank`` of GPU rows that do not know theirs."""
        for row in rows.get("gpu", ()):
            if row.get("job_id") is not None:
                continue
            placed = self.of(GpuKey(row["gpu_uuid"], row.get("mig_instance")))
            if placed is not None:
                row |= {"job_id": placed.job_id, "job_role": placed.role, "job_rank": placed.rank}
