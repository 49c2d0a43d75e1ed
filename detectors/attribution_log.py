"""What telling lines of a job's output say of its end (table ``job_log``): a table of patterns, the first that fits.

A line of a library says what the process met, not why. So what only says that a peer or a collective is gone is
``cascade``; what a program cannot cause is the infrastructure's; what names the program, its data or its resources is
the application's. Patterns are bounded, as in ``collectors.job_log_lines``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.detectors.attribution_clues import APPLICATION, CASCADE, CONTEXT, INFRASTRUCTURE, SCHEDULER, Clue
from graynode.detectors.policy import Policy, shipped

READ_EVERY: Final = timedelta(seconds=10)
"""Outputs are read every ten seconds: a line was written up to so long before the time it carries."""
_Said = tuple[str, str, str, int, str | None]
"""Side, kind, detail, weight, cause of an incident where it is hardware's."""


def _says(side: str, kind: str, detail: str, weight: int, cause: str | None = None) -> _Said:
    return side, kind, detail, weight, cause


_CODE: Final = (APPLICATION, "code")
_DATA: Final = (APPLICATION, "data")
_RESOURCES: Final = (APPLICATION, "resources")

_LINES: Final[tuple[tuple[str, _Said], ...]] = (
    # what no program can cause
    (r"uncorrectable ECC|ECC_UNCORRECTABLE|EccUncorrectable",
     _says(INFRASTRUCTURE, "memory", "uncorrectable_ecc", 2, "memory_errors")),
    (r"uncorrectable NVLink|NVLINK_UNCORRECTABLE|NvlinkUncorrectable",
     _says(INFRASTRUCTURE, "nvlink", "uncorrectable_nvlink", 2, "nvlink_fault")),
    (r"GPU is lost|fallen off the bus|Unable to determine the device handle",
     _says(INFRASTRUCTURE, "gpu", "gpu_lost", 2, "gpu_lost")),
    (r"DUE TO NODE FAILURE", _says(INFRASTRUCTURE, "node", "node_failure", 2, "host_fault")),
    # what the scheduler did
    (r"DUE TO TIME LIMIT|time limit", _says(SCHEDULER, "time_limit", "time_limit", 2)),
    (r"DUE TO PREEMPTION", _says(SCHEDULER, "preempted", "preempted", 2)),
    (r"\*{3} (?:STEP|JOB) .{1,80} CANCELLED AT", _says(SCHEDULER, "cancelled", "cancelled", 1)),
    # resources
    (r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cuda\.OutOfMemoryError|HIP out of memory",
     _says(*_RESOURCES, "gpu_out_of_memory", 3)),
    (r"insufficient shared memory|killed by signal: Bus error", _says(*_RESOURCES, "shared_memory", 3)),
    (r"oom[-_ ]kill|Out of memory: Killed|Detected \d{1,6} oom|exceeded (?:job |step )?memory limit",
     _says(*_RESOURCES, "host_out_of_memory", 3)),
    (r"No space left on device|Errno 28\b", _says(*_RESOURCES, "disk_full", 3)),
    (r"Disk quota exceeded|Errno 122\b", _says(*_RESOURCES, "quota", 3)),
    (r"Too many open files|Errno 24\b", _says(*_RESOURCES, "open_files", 3)),
    (r"\bMemoryError|Cannot allocate memory", _says(*_RESOURCES, "host_out_of_memory", 2)),
    # storage that fails under the program
    (r"Errno (?:5|107|108|116|121)\b|Stale file handle|Input/output error|Transport endpoint is not connected",
     _says(INFRASTRUCTURE, "storage", "storage_error", 2)),
    (r"Read-only file system|Errno 30\b", _says(INFRASTRUCTURE, "storage", "read_only", 2)),
    # the program
    (r"device-side assert", _says(*_CODE, "device_assertion", 3)),
    (r"mismatch between collectives|collective mismatch|ncclInvalidUsage|ncclInvalidArgument",
     _says(*_CODE, "collective_mismatch", 3)),
    (r"misaligned address|no kernel image is available|invalid configuration argument|invalid device ordinal"
     r"|invalid device function|illegal instruction|no CUDA-capable device", _says(*_CODE, "cuda_usage", 2)),
    (r"illegal memory access", _says(APPLICATION, "program", "illegal_memory_access", 2)),
    # what can be either
    (r"unspecified launch failure|launch timed out|CUDA error: unknown|EXECUTION_FAILED|ncclUnhandledCudaError"
     r"|unhandled cuda error|CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED|INTERNAL)",
     _says(CONTEXT, "program", "cuda_error", 1)),
    # what says that somebody else is gone
    (r"Watchdog caught collective|collective operation timeout|NCCL timeout|watchdog.{0,60}(?:timeout|timed out)",
     _says(CASCADE, "collective", "collective_timeout", 1)),
    (r"Got completion|RETRY_EXC|Transport retry", _says(CASCADE, "collective", "peer_unreachable", 1)),
    (r"ncclRemoteError|remote process|remote peer|Connection (?:closed|reset|refused)|Broken ?pipe|ConnectionError"
     r"|(?:Socket ?|\b)Timeout(?:Error)?\b|Dist(?:Backend|Network|Store)Error|Rendezvous\w{0,20}Error|ncclSystemError"
     r"|ncclInternalError|unhandled system error|ProcessGroupNCCL|NCCL (?:WARN|error)",
     _says(CASCADE, "collective", "peer_gone", 1)),
    (r"ChildFailedError|SignalException|KeyboardInterrupt|SystemExit|SIG(?:TERM|KILL|INT)\b|Signal (?:9|15) \("
     r"|exitcode ?: ?-(?:9|15)\b|\b(?:Killed|Terminated|Aborted)\b|SIGABRT|Exited with exit code",
     _says(CASCADE, "teardown", "teardown", 1)),
)  # fmt: skip
_TABLE: Final = tuple((re.compile(pattern, re.IGNORECASE), said) for pattern, said in _LINES)
_XID: Final = re.compile(r"NVRM: Xid \([^)]{1,40}\): (\d{1,3})\b")

