"""How jobs of a simulated fleet end: the truth, the scheduler's words, Xids and the lines that their outputs hold.

Shares are stated guesses in the shape of published studies (most failures of jobs are the program's: Kokolis and
others, HPCA 2025; Hu and others, NSDI 2024). Lines are written as the frameworks write them, and go through the
agent's own choice of telling lines; nothing here knows how an end is judged. Some leave nothing that tells, as real
ones do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from graynode.collectors.job_log_lines import Telling, redact
from graynode.collectors.simulated.jobs import Job
from graynode.collectors.simulated.noise import uniform

Truth = Literal["application", "infrastructure", "neither"]
_STREAM: Final = 91
_READ: Final = 0.7
"""Share of jobs whose output an agent reads (it is opt-in)."""
_READ_EVERY_S: Final = 10.0
_TRACE: Final = 'Traceback (most recent call last):\n  File "train.py", line 212, in <module>\n    main()\n'
_CHILD: Final = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "W1120 09:14:02.311000 {pid} torch/distributed/elastic/multiprocessing/api.py:897] Sending process {pid} closing "
    "signal SIGTERM"
)  # fmt: skip
_WATCHDOG: Final = (
    "[rank{rank}]:[E1120 09:14:02.311 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=48211, OpType=ALLREDUCE, NumelIn=25165824, NumelOut=25165824, Timeout(ms)=600000) ran "
    "for 600029 milliseconds before timing out."
)
_REMOTE: Final = (
    "[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2025, remote process exited "
    "or there was a network error, NCCL version 2.21.5"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to end. ``output`` is what the first rank prints, ``others`` what a few of the other ranks do then.

    ``xids`` are numbers and texts of the kernel's lines about that rank's GPU, ``follow`` numbers on the same GPU after
    it. ``events`` are what the machine of that rank tells by other ways (table ``event``).
    """

    name: str
    share: float
    truth: Truth
    state: str = "failed"
    reason: str | None = "NonZeroExitCode"
    exit_code: int = 1
    exit_signal: int | None = None
    output: str = ""
    others: str = ""
    xids: tuple[tuple[int, str], ...] = ()
    events: tuple[str, ...] = ()


_MMU: Final = (
    "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f1b_4c000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
)
_WARP: Final = "Graphics SM Warp Exception on (GPC 2, TPC 4, SM 1): Out Of Range Address"
_RESET: Final = (43, "Reset Channel Verif Error")
_ILLEGAL: Final = (
    _TRACE + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call"
)

