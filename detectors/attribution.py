"""Was it the code or the machine? Why one placement of a job ended, hangs, or was ended.

    case = Case(placement, now, events=…, log=…)        # frames of the contract's tables; absent ones are empty
    judged = judge(case)                                # a Judgement: verdict, kind, confidence, clues in order of time

The first cause in time on a machine of the job decides, clocks' disagreement allowed for; what follows from it
elsewhere (collective timeouts, Xid 43 and 45) is cascade. A cause is looked for from ten minutes before the end, or
before the job stood still, to five minutes after. Nothing is guessed from an exit code, and *unknown* is an answer.
Pure: rows in any order, and rows of other jobs and machines beside them, give the same judgement.
``docs/attribution.md`` has the rules as tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from graynode.detectors import attribution_clues as clues_of
from graynode.detectors.attribution_clues import APPLICATION, CASCADE, CONTEXT, INFRASTRUCTURE, SKEW, Clue
from graynode.detectors.attribution_elsewhere import Elsewhere, looked_elsewhere
from graynode.detectors.attribution_hang import Standing
from graynode.detectors.attribution_job import Placement
from graynode.detectors.attribution_log import of_log, ranks_heard, strongest
from graynode.detectors.attribution_machines import at_bus_time, of_machines, on_the_job
from graynode.detectors.attribution_scheduler import of_scheduler
from graynode.detectors.policy import Policy

VERSION: Final = 1
_WENT_ON: Final = timedelta(minutes=2)
"""A job that took steps for so long after a clue did not end by it."""
_TOGETHER: Final = timedelta(seconds=60)
"""One cause on many machines is seen on all of them within so much: the slowest look is once a minute."""
_ONE_FAULT: Final = timedelta(seconds=5)
"""GPUs that show the same within so much show one fault: which of two ends is broken, it does not say."""
_MANY_MACHINES: Final = 4
"""More machines than this with a first cause at once share something that none of them is."""
_EMPTY: Final = pl.DataFrame()


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known around one placement. Frames have the contract's columns; an absent one is empty.

    ``gpus`` and ``hosts`` are 30 s windows of its machines, ``states`` the scheduler's node states. ``history`` are
    Xids of these machines of the last weeks with ``job_id`` and ``user``; ``same_image`` ended placements of the same
    image; ``others`` ended placements of other jobs on these machines. ``missing`` says what could not be asked.
    """

    placement: Placement
    now: datetime
    events: pl.DataFrame = field(default_factory=lambda: _EMPTY)
    log: pl.DataFrame = field(default_factory=lambda: _EMPTY)
    findings: pl.DataFrame = field(default_factory=lambda: _EMPTY)
    states: pl.DataFrame = field(default_factory=lambda: _EMPTY)
    gpus: pl.DataFrame = field(default_factory=lambda: _EMPTY)
    hosts: pl.DataFrame = field(default_factory=lambda: _EMPTY)
    history: pl.DataFrame = field(default_factory=lambda: _EMPTY)
    same_image: pl.DataFrame = field(default_factory=lambda: _EMPTY)
    others: pl.DataFrame = field(default_factory=lambda: _EMPTY)
    standing: Standing | None = None
    last_step: datetime | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer. ``confidence`` is high, medium or low, null where the verdict is unknown or neither.

    ``first`` is the initiating clue; ``clues`` are all, in order of time, each with its role: initiating, cascade,
    teardown or context. ``suspects`` are machines that an unknown cause leaves in doubt, the most doubtful first.
    """

    placement: Placement
    verdict: str
    kind: str
    detail: str
    confidence: str | None
    clues: tuple[Clue, ...]
    window: tuple[datetime, datetime]
    first: Clue | None = None
    beside: tuple[Clue, ...] = ()
    suspects: tuple[str, ...] = ()
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    missing: tuple[str, ...] = ()
    standing: Standing | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Answer:
    verdict: str
    kind: str
    detail: str
    confidence: str | None = None
    first: Clue | None = None
    notes: tuple[str, ...] = ()


def judge(case: Case, policy: Policy | None = None) -> Judgement:
    """The judgement of one placement. Missing tables give *unknown*, with what was missing; nothing raises."""
    placed = case.placement.standing_since(case.standing.since if case.standing else case.placement.onset)
    window = placed.window(case.now)
    seen = [
        *on_the_job(clues_of.of_events(_within(case.events, window, placed), policy), placed, case.gpus),
        *on_the_job(clues_of.of_findings(_within(case.findings, window, placed), window[0]), placed, case.gpus),
        *of_machines(placed, case.hosts, case.gpus, window),
    ]
    timed = at_bus_time(seen, case.hosts)
    told = of_log(_of_job(case.log, placed), policy)
    said = of_scheduler(placed, _within(case.states, window, placed))
    clues = [_weaker(c, case.last_step) for c in (*timed, *told, *said) if window[0] <= c.at <= window[1]]
    clues = _node_found(clues)
    elsewhere = looked_elsewhere(placed, clues, case.history, case.same_image, case.others)
    answer = _answer(placed, clues, elsewhere, case)
    beside = _beside(answer.first, clues)
    return Judgement(
        placed, answer.verdict, answer.kind, answer.detail, answer.confidence,
        tuple(sorted(_roles(clues, answer.first, beside), key=lambda c: c.order)), window, answer.first, beside,
        _suspects(answer, placed, clues, elsewhere), elsewhere, case.missing, case.standing,
        (*answer.notes, *_silent_ranks(placed, case.log)),
    )  # fmt: skip


# --- the decision ---


def _answer(placed: Placement, clues: Sequence[Clue], elsewhere: Elsewhere, case: Case) -> _Answer:
    """In this order: a machine that began it, a program that began it, what the scheduler did, else unknown."""
    machine, program = strongest(clues, INFRASTRUCTURE), strongest(clues, APPLICATION)
    end = placed.end or case.now
    in_time = [c for c in machine if c.earliest <= end + SKEW]
    if in_time and not _program_first(program, in_time[0]):
        return _machine_began(in_time[0], in_time, program, elsewhere)
    if program:
        return _program_began(program, machine, elsewhere)
    by_scheduler = _scheduler_did(placed, clues, case.standing)
    if by_scheduler is not None:
        return by_scheduler
    if machine:
        late = "the machine's trouble was first seen after the end; nothing else explains it"
        return _Answer(INFRASTRUCTURE, machine[0].kind, machine[0].detail, "medium", machine[0], (late,))
    return _unknown(placed, clues, case)


def _program_first(program: Sequence[Clue], machine: Clue) -> bool:
    """Whether the program had surely ended itself before the machine showed anything."""
    return any(c.weight >= 3 and c.surely_before(machine) for c in program)


def _machine_began(first: Clue, machine: Sequence[Clue], program: Sequence[Clue], elsewhere: Elsewhere) -> _Answer:
    speaker = next((c for c in machine if c.weight >= 3 and not first.surely_before(c)), first)
    at_once = [c for c in program if c.weight >= 3 and not speaker.surely_before(c)]
    witnesses = {c.source for c in machine if c.node_id == speaker.node_id or speaker.node_id is None}
    sure = speaker.weight >= 3 or (len(witnesses) > 1 and len({c.kind for c in machine}) == 1)
    notes = []
    if at_once:
        notes.append("the program's own error came at about the same time: which was first, the clocks cannot tell")
    shared = len(_alike(speaker, machine, _TOGETHER)) > _MANY_MACHINES
    if shared:
        notes.append("many machines showed it at once: look for what they share (switch, power, storage, driver)")
    if elsewhere.clean:
        notes.append("the same image ran to its end on other nodes")
    confidence = "high" if sure and not at_once and not shared else "medium"
    return _Answer(INFRASTRUCTURE, speaker.kind, speaker.detail, confidence, speaker, tuple(notes))


def _program_began(program: Sequence[Clue], machine: Sequence[Clue], elsewhere: Elsewhere) -> _Answer:
    first = next((c for c in program if c.weight >= 3), program[0])
    if first.weight < 3 and elsewhere.stays_on:
        note = f"Xids of this kind stay on one GPU: {elsewhere.stays_on}"
        return _Answer(INFRASTRUCTURE, "gpu", "repeated_on_one_gpu", "medium", first, (note,))
    confidence, notes = ("high" if first.weight >= 3 else "medium"), []
    if machine:
        confidence = "medium"
        notes.append("a machine showed trouble too, later: it did not begin this, and is told on its own")
    if first.detail == "nan":
        notes.append("a GPU that computes wrongly also gives NaN: if it comes again on one node only, probe that node")
    if first.weight < 3 and elsewhere.clean:
        confidence = "low"
        notes.append("the same image ran to its end on other nodes: run it again elsewhere before looking for a bug")
    if first.weight < 3 and elsewhere.repeats:
        notes.append(f"watch this GPU: {elsewhere.repeats}")
    return _Answer(APPLICATION, first.kind, first.detail, confidence, first, tuple(notes))


def _scheduler_did(placed: Placement, clues: Sequence[Clue], standing: Standing | None) -> _Answer | None:
    """What the scheduler or a person did, unless the job hung before: then that is not the cause."""
    hung = standing is not None or any(c.detail == "collective_timeout" for c in clues)
    said = [c for c in clues if c.side == clues_of.SCHEDULER]
    by = {c.kind: c for c in sorted(said, key=lambda c: (c.weight, c.order))}
    if "preempted" in by:
        return _Answer("scheduler", "preempted", by["preempted"].detail, "high", by["preempted"])
    if hung:
        return None
    for kind in ("time_limit", "cancelled", "completed"):
        if kind in by:
            return _Answer("neither", kind, by[kind].detail, None, by[kind])
    errors = [c for c in clues if c.side in (APPLICATION, INFRASTRUCTURE, CASCADE)]
    if placed.state == "requeued" and not errors:
        return _Answer("scheduler", "requeued", "requeued", "low", by.get("requeued"))
    return _Answer("neither", "running", "running") if placed.end is None and not errors else None


def _unknown(placed: Placement, clues: Sequence[Clue], case: Case) -> _Answer:
    timeouts = sorted((c for c in clues if c.side == CASCADE and c.kind == "collective"), key=lambda c: c.order)
    if timeouts:
        note = "a collective that times out says that somebody was waited for, not who or why"
        return _Answer("unknown", "collective_timeout", timeouts[0].detail, None, None, (note,))
    weak = [c for c in clues if c.weight == 1 and c.side in (APPLICATION, CONTEXT) and c.source == "job log"]
    if weak:
        return _Answer("unknown", "unclear_error", min(weak, key=lambda c: c.order).detail)
    if case.standing is not None:
        return _Answer("unknown", "hang", "no_progress", None, None, (case.standing.why,))
    if placed.exit_code or placed.exit_signal:
        how = f"signal {placed.exit_signal}" if placed.exit_signal else f"exit code {placed.exit_code}"
        return _Answer("unknown", "no_evidence", "exit_code_only", None, None, (f"{how} alone tells nothing",))
    return _Answer("unknown", "no_evidence", "nothing_seen")


# --- roles, suspects, what belongs to the job ---


def _beside(first: Clue | None, clues: Iterable[Clue]) -> tuple[Clue, ...]:
    """Clues of the same side and weight that were there at once on another GPU or machine."""
    if first is None or first.side != INFRASTRUCTURE:
        return ()
    strong = [c for c in sorted(clues, key=lambda c: c.order) if c.side == INFRASTRUCTURE and c.weight >= first.weight]
    elsewhere = [c for c in strong if c.place != first.place]
    return tuple(c for c in elsewhere if _at_once(first, c))


def _at_once(first: Clue, other: Clue) -> bool:
    if first.kind == other.kind and abs(other.at - first.at) <= _ONE_FAULT:
        return True
    return not first.surely_before(other) and not other.surely_before(first)


def _alike(first: Clue, machine: Iterable[Clue], within: timedelta) -> set[str]:
    """Machines that showed the same kind of trouble at about the same time."""
    return {c.node_id for c in machine if c.node_id and c.kind == first.kind and abs(c.at - first.at) <= within}


def _roles(clues: Iterable[Clue], first: Clue | None, beside: Sequence[Clue]) -> list[Clue]:
    return [replace(c, role=_role(c, first, beside)) for c in clues]


def _role(clue: Clue, first: Clue | None, beside: Sequence[Clue]) -> str:
    if clue is first or any(clue is b for b in beside):
        return "initiating"
    if clue.kind == "teardown" or clue.detail in ("xid_43", "xid_45"):
        return "teardown"
    if clue.side == CASCADE:
        return "cascade"
    after = first is not None and clue.at >= first.earliest and clue.side in (APPLICATION, INFRASTRUCTURE)
    return "cascade" if after and first is not None and first.side == INFRASTRUCTURE else "context"


def _suspects(answer: _Answer, placed: Placement, clues: Iterable[Clue], elsewhere: Elsewhere) -> tuple[str, ...]:
    if answer.detail == "repeated_on_one_gpu" and answer.first is not None and answer.first.node_id:
        return (answer.first.node_id,)
    if answer.verdict != "unknown":
        return ()
    doubt: dict[str, int] = dict.fromkeys(placed.machines, 0)
    for clue in clues:
        if clue.node_id in doubt and clue.side in (INFRASTRUCTURE, CONTEXT):
            doubt[clue.node_id] += 2
    for node_id, failed in elsewhere.failed_here.items():
        if node_id in doubt:
            doubt[node_id] += failed
    return tuple(sorted(doubt, key=lambda n: (-doubt[n], n)))


def _silent_ranks(placed: Placement, log: pl.DataFrame) -> tuple[str, ...]:
    """The few ranks whose watchdog said nothing, where nearly all others' did."""
    heard = ranks_heard(_of_job(log, placed))
    if not placed.ranks or placed.ranks < 4 or 4 * len(heard) < 3 * placed.ranks:
        return ()
    silent = sorted(set(range(placed.ranks)) - heard)
    if not silent:
        return ()
    named = ", ".join(map(str, silent[:8]))
    return (f"watchdogs of {len(heard)} of {placed.ranks} ranks spoke; silent: {named}: often the one waited for",)


