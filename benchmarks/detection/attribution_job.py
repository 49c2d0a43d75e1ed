"""One job of an operation trace as arrays: what faults are made in. Nothing here knows a detector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graynode.benchmarks.detection.intervals import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One job. ``micro`` holds seconds by part of the work, ranks × steps × microbatches; the rest is ranks × steps.

    NaN: not recorded. ``role`` and ``pipeline`` are ``None`` where the trace does not tell them.
    """

    name: str
    rank: IntArray
    node: IntArray
    role: IntArray | None
    pipeline: IntArray | None
    micro: Mapping[str, FloatArray]
    optimizer: FloatArray | None
    input: FloatArray | None
    wait: FloatArray
    wall: FloatArray
    traits: Mapping[str, IntArray]
    notes: tuple[str, ...] = field(default=())

    @property
    def steps(self) -> int:
        """How many steps were recorded."""
        return int(self.wait.shape[1])