_EXCEPTION: Final = re.compile(
    r"^(?:\[[^\]]{1,20}\]:? ?|\d{1,6}: ?)?((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60})(?::|$)"
)
_EXCEPTIONS: Final[tuple[tuple[str, _Said], ...]] = (
    (r"FileNotFoundError|NotADirectoryError|IsADirectoryError", _says(*_DATA, "missing_file", 3)),
    (r"PermissionError", _says(*_DATA, "permission", 3)),
    (r"Unicode\w{2,6}Error|JSONDecodeError|UnpicklingError|EOFError|BadZipFile|BadGzipFile|struct\.error|ArrowInvalid"
     r"|SafetensorError|CorruptError|ParserError|DataError", _says(*_DATA, "unreadable_data", 3)),
    (r"AssertionError", _says(*_CODE, "assertion", 3)),
    (r"(?:ModuleNotFound|Import|Syntax|Indentation|Name|UnboundLocal|Type|Attribute|Key|Index|Value|NotImplemented"
     r"|ZeroDivision|Recursion|Lookup|Overflow|Config\w{0,20}|Validation|Missing\w{0,20}|Argument)(?:Error|Exception)",
     _says(*_CODE, "exception", 3)),
)  # fmt: skip
_NAMED: Final = tuple((re.compile(rf"(?:^|\.)(?:{pattern})$"), said) for pattern, said in _EXCEPTIONS)
_RUNTIME_CODE: Final = re.compile(
    r"size mismatch|shapes? cannot be|Sizes of tensors|Expected all tensors|expected scalar type|state_dict"
    r"|inplace operation|must match|is not implemented for|does not require grad|Given groups|same device",
    re.IGNORECASE,
)
_BY_KIND: Final[dict[str, _Said]] = {
    "nan": _says(*_DATA, "nan", 2),
    "oom": _says(*_RESOURCES, "out_of_memory", 2),
    "cuda": _says(CONTEXT, "program", "cuda_error", 1),
    "nccl": _says(CASCADE, "collective", "peer_gone", 1),
    "signal": _says(CONTEXT, "program", "crash", 1),
    "traceback": _says(APPLICATION, "program", "exception", 1),
}
"""Where the line alone does not say: by the kind that the agent gave it."""
_RAN_MS: Final = re.compile(r"ran for (\d{1,12}) milliseconds")
_MOST_WAITED: Final = timedelta(hours=12)


