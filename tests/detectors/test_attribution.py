"""Was it the code or the machine? Ends of jobs in the shapes that schedulers, kernels and libraries give them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from finding_rows import PCI, T0, UUID, at, event
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.detectors.attribution import Case, Judgement, judge
from graynode.detectors.attribution_hang import standing
from graynode.detectors.attribution_job import placements
from graynode.detectors.attribution_rows import UNEXPLAINED, changed, findings, identity, row
from graynode.detectors.incidents import Incidents
from graynode.detectors.policy import shipped
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.schema import CAUSES, OWNERS, TABLES, VERDICTS

END = 3600.0
"""The job ends an hour after the beginning of the tests' time."""
WATCHDOG = (
    "[rank{r}]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran "
    "for 600060 milliseconds before timing out."
)
ECC_LINE = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
CUDA_OOM = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.10 GiB total capacity)"
)
RETRY_LINE = (
    "node7:534:1763 [3] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<51234> with status=12 opcode=0 len=0 "
    "vendor err 129"
)
OTHER_PCI = "0000:4e:00.0"


def frame(table: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows in the contract's columns and types."""
    return pl.DataFrame(list(rows), schema=frame_schema(table), orient="row")


def job(state: str | None = "failed", nodes: int = 4, job_id: str = "7", end: float = END, **more: Any) -> pl.DataFrame:
    """A job on machines n1 … as the scheduler tells it: running from the start, ended at ``end``."""
    same = {"cluster": "test", "job_id": job_id, "user": "ada", "nodes": nodes, "work": "training", "requeues": 0}
    rows = []
    for n in range(1, nodes + 1):
        who = {"node_id": f"n{n}", "node": f"gpu-{n:02d}"}
        rows.append({**same, **who, "ts": at(0), "state": "running", "allocated_ts": at(0)})
        if state is not None:
            rows.append({**same, **who, "ts": at(end), "state": state, "end_ts": at(end), **more})
    return frame("job", rows)


def log(*lines: tuple[float, str, str], job_id: str = "7", rank: int | None = 0) -> pl.DataFrame:
    """Lines (seconds, kind, text) of the job's output."""
    who = {"cluster": "test", "node_id": "head", "node": "head", "job_id": job_id, "rank": rank}
    return frame("job_log", [{**who, "ts": at(s), "kind": kind, "line": line} for s, kind, line in lines])


def watchdogs(seconds: float, ranks: Sequence[int]) -> pl.DataFrame:
    """The watchdog's line of each of these ranks."""
    return pl.concat([log((seconds, "nccl", WATCHDOG.format(r=r)), rank=r) for r in ranks])


def events(*rows: dict[str, Any]) -> pl.DataFrame:
    return frame("event", rows)


def on(node: int, seconds: float, code: int, pci: str = PCI, **more: Any) -> dict[str, Any]:
    """An Xid line of that machine."""
    return event(seconds, code=code, node_id=f"n{node}", node=f"gpu-{node:02d}", pci_bus_id=pci, **more)


def judged(rows: pl.DataFrame | None = None, *, now: float = END + 600, **known: Any) -> Judgement:
    return judge(Case(placements(job() if rows is None else rows)[-1], at(now), **known))


def said(answer: Judgement) -> tuple[str, str, str | None]:
    return answer.verdict, answer.kind, answer.confidence


# --- scenarios -----------------------------------------------------------------------------------------------

LOST = events(on(2, END - 40, 79))
XID31 = events(on(2, END - 3, 31))
HARD = [
    (79, "gpu"), (48, "memory"), (64, "memory"), (94, "memory"), (95, "memory"), (140, "memory"), (74, "nvlink"),
    (145, "nvlink"), (149, "nvlink"), (119, "driver"), (120, "driver"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "kind"), HARD)
def test_row_51_xids_of_hardware_become_typed_failures_of_the_infrastructure(code: int, kind: str) -> None:
    """Each by the policy's own cause: lost, uncorrectable memory, NVLink, GSP; the GPU and its machine are named."""
    answer = judged(events=events(on(3, END - 20, code)))
    assert said(answer) == ("infrastructure", kind, "high")
    assert answer.first is not None
    assert (answer.first.node_id, answer.first.pci_bus_id, answer.detail) == ("n3", PCI, f"xid_{code}")


@pytest.mark.parametrize("code", [13, 31, 8, 69])
def test_row_51_xids_of_programs_are_the_applications(code: int) -> None:
    """13 and 31 are usually the program's: no machine is blamed, none is in doubt."""
    answer = judged(events=events(on(3, END - 3, code), on(3, END - 2, 43), on(3, END - 2, 45)))
    assert said(answer) == ("application", "program", "medium")
    assert findings(answer) == []


@pytest.mark.parametrize("code", [43, 45])
def test_xids_that_follow_any_end_name_nobody(code: int) -> None:
    """Alone they say that a process ended; the driver cleaned up after it."""
    answer = judged(events=events(on(3, END - 1, code)))
    assert answer.verdict == "unknown"
    assert [c.role for c in answer.clues] == ["teardown"]


def test_row_51_what_the_launcher_says_itself_goes_before_a_programs_xid() -> None:
    """An Xid 31 beside a reason of the scheduler's own: the reason is the kind."""
    answer = judged(job("failed", reason="OUT_OF_MEMORY"), events=events(on(3, END - 3, 31)))
    assert said(answer) == ("application", "resources", "high")
    assert answer.detail == "host_out_of_memory"


def test_row_51_an_sxid_is_no_xid() -> None:
    """SXid 31 is not a page fault of a program; its line's severity decides."""
    switch = {"kind": "sxid", "code": 31, "node_id": "n1", "gpu_uuid": None, "pci_bus_id": "0000:c1:00.0"}
    fatal = event(END - 9, attributes={"severity": "fatal"}, **switch)
    assert said(judged(events=events(fatal))) == ("infrastructure", "nvlink", "high")
    mild = event(END - 9, attributes={"severity": "non-fatal"}, **switch)
    assert judged(events=events(mild)).verdict == "unknown"


SPLIT = [
    (job("cancelled"), {}, "neither", "cancelled"),
    (job("timeout"), {}, "neither", "time_limit"),
    (job("completed"), {}, "neither", "completed"),
    (job("cancelled", reason="PREEMPTED"), {}, "scheduler", "preempted"),
    (job("cancelled", reason="PreemptionByScheduler"), {}, "scheduler", "preempted"),
    (job("failed", reason="OOMKilled"), {}, "application", "resources"),
    (job("node_fail"), {}, "infrastructure", "node"),
    (job("failed"), {"log": log((END, "signal", "slurmstepd: error: *** STEP 7.0 CANCELLED DUE TO NODE FAILURE"))},
     "infrastructure", "node"),
    (job("failed"), {"log": log((END, "traceback", "AssertionError: expected 3 stages"))}, "application", "code"),
    (job("failed"), {"log": log((END, "nccl", "ncclInvalidUsage: mismatch between collectives on ranks 3 and 5"))},
     "application", "code"),
    (job("failed"), {"events": LOST}, "infrastructure", "gpu"),
    (job("failed"), {}, "unknown", "no_evidence"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "known", "verdict", "kind"), SPLIT)
def test_row_52_user_system_scheduler_and_unknown_are_kept_apart(
    rows: pl.DataFrame, known: dict[str, Any], verdict: str, kind: str
) -> None:
    """One word of a closed list, and a kind under it: what a person, a queue and a machine did are not mixed."""
    answer = judged(rows, **known)
    assert (answer.verdict, answer.kind) == (verdict, kind)
    told = row(answer, at(END + 900))
    assert told["verdict"] in VERDICTS
    assert told["owner"] in OWNERS
    assert set(told) <= set(TABLES["attribution"].names)
    frame("attribution", [told])


def test_row_53_a_segmentation_fault_beside_an_ecc_error_is_the_machines() -> None:
    """The program only shows that it crashed; the kernel says why."""
    crash = log((END - 1, "signal", "[node2:4711] *** Process received signal *** Signal: Segmentation fault (11)"))
    answer = judged(job("failed", exit_signal=11), log=crash, events=events(on(2, END - 8, 95)))
    assert said(answer) == ("infrastructure", "memory", "high")
    assert judged(job("failed", exit_signal=11), log=crash).verdict == "unknown"


@pytest.mark.parametrize("code", [1, 2, 134, 137, 139, 255])
def test_row_54_an_exit_code_alone_tells_nothing(code: int) -> None:
    """It is said so, and the machines are in doubt: relaunching on them is somebody's decision, not a guess of ours."""
    answer = judged(job("failed", exit_code=code))
    assert (answer.verdict, answer.detail) == ("unknown", "exit_code_only")
    assert any("alone tells nothing" in note for note in answer.notes)


def test_row_54_of_two_ends_of_a_link_neither_is_picked() -> None:
    """Xid 74 on two GPUs at once: the verdict stands, both are named, and the text sends a person to both ends."""
    answer = judged(events=events(on(2, END - 20, 74), on(2, END - 19.5, 74, OTHER_PCI)))
    assert answer.verdict == "infrastructure"
    assert {c.pci_bus_id for c in answer.clues if c.role == "initiating"} == {PCI, OTHER_PCI}
    assert len(findings(answer)) == 1  # one machine


CODE, DATA, RESOURCES = [("application", kind, "high") for kind in ("code", "data", "resources")]
STORAGE, NOBODY = ("infrastructure", "storage", "medium"), ("unknown", "collective_timeout", None)
LINES = [
    ("traceback", "ModuleNotFoundError: No module named 'flash_attn'", CODE),
    ("traceback", "[rank3]: ValueError: optimizer got an empty parameter list", CODE),
    ("traceback", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x768 and 1024x768)", CODE),
    ("traceback", "3: KeyError: 'input_ids'", CODE),
    ("traceback", "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-0017.tar'", DATA),
    ("traceback", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", DATA),
    ("traceback", "OSError: [Errno 28] No space left on device", RESOURCES),
    ("traceback", "OSError: [Errno 5] Input/output error: '/mnt/data/shard-0017.tar'", STORAGE),
    ("traceback", "OSError: [Errno 116] Stale file handle: '/mnt/ckpt/latest'", STORAGE),
    ("oom", CUDA_OOM, RESOURCES),
    ("oom", "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
     RESOURCES),
    ("nan", "step 1200 loss: nan grad_norm: nan", ("application", "data", "medium")),
    ("cuda", "RuntimeError: CUDA error: device-side assert triggered", CODE),
    ("cuda", ILLEGAL, ("application", "program", "medium")),
    ("cuda", ECC_LINE, ("infrastructure", "memory", "medium")),
    ("cuda", "RuntimeError: CUDA error: unspecified launch failure", ("unknown", "unclear_error", None)),
    ("nccl", WATCHDOG.format(r=0), NOBODY),
    ("nccl", RETRY_LINE, NOBODY),
    ("signal", "torch.distributed.elastic: exitcode : -15", ("unknown", "no_evidence", None)),
    ("traceback", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, remote process exited",
     NOBODY),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "line", "answer"), LINES)
def test_a_line_of_the_log_says_what_it_can_and_no_more(kind: str, line: str, answer: tuple[str | None, ...]) -> None:
    """Code, data and resources where the line shows them; what only says that a peer is gone stays unknown."""
    assert said(judged(log=log((END, kind, line)))) == answer


# --- what began it, and what followed -------------------------------------------------------------------------


def test_the_first_cause_in_time_begins_it_and_the_rest_is_cascade() -> None:
    """GPU lost on n2; then programs die everywhere, watchdogs speak, the driver cleans up: one cause, told in order."""
    seen = events(
        on(2, END - 40, 79), *(on(n, END - 5, 43) for n in (1, 3, 4)), *(on(n, END - 4, 45) for n in (1, 3, 4)),
        on(3, END - 6, 31),
    )  # fmt: skip
    lines = pl.concat([watchdogs(END - 2, range(24)), log((END - 1, "cuda", "CUDA error: unspecified launch failure"))])
    answer = judged(events=seen, log=lines)
    assert said(answer) == ("infrastructure", "gpu", "high")
    roles = {(c.node_id, c.detail): c.role for c in answer.clues}
    assert roles["n2", "xid_79"] == "initiating"
    assert roles["n3", "xid_31"] == roles[None, "collective_timeout"] == "cascade"
    assert roles["n1", "xid_43"] == roles["n4", "xid_45"] == "teardown"
    assert [c.at for c in answer.clues] == sorted(c.at for c in answer.clues)
    assert sum(r == "initiating" for r in roles.values()) == 1


def test_a_program_that_had_ended_itself_before_is_not_the_machines() -> None:
    """An assertion a minute before a GPU is lost: the program, less sure, and the GPU is said beside it."""
    answer = judged(log=log((END - 60, "traceback", "AssertionError: bad config")), events=events(on(2, END - 5, 79)))
    assert said(answer) == ("application", "code", "medium")
    assert findings(answer) == []
    assert any("trouble too" in note for note in answer.notes)


def test_what_came_at_once_is_said_to_have_come_at_once() -> None:
    """Logs are read every ten seconds: eight seconds do not tell which was first, and the confidence says so."""
    answer = judged(log=log((END - 12, "traceback", "AssertionError: bad config")), events=events(on(2, END - 20, 79)))
    assert said(answer) == ("infrastructure", "gpu", "medium")
    assert findings(answer) == []


def test_a_machines_lesser_trouble_does_not_excuse_a_programs_own_error() -> None:
    """A PCIe error that can end a job, minutes before a KeyError: the error explains itself, the machine is noted."""
    aer = event(END - 300, kind="aer", node_id="n2", attributes={"severity": "nonfatal", "type": "Transaction Layer"})
    both = judged(events=events(aer), log=log((END, "traceback", "KeyError: 'input_ids'")))
    assert said(both) == ("application", "code", "medium")
    assert any("trouble too" in note for note in both.notes)
    assert said(judged(events=events(aer))) == ("infrastructure", "pcie", "medium")
    assert findings(judged(events=events(aer))) == []


@pytest.mark.parametrize(
    ("rows", "verdict"), [(job("completed"), "neither"), (job("cancelled", reason="PREEMPTED"), "scheduler")]
)
def test_a_job_that_went_well_or_was_preempted_fell_to_no_machine(rows: pl.DataFrame, verdict: str) -> None:
    """A GPU lost in its last minutes is the next job's trouble."""
    assert judged(rows, events=LOST).verdict == verdict


def test_a_requeue_for_a_lost_node_is_the_nodes() -> None:
    """Slurm puts the job back and says why in its reason."""
    answer = judged(job("requeued", reason="NODE_FAIL"))
    assert said(answer) == ("infrastructure", "node", "medium")


def test_a_line_of_a_rank_is_placed_where_the_rank_ran() -> None:
    """The output was read on the head node; the windows say that rank 9 had this GPU of n2."""
    gpus = frame("gpu_30s", [{"ts": at(END - 60), "cluster": "test", "node_id": "n2", "boot_id": "b1", "gpu_uuid": UUID,
                              "pci_bus_id_last": PCI, "job_id_last": "7", "job_rank_last": 9}])  # fmt: skip
    answer = judged(log=log((END, "cuda", ECC_LINE), rank=9), gpus=gpus)
    assert answer.first is not None
    assert (answer.verdict, answer.first.node_id, answer.first.gpu_uuid) == ("infrastructure", "n2", UUID)
    both = judged(log=log((END, "cuda", ECC_LINE), rank=9), gpus=gpus, events=events(on(2, END - 4, 94)))
    assert said(both) == ("infrastructure", "memory", "high")


def test_a_kernels_oom_kill_is_surer_with_the_jobs_own_word() -> None:
    """The kernel's line does not say whose process it was; the scheduler's does."""
    killed = events(event(END - 5, kind="oom_kill", node_id="n2", attributes={"scope": "cgroup"}))
    assert said(judged(events=killed)) == ("application", "resources", "medium")
    assert said(judged(job("failed", reason="OUT_OF_MEMORY"), events=killed)) == ("application", "resources", "high")


def test_a_job_that_waits_has_not_begun() -> None:
    """Only queued: no machine, no end, nothing to put down to anybody."""
    waits = {"cluster": "test", "job_id": "7", "node_id": "slurm:c1", "ts": at(0), "state": "queued", "requeues": 0}
    answer = judged(frame("job", [waits]))
    assert (answer.verdict, answer.kind) == ("neither", "waiting")
    assert "has not begun" in row(answer, at(60))["message"]


def test_events_without_an_id_are_each_one() -> None:
    """Imports may lack them."""
    bare = [on(n, END - 20 + n, 95) | {"event_id": None} for n in (1, 2)]
    assert len(judged(events=events(*bare)).clues) == 2


def test_an_end_that_no_scheduler_told_puts_nobody_in_doubt() -> None:
    """An agent sees a job go, well or not."""
    answer = judged(
        job(None, nodes=2).vstack(
            job("x", nodes=2).filter(pl.col("end_ts").is_not_null()).with_columns(state=pl.lit(None, pl.String))
        )
    )
    assert (answer.verdict, answer.kind) == ("neither", "end_untold")
    assert findings(answer) == []


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [(-601, "unknown"), (-599, "infrastructure"), (299, "infrastructure"), (301, "unknown")],
)
def test_the_window_is_ten_minutes_before_to_five_after(seconds: float, verdict: str) -> None:
    """What lies outside is another story; after the end it is less sure."""
    answer = judged(events=events(on(2, END + seconds, 79)))
    assert answer.verdict == verdict
    assert answer.confidence == {-599: "high", 299: "medium"}.get(int(seconds))


