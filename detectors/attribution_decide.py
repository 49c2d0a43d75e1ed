"""The decision: given weighed clues, what a job's end is put down to, how sure that is, and what weighs on it.

In this order: what the scheduler says beyond doubt; a machine that began it; a program that began it; what the
scheduler or a person did; a machine whose trouble was seen only after the end; unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from graynode.detectors import attribution_clues as sides
from graynode.detectors.attribution_clues import APPLICATION, CASCADE, CONTEXT, INFRASTRUCTURE, SKEW, Clue
from graynode.detectors.attribution_elsewhere import Elsewhere
from graynode.detectors.attribution_hang import Standing
from graynode.detectors.attribution_job import Placement
from graynode.detectors.attribution_log import strongest
from graynode.detectors.attribution_roles import alike, speaker

_MANY_MACHINES: Final = 4
"""More machines than this with one cause at once share something that none of them is."""
_KILLS: Final = frozenset({"gpu", "memory", "nvlink", "driver", "node"})
"""Kinds that end the process on the GPU or machine concerned; a port or a file system ends one only if it is in use."""
_BEYOND_DOUBT: Final = ("completed", "preempted")


@dataclass(frozen=True, slots=True)
class Answer:
    """Verdict, kind and detail; ``first`` is the clue that began it, ``notes`` what weakens or supports it."""

    verdict: str
    kind: str
    detail: str
    confidence: str | None = None
    first: Clue | None = None
    notes: tuple[str, ...] = ()


def decide(
    placed: Placement, clues: Sequence[Clue], elsewhere: Elsewhere, standing: Standing | None, end: datetime
) -> Answer:
    """The answer. ``end`` is the placement's, or now for one that runs."""
    by_scheduler = _scheduler(placed, clues, standing)
    if by_scheduler is not None and by_scheduler.kind in _BEYOND_DOUBT:
        return by_scheduler
    machine, program = strongest(clues, INFRASTRUCTURE), strongest(clues, APPLICATION)
    in_time = [c for c in machine if c.earliest <= end + SKEW]
    if in_time and not _program_outweighs(program, in_time):
        return _machine_began(in_time, program, elsewhere)
    if program:
        return _program_began(program, machine, elsewhere)
    if by_scheduler is not None:
        return by_scheduler
    if machine:
        late = "the machine's trouble was first seen after the end; nothing else explains it"
        return Answer(INFRASTRUCTURE, machine[0].kind, machine[0].detail, "medium", machine[0], (late,))
    return _unknown(placed, clues, standing)


def _program_outweighs(program: Sequence[Clue], machine: Sequence[Clue]) -> bool:
    """Whether the program's own error says more than the machine's, or as much and surely earlier."""
    if not program:
        return False
    most = max(c.weight for c in machine)
    if max(c.weight for c in program) > most:
        return True
    return any(c.weight >= most and c.surely_before(machine[0]) for c in program)


def _machine_began(machine: Sequence[Clue], program: Sequence[Clue], elsewhere: Elsewhere) -> Answer:
    first = speaker(machine[0], machine)
    witnesses = {_witness(c) for c in machine if first.node_id in (None, c.node_id) and c.kind == first.kind}
    sure = first.weight >= 3 or len(witnesses) > 1
    notes = []
    rivals = [c for c in program if c.weight >= 3]
    if any(not first.surely_before(c) for c in rivals):
        notes.append("the program's own error came at about the same time: which was first, the clocks cannot tell")
        sure = False
    elif rivals and first.kind not in _KILLS:
        notes.append("the program's own error came later and may have another reason")
        sure = False
    if len(alike(first, machine)) > _MANY_MACHINES:
        notes.append("many machines showed it at once: look for what they share (switch, power, storage, driver)")
        sure = False
    if elsewhere.clean:
        notes.append("the same image ran to its end on other nodes")
    return Answer(INFRASTRUCTURE, first.kind, first.detail, "high" if sure else "medium", first, tuple(notes))


