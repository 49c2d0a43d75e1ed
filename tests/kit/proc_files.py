"""A ``/proc`` with processes of the test's own: where they are placed, what their environment says, when they began."""

from __future__ import annotations

import shutil
from pathlib import Path

V1 = "11:memory:/slurm/uid_1000/job_{job}/step_{step}/task_0\n3:cpuset:/slurm/uid_1000/job_{job}/step_{step}\n0::/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_{job}/step_{step}/user/task_0\n"
"""The two forms of a job's cgroup, as Slurm's cgroup/v1 and cgroup/v2 plugins make them."""


class Processes:
    """Processes below ``proc``; ``start`` again with the same pid is another process with that number."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self._tick = 1000

    def start(self, pid: int, cgroup: str = "0::/user.slice\n", name: str = "python3", **environ: str) -> None:
        """A process with this cgroup file and these variables."""
        self._tick += 1
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = " ".join(["S", "1", *["0"] * 17, str(self._tick), *["0"] * 30])
        (folder / "stat").write_text(f"{pid} ({name} x) {fields}\n")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cgroup").write_text(cgroup)
        variables = {"PATH": "/bin", **environ}
        (folder / "environ").write_bytes(b"".join(f"{k}={v}".encode() + b"\0" for k, v in variables.items()))

    def end(self, pid: int) -> None:
        """It is gone."""
        shutil.rmtree(self.proc / str(pid))


def v2(job: int, step: str = "0") -> str:
    """The cgroup file of a job's task under cgroup v2."""
    return V2.format(job=job, step=step)


def v1(job: int, step: str = "0") -> str:
    """The cgroup file of a job's task under cgroup v1."""
    return V1.format(job=job, step=step)
