"""What else is known: the same image on other nodes, other jobs on these nodes, and Xids that stay on one GPU.

None of it decides alone. Xids of programs (13, 31 …) are the program's, unless they stay on one GPU (``repeats``): then
the GPU is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from graynode.detectors.attribution_clues import APPLICATION, Clue
from graynode.detectors.attribution_job import Placement
from graynode.detectors.placements import Placed
from graynode.detectors.repeats import Repeats, gpu_key

_HISTORY: Final = ("ts", "node_id", "pci_bus_id", "gpu_uuid", "code", "job_id", "user")
_NOT_FAILED: Final = ("completed",)
_FAILED: Final = ("failed", "node_fail")
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """``clean``/``broken``: ended runs of the same image on nodes that are not this job's. ``failed_here``: machine →
    other jobs that failed on it. ``stays_on``: what says that an Xid stays on one GPU; ``repeats``: weaker, a look.
    """

    clean: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    failed_here: Mapping[str, int] = field(default_factory=dict)
    stays_on: str = ""
    repeats: str = ""

    def as_json(self, names: Mapping[str, str | None]) -> dict[str, Any]:
        """What there is, for a row and a person; machines by their ``names`` where they have one."""
        said: dict[str, Any] = {
            "same_image_completed_elsewhere": list(self.clean[:_SHOWN]),
            "same_image_failed_elsewhere": list(self.broken[:_SHOWN]),
            "other_jobs_failed_here": {names.get(n) or n: failed for n, failed in self.failed_here.items()},
            "stays_on_one_gpu": self.stays_on,
            "repeats": self.repeats,
        }
        return {k: v for k, v in said.items() if v}


def looked_elsewhere(
    placed: Placement, clues: Iterable[Clue], history: pl.DataFrame, same_image: pl.DataFrame, others: pl.DataFrame
) -> Elsewhere:
    """All that is known elsewhere of this placement's program, nodes and GPUs."""
    clean, broken = _of_image(placed, same_image)
    stays, repeats = _repeated(placed, clues, history)
    return Elsewhere(clean, broken, _here(placed, others), stays, repeats)


def _of_image(placed: Placement, runs: pl.DataFrame) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Jobs of the same image and revision that shared no machine with this one: completed, and failed."""
    if placed.image_digest is None or runs.is_empty() or not {"job_id", "node_id", "state"} <= set(runs.columns):
        return (), ()
    same = runs.filter(pl.col("job_id") != placed.job_id, pl.col("image_digest") == placed.image_digest)
    if placed.code_revision is not None and "code_revision" in runs.columns:
        same = same.filter(pl.col("code_revision").is_null() | (pl.col("code_revision") == placed.code_revision))
    shared = same.filter(pl.col("node_id").is_in(list(placed.machines))).get_column("job_id").unique()
    apart = same.filter(~pl.col("job_id").is_in(shared.to_list()))
    return _jobs(apart, _NOT_FAILED), _jobs(apart, _FAILED)


def _jobs(runs: pl.DataFrame, states: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(runs.filter(pl.col("state").is_in(states)).get_column("job_id").drop_nulls())))


def _here(placed: Placement, others: pl.DataFrame) -> dict[str, int]:
    """Machine → how many other jobs failed there."""
    if others.is_empty() or not {"job_id", "node_id", "state"} <= set(others.columns):
        return {}
    failed = others.filter(
        pl.col("job_id") != placed.job_id,
        pl.col("state").is_in(_FAILED),
        pl.col("node_id").is_in(list(placed.machines)),
    )
    return dict(failed.group_by("node_id").agg(pl.col("job_id").n_unique()).sort("node_id").iter_rows())


def _repeated(placed: Placement, clues: Iterable[Clue], history: pl.DataFrame) -> tuple[str, str]:
    """Whether this job's Xids of programs are all on one GPU that showed them under other jobs too (``repeats``)."""
    mine = [c for c in clues if c.side == APPLICATION and c.detail.startswith("xid_") and c.place[1]]
    if len({c.place for c in mine}) != 1 or any(name not in history.columns for name in _HISTORY):
        return "", ""
    clue, seen = mine[0], Repeats(frozenset(history.get_column("code").drop_nulls()))
    here = gpu_key(str(clue.node_id), None, str(clue.place[1]))
    for row in history.drop_nulls(["job_id", "node_id", "ts"]).sort("ts", "job_id").iter_rows(named=True):
        seen.note({**row, **_as(clue, row)}, Placed(row["job_id"], row["user"], None, row["ts"]), {})
    own = {"ts": clue.ts, "node_id": clue.node_id, "code": int(clue.detail.removeprefix("xid_")), **_as(clue, None)}
    seen.note(own, Placed(placed.job_id, placed.user, None, clue.ts), {})
    suspicion = seen.of(here, placed.job_id)
    if suspicion is not None:
        return suspicion.words(), ""
    jobs = seen.jobs(here)
    where = clue.pci_bus_id or clue.gpu_uuid
    return "", f"{where} alone showed them under {len(jobs)} jobs" if placed.job_id in jobs and len(jobs) > 1 else ""


def _as(clue: Clue, row: Mapping[str, Any] | None) -> dict[str, str | None]:
    """The GPU's name as the clue has it, where the row is of that GPU: one source knows the UUID, another the slot."""
    if row is not None and (
        row["node_id"] != clue.node_id
        or not ({row["gpu_uuid"], row["pci_bus_id"]} - {None}) & {clue.gpu_uuid, clue.pci_bus_id}
    ):
        return {}
    return {"gpu_uuid": None, "pci_bus_id": clue.place[1]}
