"""The agent's end of ``collectors.steps``: a Unix socket to which training loops write step times.

Each connection is one sender with its own queue, and the kernel says which process and user it is. Whose job a process
is, root's cgroup and the scheduler say before the sender does. What is refused or lost is told as an event, once a
minute for a sender at most.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.collectors.context import GpuKey, JobContext, Placement
from graynode.collectors.slurm.node_jobs import single
from graynode.collectors.slurm.process import parse_cgroup
from graynode.collectors.step_message import MAX_BYTES, Refused, Told, parse
from graynode.collectors.sysfs import whole_text
from graynode.pipeline.schema import stable_id

_BACKLOG: Final = 128
_ACCEPTS: Final = 256
_COMPLAINTS: Final = 20
"""Complaints told in a minute, the most frequent ones."""
_PACKETS: Final = 64
"""Messages taken of one sender in one round; the others wait in its own queue."""
_MALFORMED: Final = 20
"""After so many messages that are none, the connection is closed."""
_BYTES: Final = 200
"""A step's share of a message; longer messages cost as many steps as would have had room in them."""
_BURST_S: Final = 20.0
"""A sender may be ahead of its rate by so many seconds' worth of steps: an agent that restarts gets what waited."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``[steps]``. ``rate`` is steps a second of one sender; ``senders`` of one user, and 16 times as many of all."""

    socket: Path = Path("/run/graynode/steps.sock")
    mode: int = 0o666
    rate: float = 50.0
    senders: int = 128


@dataclass(slots=True)
class _Sender:
    way: socket.socket
    pid: int
    uid: int
    job: str | None
    """As the cgroup says; ``None`` where it says nothing."""
    credit: float
    credited_at: float
    last: Told | None = None
    malformed: int = 0
    counts: Counter[str] = field(default_factory=Counter)


