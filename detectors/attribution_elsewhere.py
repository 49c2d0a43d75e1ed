"""What else is known: the same image on other nodes, other jobs on these nodes, and Xids that stay on one GPU.

None of it decides alone. Xids of programs (13, 31 …) are the program's, unless one GPU shows them under several jobs of
several users while its neighbours do not: then the GPU is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from graynode.detectors.attribution_clues import APPLICATION, Clue
from graynode.detectors.attribution_job import Placement

JOBS: Final = 3
"""Jobs, this one among them, that one GPU must have shown such Xids under; of two users at least. A stated choice: two
jobs of one user are one program run twice."""
_USERS: Final = 2
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
    """Whether this job's Xids of programs are all on one GPU that showed them under other jobs too."""
    mine = [c for c in clues if c.side == APPLICATION and c.detail.startswith("xid_") and c.place[1]]
    places = {c.place for c in mine}
    needed = {"node_id", "pci_bus_id", "gpu_uuid", "job_id", "user"}
    if len(places) != 1 or history.is_empty() or not needed <= set(history.columns):
        return "", ""
    clue = mine[0]
    here = history.filter(
        pl.col("node_id") == clue.node_id,
        (pl.col("gpu_uuid") == (clue.gpu_uuid or "")) | (pl.col("pci_bus_id") == (clue.pci_bus_id or "")),
    )
    earlier = here.filter(pl.col("job_id").is_not_null() & (pl.col("job_id") != placed.job_id))
    jobs, users = set(earlier.get_column("job_id")), set(earlier.get_column("user").drop_nulls())
    all_users = users | ({placed.user} if placed.user else set())
    if not jobs:
        return "", ""
    said = f"{clue.pci_bus_id or clue.gpu_uuid} showed them under {len(jobs) + 1} jobs of {len(all_users) or '?'} users"
    sure = len(jobs) + 1 >= JOBS and len(all_users) >= _USERS
    return (said, "") if sure else ("", said)