APPLICATION: Final = (
    Kind("cuda_oom", 0.17, "application", others=_CHILD, output=_TRACE + (
        "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU {local} has a total "
        "capacity of 79.11 GiB of which 1.02 GiB is free. Process {pid} has 78.08 GiB memory in use.")),
    Kind("host_oom", 0.06, "application", reason="OUT_OF_MEMORY", exit_code=0, exit_signal=125, others=_REMOTE, output=(
        "slurmstepd: error: Detected 1 oom_kill event in StepId={job}.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: {node}: task {rank}: Out Of Memory")),
    Kind("missing_file", 0.08, "application", others=_CHILD, output=_TRACE +
         "FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/train-{shard:05d}.tar'"),
    Kind("bad_checkpoint", 0.04, "application", output=_TRACE +
         "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    Kind("exception", 0.13, "application", others=_CHILD, output=_TRACE + "KeyError: 'rotary_emb.inv_freq'"),
    Kind("shapes", 0.06, "application", others=_REMOTE, output=_TRACE +
         "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4096x1024 and 2048x4096)"),
    Kind("own_exception", 0.04, "application", others=_CHILD, output=_TRACE +
         "trainer.errors.CheckpointPolicyViolation: refusing to overwrite step 48000"),
    Kind("nan", 0.06, "application", output=(
        "iteration 48211/100000 | lm loss: nan | grad norm: nan | loss scale: 1.0\n" + _TRACE +
        "ValueError: loss is nan at iteration 48211, stopping")),
    Kind("illegal_access", 0.05, "application", exit_code=134, exit_signal=6, output=_ILLEGAL, others=_WATCHDOG,
         xids=((31, _MMU), _RESET)),
    Kind("illegal_access_13", 0.03, "application", exit_code=134, exit_signal=6, output=_ILLEGAL, others=_REMOTE,
         xids=((13, _WARP), _RESET)),
    Kind("segfault", 0.04, "application", exit_code=139, exit_signal=11, others=_REMOTE, output=(
        "srun: error: {node}: task {rank}: Segmentation fault (core dumped)")),
    Kind("desync", 0.06, "application", exit_code=134, exit_signal=6, output=_WATCHDOG, others=_WATCHDOG),
    Kind("time_limit", 0.09, "neither", state="timeout", reason="TimeLimit", exit_code=0, output=(
        "slurmstepd: error: *** JOB {job} ON {node} CANCELLED AT 2026-11-20T09:14:02 DUE TO TIME LIMIT ***")),
    Kind("silent", 0.09, "application", output="bye"),
)  # fmt: skip
"""Ends that no machine is guilty of; the shares add up to one."""
HARDWARE: Final = (
    Kind("uncontained_ecc", 0.20, "infrastructure", exit_code=134, exit_signal=6, others=_WATCHDOG,
         output=_TRACE + "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
         xids=((95, "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"), (45, "Ch 00000010"))),
    Kind("nvlink", 0.15, "infrastructure", others=_WATCHDOG, xids=(
         (74, "NVLink: fatal error detected on link 7(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"), (45, "Ch 00000012")),
         output=_TRACE + "RuntimeError: CUDA error: unspecified launch failure"),
    Kind("gsp", 0.15, "infrastructure", exit_code=134, exit_signal=6, others=_WATCHDOG, output=_WATCHDOG, xids=(
         (119, "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL)"),)),
    Kind("port_down", 0.20, "infrastructure", others=_REMOTE, events=("link_down",), output=(
        "{node}:{pid}:{pid} [{local}] NCCL WARN NET/IB : Got completion from peer 10.0.3.7<51234> with status=12 "
        "opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:10.0.3.8 remoteGids ::ffff:10.0.3.7 hca mlx5_0")),
    Kind("stale_mount", 0.15, "infrastructure", others=_REMOTE, output=_TRACE +
         "OSError: [Errno 116] Stale file handle: '/data/shards/train-{shard:05d}.tar'"),
    Kind("fabric_unseen", 0.15, "infrastructure", exit_code=134, exit_signal=6, output=_WATCHDOG, others=_WATCHDOG),
)  # fmt: skip
"""Ends that a machine, or what it needs, began; the last leaves nothing but its cascade."""
LOST: Final = Kind("gpu_lost", 0.0, "infrastructure", state="node_fail", reason="NodeDown", exit_code=137, others=(
    "srun: error: {node}: tasks {rank}: Terminated\n" + _REMOTE), output=(
    "slurmstepd: error: *** JOB {job} ON {node} CANCELLED AT 2026-11-20T09:14:02 DUE TO NODE FAILURE, SEE "
    "SLURMCTLD LOG FOR DETAILS ***"))  # fmt: skip
"""A fault of the plan that the schedule has already ended the job for."""
CANCELLED: Final = Kind("cancelled", 0.0, "neither", "cancelled", None, exit_code=0, exit_signal=15, output=(
    "slurmstepd: error: *** JOB {job} ON {node} CANCELLED AT 2026-11-20T09:14:02 ***"))  # fmt: skip
COMPLETED: Final = Kind("completed", 0.0, "neither", state="completed", reason=None, exit_code=0)


@dataclass(frozen=True, slots=True)
class Line:
    """A telling line as the agent sends it; ``rank`` is the one that printed it, ``at`` seconds on the fleet's axis."""

    at: float
    rank: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """One end: how, and the rank on which it began."""

    kind: Kind
    rank: int
    read: bool


def end(seed: int, job: Job, hardware_share: float = 0.0) -> End:
    """How this job ends. ``hardware_share`` of those that fail do so by a machine, beside the plan's faults."""
    draw = uniform(seed, _STREAM, np.arange(4), np.full(4, job.number * 16 + job.requeues))
    return End(_kind(job, draw, hardware_share), int(draw[2] * len(job.gpus)), bool(draw[3] < _READ))


def _kind(job: Job, draw: np.ndarray[tuple[int], np.dtype[np.float64]], hardware_share: float) -> Kind:
    if job.state != "failed":
        return {"node_fail": LOST, "cancelled": CANCELLED}.get(job.state, COMPLETED)
    among = HARDWARE if draw[0] < hardware_share else APPLICATION
    reached = np.cumsum([kind.share for kind in among])
    return among[min(int(np.searchsorted(reached, draw[1])), len(among) - 1)]


def lines(seed: int, job: Job, ended: End, node_names: list[str], per_node: int) -> Iterator[Line]:
    """Telling lines of the job's output, the first cause's first; nothing where no agent reads it."""
    if not ended.read:
        return
    ranks = len(job.gpus)
    few = [r for r in range(ranks) if r != ended.rank][:: max(1, ranks // 6)]
    late = uniform(seed, _STREAM + 1, np.arange(ranks), np.full(ranks, job.number))
    for rank, text in ((ended.rank, ended.kind.output), *((r, ended.kind.others) for r in few)):
        first = rank == ended.rank
        wrote = job.end - (4.0 if first else 2.0)
        reader = Telling()
        for line in text.format(
            rank=rank, local=job.gpus[rank] % per_node, job=job.number, node=node_names[job.gpus[rank] // per_node],
            pid=4000 + job.number % 60_000, shard=job.number % 4096,
        ).splitlines():  # fmt: skip
            kind = reader.of(line)
            if kind is not None:
                yield Line(wrote + _READ_EVERY_S * float(late[rank]), rank, kind, redact(line))
