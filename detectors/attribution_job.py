"""What a scheduler's rows say of one job: its placements, one per attempt, with machines, GPUs, times and end.

Times are the scheduler's where it told them; an agent only sees a job go. A row ``requeued`` ends the attempt before
the one that it counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.pipeline.schema import JOB_ENDED

BEFORE: Final = timedelta(minutes=10)
AFTER: Final = timedelta(minutes=5)
"""Causes are looked for from ten minutes before the end to five after it (Meta's window, HPCA 2025)."""
LONGEST: Final = timedelta(hours=12)
"""A hang longer than this is looked at from so long before its end; what began earlier is told as standing still."""
_SCHEDULER: Final = ("slurm:", "kubernetes:")
_TELLING: Final = ("node_fail", "failed", "timeout", "requeued", "cancelled", "completed")
"""Of several machines' ends the one that tells most: pods that are taken down because one failed are cancelled."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One attempt of one job. ``machines`` is node id → name; a node that nobody claims keeps the scheduler's own id.

    ``gpus`` is machine → its GPUs in the job, where told. ``end`` is null while it runs. ``onset`` is since when it no
    longer made progress, where something tells (``attribution_hang``).
    """

    cluster: str
    job_id: str
    attempt: int
    state: str | None
    start: datetime | None
    end: datetime | None
    machines: Mapping[str, str | None]
    job_alias: str | None = None
    reason: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    work: str | None = None
    nodes: int | None = None
    ranks: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    image_digest: str | None = None
    code_revision: str | None = None
    config_hash: str | None = None
    gpus: Mapping[str, frozenset[str]] = field(default_factory=dict)
    onset: datetime | None = None

    @property
    def size(self) -> int:
        """How many machines it was placed on, by the larger of what is told and what is seen."""
        return max(self.nodes or 0, len(self.machines))

    def standing_since(self, onset: datetime | None) -> Placement:
        """The same placement, known to have stood still since then."""
        return replace(self, onset=onset)

    def window(self, now: datetime) -> tuple[datetime, datetime]:
        """From when to when its causes are looked for. ``now`` stands for the end of one that runs."""
        end = self.end or now
        began = min(end, self.onset or end)
        return max(began - BEFORE, end - LONGEST), end + AFTER


def placements(rows: pl.DataFrame) -> list[Placement]:
    """The attempts of one job in order, from its rows of table ``job`` (node ids bound to machines where known)."""
    told: dict[int, list[dict[str, Any]]] = {}
    for row in rows.sort("ts", "node_id", "state", nulls_last=False).iter_rows(named=True):
        back = row.get("state") == "requeued"
        told.setdefault(max(0, int(row.get("requeues") or 0) - back), []).append(row)
    found = [_placement(number, some) for number, some in sorted(told.items())]
    return [p for p in found if p.machines or p.state in JOB_ENDED] or found[-1:]


def _placement(number: int, rows: list[dict[str, Any]]) -> Placement:
    over = [r for r in rows if r.get("end_ts") is not None]
    by_scheduler = [r for r in over if r.get("state") is not None]
    placed = [r for r in rows if r.get("state") != "queued" and r.get("node")]
    start = min((r["allocated_ts"] for r in rows if r.get("allocated_ts")), default=None)
    if start is None:
        start = min((r["ts"] for r in placed if r.get("end_ts") is None), default=None)
    ended = by_scheduler or over
    last = min(reversed(ended), key=_telling) if ended else rows[-1]
    return Placement(
        cluster=str(last["cluster"]),
        job_id=str(last["job_id"]),
        attempt=number,
        state=last.get("state"),
        start=start,
        end=max((r["end_ts"] for r in ended), default=None),
        machines=_machines(placed),
        gpus=_gpus(placed),
        reason=last.get("reason"),
        nodes=_most(rows, "nodes"),
        ranks=_most(rows, "ranks"),
        exit_code=_worst(ended, "exit_code"),
        exit_signal=_worst(ended, "exit_signal"),
        job_alias=_said(rows, "job_alias"),
        user=_said(rows, "user"),
        account=_said(rows, "account"),
        partition=_said(rows, "partition"),
        work=_said(rows, "work"),
        image_digest=_said(rows, "image_digest"),
        code_revision=_said(rows, "code_revision"),
        config_hash=_said(rows, "config_hash"),
    )


def _telling(row: Mapping[str, Any]) -> int:
    return _TELLING.index(row["state"]) if row["state"] in _TELLING else len(_TELLING)


def _machines(placed: Iterable[Mapping[str, Any]]) -> dict[str, str | None]:
    """Machines by id; the scheduler's own id of a node goes where a machine of that name is known."""
    found = {str(r["node_id"]): r.get("node") for r in placed}
    names = {name for node_id, name in found.items() if not node_id.startswith(_SCHEDULER)}
    kept = {i: n for i, n in found.items() if not (i.startswith(_SCHEDULER) and n in names)}
    return dict(sorted(kept.items()))


def _gpus(placed: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for row in placed:
        try:
            listed = json.loads(row.get("gpu_uuids") or "[]")
        except (ValueError, RecursionError):
            continue
        if isinstance(listed, list) and listed:
            found[str(row["node_id"])] = found.get(str(row["node_id"]), frozenset()) | {str(g) for g in listed}
    return found


def _said(rows: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """What was said last of it."""
    return next((str(r[name]) for r in reversed(list(rows)) if r.get(name) is not None), None)


def _most(rows: Iterable[Mapping[str, Any]], name: str) -> int | None:
    return max((int(r[name]) for r in rows if r.get(name) is not None), default=None)


def _worst(rows: Iterable[Mapping[str, Any]], name: str) -> int | None:
    """The first machine's number that is not zero; zero where all say zero."""
    numbers = [int(r[name]) for r in rows if r.get(name) is not None]
    return next((n for n in numbers if n), 0 if numbers else None)
