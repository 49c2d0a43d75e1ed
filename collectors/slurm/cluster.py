"""A Slurm cluster from its head node: ``job`` rows of every placement, ``node_state``, partitions, reservations.

Runs on one machine of the cluster (``[slurm] cluster = true``). Slurm's programs are asked one after another, beside
the rounds; slurmctld away for an hour is an hour of one program a minute that is ended at its deadline.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.collectors.context import JobContext
from graynode.collectors.log_file import LogFile
from graynode.collectors.program import Ended, Program, ProgramFailed
from graynode.collectors.slurm.changes import Jobs, Nodes
from graynode.collectors.slurm.jobs import (
    SACCT_FORMAT,
    Job,
    Unreadable,
    aliases,
    parse_completion,
    parse_sacct,
    parse_show_job,
    parse_squeue,
)
from graynode.collectors.slurm.nodes import parse_config, parse_nodes, parse_partitions, parse_reservations
from graynode.collectors.state_file import StateFile

_FIRST_BYTES: Final = 1 << 20
"""Of a completion log that was never read: some 3,000 jobs."""
_PATIENCE_S: Final = 0.1
_ASKED: Final = 500
"""Ends that are asked of the accounting at once."""
_NO_JSON: Final = ("json", "serializer", "unrecognized option", "data_parser", "plugin")
"""Words with which a Slurm built without JSON refuses ``--json``."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``[slurm]``. ``bin`` is the folder of Slurm's programs, by ``PATH`` if none; ``conf`` its ``slurm.conf``."""

    every_s: float = 60.0
    deadline_s: float = 30.0
    bin: Path | None = None
    conf: Path | None = None
    completion_log: Path | None = None
    work: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ask:
    """A program, the table that its answer is for, and who reads the answer."""

    argv: tuple[str, ...]
    table: str
    take: Callable[[str | bytes, datetime], Rows]