def _weaker(clue: Clue, last_step: datetime | None) -> Clue:
    """A machine's trouble after which the job went on for minutes did not end it."""
    if clue.side != INFRASTRUCTURE or last_step is None or clue.at + _WENT_ON >= last_step:
        return clue
    went_on = f"{clue.message} (the job took steps for {(last_step - clue.at).total_seconds() / 60:.0f} min after it)"
    return replace(clue, weight=1, side=CONTEXT, message=went_on)


def _node_found(clues: Sequence[Clue]) -> list[Clue]:
    """Where the scheduler lost a node and one machine alone fell silent, that one is it."""
    silent = [c for c in clues if c.detail == "node_silent"]
    lost = any(c.detail in ("node_fail", "node_failure", "node_down") for c in clues)
    if not lost or len(silent) != 1:
        return list(clues)
    named = replace(silent[0], side=INFRASTRUCTURE, weight=3, cause="host_fault", severity="ticket")
    return [named if c is silent[0] else c for c in clues]


def _of_job(log: pl.DataFrame, placed: Placement) -> pl.DataFrame:
    if log.is_empty() or "job_id" not in log.columns:
        return log.clear()
    ours = pl.col("job_id") == placed.job_id
    return log.filter(ours & (pl.col("cluster") == placed.cluster) if "cluster" in log.columns else ours)


def _within(frame: pl.DataFrame, window: tuple[datetime, datetime], placed: Placement) -> pl.DataFrame:
    """Rows of its machines in its window; by name where a machine goes by the scheduler's name only."""
    if frame.is_empty() or not {"ts", "node_id"} <= set(frame.columns):
        return frame.clear()
    names = [n for i, n in placed.machines.items() if n and ":" in i]
    ours = pl.col("node_id").is_in(list(placed.machines))
    if names and "node" in frame.columns:
        ours |= pl.col("node").is_in(names)
    if "cluster" in frame.columns:
        ours &= pl.col("cluster") == placed.cluster
    wide = timedelta(minutes=2)  # clocks that are off are put right later
    return frame.filter(ours & pl.col("ts").is_between(window[0] - wide, window[1] + wide))