class StepSocket:
    """``step`` rows, placements with role and rank, and the first step of each job, from what senders wrote.

    ``NoSource`` where the socket cannot be made, with the reason.
    """

    name: ClassVar[str] = "steps"
    tables: ClassVar[tuple[str, ...]] = ("step", "job", "event")

    def __init__(
        self,
        machine: Machine,
        context: JobContext | None = None,
        settings: Settings | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine, self._context, self._settings = machine, context or JobContext(), settings or Settings()
        self._monotonic = monotonic
        self._senders: dict[int, _Sender] = {}
        self._jobs: dict[str, datetime] = {}
        self._gpus: tuple[object, Mapping[int, list[GpuKey]]] = (None, {})
        self._placed: dict[GpuKey, Placement] = {}
        self._refused: Counter[str] = Counter()
        self._poll = select.epoll()
        try:
            self._listener, self._inode = _listen(self._settings)
        except OSError as error:
            self._poll.close()
            raise NoSource(
                f"steps.socket = {self._settings.socket}: {error.strerror or error}; "
                "name a path in a folder that the agent may write"
            ) from error
        self._poll.register(self._listener, select.EPOLLIN)

    def collect(self, round_: Round) -> Rows:
        """What has been written since the last round."""
        rows: dict[str, list[Row]] = {"step": [], "job": [], "event": []}
        if 60 in round_.due:
            self._stand()
        before = len(self._senders)
        for fd, _ in self._poll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
        for fd, _ in self._poll.poll(0):
            if fd in self._senders:
                self._read(self._senders[fd], round_.ts, rows)
        if rows["step"] or len(self._senders) != before:
            self._place()
        if 60 in round_.due:
            rows["event"] = list(self._complaints(round_.ts))
        return {table: some for table, some in rows.items() if some}

    def close(self) -> None:
        """Close all connections and take the socket away; twice is as good as once."""
        for sender in list(self._senders.values()):
            self._forget(sender)
        self._context.place(self.name, {})
        if self._listener.fileno() >= 0:
            if _inode(self._settings.socket) == self._inode:
                with contextlib.suppress(OSError):
                    self._settings.socket.unlink()
            self._listener.close()
        self._poll.close()

    # --- connections ------------------------------------------------------------------------------------

    def _stand(self) -> None:
        """Make the socket anew if somebody removed it: senders look for it by its path."""
        if _inode(self._settings.socket) == self._inode:
            return
        with contextlib.suppress(OSError):
            listener, self._inode = _listen(self._settings)
            self._listener.close()
            self._listener = listener
            self._poll.register(listener, select.EPOLLIN)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                way, _ = self._listener.accept()
            except OSError:
                return
            way.setblocking(False)
            pid, uid, _ = struct.unpack("3i", way.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            of_user = sum(sender.uid == uid for sender in self._senders.values())
            if of_user >= self._settings.senders or len(self._senders) >= 16 * self._settings.senders:
                self._refused[f"user {uid}: more than {self._settings.senders} connections"] += 1
                way.close()
                continue
            job = parse_cgroup(whole_text(self._machine.proc / str(pid) / "cgroup"))[0]
            burst = self._settings.rate * _BURST_S
            self._senders[way.fileno()] = _Sender(way, pid, uid, job, burst, self._monotonic())
            self._poll.register(way, select.EPOLLIN)

    def _read(self, sender: _Sender, ts: datetime, rows: dict[str, list[Row]]) -> None:
        now, rate = self._monotonic(), self._settings.rate
        sender.credit = min(rate * _BURST_S, sender.credit + rate * (now - sender.credited_at))
        sender.credited_at = now
        for _ in range(_PACKETS):
            if sender.credit < 1:
                sender.counts[f"slowed down to {rate:g} steps a second"] += 1
                return  # what it has written waits in its own queue, and costs nobody but it
            try:
                content = sender.way.recv(MAX_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:
                content = b""
            if not content:
                self._forget(sender)
                return
            sender.credit -= max(1, len(content) // _BYTES)
            try:
                told = parse(content, ts)
            except Refused as refused:
                sender.counts[str(refused)] += 1
                sender.malformed += 1
                if sender.malformed >= _MALFORMED:
                    sender.counts["closed"] += 1
                    self._forget(sender)
                    return
                continue
            self._take(sender, told, ts, rows)

    def _forget(self, sender: _Sender) -> None:
        if self._senders.pop(sender.way.fileno(), None) is None:
            return
        self._complain(sender)
        with contextlib.suppress(OSError, ValueError):
            self._poll.unregister(sender.way)
        sender.way.close()

    # --- messages ---------------------------------------------------------------------------------------

    def _take(self, sender: _Sender, told: Told, ts: datetime, rows: dict[str, list[Row]]) -> None:
        sender.last = told
        if told.lost:
            sender.counts["steps lost before they reached the agent"] += told.lost
        if told.bad_steps:
            sender.counts["steps that are none"] += told.bad_steps
        keys = self._keys(sender.pid)
        placed = {p.job_id for key in keys if (p := self._context.of(key)) is not None}
        job = self._job(sender, told, placed)
        gpu = keys[0].gpu_uuid if len(keys) == 1 else None if keys else told.gpu_uuid
        sender.credit -= max(0, len(told.steps) - 1)
        for step in told.steps:
            rows["step"].append({
                "ts": step.ts, "job_id": job, "rank": told.rank, "role": told.role, "gpu_uuid": gpu,
                "step": step.step, "seconds": step.seconds, "busy_s": step.busy_s, "wait_s": step.wait_s,
            })  # fmt: skip
        if job is not None and told.steps:
            self._first_step(job, min(step.ts for step in told.steps), rows, known=bool(placed or sender.job))

    def _job(self, sender: _Sender, told: Told, placed: set[str]) -> str | None:
        """Whose step it is: by root's cgroup, by the scheduler's placement of the GPU, else as the sender says."""
        said = self._context.job_named(told.job) if told.job else None
        sure = sender.job or (placed.pop() if len(placed) == 1 else None)
        if sure is not None:
            if said is not None and said != sure:
                sender.counts["messages that named another's job"] += 1
            return sure
        return said

    def _first_step(self, job: str, ts: datetime, rows: dict[str, list[Row]], *, known: bool) -> None:
        if job in self._jobs:
            return
        self._jobs[job] = ts
        if len(self._jobs) > 1000:
            del self._jobs[next(iter(self._jobs))]
        self._context.note_first_step(job, ts)
        if not known:  # the scheduler's source writes it into its own row
            rows["job"].append({"ts": ts, "job_id": job, "state": "running", "first_step_ts": ts})

    # --- context ----------------------------------------------------------------------------------------

    def _keys(self, pid: int) -> list[GpuKey]:
        """The GPUs that the driver says the process is on."""
        pids = self._context.pids
        if self._gpus[0] is not pids:
            found: dict[int, list[GpuKey]] = {}
            for key, some in pids.items():
                for each in some:
                    found.setdefault(each, []).append(key)
            self._gpus = (pids, found)
        return self._gpus[1].get(pid, [])

    def _place(self) -> None:
        """Role and rank on the GPU of each sender that is connected."""
        found: dict[GpuKey, list[Placement]] = {}
        for sender in self._senders.values():
            told = sender.last
            if told is None:
                continue
            keys = self._keys(sender.pid) or ([GpuKey(told.gpu_uuid)] if told.gpu_uuid else [])
            for key in keys:
                placed = self._context.of(key)
                job = self._job(sender, told, {placed.job_id} if placed else set())
                if job is not None:
                    found.setdefault(key, []).append(Placement(job, told.role, told.rank))
        placements = {key: placed for key, some in found.items() if (placed := single(some)) is not None}
        if placements != self._placed:
            self._placed = placements
            self._context.place(self.name, placements)

    def _complain(self, sender: _Sender) -> None:
        for reason, count in sender.counts.items():
            name = f"{_name(sender)}: {reason}"
            if name in self._refused or len(self._refused) < 50 * _COMPLAINTS:
                self._refused[name] += count
        sender.counts.clear()

    def _complaints(self, ts: datetime) -> Iterator[Row]:
        for sender in self._senders.values():
            self._complain(sender)
        told, self._refused = self._refused.most_common(_COMPLAINTS), Counter()
        for reason, count in told:
            who = (self._machine.cluster, self._machine.node_id, self._machine.boot_id)
            yield {
                "event_id": stable_id("event", *who, "steps", ts.isoformat(), reason),
                "source": "steps", "kind": "steps_refused", "message": f"steps: {reason} ({count} times)",
                "attributes": json.dumps({"reason": reason, "count": count}),
                "observed_ts": ts, "ts_quality": "observed",
            }  # fmt: skip


def _name(sender: _Sender) -> str:
    job = sender.job or (sender.last.job if sender.last else None)
    return f"process {sender.pid} of user {sender.uid}" + (f", job {job}" if job else "")


def _listen(settings: Settings) -> tuple[socket.socket, tuple[int, int] | None]:
    """A listening socket at the path. One that nobody listens on any more is replaced, anything else is left alone."""
    path = settings.socket
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "is there and no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.setblocking(False)
            if probe.connect_ex(str(path)) in (0, errno.EAGAIN):
                raise OSError(errno.EADDRINUSE, "another agent listens there")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        listener.bind(str(path))
        path.chmod(settings.mode)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener, _inode(path)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
