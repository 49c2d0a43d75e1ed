"""Jobs as Slurm tells them: ``squeue --json`` of any version, ``scontrol -o show job``, ``sacct``, the completion log.

The JSON changed its shapes: a state is a word or a list of words, a number is a number or ``{set, infinite, number}``,
an exit code is the raw wait status (22.05) or an object. Fields that are not needed are skipped while reading.
"""

# ruff: noqa: ANN401 (what a version of Slurm writes in a field is any value until it has been looked at)
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import msgspec

from graynode.collectors.slurm.text import moment, number, records, word
from graynode.pipeline.schema import JOB_ENDED

STATES: Final[Mapping[str, str]] = {
    "PENDING": "queued", "CONFIGURING": "allocated", "STAGE_OUT": "running", "RUNNING": "running",
    "SUSPENDED": "running", "STOPPED": "running", "SIGNALING": "running", "RESIZING": "running",
    "COMPLETING": "running", "COMPLETED": "completed", "FAILED": "failed", "OUT_OF_MEMORY": "failed",
    "LAUNCH_FAILED": "failed", "CANCELLED": "cancelled", "PREEMPTED": "cancelled", "REVOKED": "cancelled",
    "TIMEOUT": "timeout", "DEADLINE": "timeout", "NODE_FAIL": "node_fail", "BOOT_FAIL": "node_fail",
    "REQUEUED": "requeued", "REQUEUE_HOLD": "requeued", "REQUEUE_FED": "requeued", "SPECIAL_EXIT": "requeued",
}  # fmt: skip
"""Slurm's word (squeue(1), job state codes) to the contract's. Another word is kept as the reason of a null state."""
_BASE: Final = (
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
    "PENDING", "SUSPENDED", "RUNNING",
)  # fmt: skip
_GPUS: Final = re.compile(r"(?:^|,)gres/gpu(?::[^=,]+)?=(\d{1,7})(?=,|$)")
_GPUS_ALL: Final = re.compile(r"(?:^|,)gres/gpu=(\d{1,7})(?=,|$)")
_DETAIL: Final = re.compile(r"gpu(?::[^:(]+)?:(\d{1,5})\(")


class Unreadable(ValueError):
    """Output that is none of the known forms; the text says where."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it stands. ``state`` is the contract's; ``reason`` Slurm's own words where they say more.

    ``hosts`` is the list as Slurm writes it; ``alias`` is ``123_4`` of an array, ``123+1`` of a heterogeneous job.
    """

    job_id: str
    state: str | None
    alias: str | None = None
    reason: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    hosts: str = ""
    nodes: int | None = None
    gpus: int | None = None
    ranks: int | None = None
    requeues: int | None = None
    queued: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int | None = None
    exit_signal: int | None = None


class _Job(msgspec.Struct):
    job_id: Any = None
    job_state: Any = None
    state_reason: Any = None
    array_job_id: Any = None
    array_task_id: Any = None
    array_task_string: Any = None
    het_job_id: Any = None
    het_job_offset: Any = None
    user_name: Any = None
    user_id: Any = None
    account: Any = None
    partition: Any = None
    nodes: Any = None
    node_count: Any = None
    tasks: Any = None
    tres_alloc_str: Any = None
    gres_detail: Any = None
    restart_cnt: Any = None
    submit_time: Any = None
    start_time: Any = None
    end_time: Any = None
    exit_code: Any = None


class _Queue(msgspec.Struct):
    jobs: list[_Job]


_DECODER: Final = msgspec.json.Decoder(_Queue)


def parse_squeue(output: bytes) -> list[Job]:
    """The jobs of ``squeue --json``. ``Unreadable`` where it is no such thing; a job without an id is passed over."""
    try:
        queue = _DECODER.decode(output)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(f"squeue --json: {error}") from error
    jobs = (_of_json(job) for job in queue.jobs)
    return [job for job in jobs if job is not None]


def parse_show_job(text: str) -> list[Job]:
    """The jobs of ``scontrol -o show job``."""
    return [job for line in text.splitlines() if (job := _of_line(line))]