def of_log(log: pl.DataFrame, policy: Policy | None = None) -> list[Clue]:
    """Clues of a job's lines; the same thing said by many ranks is one clue with their number."""
    if log.is_empty() or not {"ts", "kind", "line"} <= set(log.columns):
        return []
    told: dict[tuple[str, str], Clue] = {}
    rows = log.drop_nulls(["ts", "line"]).unique(maintain_order=True)
    for row in sorted(rows.iter_rows(named=True), key=_order):
        clue = _clue(row, policy or shipped())
        key = (clue.side, clue.detail)
        held = told.get(key)
        told[key] = clue if held is None else replace(held, count=held.count + 1)
    return list(told.values())


def waited_since(log: pl.DataFrame) -> datetime | None:
    """Since when a collective had waited, by what its watchdog says ("ran for 600029 milliseconds")."""
    if log.is_empty() or not {"ts", "line"} <= set(log.columns):
        return None
    began = []
    for ts, line in log.select("ts", "line").drop_nulls().iter_rows():
        found = _RAN_MS.search(line)
        waited = timedelta(milliseconds=int(found[1])) if found else None
        if waited is not None and waited <= _MOST_WAITED:
            began.append(ts - waited - READ_EVERY)
    return min(began, default=None)


def ranks_heard(log: pl.DataFrame, detail: str = "collective_timeout") -> set[int]:
    """Ranks that said this: the one that a collective waits for often says nothing."""
    if log.is_empty() or not {"line", "kind", "rank"} <= set(log.columns):
        return set()
    rows = log.drop_nulls(["rank", "line"]).iter_rows(named=True)
    return {int(row["rank"]) for row in rows if meaning(str(row["kind"]), row["line"])[2] == detail}


def meaning(kind: str, line: str) -> _Said:
    """What a line of that kind says."""
    text = line[:1000]
    if kind == "nan":
        return _BY_KIND["nan"]
    for pattern, said in _TABLE:
        if pattern.search(text):
            return said
    if kind == "traceback":
        return _exception(text)
    return _BY_KIND.get(kind, _says(CONTEXT, "program", "line", 1))


def _exception(text: str) -> _Said:
    found = _EXCEPTION.match(text)
    name = found[1] if found else ""
    for pattern, said in _NAMED:
        if pattern.search(name):
            return said
    if name.endswith("RuntimeError") and _RUNTIME_CODE.search(text):
        return _says(*_CODE, "exception", 3)
    own = name.endswith(("Error", "Exception")) and name.rpartition(".")[2] not in ("RuntimeError", "OSError")
    return _says(*_CODE, "exception", 2) if own else _BY_KIND["traceback"]


def _clue(row: dict[str, Any], policy: Policy) -> Clue:
    line, kind = str(row["line"]), str(row["kind"])
    side, what, detail, weight, cause = _xid(line, policy) or meaning(kind, line)
    return Clue(
        at=row["ts"], ts=row["ts"], slack=READ_EVERY, side=side, kind=what, detail=detail, weight=weight,
        source="job log", message=line[:300], raw=line, rank=row.get("rank"), cause=cause,
    )  # fmt: skip


def _xid(line: str, policy: Policy) -> _Said | None:
    """An Xid that the program's own output quotes: the kernel log is the witness, this only points to it."""
    found = _XID.search(line)
    if found is None:
        return None
    verdict = policy.xid(int(found[1]))
    side = APPLICATION if verdict.cause == "application_error" else INFRASTRUCTURE
    if verdict.severity == "digest" and side == INFRASTRUCTURE:
        side = CONTEXT
    return _says(side, "program" if side == APPLICATION else "gpu", f"xid_{found[1]}_in_log", 1, verdict.cause)


def _order(row: dict[str, Any]) -> tuple[datetime, int, str, str]:
    return row["ts"], -1 if row.get("rank") is None else int(row["rank"]), str(row["kind"]), str(row["line"])


def strongest(clues: Iterable[Clue], side: str, least: int = 2) -> list[Clue]:
    """Clues of a side that can end a job, first in time."""
    return sorted((c for c in clues if c.side == side and c.weight >= least), key=lambda c: c.order)