class SlurmCluster:
    """Changes since what was last told, which a restart keeps. ``collect`` looks after programs; it waits for one that
    it has started for ``_PATIENCE_S`` at most, in which all of them end on a small cluster.

    A program that fails, hangs, or gives what cannot be read leaves its own table without rows; ``quality`` says since
    when, why, and after how many failures it was well again.
    """

    name: ClassVar[str] = "slurm_cluster"
    tables: ClassVar[tuple[str, ...]] = ("job", "node_state", "event", "quality")

    def __init__(
        self,
        machine: Machine,
        settings: Settings | None = None,
        context: JobContext | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._machine, self._settings, self._context = machine, settings or Settings(), context
        self._monotonic = monotonic
        env = dict(os.environ if env is None else env)
        self._bin = self._settings.bin or _folder(env)
        self._env = env | {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
        if self._settings.conf:
            self._env["SLURM_CONF"] = str(self._settings.conf)
        self._state = StateFile(machine.state_dir / "slurm_cluster.json")
        kept = self._state.load()
        log = self._settings.completion_log
        self._completions = LogFile(log, kept.get("completions") or _near_end(log)) if log else None
        self._kept = kept
        self._jobs: Jobs | None = None
        self._nodes: Nodes | None = None
        self._asks: deque[_Ask] = deque()
        self._running: tuple[_Ask, Program] | None = None
        self._due_at = monotonic()
        self._json = True
        self._accounting = False
        self.failures: dict[str, int] = {}
        """Failures in a row by table; a table that is well is not in it."""

    def collect(self, round_: Round) -> Rows:
        """What the programs that have ended told. Nothing while they run."""
        rows: dict[str, list[Row]] = {}
        now = round_.ts
        if self._running is None and not self._asks and self._monotonic() >= self._due_at:
            self._begin()
        until = time.monotonic() + _PATIENCE_S
        while self._running or self._asks:
            wait_s = 0.0
            if self._running is None:
                if not self._start(rows):
                    continue
                wait_s = until - time.monotonic()
            ended = self._look(rows, wait_s)
            if ended is None:
                break
            self._answer(*ended, now, rows)
        return rows

    def close(self) -> None:
        """End the program that runs, and keep what was told; twice is as good as once."""
        if self._running:
            self._running[1].kill()
        self._running = None
        self._asks.clear()
        if self._jobs and self._nodes:
            self._state.save(self._content())
        if self._completions:
            self._completions.close()

    # --- programs -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._due_at = self._monotonic() + self._settings.every_s
        if self._jobs is None:
            self._asks.append(self._ask("job", self._take_config, "scontrol", "show", "config"))
            return
        self._state.save(self._content())  # what was told in the cycle before has been sent by now
        self._ask_all()

    def _ask_all(self) -> None:
        if self._json:
            self._asks.append(self._ask("job", self._take_queue, "squeue", "--json", "--all", "--states=all"))
        else:
            self._asks.append(self._ask("job", self._take_jobs, "scontrol", "-o", "-a", "show", "job"))
        self._asks.append(self._ask("node_state", self._take_nodes, "scontrol", "-o", "-a", "show", "node"))
        for what, take in (("partition", self._take_partitions), ("reservation", self._take_reservations)):
            self._asks.append(self._ask("event", take, "scontrol", "-o", "-a", "show", what))

    def _ask(self, table: str, take: Callable[[str | bytes, datetime], Rows], program: str, *arguments: str) -> _Ask:
        return _Ask((str(self._bin / program), *arguments), table, take)

    def _start(self, rows: dict[str, list[Row]]) -> bool:
        ask = self._asks.popleft()
        try:
            program = Program(ask.argv, self._env, deadline_s=self._settings.deadline_s, monotonic=self._monotonic)
        except ProgramFailed as failed:
            self._fail(ask, str(failed), rows)
            return False
        self._running = (ask, program)
        return True

    def _look(self, rows: dict[str, list[Row]], wait_s: float) -> tuple[_Ask, Ended] | None:
        """The program that has ended. ``None`` while it runs, or when it was killed: the next round begins the next."""
        if self._running is None:
            return None
        ask, program = self._running
        try:
            ended = program.poll(wait_s)
        except ProgramFailed as failed:
            self._running = None
            self._fail(ask, str(failed), rows)
            return None
        if ended is None:
            return None
        self._running = None
        return ask, ended

    def _answer(self, ask: _Ask, ended: Ended, now: datetime, rows: dict[str, list[Row]]) -> None:
        if ended.code != 0:
            if "--json" in ask.argv and any(said in ended.complaint.lower() for said in _NO_JSON):
                self._json = False
                self._asks.appendleft(self._ask("job", self._take_jobs, "scontrol", "-o", "-a", "show", "job"))
                return
            how = f"ended by signal {-ended.code}" if ended.code < 0 else f"ended with code {ended.code}"
            self._fail(ask, f"{ask.argv[0]} {how}: {ended.complaint or 'it said nothing'}", rows)
            return
        try:
            found = ask.take(ended.output, now)
        except Unreadable as error:
            self._fail(ask, str(error), rows)
            return
        for table, some in found.items():
            if some:
                rows.setdefault(table, []).extend(some)
        self._well(ask, rows)

    def _fail(self, ask: _Ask, reason: str, rows: dict[str, list[Row]]) -> None:
        self.failures[ask.table] = count = self.failures.get(ask.table, 0) + 1
        if count == 1:
            rows.setdefault("quality", []).append(self._quality(ask.table, "error", reason[:400]))

    def _well(self, ask: _Ask, rows: dict[str, list[Row]]) -> None:
        count = self.failures.pop(ask.table, 0)
        if count:
            reason = f"Slurm answers again after {count} failures"
            rows.setdefault("quality", []).append(self._quality(ask.table, "measured", reason))

    def _quality(self, table: str, state: str, reason: str) -> Row:
        return {
            "table_name": table,
            "entity": self._machine.node_id,
            "field": "*",
            "state": state,
            "reason": f"slurm: {reason}",
        }

    # --- answers --------------------------------------------------------------------------------------

    def _take_config(self, output: str | bytes, now: datetime) -> Rows:
        config = parse_config(_str(output))
        name = config.get("ClusterName", "")
        if not name:
            raise Unreadable("scontrol show config names no ClusterName")
        self._accounting = "slurmdbd" in config.get("AccountingStorageType", "")
        self._jobs, self._nodes = Jobs(name, self._settings.work), Nodes(self._machine.cluster, name)
        if self._kept.get("cluster_name") == name:
            self._jobs.restore(self._kept.get("jobs"))
            self._nodes.restore(self._kept.get("told"))
        self._ask_all()
        return {}

    def _take_queue(self, output: str | bytes, now: datetime) -> Rows:
        return self._take(parse_squeue(output if isinstance(output, bytes) else output.encode()), now)

    def _take_jobs(self, output: str | bytes, now: datetime) -> Rows:
        return self._take(parse_show_job(_str(output)), now)

    def _take(self, jobs: list[Job], now: datetime) -> Rows:
        known = self._known_jobs
        if self._context is not None:
            self._context.set_aliases("slurm_cluster", dict(aliases(jobs)))
        rows = list(known.seen(jobs, now))
        if self._completions:
            rows += known.ended(self._completed(self._completions, now), now)
        missing = known.missing()[:_ASKED]
        if missing and self._accounting:
            arguments = ("--parsable2", "--noheader", "--allocations", f"--format={SACCT_FORMAT}")
            self._asks.appendleft(
                self._ask(
                    "job", self._take_ends, "sacct", *arguments, "--starttime=now-30days", f"--jobs={','.join(missing)}"
                )
            )
        return {"job": rows}

    def _completed(self, log: LogFile, now: datetime) -> list[Job]:
        try:
            lines = log.lines(now.timestamp())
        except OSError:
            return []  # between two rotations there may be none
        parsed = (parse_completion(line.decode("utf-8", "replace")) for line in lines)
        return [job for job in parsed if job is not None]

    def _take_ends(self, output: str | bytes, now: datetime) -> Rows:
        return {"job": list(self._known_jobs.ended(parse_sacct(_str(output)), now))}

    def _take_nodes(self, output: str | bytes, now: datetime) -> Rows:
        nodes = parse_nodes(_str(output))
        if not nodes:
            raise Unreadable("scontrol -o show node: no node in its answer")
        return {"node_state": list(self._known_nodes.nodes(nodes, now))}

    def _take_partitions(self, output: str | bytes, now: datetime) -> Rows:
        return {"event": list(self._known_nodes.partitions(parse_partitions(_str(output)), now))}

    def _take_reservations(self, output: str | bytes, now: datetime) -> Rows:
        return {"event": list(self._known_nodes.reservations(parse_reservations(_str(output)), now))}

    @property
    def _known_jobs(self) -> Jobs:
        assert self._jobs is not None  # noqa: S101 (the configuration is read before anything else is asked)
        return self._jobs

    @property
    def _known_nodes(self) -> Nodes:
        assert self._nodes is not None  # noqa: S101 (the same)
        return self._nodes

    def _content(self) -> dict[str, object]:
        jobs, nodes = self._known_jobs, self._known_nodes
        return {
            "cluster_name": jobs.cluster_name,
            "jobs": jobs.kept(),
            "told": dict(nodes.told),
            "completions": self._completions.position() if self._completions else None,
        }


def _near_end(log: Path) -> dict[str, object]:
    """Where a log that was never read is begun: the years before the agent came are not told."""
    try:
        status = log.stat()
    except OSError:
        return {}
    if status.st_size <= _FIRST_BYTES:
        return {}
    where = {"device": status.st_dev, "inode": status.st_ino, "offset": status.st_size - _FIRST_BYTES}
    return {**where, "tail": "", "skipping": True}


def _folder(env: Mapping[str, str]) -> Path:
    found = shutil.which("scontrol", path=env.get("PATH"))
    if found is None:
        raise NoSource("no scontrol in PATH; set slurm.bin to the folder of Slurm's programs, or slurm.cluster = false")
    return Path(found).parent


def _str(output: str | bytes) -> str:
    return output if isinstance(output, str) else output.decode("utf-8", "replace")