def test_a_collective_that_waited_ten_minutes_began_to_wait_before_the_window() -> None:
    """The watchdog says how long it had waited: the port that died then is the cause, 11 minutes before the end."""
    port = event(END - 640, kind="link_down", node_id="n4", node="gpu-04", link="mlx5_3/1", source="infiniband")
    lines = watchdogs(END - 2, range(8))
    from graynode.detectors.attribution_log import waited_since

    began = waited_since(lines)
    placed = placements(job())[-1].standing_since(began)
    answer = judge(Case(placed, at(END + 600), events=events(port), log=lines))
    assert said(answer) == ("infrastructure", "network", "high")
    assert answer.first is not None
    assert answer.first.link == "mlx5_3/1"


@pytest.mark.parametrize(
    ("outage_s", "answer"),
    [(3, ("unknown", "collective_timeout", None)), (9, ("infrastructure", "network", "medium")),
     (31, ("infrastructure", "network", "high"))],
)  # fmt: skip
def test_one_contiguous_outage_of_a_port_is_judged_by_its_length(outage_s: float, answer: Any) -> None:
    """7.5 s end a collective of older NCCL, 30 s any; less does not."""
    down = event(END - 60, kind="link_down", node_id="n4", link="mlx5_3/1", source="infiniband")
    up = event(END - 60 + outage_s, kind="link_up", node_id="n4", link="mlx5_3/1", source="infiniband")
    assert said(judged(events=events(down, up), log=watchdogs(END, range(8)))) == answer


