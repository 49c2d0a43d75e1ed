"""The detector contract: frames in, findings out. No clock, no file, no bus.

A round is one closed window of the whole cluster. A detector scores it against the state it returned last
time, then says what it found and what it wants to remember. The same round and state give the same findings,
whatever the order of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Protocol, runtime_checkable

import polars as pl

from graynode.pipeline import schema

FINDING_COLUMNS: tuple[str, ...] = schema.TABLES["finding"].names


@dataclass(frozen=True, slots=True)
class Round:
    """What one round sees. Frames have the contract's columns; an absent table is an empty frame.

    ``start`` is the window's start, ``window_s`` its length. ``gpu``, ``link`` and ``host`` are window rows
    (``gpu_30s`` or ``gpu_1h`` and so on) of this window. ``events`` and ``probes`` are those seen since the
    round before. ``inventory`` and ``quality`` are the rows valid now. ``jobs`` says of each job (``job_id``) its kind
    of ``work``, where known. ``repairs`` are the logged repairs of the last weeks. ``steps`` are the training steps of
    this window that tell busy seconds.
    """

    start: datetime
    window_s: int
    gpu: pl.DataFrame
    link: pl.DataFrame
    host: pl.DataFrame
    events: pl.DataFrame
    probes: pl.DataFrame
    inventory: pl.DataFrame
    quality: pl.DataFrame
    jobs: pl.DataFrame = field(default_factory=pl.DataFrame)
    repairs: pl.DataFrame = field(default_factory=pl.DataFrame)
    steps: pl.DataFrame = field(default_factory=pl.DataFrame)


State = Mapping[str, pl.DataFrame]
"""A detector's memory: named frames, bounded by the number of entities, empty at the start."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Findings (columns of table ``finding``; absent ones null) and the memory after the round."""

    findings: pl.DataFrame
    state: State = field(default_factory=dict)


TOLD: pl.Expr = pl.col("threshold").is_null() | (pl.col("score") >= pl.col("threshold"))
"""Which findings are told. The others are watched: stored, severity ``digest``, and no incident opens on them."""


class Detector(Protocol):
    """One detector."""

    name: ClassVar[str]
    version: ClassVar[int]

    def score(self, round_: Round, state: State) -> Scored:
        """Score, then learn. Rows whose answer is "cannot tell" give no finding and change no memory."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A detector that can be primed with history before its first round.

    ``reads`` names the columns, by table of ``Round``, that ``learn`` wants besides the keys. Days younger than
    ``leaves_out_d`` are not for it: what began last week must not become normal.
    """

    reads: ClassVar[Mapping[str, tuple[str, ...]]]
    leaves_out_d: ClassVar[int]

    def learn(self, history: Round, state: State) -> State:
        """Learn what is normal from ``history``, a round whose frames hold many windows (told apart by ``ts``).

        Nothing is found and nothing accumulates; windows of another length than the rounds' are welcome.
        """
        ...


@runtime_checkable
class Recaller(Protocol):
    """A learner that counts over its last day: after a start without stored state that day is taken from history."""

    def recent(self, history: Round, state: State) -> State:
        """Count the hour windows of the day before the first round as if they had been scored; nothing is found."""
        ...
