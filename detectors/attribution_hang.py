"""Whether a job stands still, and since when: by its steps where it tells them, else by what its GPUs draw.

A rank that waits in a collective spins: the GPU reads 100 % busy and draws little. So busy everywhere and far less
power than before, for ten minutes, is a hang (the limit for a job without traffic of ByteRobust, SOSP 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import polars as pl

STILL: Final = timedelta(minutes=10)
_STEPS: Final = 10
"""So many of its own step times without one, and ten minutes at least: a checkpoint or an evaluation is shorter."""
_SPINS_PERCENT: Final = 95.0
_DRAWS: Final = 0.6
"""Share of its usual power below which a busy GPU does no work: a spinning kernel draws a third to a half. A stated
guess; what follows from it is a look and never an action."""
_KNOWN: Final = 20
"""Windows of work that must be there to say what it usually draws."""
_GAP: Final = timedelta(seconds=90)


@dataclass(frozen=True, slots=True)
class Standing:
    """``since`` when, and ``why`` one says so. ``behind`` are ranks that stopped a step before the others."""

    since: datetime
    why: str
    behind: tuple[int, ...] = ()


def standing(steps: pl.DataFrame, windows: pl.DataFrame, end: datetime) -> Standing | None:
    """Of one job at ``end``: its rows of ``step`` and of ``gpu_30s``. ``None``: it moved, or nothing tells."""
    by_steps = last_step(steps)
    if by_steps is not None:
        last, seconds = by_steps
        if end - last < max(STILL, _STEPS * timedelta(seconds=seconds)):
            return None
        why = f"no step since {last:%H:%M:%S} UTC; one takes {seconds:.3g} s"
        return Standing(last, why, _behind(steps))
    return _spinning(windows, end)


def last_step(steps: pl.DataFrame) -> tuple[datetime, float] | None:
    """When the last step was told, and how long one takes; ``None`` where no steps are told."""
    if steps.is_empty() or not {"ts", "seconds"} <= set(steps.columns):
        return None
    last = steps.get_column("ts").max()
    seconds = steps.get_column("seconds").drop_nulls().median()
    if not isinstance(last, datetime):
        return None
    return last.astimezone(UTC), float(seconds) if isinstance(seconds, int | float) else 0.0


def _behind(steps: pl.DataFrame) -> tuple[int, ...]:
    """Ranks whose last step is lower than that of most; none where more than a quarter is behind."""
    if not {"rank", "step"} <= set(steps.columns):
        return ()
    last = steps.select("rank", "step").drop_nulls().group_by("rank").agg(pl.col("step").max()).sort("rank")
    if last.height < 2:
        return ()
    behind = last.filter(pl.col("step") < pl.col("step").max()).get_column("rank").to_list()
    return tuple(int(r) for r in behind) if 4 * len(behind) <= last.height else ()


def _spinning(windows: pl.DataFrame, end: datetime) -> Standing | None:
    needed = {"ts", "gpu_util_percent_mean", "power_w_mean"}
    if windows.is_empty() or not needed <= set(windows.columns):
        return None
    job = (
        windows.select(*needed)
        .drop_nulls()
        .filter(pl.col("ts") < end)
        .group_by("ts")
        .agg(pl.col("gpu_util_percent_mean").min().alias("busy"), pl.col("power_w_mean").mean().alias("power"))
        .sort("ts")
    )
    if job.height <= _KNOWN:
        return None
    power, busy = job.get_column("power").to_numpy(), job.get_column("busy").to_numpy()
    usual = float(np.quantile(power, 0.75))
    idle = (power < _DRAWS * usual) & (busy >= _SPINS_PERCENT)
    working = np.flatnonzero(~idle)
    if idle.all() or int(working[-1]) + 1 < _KNOWN or int(working[-1]) == job.height - 1:
        return None
    since = job.get_column("ts")[int(working[-1]) + 1].astimezone(UTC)
    last = job.get_column("ts")[-1].astimezone(UTC)
    if end - since < STILL or end - last > _GAP:
        return None
    share = float(power[int(working[-1]) + 1 :].mean()) / usual
    return Standing(since, f"every GPU busy and drawing {share:.0%} of its usual power since {since:%H:%M:%S} UTC")