def test_lines_of_two_sources_and_of_a_flood_are_one_clue() -> None:
    """Kernel log and NVML tell of one Xid; a GPU that prints it a thousand times has had one fault."""
    flood = [on(2, END - 40 + i / 300, 95) for i in range(1000)]
    by_nvml = event(END - 39, code=95, node_id="n2", source="nvml", gpu_uuid=UUID, raw=None)
    answer = judged(events=events(*flood, by_nvml))
    (clue,) = answer.clues
    assert (clue.count, clue.source, clue.gpu_uuid) == (1000, "kernel_log + nvml", UUID)


def test_a_clock_that_is_known_to_be_ahead_is_put_right() -> None:
    """n2's clock is 30 s ahead; by the bus's clock its GPU went before the others. Its own time stays beside it."""
    hosts = frame("host_30s", [
        {"ts": at(END - 600 + 30 * w), "cluster": "test", "node_id": f"n{n}", "boot_id": "b1",
         "clock_skew_s_mean": 30.0 if n == 2 else 0.0}
        for w in range(20) for n in (1, 2, 3, 4)
    ])  # fmt: skip
    seen = events(on(2, END + 5, 79), on(3, END - 10, 119))
    answer = judged(events=seen, hosts=hosts)
    assert answer.first is not None
    assert (answer.first.node_id, answer.first.at, answer.first.ts) == ("n2", at(END - 25), at(END + 5))
    assert judged(events=seen).first.node_id == "n3"  # type: ignore[union-attr]