def _witness(clue: Clue) -> str:
    """Who says it; the scheduler's word in the job's output and in its own table is one witness."""
    return "scheduler" if clue.detail in ("node_failure", "node_fail", "node_down") else clue.source


def _program_began(program: Sequence[Clue], machine: Sequence[Clue], elsewhere: Elsewhere) -> Answer:
    first = next((c for c in program if c.weight >= 3), program[0])
    if first.weight < 3 and elsewhere.stays_on:
        note = f"Xids of this kind stay on one GPU: {elsewhere.stays_on}"
        return Answer(INFRASTRUCTURE, "gpu", "repeated_on_one_gpu", "medium", first, (note,))
    confidence, notes = ("high" if first.weight >= 3 else "medium"), []
    if machine:
        confidence = "medium"
        notes.append("a machine showed trouble too; it does not explain this error, and is told on its own")
    if first.detail == "nan":
        notes.append("a GPU that computes wrongly also gives NaN: if it comes again on one node only, probe that node")
    if first.weight < 3 and elsewhere.clean:
        confidence = "low"
        notes.append("the same image ran to its end on other nodes: run it again elsewhere before looking for a bug")
    if first.weight < 3 and elsewhere.repeats:
        notes.append(f"watch this GPU: {elsewhere.repeats}")
    return Answer(APPLICATION, first.kind, first.detail, confidence, first, tuple(notes))


def _scheduler(placed: Placement, clues: Sequence[Clue], standing: Standing | None) -> Answer | None:
    """What the scheduler or a person did. Of a job that had hung, the time limit or a person only ended the wait."""
    by = {c.kind: c for c in sorted(clues, key=lambda c: (c.weight, c.order)) if c.side == sides.SCHEDULER}
    for kind, verdict, confidence in (("preempted", "scheduler", "high"), ("completed", "neither", None)):
        if kind in by:
            return Answer(verdict, kind, by[kind].detail, confidence, by[kind])
    if standing is not None or any(c.detail == "collective_timeout" for c in clues):
        return None
    for kind in ("time_limit", "cancelled"):
        if kind in by:
            return Answer("neither", kind, by[kind].detail, None, by[kind])
    if any(c.side in (APPLICATION, INFRASTRUCTURE, CASCADE) for c in clues):
        return None
    return _quiet(placed, by.get("requeued"))


def _quiet(placed: Placement, requeued: Clue | None) -> Answer | None:
    """An end that nothing says was a failure."""
    if placed.state == "requeued":
        return Answer("scheduler", "requeued", "requeued", "low", requeued)
    if placed.end is None:
        kind = "waiting" if placed.state in ("queued", "allocated") else "running"
        return Answer("neither", kind, kind)
    # an agent sees a job go, well or not: without a scheduler's word every end would put its machines in doubt
    return Answer("neither", "end_untold", "end_untold") if placed.state is None else None


def _unknown(placed: Placement, clues: Sequence[Clue], standing: Standing | None) -> Answer:
    timeouts = sorted((c for c in clues if c.side == CASCADE and c.kind == "collective"), key=lambda c: c.order)
    if timeouts:
        note = "a collective that times out says that somebody was waited for, not who or why"
        return Answer("unknown", "collective_timeout", timeouts[0].detail, notes=(note,))
    weak = [c for c in clues if c.weight == 1 and c.side in (APPLICATION, CONTEXT) and c.source == "job log"]
    if weak:
        return Answer("unknown", "unclear_error", min(weak, key=lambda c: c.order).detail)
    if standing is not None:
        return Answer("unknown", "hang", "no_progress", notes=(standing.why,))
    if placed.exit_code or placed.exit_signal:
        how = f"signal {placed.exit_signal}" if placed.exit_signal else f"exit code {placed.exit_code}"
        return Answer("unknown", "no_evidence", "exit_code_only", notes=(f"{how} alone tells nothing",))
    return Answer("unknown", "no_evidence", "nothing_seen")