def parse_sacct(text: str) -> list[Job]:
    """The jobs of ``sacct`` in the form of ``SACCT_FORMAT``; lines of another shape are passed over."""
    return [job for line in text.splitlines() if (job := _of_sacct(line.split("|")))]


SACCT_FORMAT: Final = "JobIDRaw,State,ExitCode,Submit,Start,End,NodeList,NNodes,AllocTRES,User,Account,Partition,JobID"


def parse_completion(line: str) -> Job | None:
    """A line of the job completion log (``jobcomp/filetxt``), ``None`` where it is none.

    A job that was requeued is there as ``PENDING``: that is an end of a placement, told as ``requeued``.
    """
    job = _of_line(line)
    return replace(job, state="requeued") if job and job.state == "queued" else job


# --- JSON -------------------------------------------------------------------------------------------------


def _of_json(job: _Job) -> Job | None:
    job_id = _int(job.job_id)
    if not job_id:
        return None
    words = [w for w in (job.job_state if isinstance(job.job_state, list) else [job.job_state]) if isinstance(w, str)]
    state, own_word = _state(words)
    begun = state not in (None, "queued", "requeued")
    code, signal = _exit(job.exit_code)
    user = _text(job.user_name) or (str(u) if (u := _int(job.user_id)) is not None else None)
    started = moment(_int(job.start_time)) if begun else None
    return Job(
        str(job_id),
        state,
        _alias(
            _int(job.array_job_id),
            _int(job.array_task_id),
            _int(job.het_job_id),
            _int(job.het_job_offset),
            _text(job.array_task_string),
        ),
        _reason(own_word, _text(job.state_reason)),
        user,
        _text(job.account),
        _text(job.partition),
        _text(job.nodes) or "",
        _int(job.node_count),
        _gpus(_text(job.tres_alloc_str), job.gres_detail),
        _int(job.tasks),
        _int(job.restart_cnt),
        moment(_int(job.submit_time)),
        started,
        moment(_int(job.end_time)) if state in JOB_ENDED else None,  # of a running job it is when its time is up
        code if state in JOB_ENDED else None,
        signal if state in JOB_ENDED else None,
    )


def _int(value: Any) -> int | None:
    """A number in any version's clothes; ``None`` if it is not set or infinite."""
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        return number(value)
    return int(value) if abs(value) < 1 << 53 else None


def _text(value: Any) -> str | None:
    return word(value) if isinstance(value, str) else None


def _exit(value: Any) -> tuple[int | None, int | None]:
    """Exit code and signal (``None``: none). 22.05 gives the raw wait status."""
    if isinstance(value, dict):
        signal = value.get("signal")
        if isinstance(signal, dict):
            signal = signal.get("id", signal.get("signal_id"))
        return _int(value.get("return_code")), _int(signal) or None
    status = _int(value)
    if status is None:
        return None, None
    return status >> 8 & 0xFF, (status & 0x7F) or None


# --- text -------------------------------------------------------------------------------------------------


def _of_line(line: str) -> Job | None:
    """The job of a line. Its name stands among Slurm's own words and may imitate them: then its state is not known."""
    job = next((_of_record(record) for record in records(line)), None)
    if job is not None and line.count(" JobState=") > 1:
        return Job(job.job_id, None, reason="its name or comment imitates Slurm's own words")
    return job