def test_trouble_after_which_the_job_went_on_did_not_end_it() -> None:
    """A port flapped nine minutes before; steps were taken until the end: something else."""
    seen = events(on(2, END - 540, 119))
    assert judged(events=seen).verdict == "infrastructure"
    assert judged(events=seen, last_step=at(END - 5)).verdict == "unknown"


def test_gpus_that_the_job_did_not_have() -> None:
    """A neighbour's program is nothing to it, a neighbour's broken GPU is context."""
    rows = job(gpu_uuids=json.dumps(["GPU-mine"]))
    theirs = events(on(2, END - 3, 31, gpu_uuid="GPU-theirs"))
    assert judged(rows, events=theirs).clues == ()
    broken = judged(rows, events=events(on(2, END - 3, 79, gpu_uuid="GPU-theirs")))
    assert broken.verdict == "unknown"
    assert [c.role for c in broken.clues] == ["context"]
    assert broken.suspects[0] == "n2"


def test_a_machine_that_restarted_and_one_that_fell_silent() -> None:
    """Another boot id before the end is a restart; with the scheduler's word, silence names the node."""

    def hosts(last: float, boots: Sequence[str]) -> pl.DataFrame:
        rows = [
            {"ts": at(30 * w), "cluster": "test", "node_id": f"n{n}", "node": f"gpu-{n:02d}", "boot_id": "b1"}
            for w in range(int((END + 120) / 30)) for n in (1, 3, 4)
        ]  # fmt: skip
        rows += [
            {"ts": at(30 * w), "cluster": "test", "node_id": "n2", "node": "gpu-02", "boot_id": boots[0]}
            for w in range(int(last / 30))
        ]
        rows += [{"ts": at(END + 60), "cluster": "test", "node_id": "n2", "boot_id": b} for b in boots[1:]]
        return frame("host_30s", rows)

    restarted = judged(hosts=hosts(END - 200, ["b1", "b2"]))
    assert said(restarted) == ("infrastructure", "node", "high")
    assert restarted.detail == "machine_restarted"
    silent = judged(job("node_fail"), hosts=hosts(END - 200, ["b1"]))
    assert said(silent) == ("infrastructure", "node", "high")
    assert silent.first is not None
    assert silent.first.node_id == "n2"
    alone = judged(job("failed"), hosts=hosts(END - 200, ["b1"]))
    assert alone.verdict == "unknown"
    assert alone.suspects[0] == "n2"


