"""What ``graynode cost``, ``capacity`` and ``user`` print for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from graynode.dashboards.pieces import clean
from graynode.service.cost_print import grid, number, span

Answer = Mapping[str, Any]
_SHOWN: Final = 25
WORDS: Final = {
    "busy_useful": "busy, useful", "busy_low": "busy, below its peers", "allocated_idle": "allocated, idle",
    "held": "held without a job", "free": "free", "stranded": "stranded", "reserved": "reserved",
    "out_of_service": "out of service", "blind": "not measured",
}  # fmt: skip


def print_cost(answer: Answer, sink: TextIO) -> None:
    """The table of ``graynode cost``: hours and money, and utilisation beside what it hides."""
    _head(answer, sink)
    if answer["rows"]:
        money = answer["currency"] or "cost"
        names = (answer["by"], "GPU-hours", "share", money, "kWh", "util", "SM active", "tensor", "power", "working")
        rows = [_cost_line(row, answer["by"]) for row in answer["rows"][:_SHOWN]]
        grid(names, [*rows, _cost_line(answer["total"], answer["by"])], sink)
        _more(answer["rows"], sink)
    _notes(answer, sink)


def _cost_line(row: Answer, by: str) -> list[str]:
    name = WORDS.get(str(row["key"]), str(row["key"])) if by == "category" else str(row["key"])
    working = row["busy_useful_gpu_h"] + row["busy_low_gpu_h"]
    return [
        name, number(row["gpu_hours"]), number(100 * row["share"], " %", 1), number(row["cost"], digits=0),
        number(row["energy_kwh"]), number(row["util_percent"], " %"), _percent(row["sm_active_ratio"]),
        _percent(row["tensor_active_ratio"]), number(row["power_w"], " W"),
        number(100 * working / row["gpu_hours"] if row["gpu_hours"] else None, " %"),
    ]  # fmt: skip


def _percent(ratio: float | None) -> str:
    return number(None if ratio is None else 100 * ratio, " %")


def print_jobs(answer: Answer, sink: TextIO) -> None:
    """The table of ``graynode cost --jobs``: phases of each attempt, and to whom what was lost is owed."""
    _head(answer, sink)
    names = ("job", "user", "state", "owed to", "GPUs", "wait", "prepare", "work", "again", "resume", "GPU-hours",
             "cost", "lost GPU-h")  # fmt: skip
    rows = sorted(answer["rows"], key=lambda r: -(r["gpu_hours"] or 0.0))
    lines = [
        [str(r["job_id"]) + (f" #{r['attempt'] + 1}" if r["retries"] else ""), str(r["user"] or "·"),
         str(r["state"] or "·"), str(r["owed_to"] or ""), number(r["gpus"]), span(r["wait_s"]),
         span(r["preparation_s"]), span(r["work_s"]), span(r["repeated_s"] or None), span(r["resume_s"]),
         number(r["gpu_hours"], digits=1), number(r["cost"], digits=2), number(r["lost_gpu_hours"], digits=1)]
        for r in rows[:_SHOWN]
    ]  # fmt: skip
    grid(names, lines, sink, right=4)
    _more(rows, sink)
    for owed in answer["owed"]:
        lost = number(owed["lost_gpu_hours"], digits=1)
        print(f"lost to failures: {lost} GPU-hours in {owed['failures']} failures, {clean(owed['owed_to'])}", file=sink)


def print_budgets(answer: Answer, sink: TextIO) -> None:
    """Budgets of the month, the fullest first."""
    print(f"cluster {clean(answer['cluster'])}, budgets of {answer['period']}, {answer['unit']}", file=sink)
    if not answer["rows"]:
        print("no budget is configured: [cost.budgets] ACCOUNT = amount a month (docs/cost.md)", file=sink)
        return
    lines = [
        [r["account"], number(r["budget"]), number(r["used"]), number(100 * r["share"], " %", 1),
         {0: "", 80: "over 80 %", 100: "used up"}[r["level"]]] for r in answer["rows"]
    ]  # fmt: skip
    grid(("account", "budget", "used", "share", ""), lines, sink)
    _notes(answer, sink)


def print_capacity(answer: Answer, sink: TextIO) -> None:
    """Who waits for what, what is free, what could be given back."""
    at = f"{answer['at']:%Y-%m-%d %H:%M} UTC" if isinstance(answer["at"], datetime) else "no time"
    print(f"cluster {clean(answer['cluster'])} at {at}", file=sink)
    free = sum(row["gpus"] for row in answer["free"])
    waiting, idle = answer["rows"], answer["reclaim"]
    print(f"{len(waiting)} jobs wait; {free} GPUs are free on {len(answer['free'])} nodes", file=sink)
    if waiting:
        lines = [
            [
                str(r["job_id"]),
                str(r["user"] or "·"),
                str(r["partition"] or "·"),
                r["shape"],
                r["why"],
                span(r["waited_s"]),
            ]
            for r in waiting[:_SHOWN]
        ]
        grid(
            ("job", "user", "partition", "nodes × GPUs × model", "could what is free serve it", "waits"), lines, sink, 5
        )
        _more(waiting, sink)
    gap = answer["gap"]
    print(f"from a release to the next use: {_gap(gap)}", file=sink)
    if idle:
        print("could be given back (advice only; ask first):", file=sink)
        lines = [[r["node"] or r["node_id"], r["gpu_uuid"], r["evidence"], number(r["cost_per_day"], " a day", 2)]
                 for r in idle[:_SHOWN]]  # fmt: skip
        grid(("node", "GPU", "evidence", "costs"), lines, sink, 3)
        _more(idle, sink)
    _notes(answer, sink)


def _gap(gap: Answer) -> str:
    if gap["median_s"] is None:
        return f"{gap['gaps']} gaps seen, {gap['note']}"
    seen = f"{gap['gaps']} gaps, {gap['open']} still open"
    return f"median {span(gap['median_s'])}, one in ten over {span(gap['p90_s'])} ({seen})"


def print_user(answer: Answer, sink: TextIO) -> None:
    """A user's timeline, newest first."""
    _head(answer, sink)
    total = answer["totals"]
    money = f", {total['cost']:,.0f} of money" if total["cost"] is not None else ""
    print(
        f"{clean(answer['user'])}: {total['jobs']} jobs, {total['gpu_hours']:,.0f} GPU-hours{money}; "
        f"{total['idle_gpu_hours']:,.0f} GPU-hours allocated and idle; {total['failures']} failures, "
        f"{total['lost_gpu_hours']:,.1f} GPU-hours lost",
        file=sink,
    )
    lines = [
        [f"{row['ts'].astimezone(UTC):%m-%d %H:%M}", str(row["side"] or ""), row["what"], row["advice"] or "",
         number(row["lost_gpu_hours"] or None, digits=1)] for row in answer["rows"][: 2 * _SHOWN]
    ]  # fmt: skip
    if lines:
        grid(("when", "whose", "what", "what now", "lost GPU-h"), lines, sink, 4)
        _more(answer["rows"], sink, 2 * _SHOWN)
    _notes(answer, sink)


def _head(answer: Answer, sink: TextIO) -> None:
    since, until = (f"{answer[k].astimezone(UTC):%Y-%m-%d %H:%M}" for k in ("since", "until"))
    print(f"cluster {clean(answer['cluster'])}, {since} to {until} UTC", file=sink)


def _more(rows: Sequence[object], sink: TextIO, shown: int = _SHOWN) -> None:
    if len(rows) > shown:
        print(f"… and {len(rows) - shown} more: --format json or csv has them all", file=sink)


def _notes(answer: Answer, sink: TextIO) -> None:
    for note in answer["notes"]:
        print(clean(note), file=sink)
