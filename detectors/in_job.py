"""The second reference: a GPU in this job against itself in the job's first half hour.

It sees change only, and needs no past: on a new site, for a kind of work that a GPU has never done, and where what a
GPU gives differs from job to job by more than what is looked for. A fault that was there when the job began is left
to the own baseline. The reference never moves while the job lasts, so that nothing slow can hide in it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from graynode.detectors import footing, residual
from graynode.detectors.frames import Bools, Floats, View
from graynode.detectors.memory import Arrays
from graynode.detectors.residual import Peers, Residual

REFERENCE_S: Final = 1800.0
"""Published practice compares with the first iterations; of half an hour at lag-one correlation 0.8 the mean of 60
windows is still as good as that of seven independent ones."""


def columns(signals: tuple[str, ...]) -> tuple[str, ...]:
    """Names under which the references of ``signals`` are remembered."""
    return ("job", *(f"{s}.{part}" for s in signals for part in ("job_total", "job_windows")))


def begin(memory: Arrays, view: View, signals: tuple[str, ...]) -> tuple[Bools, Bools]:
    """Who is in a job, and who in another than before: the latter's references begin anew. In place for ``memory``.

    A window without a job says nothing: neither that the job goes on nor that it has ended.
    """
    job = view.once("job_number", None, lambda: footing.numbers(view.text("job_id_last")))
    known = ~np.isnan(job)
    other = known & (job != memory["job"])
    for name in columns(signals)[1:]:
        memory[name] = np.where(other | np.isnan(memory[name]), 0.0, memory[name])
    memory["job"] = np.where(known, job, memory["job"])
    return known, other


def score(memory: Arrays, signal: str, x: Floats, groups: Peers, window_s: int) -> tuple[Residual, Floats]:
    """The residual against the job's own beginning and the peers, and that beginning, which is learned in place.

    ``x`` is NaN where there is no job. Windows longer than the beginning cannot tell.
    """
    total, windows = memory[f"{signal}.job_total"], memory[f"{signal}.job_windows"]
    needed = np.ceil(REFERENCE_S / window_s) if window_s <= REFERENCE_S else np.inf
    reference = np.divide(total, windows, out=np.full(len(total), np.nan), where=windows >= needed)
    r, own = residual.against_own_and_peers(x, reference, groups)
    taken = (windows < needed) & ~np.isnan(own)
    memory[f"{signal}.job_total"] = total + np.where(taken, own, 0.0)
    memory[f"{signal}.job_windows"] = windows + taken
    return r, reference
