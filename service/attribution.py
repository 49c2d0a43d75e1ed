"""Judges every job of several machines that failed or hangs, within minutes, beside the detection rounds.

A placement is judged a minute after its end, when what its machines had to say has landed, and again six minutes after
it, when the whole window has: that is a second revision only where the answer is another. Rows of table ``attribution``
and findings go to the bus; the pipeline writes them. Ids come from the job, so a restart tells nothing twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import prometheus_client
import structlog

from graynode.collectors.base import utc_now
from graynode.detectors.attribution import Judgement, judge
from graynode.detectors.attribution_job import AFTER, Placement
from graynode.detectors.attribution_rows import changed, findings, identity, row
from graynode.detectors.policy import Policy, shipped
from graynode.pipeline.bus import BusUnavailable, Producer
from graynode.pipeline.lake import Lake, LakeError
from graynode.pipeline.queries import QueryError
from graynode.service.attribution_jobs import Jobs
from graynode.service.attribution_read import Reader
from graynode.service.config import Config
from graynode.service.detect_bus import Outbox
from graynode.service.wiring import make_lake

SETTLE: Final = timedelta(seconds=60)
"""From the end to the first judgement: outputs are read every 10 s, sent within seconds and landed every 10 s."""
SETTLE_UNTOLD: Final = timedelta(seconds=150)
"""The same where only an agent saw the job go: a scheduler is asked once a minute how it ended."""
FINAL: Final = AFTER + SETTLE
EVERY_S: Final = 5.0
HANGS_EVERY: Final = timedelta(seconds=60)
LOOK_BACK: Final = timedelta(hours=6)
"""How far back ends are made up for after a pause; older ones are judged when somebody asks."""
LATE: Final = timedelta(minutes=30)
"""What is judged later than this is stored and opens no incident: the machine may long be well again."""
LONGEST_JOB: Final = timedelta(days=15)
"""Rows of a job older than this are not needed to judge its end: those of the end name its machines too."""
_KEPT: Final = 20_000
_NODE_ID: Final = "attribution"

JUDGED = prometheus_client.Counter("graynode_attribution_total", "Placements judged", ["verdict"])
TOOK = prometheus_client.Histogram(
    "graynode_attribution_delay_seconds", "From the end of a placement to its first judgement",
    buckets=(30, 60, 90, 120, 180, 240, 300, 600, 3600, 21600),
)  # fmt: skip

Tell = Callable[[Sequence[Mapping[str, Any]]], None]
"""Takes findings and tells the incidents that follow."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was last said of one placement in one phase."""

    row: Mapping[str, Any]
    final: bool


