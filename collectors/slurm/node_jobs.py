"""Slurm's jobs on one node: what is told of each, when it is gone, and what a restart of the agent keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from graynode.collectors.base import Row
from graynode.collectors.context import GpuKey, JobContext, Placement
from graynode.collectors.slurm.process import Found
from graynode.collectors.slurm.text import moment, number

GONE_AFTER_S: Final = 60.0
"""A job without a process on a GPU for so long, and whose cgroup cannot be looked at, is gone; between two steps of
its it is not."""


@dataclass(slots=True)
class _Job:
    row: Row
    seen_at: float
    cgroup: str | None = None
    told: str = ""
    gpus: dict[GpuKey, Placement] = field(default_factory=dict)


class NodeJobs:
    """Jobs by id. ``sys`` has the cgroups; ``work`` is the kind of work by partition."""

    def __init__(self, sys: Path, context: JobContext, work: Mapping[str, str], monotonic: Callable[[], float]) -> None:
        self._sys, self._context, self._work, self._monotonic = sys, context, work, monotonic
        self._jobs: dict[str, _Job] = {}

    def look(self, claims: Mapping[GpuKey, Sequence[Placement]], processes: Sequence[Found], ts: datetime) -> list[Row]:
        """Rows of what changed: jobs that are new here, have other GPUs, took their first step, or are gone."""
        by_job: dict[str, dict[GpuKey, Placement]] = {}
        for key, some in claims.items():
            mine: dict[str, list[Placement]] = {}
            for claim in some:
                mine.setdefault(claim.job_id, []).append(claim)
            for job_id, same in mine.items():
                by_job.setdefault(job_id, {})[key] = single(same) or same[0]
        facts: dict[str, Found] = {}
        for found in processes:
            known = facts.get(found.job_id or "")
            if known is None or len(found.environ) > len(known.environ):
                facts[found.job_id or ""] = found
        for job_id, gpus in by_job.items():
            self._learn(job_id, gpus, facts.get(job_id, Found(job_id)))
        gone = self._gone(by_job, ts)
        aliases = {job.row["job_alias"]: job_id for job_id, job in self._jobs.items() if job.row.get("job_alias")}
        self._context.set_aliases("slurm", aliases)
        return [*self._changed(ts), *gone]

    def held(self) -> dict[GpuKey, list[Placement]]:
        """GPUs of jobs that are here: those without a process on them now are held, not free."""
        holders: dict[GpuKey, list[Placement]] = {}
        for job in self._jobs.values():
            for key, placed in job.gpus.items():
                holders.setdefault(key, []).append(placed)
        return holders

    def _learn(self, job_id: str, gpus: dict[GpuKey, Placement], found: Found) -> None:
        job = self._jobs.setdefault(job_id, _Job({}, 0.0))
        job.seen_at, job.cgroup = self._monotonic(), found.cgroup or job.cgroup
        job.gpus |= gpus
        row = self._row(job_id, found)
        row["gpu_uuids"] = json.dumps(sorted({key.gpu_uuid for key in job.gpus}))
        job.row |= {name: value for name, value in row.items() if value is not None}

    def _row(self, job_id: str, found: Found) -> Row:
        env = found.environ
        return {
            "job_id": job_id, "job_alias": _alias(env), "state": "running",
            "user": env.get("SLURM_JOB_USER"), "account": env.get("SLURM_JOB_ACCOUNT"),
            "partition": env.get("SLURM_JOB_PARTITION"),
            "work": self._work.get(env.get("SLURM_JOB_PARTITION", "")),
            "allocated_ts": moment(env.get("SLURM_JOB_START_TIME")),
            "first_step_ts": self._context.first_step(job_id),
            "requeues": number(env.get("SLURM_RESTART_COUNT")), "nodes": number(env.get("SLURM_JOB_NUM_NODES")),
            "ranks": number(env.get("WORLD_SIZE")) or number(env.get("SLURM_NTASKS")),
        }  # fmt: skip

    def _changed(self, ts: datetime) -> list[Row]:
        rows = []
        for job in self._jobs.values():
            said = json.dumps(_plain(job.row), sort_keys=True)
            if job.told != said:
                job.told = said
                rows.append({**job.row, "ts": ts})
        return rows

    def _gone(self, there: Mapping[str, object], ts: datetime) -> list[Row]:
        rows = []
        for job_id in self._jobs.keys() - there.keys():
            job = self._jobs[job_id]
            if self._is_gone(job):
                # how it ended only slurmctld knows
                rows.append({**job.row, "ts": ts, "state": None, "end_ts": ts})
                del self._jobs[job_id]
        return rows

    def _is_gone(self, job: _Job) -> bool:
        folder = self._sys / "fs/cgroup" / job.cgroup if job.cgroup else None
        if folder is not None and folder.parent.is_dir():
            return not folder.is_dir()  # the job's own folder is there from its first step to its end
        return self._monotonic() - job.seen_at >= GONE_AFTER_S

    def kept(self) -> dict[str, list[Any]]:
        """For the state file."""
        return {
            job_id: [_plain(j.row), j.cgroup, j.told, [[*key, placed.rank] for key, placed in j.gpus.items()]]
            for job_id, j in self._jobs.items()
        }

    def restore(self, kept: Any) -> None:  # noqa: ANN401 (a file's content)
        """Jobs that were told before a restart: those that are still here are not told again, the others end."""
        for job_id, entry in kept.items() if isinstance(kept, dict) else ():
            match entry:
                case [dict() as row, str() | None as cgroup, str() as told, list() as gpus]:
                    times = {k: moment(row[k]) for k in ("allocated_ts", "first_step_ts") if row.get(k)}
                    held = {GpuKey(g[0], g[1]): Placement(job_id, None, g[2]) for g in gpus if len(g) == 3}
                    self._jobs[job_id] = _Job({**row, **times}, self._monotonic(), cgroup, told, held)


def single(placed: Sequence[Placement]) -> Placement | None:
    """The one job that all who are on a GPU belong to, with the rank they agree on; ``None`` if they are several's."""
    if len({p.job_id for p in placed}) != 1:
        return None
    ranks, roles = {p.rank for p in placed}, {p.role for p in placed}
    return Placement(
        placed[0].job_id, roles.pop() if len(roles) == 1 else None, ranks.pop() if len(ranks) == 1 else None
    )


def _alias(env: Mapping[str, str]) -> str | None:
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    het = env.get("SLURM_HET_JOB_ID")
    return f"{het}+{env.get('SLURM_HET_JOB_OFFSET', '0')}" if het else None


def _plain(row: Row) -> dict[str, Any]:
    return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items() if v is not None}
