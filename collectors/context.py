"""Which job has which GPU of this node: what one source learns, the rows of another carry.

``nvml`` tells which processes are on a GPU; ``slurm``, ``kubernetes`` and others tell whose they are; the agent stamps
the answer on rows of table ``gpu`` before they are sent. A source gives its whole answer each time, so a job that has
ended is forgotten by not being told again. Sources run in threads of their own: each answer is put in place whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from graynode.collectors.base import Rows

_JOBS_KEPT: Final = 1000
_SELF: Final = "steps"


class GpuKey(NamedTuple):
    """A GPU, or one MIG instance of it (its GPU instance id as table ``gpu`` words it)."""

    gpu_uuid: str
    mig_instance: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """What the scheduler placed on a GPU. In Kubernetes ``job_id`` is ``<namespace>/<kind>/<name>`` of the workload,
    the kind in lower case: a JobSet and a Job of one namespace may bear the same name."""

    job_id: str
    role: str | None = None
    rank: int | None = None


class JobContext:
    """The node's answers so far. Readers and writers may be any threads."""

    def __init__(self) -> None:
        self._pids: Mapping[GpuKey, Sequence[int]] = {}
        self._placed: dict[str, Mapping[GpuKey, Placement]] = {}
        self._aliases: dict[str, Mapping[str, str]] = {}
        self._mig: Mapping[str, GpuKey] = {}
        self._gpus: dict[int, str] = {}
        self._first_steps: dict[str, datetime] = {}

    @property
    def pids(self) -> Mapping[GpuKey, Sequence[int]]:
        """Compute processes by GPU as the driver told last; empty where it tells none."""
        return self._pids

    def set_pids(self, pids: Mapping[GpuKey, Sequence[int]]) -> None:
        """The driver's answer, whole."""
        self._pids = dict(pids)

    def place(self, source: str, placements: Mapping[GpuKey, Placement]) -> None:
        """A source's answer, whole; an empty one withdraws what it said."""
        placed = {**self._placed, source: dict(placements)}
        self._placed = dict(sorted(placed.items(), key=lambda entry: entry[0] == _SELF))  # the sort keeps the order

    def of(self, gpu: GpuKey) -> Placement | None:
        """What is placed on a GPU. The source that spoke first in this agent's life names the job, a scheduler before
        what a job says of itself (``steps``); those that agree add role and rank. A whole GPU's placement holds for its
        MIG instances, never the reverse."""
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

    @property
    def mig(self) -> Mapping[str, GpuKey]:
        """MIG devices by their UUID (``MIG-…``), as the driver told last; empty where it tells none."""
        return self._mig

    def set_mig(self, mig: Mapping[str, GpuKey]) -> None:
        """The driver's answer, whole: which MIG device is which instance of which GPU."""
        self._mig = dict(mig)

    @property
    def gpus(self) -> Mapping[int, str]:
        """GPU uuids by their index on this node, as rows of table ``gpu`` told them."""
        return self._gpus

    def set_aliases(self, source: str, aliases: Mapping[str, str]) -> None:
        """A source's other names of jobs (``123_4`` of an array) and the job id that each stands for, whole."""
        self._aliases[source] = dict(aliases)

    def job_named(self, name: str) -> str:
        """The job id of a job that is called so; the name itself where nobody knows it as another's."""
        return next((known[name] for known in tuple(self._aliases.values()) if name in known), name)

    def note_first_step(self, job_id: str, ts: datetime) -> None:
        """A job's first step here was taken at ``ts``; what was told first counts, the latest 1,000 jobs are kept."""
        known = self._first_steps
        if job_id not in known:
            self._first_steps = dict([*known.items(), (job_id, ts)][-_JOBS_KEPT:])

    def first_step(self, job_id: str) -> datetime | None:
        """When the job's first step was taken here, ``None`` if it has not told."""
        return self._first_steps.get(job_id)

    def stamp(self, rows: Rows) -> None:
        """Fill ``job_id``, ``job_role`` and ``job_rank`` of GPU rows that do not know theirs."""
        for row in rows.get("gpu", ()):
            index = row.get("gpu_index")
            if index is not None and row.get("mig_instance") is None and self._gpus.get(index) != row["gpu_uuid"]:
                self._gpus = {**self._gpus, index: row["gpu_uuid"]}
            if row.get("job_id") is not None:
                continue
            placed = self.of(GpuKey(row["gpu_uuid"], row.get("mig_instance")))
            if placed is not None:
                row |= {"job_id": placed.job_id, "job_role": placed.role, "job_rank": placed.rank}
