"""What the digests of odd combinations (``forest``, ``hosts``) share: from p-values to findings, and a fit's cache key.

A p-value of a tenth adds nothing, a smaller one adds its orders of magnitude below that, a larger one takes away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from graynode.detectors import memory
from graynode.detectors.findings import Candidate
from graynode.detectors.frames import Floats, Ints, View, moment

_MOST: Final = 3.0
"""Orders of magnitude that one scoring counts at most."""


def accumulate(view: View, held: memory.Arrays, p: Floats, limit: float) -> Ints:
    """Add each row's oddity to its ``sum``, in place; the rows at half of ``limit`` or above it. NaN: not judged."""
    odd = np.clip(-np.log10(np.where(np.isnan(p), 1.0, p)), 0.0, _MOST) - 1.0
    before = np.nan_to_num(held["sum"])
    after = np.where(np.isnan(p), before, np.maximum(0.0, before + odd))
    since = np.where(after > 0, np.where(np.isnan(held["since"]), view.t_s, held["since"]), np.nan)
    held.update(sum=after, since=since)
    return np.flatnonzero(after >= limit / 2)


def candidate(view: View, i: int, held: memory.Arrays, p: Floats, limit: float, **words: Any) -> Candidate:  # noqa: ANN401 (a finding's columns)
    """The digest's finding on row ``i``; ``words`` are ``subject``, ``message``, ``action`` and ``evidence``."""
    return {
        **view.identity(i),
        "cause": "unusual",
        "signal": "odd",
        "value": p[i],
        "unit": "p-value",
        "p_value": p[i],
        "score": held["sum"][i],
        "threshold": limit,
        "since": moment(float(held["since"][i])),
        "severity": "digest",
        **words,
    }


class Fitted:
    """A frame as a key of the cache of what was fitted to it: equal rows, equal fit."""

    def __init__(self, frame: pl.DataFrame, features: Sequence[str]) -> None:
        self.frame = frame
        self._hash = hash(frame.select(features).to_numpy().tobytes())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fitted) and (self.frame is other.frame or self.frame.equals(other.frame))
