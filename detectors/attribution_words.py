"""A judgement in a person's words: one sentence, what to do next, and whose turn it is."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from graynode.detectors.advice import ADVICE
from graynode.detectors.attribution import Judgement
from graynode.detectors.attribution_clues import Clue
from graynode.detectors.gpu_words import named

_WHAT: Final[dict[tuple[str, str], str]] = {
    ("application", "code"): "its code",
    ("application", "data"): "its data or files",
    ("application", "resources"): "what it asked for or was given: memory, disk or files",
    ("application", "program"): "the program; the log does not show whether code or data",
}
_NEXT: Final[dict[tuple[str, str], str]] = {
    ("application", "code"): "Mend the code where the traceback points; another node will not help.",
    ("application", "data"): "Look at the file or batch that the line names; another node will not help.",
    ("application", "resources"): "Ask for more, or use less: batch size, workers, memory limit, disk quota.",
    ("application", "program"): "Run it again under compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1 on other nodes: "
    "if it fails there too, it is the program.",
    ("neither", "time_limit"): "Ask for more time, or go on from the last checkpoint.",
    ("neither", "cancelled"): "Nothing; whoever cancelled it knows why.",
    ("neither", "completed"): "Nothing.",
    ("neither", "running"): "Nothing yet: it runs, and nothing says that it stands still.",
    ("neither", "waiting"): "Nothing: it has not begun.",
    ("neither", "end_untold"): "Nothing points to a failure. Let graynode read the scheduler ([slurm] cluster = "
    "true, or kubernetes_cluster), then it knows how jobs end.",
    ("scheduler", "preempted"): "Nothing is broken: submit it again, or with a higher priority.",
    ("scheduler", "requeued"): "Nothing is known to be broken; ask the scheduler's log why it put the job back.",
}  # fmt: skip
_UNKNOWN: Final[dict[str, str]] = {
    "collective_timeout": "Keep its nodes out of the next large job until a probe or a short collective over half of "
    "them has said which is slow; a rank that hung in its own code (data loading, a branch that only some ranks take) "
    "looks the same.",
    "unclear_error": "Run it again on other nodes: if it fails there too, it is the program.",
    "hang": "Take stacks of all ranks (py-spy dump) before it is ended: the one elsewhere is the one waited for.",
}
_NOTHING: Final = (
    "Nothing here says why. Give graynode the job's output ([job_log] paths) and its steps, then the next one can be "
    "told; run this one again on other nodes."
)
_IMAGE: Final = "Run it again on other nodes; the program need not change."


def sentence(judged: Judgement) -> str:
    """The verdict in one or two sentences, for the researcher who asks."""
    placed, first = judged.placement, judged.first
    how = _ended(judged)
    if judged.verdict == "infrastructure":
        where = f" {_place(first)}" if first is not None and first.node_id else " on a machine that is not known"
        began = f": {first.message}, {_when(first.at, placed.end)}" if first is not None else ""
        return f"{how} because of the machine,{where}{began}."
    if judged.verdict == "application":
        said = f": {first.message}" if first is not None else ""
        return f"{how} because of {_WHAT.get(('application', judged.kind), 'the program')}{said}"
    if judged.verdict in ("neither", "scheduler"):
        said = f": {first.message}" if first is not None else ""
        return f"{how}, and nothing says that code or machine failed{said}."
    return f"{how}, and why is not known ({judged.kind.replace('_', ' ')}): neither code nor machine can be named."


def action(judged: Judgement) -> str:
    """What to do next."""
    if judged.verdict == "infrastructure":
        first = judged.first
        machine = first.action if first is not None and first.action else None
        if machine is None and first is not None and (first.cause or "") in ADVICE:
            machine = ADVICE[first.cause or ""].action
        if judged.kind == "storage":
            return f"Look at the file system that failed and who else uses it. {_IMAGE}"
        return f"{_IMAGE} For the machine: {machine or 'look at what the evidence names.'}"
    if judged.verdict == "unknown":
        return _UNKNOWN.get(judged.kind, _NOTHING)
    return _NEXT.get((judged.verdict, judged.kind), _NEXT["application", "program"])


def owner(judged: Judgement) -> str:
    """Whose turn it is, one of ``schema.OWNERS``."""
    if judged.verdict == "infrastructure":
        return (judged.first.owner if judged.first else None) or ("network" if judged.kind == "network" else "platform")
    return "platform" if judged.verdict == "unknown" else "job_owner"


def _ended(judged: Judgement) -> str:
    placed = judged.placement
    who = f"Job {placed.job_id}" + (f" (attempt {placed.attempt + 1})" if placed.attempt else "")
    if placed.end is None:
        waits = judged.kind == "waiting"
        return f"{who} {'hangs' if judged.standing else 'has not begun' if waits else 'runs'}"
    word = {
        "completed": "ran to its end", "cancelled": "was cancelled", "timeout": "ran until its time was up",
        "requeued": "was put back into the queue", "node_fail": "failed", "failed": "failed",
    }.get(placed.state or "", "ended, how is not known,")  # fmt: skip
    return f"{who} {word}" + (" after it had hung" if judged.standing else "")


def _place(clue: Clue | None) -> str:
    if clue is None:
        return ""
    node = clue.node or clue.node_id
    if clue.link:
        return f"port {clue.link} of {node}"
    if clue.gpu_uuid or clue.pci_bus_id:
        return f"{named(None, clue.pci_bus_id, clue.gpu_uuid)} of {node}"
    return str(node)


def _when(at: datetime, end: datetime | None) -> str:
    if end is None:
        return f"at {at:%H:%M:%S} UTC"
    before = (end - at).total_seconds()
    if abs(before) < 1:
        return "as it ended"
    return f"{abs(before):.0f} s {'before' if before > 0 else 'after'} the end"
