"""Slurm on a GPU node: which job has which GPU, and ``job`` rows for this machine's part of each.

A GPU's processes (NVML tells them) lead to their job by cgroup, else by environment; where no process is on a GPU, the
folder in which a site's prolog keeps job ids by GPU for dcgm-exporter tells it. ``docs/slurm.md`` has the choices.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.collectors.context import GpuKey, JobContext, Placement
from graynode.collectors.slurm.node_jobs import NodeJobs, single
from graynode.collectors.slurm.process import Found, identify, started
from graynode.collectors.state_file import StateFile
from graynode.collectors.sysfs import names, text_of, whole_text

_NEW_PIDS: Final = 500
"""Processes that are looked at for the first time in one round (some 50 µs each); the others wait for the next."""
_NAMED: Final = 8
"""Jobs that share a GPU which are told by name."""
MAPPING_FILES: Final = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    """``[slurm]``. ``job_mapping_dir`` as dcgm-exporter's ``--hpc-job-mapping-dir``; ``work`` by partition."""

    job_mapping_dir: Path | None = None
    node_name: str = ""
    work: Mapping[str, str] = field(default_factory=dict)


class Slurm:
    """Placements for ``context`` every 10 s and whenever the driver tells other processes; ``job`` rows at changes.

    A GPU that several jobs share (MPS, shards) has no job: nobody can tell whose load it is. ``quality`` names the
    jobs, and each has its own row. ``NoSource`` where nothing of Slurm is on this machine.
    """

    name: ClassVar[str] = "slurm"
    tables: ClassVar[tuple[str, ...]] = ("job", "inventory", "quality")

    def __init__(
        self,
        machine: Machine,
        context: JobContext | None = None,
        settings: Settings | None = None,
        *,
        etc: Path = Path("/etc"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine, self._context, self._settings = machine, context or JobContext(), settings or Settings()
        self._monotonic = monotonic
        self._slurmd = _slurmd(machine.proc)
        self._check_there(etc)
        self._state = StateFile(machine.state_dir / "slurm.json")
        self._kept: dict[str, Any] | None = self._state.load()
        self._pids: Mapping[GpuKey, Sequence[int]] | None = None
        self._known: dict[int, tuple[int, Found]] = {}
        self._jobs = NodeJobs(machine.sys, self._context, self._settings.work, monotonic)
        self._told_name = ""
        self._refused: str | None = None
        self._shared: dict[str, str] = {}
        self._behind = False

    def collect(self, round_: Round) -> Rows:
        """Rows of what changed. Looks at nothing while the driver's answer is the one of before, but every 10 s."""
        pids = self._context.pids
        if pids is self._pids and 10 not in round_.due and not self._behind:
            return {}
        self._pids = pids
        if self._kept:
            self._restore(self._kept)
        by_gpu = self._processes(pids)
        claims = {
            key: [Placement(f.job_id, rank=f.rank) for f in found.values() if f.job_id] for key, found in by_gpu.items()
        }
        claims |= self._mapped(claims)
        facts = [found for some in by_gpu.values() for found in some.values()]
        rows: dict[str, list[Row]] = {"job": self._jobs.look(claims, facts, round_.ts), "inventory": self._name()}
        claims = self._jobs.held() | claims
        placements = {key: placed for key, some in claims.items() if (placed := single(some)) is not None}
        self._unshare_ranks(placements, by_gpu)
        rows["quality"] = [*self._refusals(), *self._sharing(claims, placements)]
        self._context.place(self.name, placements)
        self._keep()
        return {table: some for table, some in rows.items() if some}

    def close(self) -> None:
        """Withdraw the placements and keep what was told; twice is as good as once."""
        self._context.place(self.name, {})
        if self._pids is not None:
            self._keep()

    # --- whose the processes are ------------------------------------------------------------------------

    def _processes(self, pids: Mapping[GpuKey, Sequence[int]]) -> dict[GpuKey, dict[int, Found]]:
        by_gpu: dict[GpuKey, dict[int, Found]] = {}
        fresh: dict[int, tuple[int, Found]] = {}
        left = _NEW_PIDS
        self._behind = False
        for key, some in pids.items():
            for pid in some:
                known = fresh.get(pid) or self._known.get(pid)
                began = known[0] if pid in fresh and known else started(self._machine.proc, pid)
                if began is None:
                    continue  # it has ended
                if known is None or known[0] != began:
                    if left <= 0:
                        self._behind = True
                        continue
                    left -= 1
                    known = (began, identify(self._machine.proc, pid))
                    if started(self._machine.proc, pid) != began:
                        continue  # another process got its number while it was looked at
                fresh[pid] = known
                if known[1].job_id is not None:
                    by_gpu.setdefault(key, {})[pid] = known[1]
        self._known = fresh
        return by_gpu

    def _unshare_ranks(self, placements: dict[GpuKey, Placement], by_gpu: Mapping[GpuKey, Mapping[int, Found]]) -> None:
        """Different processes of one task are different ranks that only the program knows: no GPU gets the task's."""
        holders: dict[tuple[str, int], set[tuple[int, ...]]] = {}
        for key, placed in placements.items():
            if placed.rank is not None:
                holders.setdefault((placed.job_id, placed.rank), set()).add(tuple(sorted(by_gpu.get(key, ()))))
        for key, placed in placements.items():
            if placed.rank is not None and len(holders[placed.job_id, placed.rank]) > 1:
                placements[key] = Placement(placed.job_id, placed.role)

    def _mapped(self, claims: Mapping[GpuKey, object]) -> dict[GpuKey, list[Placement]]:
        """Jobs of GPUs without a process, by the mapping folder: files named by index, ``index.instance`` or uuid."""
        folder = self._settings.job_mapping_dir
        found: dict[GpuKey, list[Placement]] = {}
        for name in names(folder)[:MAPPING_FILES] if folder else ():
            index, _, instance = name.partition(".")
            uuid = self._context.gpus.get(int(index)) if index.isascii() and index.isdigit() else name
            if uuid is None or not (index.isdigit() or name.startswith("GPU-")):
                continue
            key = GpuKey(uuid, instance or None) if index.isdigit() else GpuKey(uuid)
            text = text_of(folder / name) if folder else None
            jobs = sorted({line.strip()[:64] for line in (text or "").splitlines() if line.strip()})
            if jobs and key not in claims:
                found[key] = [Placement(job) for job in jobs]
        return found

    # --- rows -------------------------------------------------------------------------------------------

    def _sharing(self, claims: Mapping[GpuKey, Sequence[Placement]], placed: Mapping[GpuKey, Placement]) -> list[Row]:
        """Which GPUs several jobs share, and which no longer: once at each change."""
        now: dict[str, str] = {}
        for key in claims.keys() - placed.keys():
            jobs = sorted({claim.job_id for claim in claims[key]}, key=lambda job: (len(job), job))
            more = ", …" if len(jobs) > _NAMED else ""
            now[key.gpu_uuid] = f"slurm: shared by {len(jobs)} jobs: {', '.join(jobs[:_NAMED])}{more}"
        rows = []
        for uuid in sorted(now.keys() | self._shared.keys()):
            if now.get(uuid) != self._shared.get(uuid):
                state, reason = (
                    ("unsupported", now[uuid]) if uuid in now else ("measured", "slurm: one job at most again")
                )
                rows.append({"table_name": "gpu", "entity": uuid, "field": "job_id", "state": state, "reason": reason})
        self._shared = now
        return rows

    def _refusals(self) -> list[Row]:
        """Once when environments may not be read, and once when they may again."""
        refused = [found for _, found in self._known.values() if found.refused]
        if not refused and not self._known:
            return []
        fields = "job_id" if any(f.job_id is None for f in refused) else "job_rank" if refused else None
        if fields == self._refused:
            return []
        name, self._refused = fields or self._refused, fields
        reason = "environments of processes may be read again"
        if fields:
            reason = "environments of processes may not be read; run the agent as root or with CAP_SYS_PTRACE"
        state = "not_permitted" if fields else "measured"
        who = {"table_name": "gpu", "entity": self._machine.node_id, "field": name, "state": state}
        return [who | {"reason": f"slurm: {reason}"}]

    def _name(self) -> list[Row]:
        """What Slurm calls this machine: configured, slurmd's own ``-N``, else the short host name as slurmd takes it.

        Not what a job's environment says: its owner could give this machine another's name.
        """
        configured = self._settings.node_name
        name = configured or self._slurmd or self._machine.node.partition(".")[0]
        by = "configuration" if configured else "slurmd" if self._slurmd else "host name"
        said = json.dumps({"name": name, "by": by})
        if self._told_name == said:
            return []
        self._told_name = said
        return [{"kind": "node_name", "entity": "slurm", "attributes": said}]

    def _restore(self, kept: Mapping[str, Any]) -> None:
        self._kept = None
        self._told_name = str(kept.get("name", ""))
        if kept.get("boot_id") == self._machine.boot_id:
            self._jobs.restore(kept.get("jobs"))

    def _keep(self) -> None:
        kept = {"boot_id": self._machine.boot_id, "name": self._told_name, "jobs": self._jobs.kept()}
        self._state.save(kept)

    def _check_there(self, etc: Path) -> None:
        sys = self._machine.sys / "fs/cgroup"
        settings = self._settings
        if settings.job_mapping_dir or settings.node_name or self._slurmd is not None:
            return
        there = [sys / "system.slice/slurmstepd.scope", etc / "slurm", etc / "slurm-llnl"]
        there += [sys / hierarchy / "slurm" for hierarchy in ("memory", "cpuset", "devices", "freezer")]
        if not any(path.exists() for path in there):
            raise NoSource(f"no slurmd and no {etc}/slurm; set slurm.job_mapping_dir where Slurm is elsewhere")


def _slurmd(proc: Path) -> str | None:
    """The ``-N`` name of this machine's slurmd, empty if it has none, ``None`` where there is no slurmd."""
    for pid in names(proc):
        if pid.isdigit() and text_of(proc / pid / "comm") == "slurmd":
            words = whole_text(proc / pid / "cmdline")[:4096].split("\0")
            for n, word in enumerate(words):
                if word == "-N" and n + 1 < len(words):
                    return words[n + 1]
                if word.startswith("-N") and len(word) > 2:
                    return word[2:]
            return ""
    return None
