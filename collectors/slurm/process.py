"""Whose a process is: Slurm's job by its cgroup, else by its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_CGROUP: Final = re.compile(
    r"/(?:slurm[^/]{0,80}/uid_\d{1,10}|[^/]{0,80}slurmstepd\.scope)/job_(?P<job>\d{1,10})(?:/step_(?P<step>[^/\s]{1,40}))?"
)
"""cgroup v1: ``…/slurm/uid_1000/job_7/step_0/task_1`` (``slurm_NodeName`` where a machine has several slurmd); v2:
``…/slurmstepd.scope/job_7/step_0/user/task_1``. Both stand in front of a container's own path, or behind it."""
_ENVIRON_MOST: Final = 512 << 10
WANTED: Final = frozenset({
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "RANK", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_JOB_USER",
    "SLURM_JOB_ACCOUNT", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_RESTART_COUNT", "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID", "SLURM_HET_JOB_ID", "SLURM_HET_JOB_OFFSET", "SLURM_JOB_START_TIME",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a process. ``job_id`` is ``None`` for one that is not Slurm's; ``environ`` has ``WANTED`` only.

    ``cgroup`` is the job's folder below the cgroup root, which is there as long as the job is. ``refused`` says that
    the environment may not be read.
    """

    job_id: str | None = None
    step: str | None = None
    cgroup: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    refused: bool = False

    @property
    def rank(self) -> int | None:
        """The launcher's rank where there is one (``torchrun`` starts several below one task), else Slurm's own."""
        for name in ("RANK", "SLURM_PROCID"):
            text = self.environ.get(name, "")
            if text.isascii() and text.isdigit() and len(text) < 10:
                return int(text)
        return None


def started(proc: Path, pid: int) -> int | None:
    """When a process began, in ticks since boot: with the pid it names one process. ``None``: there is none."""
    text = _read(f"{proc}/{pid}/stat", 4096)
    if not text:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the name in brackets may hold anything
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else None


def identify(proc: Path, pid: int) -> Found:
    """Read and parse; a process that ends meanwhile, or may not be looked at, is nobody's."""
    cgroup = _read(f"{proc}/{pid}/cgroup", 1 << 16) or b""
    job_id, step, folder = parse_cgroup(cgroup.decode("utf-8", "replace"))
    environ = _read(f"{proc}/{pid}/environ", _ENVIRON_MOST)
    known = parse_environ(environ or b"")
    said = known.get("SLURM_JOB_ID", "")
    if job_id is None:
        job_id = said if said.isascii() and said.isdigit() and len(said) < 11 and int(said) else None
        step = known.get("SLURM_STEP_ID", "")[:40] or None
    elif said != job_id:
        known = {}  # root placed it in the cgroup; what its owner says of another job is not believed
    return Found(job_id, step, folder, known if job_id else {}, refused=environ is None)


def parse_cgroup(text: str) -> tuple[str | None, str | None, str | None]:
    """Job, step, and the job's folder below the root of the hierarchy; nulls where Slurm has no part in it."""
    for line in text.splitlines():
        parts = line.split(":", 2)
        match = _CGROUP.search(parts[2]) if len(parts) == 3 else None
        if match:
            end = match.end("job")
            hierarchy = parts[1].removeprefix("name=").split(",")[0]
            return match["job"], match["step"], f"{hierarchy}{parts[2][:end]}".lstrip("/")
    return None, None, None


def parse_environ(content: bytes) -> dict[str, str]:
    """The wanted variables. The first of a name counts, as it does for the process itself."""
    found: dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name.startswith((b"SLURM_", b"RANK", b"WORLD_SIZE")):
            text = name.decode("utf-8", "replace")
            if text in WANTED:
                found.setdefault(text, value[:200].decode("utf-8", "replace"))
    return found


def _read(path: str, most: int) -> bytes | None:
    """The first bytes of a file. Empty where there is none (a process that ended), ``None`` if it is not permitted."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except OSError:
        return b""
    chunks: list[bytes] = []
    try:
        # files of /proc may give a page at a time
        while most > 0 and (chunk := os.read(fd, most)):
            chunks.append(chunk)
            most -= len(chunk)
        return b"".join(chunks)
    except PermissionError:
        return None
    except OSError:
        return b""
    finally:
        os.close(fd)