def test_many_machines_at_once_share_something() -> None:
    """Six nodes whose storage hangs: no machine is blamed on its own."""
    mount = {"about": "/data", "type": "nfs4", "source": "fs:/data"}
    hung = [
        event(END - 100 + n, kind="mount_hung", node_id=f"n{n}", source="services", attributes=mount)
        for n in range(1, 7)
    ]
    answer = judged(job(nodes=6), events=events(*hung))
    assert (answer.verdict, answer.kind) == ("infrastructure", "storage")
    assert answer.confidence == "medium"
    assert findings(answer) == []


# --- elsewhere ------------------------------------------------------------------------------------------------


def history(*jobs: tuple[str, str]) -> pl.DataFrame:
    where = {"node_id": "n2", "pci_bus_id": PCI, "gpu_uuid": None, "code": 31}
    rows = [{**where, "ts": at(END - 9e5 + n), "job_id": j, "user": u} for n, (j, u) in enumerate(jobs)]
    names = ("node_id", "pci_bus_id", "gpu_uuid", "job_id", "user")
    return pl.DataFrame(
        rows, schema={"ts": pl.Datetime("us", "UTC"), "code": pl.Int32} | dict.fromkeys(names, pl.String)
    )


def test_a_programs_xid_that_stays_on_one_gpu_under_other_users_is_the_gpus() -> None:
    """Three jobs of three users: in doubt, a finding for the digest. Two runs of one user are one program run twice."""
    answer = judged(events=XID31, history=history(("5", "bob"), ("6", "eve")))
    assert said(answer) == ("infrastructure", "gpu", "medium")
    (found,) = findings(answer)
    assert (found["severity"], found["cause"], found["node_id"]) == ("digest", "unusual", "n2")
    own = judged(events=XID31, history=history(("5", "ada"), ("6", "ada")))
    assert own.verdict == "application"
    assert any("watch this GPU" in note for note in own.notes)
    also = history(("5", "bob"), ("6", "eve")).vstack(history(("5", "bob")).with_columns(node_id=pl.lit("n9")))
    assert judged(events=XID31, history=also).verdict == "application", "job 5 had one on another GPU too"
    spread = events(on(2, END - 3, 31), on(3, END - 3, 31))
    assert judged(events=spread, history=history(("5", "bob"), ("6", "eve"))).verdict == "application"


