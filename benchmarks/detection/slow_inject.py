"""The slowdown that is put into test runs: a multiplicative change of what was measured. Knows no detector."""

from __future__ import annotations

import numpy as np

from graynode.benchmarks.detection.baselines import FloatArray

SLOWDOWNS = (0.01, 0.02, 0.05, 0.10, 0.20)
"""How much longer a run takes, in parts of its time."""


def slowed(worse: FloatArray, slowdown: float) -> FloatArray:
    """Runs that take 1 + ``slowdown`` times as long, or at a clock lower by that factor.

    ``worse`` is the log of time, or of the clock with its sign turned: in both the factor is an addition.
    """
    return np.asarray(worse + np.log1p(slowdown), dtype=np.float64)