@dataclass(slots=True)
class Attribution:
    """Judges the ended and hanging jobs of one cluster. ``tell`` gets the findings, ``producer`` the rows."""

    lake: Lake
    cluster: str
    producer: Producer
    tell: Tell
    policy: Policy = field(default_factory=shipped)
    clock: Callable[[], datetime] = utc_now
    _jobs: Jobs = field(init=False)
    _reader: Reader = field(init=False)
    _known: dict[str, _Known] | None = None
    _outbox: Outbox = field(init=False)
    _findings: list[dict[str, Any]] = field(default_factory=list)
    _over: dict[str, datetime] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _version: int = -1
    _pending: bool = False
    _next_hangs: datetime | None = None
    _log: Any = field(default_factory=structlog.get_logger)

    def __post_init__(self) -> None:
        self._jobs, self._reader = Jobs(self.lake), Reader(self.lake)
        self._outbox = Outbox(self.producer, self.cluster, _NODE_ID, self.clock)

    def run(self, stop: threading.Event, every_s: float = EVERY_S) -> None:
        """``step`` until ``stop``; a lake or bus that is away is waited for, and said when that changes."""
        self._stop, away = stop, ""
        while not stop.is_set():
            try:
                self.step()
                away = ""
            except Exception as error:  # whatever a row or a table brings: the next look may go well, detection goes on
                if str(error) != away:
                    waits = isinstance(error, LakeError | QueryError | BusUnavailable | OSError)
                    say = self._log.warning if waits else self._log.exception
                    say("attribution waits", reason=str(error)[:400])
                away = str(error)
            stop.wait(every_s)
        self._jobs.close()

    def step(self) -> int:
        """Judge what is due; gives how many rows were told. ``LakeError``, ``BusUnavailable``: call again later."""
        self._flush()
        now = self.clock()
        if self._known is None:
            self._known = self._remembered(now)
        told = self._ended(now)
        if self._next_hangs is None or now >= self._next_hangs:
            self._next_hangs = now + HANGS_EVERY
            told += self._hanging(now)
        return told

    def _remembered(self, now: datetime) -> dict[str, _Known]:
        """What an earlier run has said: the latest revision of each, as landed."""
        rows = self.lake.read("attribution", now - LOOK_BACK - FINAL, None)
        found: dict[str, _Known] = {}
        for said in rows.sort("revision", "ts").iter_rows(named=True):
            if said["cluster"] == self.cluster:
                since_end = said["ts"] - said["end_ts"] if said["end_ts"] is not None else timedelta(0)
                found[said["attribution_id"]] = _Known(said, since_end >= FINAL)
        return found

    def _ended(self, now: datetime) -> int:
        version = self.lake.version("job")
        if version == self._version and not self._pending:
            return 0
        ends, told = self._jobs.ended(self.cluster, now - LOOK_BACK, now + timedelta(hours=1)), 0
        due = {job_id: end for job_id, end in ends.items() if self._over.get(job_id) != end}
        attempts = self._jobs.attempts_of(self.cluster, due, now - LONGEST_JOB)
        for job_id, end in sorted(due.items(), key=lambda job: (job[1], job[0]), reverse=True):  # fresh ones first
            if self._stop.is_set():
                return told
            told += sum(self._one(placed, now) for placed in attempts.get(job_id, ()) if _is_due(placed, now))
            if now - end >= FINAL:
                self._over[job_id] = end
        _forget(self._over)
        self._version, self._pending = version, any(now - end < FINAL for end in ends.values())
        return told

    def _hanging(self, now: datetime) -> int:
        told = 0
        standing = self._jobs.stands_still(self.cluster, now)
        for attempts in self._jobs.attempts_of(self.cluster, standing, now - LONGEST_JOB).values():
            running = [p for p in attempts if p.end is None]
            told += sum(self._one(placed, now) for placed in running[-1:])
        return told

    def _one(self, placed: Placement, now: datetime) -> int:
        """Judge one placement, unless what was said of it stands; 1 where something new was told."""
        known = self._known_of(placed)
        final = placed.end is not None and now - placed.end >= FINAL
        if known is not None and (known.final or (placed.end is not None and not final)):
            return 0
        answer = self._judged(placed, now)
        if answer is None:
            self._remember(placed, known.row if known else {"revision": -1}, final=True)
            return 0
        said = row(answer, now, 0 if known is None else int(known.row["revision"]) + 1)
        news = known is None or changed(known.row, said)
        self._remember(placed, said if news or known is None else known.row, final=final)
        if news:
            if known is None and placed.end is not None:
                TOOK.observe(max(0.0, (now - placed.end).total_seconds()))
            late = placed.end is not None and now - placed.end > LATE
            self._say(said, [f | {"live": False} if late else f for f in findings(answer)])
        return int(news)

    def _judged(self, placed: Placement, now: datetime) -> Judgement | None:
        """A placement that cannot be judged costs itself only, and is said."""
        try:
            return judge(self._reader.case(placed, now), self.policy)
        except (LakeError, QueryError, OSError):
            raise
        except Exception as error:
            self._log.error("a job cannot be judged", job_id=placed.job_id, reason=repr(error)[:300])
            return None

    def _known_of(self, placed: Placement) -> _Known | None:
        return (self._known or {}).get(identity(placed))

    def _remember(self, placed: Placement, said: Mapping[str, Any], *, final: bool) -> None:
        if self._known is not None:
            self._known[identity(placed)] = _Known(said, final)
            _forget(self._known)

    def _say(self, said: Mapping[str, Any], found: Sequence[dict[str, Any]]) -> None:
        """Queue the row and its findings, then send: what cannot be sent goes first at the next step."""
        JUDGED.labels(said["verdict"]).inc()
        self._log.info(
            "job judged", job_id=said["job_id"], verdict=said["verdict"], kind=said["kind"],
            confidence=said["confidence"], node=said["node"], revision=said["revision"],
        )  # fmt: skip
        self._outbox.put("attribution", [said])
        self._findings += found
        self._flush()

    def _flush(self) -> None:
        self._outbox.flush()
        if self._findings:
            found, self._findings = self._findings, []
            self.tell(found)


def watch(
    config: Config, policy: Policy, producer: Producer, tell: Tell, clock: Callable[[], datetime], stop: threading.Event
) -> None:
    """Judge this cluster's jobs until ``stop``. What fails for good is said, and ends no detection."""
    try:
        Attribution(make_lake(config), config.cluster, producer, tell, policy, clock).run(stop)
    except Exception:
        structlog.get_logger().exception("jobs are no longer judged")


def _is_due(placed: Placement, now: datetime) -> bool:
    """Of several machines, ended other than well, long enough ago to have landed and not too long."""
    if placed.end is None or placed.size < 2 or placed.state == "completed":
        return False
    settled = SETTLE if placed.state is not None else SETTLE_UNTOLD
    return settled <= now - placed.end <= LOOK_BACK


def _forget(kept: dict[str, Any]) -> None:
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]
