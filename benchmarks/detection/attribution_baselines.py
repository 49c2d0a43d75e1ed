"""Methods that name slow ranks and no cause: whoever they name counts as hardware, for that is how they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from graynode.benchmarks.detection.attribution_faults import Sums
from graynode.benchmarks.detection.baselines import RowBaseline, mad, three_sigma
from graynode.benchmarks.detection.baselines_panel import PanelBaseline, dbscan, double_mad, minder, ratio
from graynode.benchmarks.detection.intervals import FloatArray

Named = Callable[[Sums], set[int]]
_MOST: Final = 0.5
"""A method that judges each step names whoever alarms in more than half of them."""


def methods() -> dict[str, Named]:
    """By name; each takes a job's sums and gives the rows it names."""
    return {
        "nvrx_ratio_0.75": _of_medians(ratio()),
        "three_sigma_all_ranks": _of_rows(three_sigma(upper=True)),
        "mad_3.5_all_ranks": _of_rows(mad(upper=True)),
        "grafana_dbscan": _of_panel(dbscan()),
        "grafana_mad": _of_panel(double_mad()),
        "minder_like": _minder,
        "mad_3.5_wall_step_time": _wall,
    }


def _medians(values: FloatArray) -> FloatArray:
    known = np.asarray(np.isfinite(values).any(axis=1))
    return np.where(known, np.nanmedian(np.where(known[:, None], values, 0.0), axis=1), np.nan)


def _above(values: FloatArray) -> set[int]:
    return set(np.flatnonzero(values > np.nanmedian(values)).tolist()) if np.isfinite(values).any() else set()


def _of_rows(method: RowBaseline) -> Named:
    def named(job: Sums) -> set[int]:
        middle = _medians(job.total)[:, None]
        return set(np.flatnonzero(method.fit(middle, 0)(middle) > method.limit).tolist())

    return named


def _of_medians(method: PanelBaseline) -> Named:
    def named(job: Sums) -> set[int]:
        return set(np.flatnonzero(method.score(_medians(job.total)[None, :])[0] > method.limit).tolist())

    return named


def _of_panel(method: PanelBaseline) -> Named:
    def named(job: Sums) -> set[int]:
        alarms = (method.score(job.total.T) > method.limit).mean(axis=0)
        return set(np.flatnonzero(alarms > _MOST).tolist()) & _above(_medians(job.total))

    return named


def _minder(job: Sums) -> set[int]:
    seconds = float(np.nanmedian(job.wall)) if np.isfinite(job.wall).any() else float(np.nanmedian(job.total))
    method = minder(sample_s=max(seconds, 1e-3))
    alarms = (method.score(job.total.T) > method.limit).any(axis=0)
    return set(np.flatnonzero(alarms).tolist()) & _above(_medians(job.total))


def _wall(job: Sums) -> set[int]:
    if not np.isfinite(job.wall).any():
        return set()
    middle = _medians(job.wall)[:, None]
    method = mad(upper=True)
    return set(np.flatnonzero(method.fit(middle, 0)(middle) > method.limit).tolist())