def test_the_same_image_that_ran_clean_elsewhere_is_said_and_weakens_a_doubtful_bug() -> None:
    """Only runs of this very image and revision that shared no machine with the job count."""
    rows = job(image_digest="sha256:abc", code_revision="r1")
    runs = pl.DataFrame(
        [("8", "n9", "completed", "sha256:abc", "r1"), ("9", "n2", "completed", "sha256:abc", "r1"),
         ("10", "n8", "completed", "sha256:abc", "r2"), ("11", "n8", "completed", "sha256:xyz", "r1")],
        schema=["job_id", "node_id", "state", "image_digest", "code_revision"], orient="row",
    )  # fmt: skip
    answer = judged(rows, log=log((END, "cuda", ILLEGAL)), same_image=runs)
    assert answer.elsewhere.clean == ("8",)
    assert said(answer) == ("application", "program", "low")
    sure = judged(rows, log=log((END, "oom", CUDA_OOM)), same_image=runs)
    assert sure.confidence == "high"


def test_other_jobs_that_failed_on_a_node_put_it_first_among_the_suspects() -> None:
    """Of an unknown end all machines are in doubt; the one where others failed too is looked at first."""
    others = pl.DataFrame(
        [("20", "n3", "failed", "bob"), ("21", "n3", "node_fail", "eve"), ("22", "n1", "completed", "eve")],
        schema=["job_id", "node_id", "state", "user"], orient="row",
    )  # fmt: skip
    answer = judged(log=watchdogs(END, range(8)), others=others)
    assert answer.suspects == ("n3", "n1", "n2", "n4")
    assert answer.elsewhere.failed_here == {"n3": 2}


def test_the_rank_that_said_nothing_is_named() -> None:
    """31 of 32 watchdogs spoke: the one they waited for often cannot."""
    answer = judged(job(ranks=32), log=watchdogs(END, [r for r in range(32) if r != 13]))
    assert answer.verdict == "unknown"
    assert any("silent: 13:" in note for note in answer.notes)


# --- hung jobs ------------------------------------------------------------------------------------------------


def steps(until: float, ranks: int = 8, behind: int | None = None) -> pl.DataFrame:
    rows = [
        {"ts": at(10 * i), "cluster": "test", "node_id": "n1", "job_id": "7", "rank": r, "step": i, "seconds": 10.0}
        for i in range(int(until / 10)) for r in range(ranks) if not (r == behind and i == int(until / 10) - 1)
    ]  # fmt: skip
    return frame("step", rows)


def test_a_job_without_a_step_for_ten_minutes_stands_still_since_its_last() -> None:
    """Not sooner, for a checkpoint takes a while; the rank a step behind is named."""
    assert standing(steps(1200), pl.DataFrame(), at(1700)) is None
    found = standing(steps(1200, behind=5), pl.DataFrame(), at(1900))
    assert found is not None
    assert (found.since, found.behind) == (at(1190), (5,))


def windows(power: Sequence[float], util: float = 100.0) -> pl.DataFrame:
    return frame("gpu_30s", [
        {"ts": at(30 * w), "cluster": "test", "node_id": "n1", "gpu_uuid": f"GPU-{g}", "gpu_util_percent_mean": util,
         "power_w_mean": p + g} for w, p in enumerate(power) for g in range(4)
    ])  # fmt: skip


def test_gpus_that_spin_stand_still_and_gpus_that_idle_may_wait_for_data() -> None:
    """Busy at 40 % of the usual power for ten minutes is a hang; idle, or a job that always drew little, is none."""
    hang = [600.0] * 40 + [240.0] * 21
    found = standing(pl.DataFrame(), windows(hang), at(30 * 61))
    assert found is not None
    assert found.since == at(30 * 40)
    assert standing(pl.DataFrame(), windows(hang, util=20.0), at(30 * 61)) is None
    assert standing(pl.DataFrame(), windows([240.0] * 61), at(30 * 61)) is None
    assert standing(pl.DataFrame(), windows([600.0] * 40 + [240.0] * 10), at(30 * 50)) is None
    assert standing(pl.DataFrame(), windows([600.0] * 61), at(30 * 61)) is None