def _of_record(record: Mapping[str, str]) -> Job | None:
    job_id = number(record.get("JobId"))
    if not job_id:
        return None
    state, own_word = _state([record.get("JobState", "")])
    begun = state not in (None, "queued", "requeued")
    code, signal = _exit_pair(record.get("ExitCode")) if state in JOB_ENDED else (None, None)
    return Job(
        str(job_id),
        state,
        _alias(
            number(record.get("ArrayJobId")),
            number(record.get("ArrayTaskId")),
            number(record.get("HetJobId")),
            number(record.get("HetJobOffset")),
            word(record.get("ArrayTaskId")),
        ),
        _reason(own_word, word(record.get("Reason"))),
        (word(record.get("UserId")) or "").partition("(")[0] or None,
        word(record.get("Account")),
        word(record.get("Partition")),
        word(record.get("NodeList")) or "",
        number((record.get("NumNodes") or record.get("NodeCnt") or "").partition("-")[0]),
        _gpus(record.get("AllocTRES") or record.get("TRES") or record.get("Tres"), None),
        number(record.get("NumTasks")),
        number(record.get("Restarts")),
        moment(record.get("SubmitTime")),
        moment(record.get("StartTime")) if begun else None,
        moment(record.get("EndTime")) if state in JOB_ENDED else None,
        code,
        signal,
    )


def _of_sacct(fields: list[str]) -> Job | None:
    names = SACCT_FORMAT.split(",")
    if len(fields) != len(names):
        return None
    record = dict(zip(names, fields, strict=True))
    job_id = number(record["JobIDRaw"])
    if not job_id:
        return None
    state, own_word = _state([record["State"].partition(" ")[0]])  # "CANCELLED by 1000"
    code, signal = _exit_pair(record["ExitCode"]) if state in JOB_ENDED else (None, None)
    shown = record["JobID"]
    return Job(
        str(job_id), state, shown if shown != str(job_id) and len(shown) < 64 else None, own_word,
        word(record["User"]), word(record["Account"]), word(record["Partition"]),
        "" if record["NodeList"] == "None assigned" else record["NodeList"], number(record["NNodes"]),
        _gpus(record["AllocTRES"], None), None, None, moment(record["Submit"]), moment(record["Start"]),
        moment(record["End"]), code, signal,
    )  # fmt: skip


def _exit_pair(text: str | None) -> tuple[int | None, int | None]:
    code, _, signal = (text or "").partition(":")
    return number(code), number(signal) or None


# --- both -------------------------------------------------------------------------------------------------


def _state(words: Iterable[str]) -> tuple[str | None, str | None]:
    """The contract's state, and Slurm's word where that says more. A state word is followed by flags."""
    told = [word_.upper() for word_ in words]
    if "REQUEUED" in told or "SPECIAL_EXIT" in told or "REQUEUE_HOLD" in told:
        # the queue holds it again already, whatever its last placement came to
        return "queued", next(w for w in told if STATES.get(w) == "requeued")
    if "CONFIGURING" in told:
        return "allocated", None
    base = next((w for w in _BASE if w in told), told[0] if told else "")
    state = STATES.get(base)
    plain = base in ("PENDING", "RUNNING") or (state is not None and state.upper() == base)
    return state, None if plain else base[:64] or None


def _reason(own_word: str | None, reason: str | None) -> str | None:
    parts = [part for part in (own_word, reason) if part]
    return ": ".join(parts)[:400] or None


def _alias(
    array: int | None, task: int | None, het: int | None, offset: int | None, tasks: str | None = None
) -> str | None:
    if array and (task is not None or tasks):
        return f"{array}_{task}" if task is not None else f"{array}_[{(tasks or '')[:80]}]"
    return f"{het}+{offset or 0}" if het else None


def _gpus(tres: str | None, detail: Any) -> int | None:
    """GPUs placed. ``gres/gpu`` is told where the site accounts for it; ``gres/gpu:model`` repeats it by model."""
    told = word(tres)
    if told:
        whole = _GPUS_ALL.search(told)
        if whole:
            return int(whole[1])
        models = _GPUS.findall(told)
        if models:
            return sum(int(n) for n in models)
    if isinstance(detail, list):
        counts = [int(n) for text in detail[:100_000] if isinstance(text, str) for n in _DETAIL.findall(text[:4096])]
        return sum(counts) if counts else None
    return None


def aliases(jobs: Iterable[Job]) -> Iterator[tuple[str, str]]:
    """Other names of single jobs, with the job id each stands for."""
    return ((job.alias, job.job_id) for job in jobs if job.alias and "[" not in job.alias)
