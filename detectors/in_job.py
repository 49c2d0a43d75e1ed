"""The second reference: a GPU in this job against itself at the job's beginning.

It sees change only, and needs no past: on a new site, for a kind of work that a GPU has never done, and where what a
GPU gives differs from job to job by more than what is looked for. A fault that was there when the job began, or came
while the beginning was still learned, is left to the own baseline.

The reference knows its own standard error. It is the mean of blocks of five minutes, and how much the blocks of the
GPU differ says how far off their mean may be, autocorrelation and heavy tails included (batch means: Conway 1963). Half
an hour is enough where that is below a twentieth of τ; else it goes on learning, for two hours at most. Until then what
it says counts only beyond a dead zone, and of a GPU that it suspects nothing is learned. Once certain it never moves
while the job lasts, so that nothing slow can hide in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors import footing, residual
from graynode.detectors.accumulate import TAU
from graynode.detectors.frames import Bools, Floats, View
from graynode.detectors.memory import Arrays
from graynode.detectors.residual import Peers, Residual

BLOCK_S: Final = 300.0
"""At lag-one correlation .8 in windows of 30 s the means of such blocks are correlated by .2: the error is told a
quarter too low there. Longer blocks are truer, but too few in half an hour to know an error by."""
LEAST: Final = 6
"""Blocks that a reference has at least: half an hour, as published practice compares with a job's first iterations."""
MOST: Final = 24
"""Blocks after which it learns no more: two hours. A job whose GPUs are still uncertain then is not a steady one."""
REFERENCE_S: Final = LEAST * BLOCK_S
ERROR: Final = TAU / 20
"""Standard error from which a reference is firm. A sum runs away where the reference is off by τ/2, and is likely to be
told where it is off by 0.35 τ: that is seven such errors. Measured in benchmarks/RESULTS.md."""
_PARTS: Final = ("windows", "block", "means", "squares")


@dataclass(frozen=True, slots=True)
class Begun:
    """What is known of beginnings: windows taken, sum within the open block, sum of block means and of their squares.

    Arrays of one shape; ``size`` is how many windows a block has. float32 stays what it is.
    """

    size: int
    windows: Floats
    block: Floats
    means: Floats
    squares: Floats

    def known(self) -> tuple[Floats, Bools]:
        """The reference (NaN before ``LEAST`` blocks are full), and whether it is firm."""
        blocks = self.windows // self.size
        blocks = np.where(blocks >= LEAST, blocks, np.float32(np.nan))
        reference = self.means / blocks
        variance = (self.squares - self.means * reference) / (blocks - 1)
        return reference, variance <= blocks * ERROR**2

    def learned(self, own: Floats, firm: Bools, well: Bools) -> Begun:
        """With one window more of those that are not ``firm``, ``well``, and have a value."""
        taken = ~firm & well & (self.windows < MOST * self.size) & ~np.isnan(own)
        windows = self.windows + taken
        block = self.block + np.where(taken, own, 0)
        full = taken & (windows % self.size == 0)
        mean = np.where(full, block / self.size, 0)
        block = np.where(full, 0, block)
        return Begun(self.size, windows, block, self.means + mean, self.squares + mean * mean)


def columns(signals: tuple[str, ...]) -> tuple[str, ...]:
    """Names under which the references of ``signals`` are remembered."""
    return ("job", *(name for s in signals for name in _names(s)))


def begin(memory: Arrays, view: View, signals: tuple[str, ...]) -> tuple[Bools, Bools]:
    """Who is in a job, and whose references begin anew: those in another than before, and those of whom an older
    version kept no blocks. In place for ``memory``; what was summed against them is for the caller to forget.

    A window without a job says nothing: neither that the job goes on nor that it has ended.
    """
    job = view.once("job_number", None, lambda: footing.numbers(view.text("job_id_last")))
    known = ~np.isnan(job)
    names = columns(signals)[1:]
    anew = (known & (job != memory["job"])) | np.isnan(memory[names[0]])
    for name in names:
        memory[name] = np.where(anew, 0.0, memory[name])
    memory["job"] = np.where(known, job, memory["job"])
    return known, anew


def score(
    memory: Arrays, signal: str, x: Floats, groups: Peers, window_s: int, well: Bools
) -> tuple[Residual, Floats, Bools]:
    """The residual against the job's own beginning and the peers, that beginning, and where it is firm.

    It is learned in place, of those that are ``well``. ``x`` is NaN where there is no job. Windows longer than half an
    hour cannot tell; those longer than a block are blocks.
    """
    if window_s > REFERENCE_S:
        nothing = np.full(len(x), np.nan)
        return residual.against_peers(nothing, groups), nothing, np.zeros(len(x), dtype=np.bool_)
    names = _names(signal)
    begun = Begun(_size(window_s), *(memory[name] for name in names))
    reference, firm = begun.known()
    r, own = residual.against_own_and_peers(x, reference, groups)
    after = begun.learned(own, firm, well)
    memory.update(zip(names, (after.windows, after.block, after.means, after.squares), strict=True))
    return r, reference, firm


def minutes(memory: Arrays, signal: str, i: int, window_s: int) -> float:
    """How many minutes of row ``i`` its reference is made of."""
    size = _size(window_s)
    return float(memory[f"{signal}.begun_windows"][i] // size) * size * window_s / 60.0


def _size(window_s: int) -> int:
    return int(np.ceil(BLOCK_S / window_s))


def _names(signal: str) -> tuple[str, ...]:
    return tuple(f"{signal}.begun_{part}" for part in _PARTS)
