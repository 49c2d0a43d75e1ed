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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from graynode.detectors import attribution_clues as clues_of
from graynode.detectors import attribution_roles as roles
from graynode.detectors.attribution_clues import CONTEXT, INFRASTRUCTURE, Clue
from graynode.detectors.attribution_decide import Answer, decide
from graynode.detectors.attribution_elsewhere import Elsewhere, looked_elsewhere
from graynode.detectors.attribution_hang import Standing
from graynode.detectors.attribution_job import Placement
from graynode.detectors.attribution_log import of_log, ranks_heard
from graynode.detectors.attribution_machines import at_bus_time, located, of_incidents, of_machines, on_the_job
from graynode.detectors.attribution_scheduler import of_scheduler
from graynode.detectors.policy import Policy

VERSION: Final = 1
_WENT_ON: Final = timedelta(minutes=2)
"""A job that took steps for so long after a clue did not end by it."""
_RANKS: Final = 4
"""Of fewer ranks, silence tells nothing."""
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
    incidents: pl.DataFrame = field(default_factory=lambda: _EMPTY)
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


def judge(case: Case, policy: Policy | None = None) -> Judgement:
    """The judgement of one placement. Missing tables give *unknown*, with what was missing; nothing raises."""
    placed = case.placement.standing_since(case.standing.since if case.standing else case.placement.onset)
    window = placed.window(case.now)
    seen = [
        *on_the_job(clues_of.of_events(_within(case.events, window, placed), policy), placed, case.gpus),
        *on_the_job(clues_of.of_findings(_within(case.findings, window, placed), window[0]), placed, case.gpus),
        *of_machines(placed, case.hosts, case.gpus, window),
        *of_incidents(_ours(case.incidents, placed), window),
    ]
    timed = at_bus_time(seen, case.hosts)
    told = located(of_log(_of_job(case.log, placed), policy), case.gpus, placed.job_id)
    said = of_scheduler(placed, _within(case.states, window, placed))
    clues = [_weaker(c, case.last_step) for c in (*timed, *told, *said) if window[0] <= c.at <= window[1]]
    clues = _node_found(clues)
    elsewhere = looked_elsewhere(placed, clues, case.history, case.same_image, case.others)
    answer = decide(placed, clues, elsewhere, case.standing, placed.end or case.now)
    at_once = roles.beside(answer.first, clues)
    return Judgement(
        placement=placed,
        verdict=answer.verdict,
        kind=answer.kind,
        detail=answer.detail,
        confidence=answer.confidence,
        clues=roles.with_roles(clues, answer.first, at_once),
        window=window,
        first=answer.first,
        beside=at_once,
        suspects=_suspects(answer, placed, clues, elsewhere),
        elsewhere=elsewhere,
        missing=case.missing,
        standing=case.standing,
        notes=(*answer.notes, *_silent_ranks(placed, case)),
    )


def _suspects(answer: Answer, placed: Placement, clues: Sequence[Clue], elsewhere: Elsewhere) -> tuple[str, ...]:
    if answer.detail == "repeated_on_one_gpu" and answer.first is not None and answer.first.node_id:
        return (answer.first.node_id,)
    return roles.in_doubt(placed, clues, elsewhere) if answer.verdict == "unknown" else ()


def _silent_ranks(placed: Placement, case: Case) -> tuple[str, ...]:
    """The few ranks whose watchdog said nothing where nearly all others' did, and those that stopped a step earlier."""
    notes = []
    if case.standing is not None and case.standing.behind:
        notes.append(f"ranks {_listed(case.standing.behind)} stopped a step before the others")
    heard = ranks_heard(_of_job(case.log, placed))
    silent = sorted(set(range(placed.ranks or 0)) - heard)
    if (placed.ranks or 0) >= _RANKS and 4 * len(heard) >= 3 * (placed.ranks or 0) and silent:
        of = f"{len(heard)} of {placed.ranks}"
        notes.append(f"watchdogs of {of} ranks spoke; silent: {_listed(silent)}: often the one waited for")
    return tuple(notes)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")


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
    """Rows of its machines in its window."""
    ours = _ours(frame, placed)
    wide = timedelta(minutes=2)  # clocks that are off are put right later
    return ours.filter(pl.col("ts").is_between(window[0] - wide, window[1] + wide)) if ours.height else ours


def _ours(frame: pl.DataFrame, placed: Placement) -> pl.DataFrame:
    """Rows of its machines; by name where a machine goes by the scheduler's name only."""
    if frame.is_empty() or not {"ts", "node_id"} <= set(frame.columns):
        return frame.clear()
    names = [n for i, n in placed.machines.items() if n and ":" in i]
    ours = pl.col("node_id").is_in(list(placed.machines))
    if names and "node" in frame.columns:
        ours |= pl.col("node").is_in(names)
    if "cluster" in frame.columns:
        ours &= pl.col("cluster") == placed.cluster
    return frame.filter(ours)