def test_a_hung_job_is_judged_while_it_runs_and_when_its_time_is_up() -> None:
    """The cause is looked for where it stopped, hours before the scheduler ended it."""
    still = standing(steps(1200), pl.DataFrame(), at(2000))
    running = judge(Case(placements(job(None))[-1], at(2000), standing=still))
    assert (running.verdict, running.kind) == ("unknown", "hang")
    assert row(running, at(2000))["phase"] == "hung"
    seen = events(on(2, 1185, 119))
    late = job("timeout", end=3 * 3600)
    ended = judge(Case(placements(late)[-1], at(3 * 3600 + 400), standing=still, events=seen, last_step=at(1190)))
    assert said(ended) == ("infrastructure", "driver", "high")
    assert judge(Case(placements(late)[-1], at(3 * 3600 + 400), standing=still)).verdict == "unknown"
    healthy = judge(Case(placements(job(None))[-1], at(2000)))
    assert (healthy.verdict, healthy.kind) == ("neither", "running")


# --- rows, findings, incidents --------------------------------------------------------------------------------


def test_sure_hardware_is_a_finding_that_joins_the_machines_incident() -> None:
    """The same cause and machine as the kernel line's own: one incident, which now names the job. Twice is once."""
    from graynode.detectors.event_rules import from_events

    incidents = Incidents("test")
    (opened,) = incidents.add(from_events(LOST), at(END))
    answer = judged(events=LOST)
    (found,) = findings(answer)
    assert found["cause"] in CAUSES
    frame("finding", [found])
    (joined,) = incidents.add([found], at(END + 100))
    assert joined["incident_id"] == opened["incident_id"]
    assert "job 7 ended by it" in joined["evidence"]
    assert incidents.add(findings(judged(events=LOST, now=END + 5000)), at(END + 5000)) == []


def test_incidents_that_were_open_on_its_machines_are_shown_and_decide_nothing() -> None:
    """Known trouble puts a machine first among the suspects; what was over before, or is another's, is left out."""
    slow = {"cluster": "test", "cause": "slow_gpu", "severity": "ticket", "title": "gpu-03: slow GPU", "revision": 0}
    known = frame("incident", [
        {**slow, "ts": at(-9000), "incident_id": "aaaaaaaa-1", "node_id": "n3", "since": at(-9000)},
        {**slow, "ts": at(-9000), "incident_id": "bbbbbbbb-1", "node_id": "n4", "since": at(-9000)},
        {**slow, "ts": at(0), "incident_id": "bbbbbbbb-1", "node_id": "n4", "since": at(-9000), "revision": 1,
         "resolved_ts": at(0)},
        {**slow, "ts": at(-9000), "incident_id": "cccccccc-1", "node_id": "n99", "since": at(-9000)},
    ])  # fmt: skip
    answer = judged(incidents=known)
    (clue,) = answer.clues
    assert (answer.verdict, clue.role, clue.node_id) == ("unknown", "context", "n3")
    assert clue.message == "incident aaaaaaaa: gpu-03: slow GPU, known since 2026-11-30 09:30 UTC"
    assert answer.suspects[0] == "n3"


def test_an_unknown_end_leaves_every_machine_in_doubt_and_tells_nobody() -> None:
    """One digest finding a machine, stable ids; no incident opens on it."""
    answer = judged(log=watchdogs(END, range(8)))
    found = findings(answer)
    assert {f["node_id"] for f in found} == {"n1", "n2", "n3", "n4"}
    assert {(f["severity"], f["signal"]) for f in found} == {("digest", UNEXPLAINED)}
    assert Incidents("test").add(found, at(END + 60)) == []
    later = findings(judged(log=watchdogs(END, range(8)), now=END + 9e5))
    assert [f["finding_id"] for f in found] == [f["finding_id"] for f in later]


def test_a_requeued_job_has_an_attempt_for_each_placement() -> None:
    """The row that says requeued ends the attempt before; each is judged by its own end and nodes."""
    n1, n2 = ({"node_id": f"n{n}", "node": f"gpu-0{n}"} for n in (1, 2))
    told = [
        {"ts": at(0), "state": "running", "allocated_ts": at(0), "requeues": 0, **n1},
        {"ts": at(900), "state": "requeued", "end_ts": at(900), "requeues": 1, **n1},
        {"ts": at(901), "state": "queued", "requeues": 1, "node_id": "slurm:c1"},
        {"ts": at(950), "state": "running", "allocated_ts": at(950), "requeues": 1, **n2},
        {"ts": at(END), "state": "failed", "end_ts": at(END), "requeues": 1, **n2},
    ]
    one, two = placements(frame("job", [{"cluster": "test", "job_id": "7", **r} for r in told]))
    assert (one.attempt, one.end, list(one.machines)) == (0, at(900), ["n1"])
    assert (two.attempt, two.start, two.end, list(two.machines)) == (1, at(950), at(END), ["n2"])
    answers = [judge(Case(p, at(END + 600), events=events(on(1, 880, 79)))) for p in (one, two)]
    assert [a.verdict for a in answers] == ["infrastructure", "unknown"]
    assert identity(one) != identity(two)
    quiet = judge(Case(one, at(END)))
    assert (quiet.verdict, quiet.kind) == ("scheduler", "requeued")


