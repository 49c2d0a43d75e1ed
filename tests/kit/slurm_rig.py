"""A real Slurm on loopback: munged, slurmctld and several slurmd as children of the suite, as root, no systemd.

GPU files must be device nodes for slurmd, which only looks at them: they are ``/dev/null`` by another name. Processes
are tracked without cgroups, so a job's own processes are told by their environment here.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "squeue", "scontrol", "sbatch")
INSTALL = "apt-get install -y --no-install-recommends slurm-wlm munge"


class CannotRun(Exception):
    """Slurm cannot be started on this machine; the text says what is missing."""


class Slurm:
    """Nodes ``n1 … nN`` of 16 CPUs and ``gpus`` GPUs, one partition ``main``. ``start``, then ``stop``."""

    def __init__(self, root: Path, nodes: int = 3, gpus: int = 2, extra: str = "") -> None:
        missing = [program for program in NEEDED if shutil.which(program) is None]
        if missing:
            raise CannotRun(f"{', '.join(missing)} not found: {INSTALL}")
        if os.geteuid() != 0:
            raise CannotRun("slurmd starts jobs as their users, so the suite needs root")
        self.root, self.nodes, self._gpus, self._extra = root, nodes, gpus, extra
        self._base = _free_ports(nodes + 5)
        self.conf = root / "etc/slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, timeout_s: float = 60.0) -> Slurm:
        """Start everything and return when all nodes are idle."""
        self._write()
        munge = self.root / "munge"
        self._spawn(
            "munged", "munged", "--foreground", "--force", f"--key-file={munge}/munge.key", f"--socket={munge}/socket",
            f"--pid-file={munge}/munged.pid", f"--log-file={munge}/munged.log", f"--seed-file={munge}/munged.seed",
        )  # fmt: skip
        wait_for(lambda: (munge / "socket").exists(), "munged", 10)
        self.start_controller(clean=True)
        for n in range(1, self.nodes + 1):
            self.start_node(n)
        wait_for(lambda: self.states().count("idle") == self.nodes, "all nodes idle", timeout_s)
        return self

    def start_controller(self, *, clean: bool = False) -> None:
        """Start slurmctld, with its state or without."""
        self._spawn("slurmctld", "slurmctld", "-D", *(["-c"] if clean else []), "-f", str(self.conf))

    def start_node(self, n: int) -> None:
        """Start the slurmd of a node."""
        self._spawn(f"slurmd.n{n}", "slurmd", "-D", "-N", f"n{n}", "-f", str(self.conf))

    def kill(self, name: str) -> None:
        """End a daemon as a loss of its machine would: ``slurmctld`` or ``slurmd.nX``."""
        child = self._children.pop(name)
        child.kill()
        child.wait()

    def freeze(self, name: str) -> None:
        """Let a daemon hang: it keeps its connections and answers nobody."""
        self._children[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let it go on."""
        self._children[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Cancel all jobs and end all daemons."""
        if "slurmctld" in self._children:
            self._children["slurmctld"].send_signal(signal.SIGCONT)
            self.run("scancel", "--user=root", check=False)
            end = time.monotonic() + 5  # what starts jobs ends with them, and would outlive the daemons
            while self.run("squeue", "-h", check=False).strip() and time.monotonic() < end:
                time.sleep(0.1)
        order = sorted(self._children, key=lambda name: (not name.startswith("slurmd."), name == "munged"))
        for name in order:
            self._children[name].terminate()
        for child in self._children.values():
            try:
                child.wait(8)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()
        self._end_strays()

    def _end_strays(self) -> None:
        """What slurmd started and left behind, known by this cluster's own configuration in its environment."""
        ours = f"SLURM_CONF={self.conf}\0".encode()
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if ours in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                    os.kill(int(folder.name), signal.SIGKILL)

    def run(self, *command: str, check: bool = True) -> str:
        """What a program of Slurm writes; ``check`` and it must succeed."""
        done = subprocess.run(command, env=self.env, text=True, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
        return done.stdout

    def states(self) -> list[str]:
        """The short state of each node."""
        return self.run("sinfo", "-h", "-N", "-o", "%t", check=False).split()

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a script; its job id."""
        out = f"{self.root}/log/job.%j.out"
        return self.run("sbatch", "--parsable", "-o", out, *options, "--wrap", script).strip().partition(";")[0]

    def _spawn(self, name: str, *command: str) -> None:
        with (self.root / f"log/{name}.out").open("ab") as out:
            self._children[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env, start_new_session=True
            )

    def _write(self) -> None:
        root, base = self.root, self._base
        for folder in ("etc", "run", "log", "state", "spool", "munge", "gpu"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder).chmod(0o755)
        root.chmod(0o755)
        key = root / "munge/munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for n in range(self._gpus):
            os.mknod(root / f"gpu/fake{n}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (root / "etc/gres.conf").write_text(f"Name=gpu File={root}/gpu/fake[0-{self._gpus - 1}]\n")
        nodes = "".join(
            f"NodeName=n{n} NodeAddr=127.0.0.1 Port={base + 4 + n} CPUs=16 RealMemory=1000 Gres=gpu:{self._gpus}\n"
            for n in range(1, self.nodes + 1)
        )
        host = socket.gethostname().partition(".")[0]
        self.conf.write_text(f"""ClusterName=tested
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={base}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
KillWait=1
SlurmctldTimeout=30
SlurmdTimeout=3
MessageTimeout=3
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={root}/log/jobcomp.txt
{self._extra}
{nodes}PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")


def wait_for(done: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Wait until something has come to pass; ``CannotRun`` names it if it does not."""
    end = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > end:
            raise CannotRun(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.05)


def _free_ports(count: int) -> int:
    """The first of so many consecutive loopback ports that nobody listens on."""
    chance = random.SystemRandom()  # suites that run side by side have seeded the other one alike
    for _ in range(200):
        base = chance.randrange(20000, 31000)
        taken: list[socket.socket] = []
        try:
            for n in range(count):
                taken.append(socket.socket())
                taken[-1].bind(("127.0.0.1", base + n))
        except OSError:
            continue
        else:
            return base
        finally:
            for each in taken:
                each.close()
    raise CannotRun(f"no {count} free ports in a row")
