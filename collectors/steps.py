"""Step times from a training loop to the node's agent: one function, no dependency, never an error, never a wait.

    from graynode.collectors.steps import report

    report(step, seconds, busy_s=compute_seconds, wait_s=seconds_in_collectives)

This file imports nothing of graynode and works alone: copy it beside a training script, or install ``graynode-steps``.
Where there is no agent, nothing happens. docs/steps.md has PyTorch, Lightning and Hugging Face callbacks.

The way is a Unix socket of whole messages (SOCK_SEQPACKET): each sender has a queue of its own, so one that floods
fills its own only, and the kernel tells the agent who sends. What does not fit now goes with the next call; what does
not fit at all is dropped, oldest first, and the next message says how many.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

DEFAULT_SOCKET: Final = "/run/graynode/steps.sock"
KEPT: Final = 1000
"""Steps that wait for an agent that is away."""
_MOST: Final = 200
"""Steps in one message: some 20 KB, of the 64 KB that the agent takes."""
_RETRY_S: Final = 5.0
"""Pause before an agent that did not answer is looked for again."""
_FULL_S: Final = 0.2
"""Pause after the queue to the agent was full."""
_RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_JOBS: Final = ("GRAYNODE_JOB_ID", "SLURM_JOB_ID")


class Reporter:
    """A way to one socket. Its methods may be called from any thread, and after a fork.

    ``path`` of the socket: ``$GRAYNODE_STEPS_SOCKET``, else ``/run/graynode/steps.sock``. Job, rank, role and GPU that
    a call does not name come from the environment (Slurm, torchrun, MPI, ``GRAYNODE_JOB_ID``, ``GRAYNODE_ROLE``).
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        known = os.environ if env is None else env
        self._path = path or known.get("GRAYNODE_STEPS_SOCKET") or DEFAULT_SOCKET
        self._clock, self._monotonic = clock, monotonic
        self._who: dict[str, Any] = {
            "job": next((known[name] for name in _JOBS if known.get(name)), None),
            "rank": next((int(known[name]) for name in _RANKS if _is_count(known.get(name, ""))), None),
            "role": known.get("GRAYNODE_ROLE") or None,
            "gpu_uuid": _gpu(known),
        }
        self._waiting: deque[tuple[dict[str, Any], list[Any]]] = deque()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._not_before = 0.0
        self._lost = self._untold = 0

    @property
    def lost(self) -> int:
        """Steps dropped so far because no agent took them."""
        return self._lost

    def report(
        self,
        step: int,
        seconds: float,
        *,
        busy_s: float | None = None,
        wait_s: float | None = None,
        job: str | None = None,
        rank: int | None = None,
        role: str | None = None,
        gpu_uuid: str | None = None,
    ) -> None:
        """One training step of this rank: its number and its wall seconds.

        ``busy_s`` is compute without waiting, ``wait_s`` time in collectives; from wall seconds of a synchronous job
        alone nobody can tell which rank is slow. Never raises and never waits.
        """
        try:
            said = {"job": job, "rank": rank, "role": role, "gpu_uuid": gpu_uuid}
            who = {name: self._who[name] if value is None else _plain(value) for name, value in said.items()}
            told = [_plain(step), _plain(seconds), _plain(busy_s), _plain(wait_s)]
            if told[0] is None or told[1] is None:
                self._drop(1)
                return
            self._waiting.append((who, [*told, self._clock()]))
            if self._lock.acquire(blocking=False):  # else another thread sends: it takes this one along, or the next
                try:
                    self._send()
                finally:
                    self._lock.release()
        except Exception:  # whatever it is, a training run is worth more than its statistics
            with contextlib.suppress(Exception):
                self._drop(1)

    def close(self) -> None:
        """Let go of the socket; the next report opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self) -> None:
        while len(self._waiting) > KEPT:
            self._waiting.popleft()
            self._drop(1)
        while self._waiting:
            way = self._way()
            if way is None:
                return
            who, some = self._next()
            message = json.dumps({"v": 1, **who, "lost": self._untold, "steps": some}, separators=(",", ":"))
            try:
                way.send(message.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                # the agent looks once a second: what waits goes with a later call
                self._not_before = self._monotonic() + _FULL_S
                return
            except OSError:
                self.close()
                self._not_before = self._monotonic() + _RETRY_S
                return
            for _ in some:
                self._waiting.popleft()
            self._untold = 0

    def _next(self) -> tuple[dict[str, Any], list[list[Any]]]:
        """The oldest step and those after it that say the same of themselves."""
        who = self._waiting[0][0]
        some: list[list[Any]] = []
        for n in range(min(len(self._waiting), _MOST)):  # by place: another thread may append meanwhile
            other, step = self._waiting[n]
            if other != who:
                break
            some.append(step)
        return who, some

    def _way(self) -> socket.socket | None:
        if self._socket is not None and self._pid != os.getpid():
            self.close()  # the parent's: its messages would be told as the parent's
        elif self._monotonic() < self._not_before:
            return None
        elif self._socket is not None:
            return self._socket
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            made.setblocking(False)
            made.connect(self._path)
        except OSError:
            made.close()
            self._not_before = self._monotonic() + _RETRY_S
            return None
        self._socket, self._pid = made, os.getpid()
        return made

    def _drop(self, count: int) -> None:
        self._lost += count
        self._untold += count


def _plain(value: object) -> int | float | str | None:
    """The value if it is a plain number or a short text. A tensor is not asked: its answer would wait for the GPU."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 62 else None
    return str(value) if isinstance(value, str) and len(value) <= 128 else None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _gpu(env: Mapping[str, str]) -> str | None:
    """This rank's GPU where the environment names GPUs by uuid; the agent finds it by the process otherwise."""
    named = [name.strip() for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    local = env.get("LOCAL_RANK") or env.get("SLURM_LOCALID") or "0"
    index = 0 if len(named) == 1 or not _is_count(local) else int(local)
    return named[index] if index < len(named) and named[index].startswith("GPU-") else None


_default: Reporter | None = None


def report(
    step: int,
    seconds: float,
    *,
    busy_s: float | None = None,
    wait_s: float | None = None,
    job: str | None = None,
    rank: int | None = None,
    role: str | None = None,
    gpu_uuid: str | None = None,
) -> None:
    """One training step to this node's agent; see ``Reporter.report``. Never raises and never waits."""
    global _default  # one socket a process, made at the first call and not at import
    try:
        if _default is None:
            _default = Reporter()
        _default.report(step, seconds, busy_s=busy_s, wait_s=wait_s, job=job, rank=rank, role=role, gpu_uuid=gpu_uuid)
    except Exception:  # an environment that cannot be read must not end a training run either
        return


def lost() -> int:
    """Steps of this process that no agent took."""
    return 0 if _default is None else _default.lost