def test_nodes_that_only_the_scheduler_names() -> None:
    """No machine claims the NodeName: events are found by the name."""
    same = {"cluster": "test", "job_id": "7", "nodes": 2, "requeues": 0}
    changes = ((0, "running", {"allocated_ts": at(0)}), (END, "failed", {"end_ts": at(END)}))
    rows = [
        {**same, "node_id": f"slurm:c1/gpu-0{n}", "node": f"gpu-0{n}", "ts": at(s), "state": state, **more}
        for n in (1, 2)
        for s, state, more in changes
    ]
    answer = judged(frame("job", rows), events=LOST)
    assert said(answer) == ("infrastructure", "gpu", "high")


# --- promises -------------------------------------------------------------------------------------------------

WHOLE = {
    "events": events(
        on(2, END - 40, 79), on(3, END - 5, 43), on(1, END - 6, 31), on(4, END - 40, 79, OTHER_PCI),
        on(2, END - 39, 79), event(END - 60, kind="link_down", node_id="n4", link="mlx5_3/1", source="infiniband"),
        event(END - 30, kind="link_up", node_id="n4", link="mlx5_3/1", source="infiniband"),
    ),
    "log": pl.concat([watchdogs(END - 2, range(8)), log((END - 1, "cuda", ECC_LINE), (END - 1, "cuda", ILLEGAL))]),
}  # fmt: skip


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    """Any order of any frame, and every row twice, give the same row of the table."""
    rng = random.Random(seed)

    def mixed(rows: pl.DataFrame, *, twice: bool) -> pl.DataFrame:
        order = list(range(rows.height)) * (2 if twice else 1)
        rng.shuffle(order)
        return rows[order]

    expected = row(judged(**WHOLE), at(END + 700))
    again = row(
        judged(mixed(job(), twice=True), **{name: mixed(rows, twice=True) for name, rows in WHOLE.items()}),
        at(END + 700),
    )
    assert again == expected


@given(st.lists(st.tuples(st.integers(-500, 250), st.sampled_from([79, 31, 95, 45])), max_size=12), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_what_happens_to_others_does_not_matter(theirs: list[tuple[int, int]], seed: int) -> None:
    """Events of other machines and clusters, and lines of other jobs, change nothing."""
    alien = [on(90 + i % 5, END + s, code) for i, (s, code) in enumerate(theirs)]
    alien += [on(2, END + s, code) | {"cluster": "other"} for s, code in theirs]
    lines = log(*((END + s, "oom", CUDA_OOM) for s, _ in theirs), job_id="8")
    noisy = {
        "events": pl.concat([WHOLE["events"], events(*alien)]).sample(fraction=1, shuffle=True, seed=seed),
        "log": pl.concat([lines, WHOLE["log"]]),
    }
    assert row(judged(**noisy), at(END + 700)) == row(judged(**WHOLE), at(END + 700))


def test_nothing_at_all_is_unknown_with_what_was_missing() -> None:
    """No table at all: an answer, not an error."""
    answer = judged(missing=("job_log: no line of this job",))
    assert (answer.verdict, answer.missing) == ("unknown", ("job_log: no line of this job",))
    assert json.loads(row(answer, at(END))["missing"]) == ["job_log: no line of this job"]


@pytest.mark.parametrize(
    "name", ["events", "log", "findings", "incidents", "states", "gpus", "hosts", "history", "same_image", "others"]
)
def test_frames_without_their_columns_are_as_good_as_absent(name: str) -> None:
    """Another table, or an older contract, in the place of a frame."""
    assert judged(**{name: pl.DataFrame({"ts": [T0], "x": [1]})}).verdict == "unknown"


def test_a_row_says_what_changed_and_what_did_not() -> None:
    """Revisions are written where the answer is another, not where time has passed."""
    before, same = row(judged(), at(END + 60)), row(judged(), at(END + 360), 1)
    assert not changed(before, same)
    assert changed(before, row(judged(events=LOST), at(END + 360), 1))
    assert before["attribution_id"] == same["attribution_id"]


def test_every_xid_of_the_policy_has_an_answer() -> None:
    """No number of the catalogue breaks the judgement; those of programs never blame a machine."""
    for code, xid in shipped().xids.items():
        answer = judged(events=events(on(2, END - 20, code)))
        if xid.cause == "application_error":
            assert answer.verdict != "infrastructure", code
        if xid.severity == "page":
            assert said(answer)[::2] == ("infrastructure", "high"), code


def test_a_flood_keeps_the_cause_in_the_row() -> None:
    """Ten thousand different lines: the row holds the initiating clue and what is nearest."""
    many = [on(1 + i % 4, END - 500 + i / 4, 31, f"0000:{i % 200:02x}:00.0") for i in range(1000)]
    told = row(judged(events=events(*many, on(2, END - 550, 79))), at(END + 600))
    kept = json.loads(told["evidence"])
    assert len(kept) <= 60
    assert kept[0]["detail"] == "xid_79"
    assert timedelta(0) < at(END) - told["since"] < timedelta(minutes=10)
