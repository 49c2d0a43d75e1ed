"""Which messages of a partition have been met: (node_id, agent epoch, sequence), exact across restarts.

An agent killed between the bus's acknowledgement and its own mark sends the same messages again. Their numbers
ascend per machine and epoch on one topic, with gaps where other topics took numbers; so what has been met is kept
as runs, few per epoch. A snapshot of all runs is kept with the offset up to which it is true: a restart reads the
snapshot, then the headers from there, and knows exactly what its predecessor knew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final

import polars as pl

from graynode.pipeline.bus import Received

_RUNS: Final = 64
"""Runs kept per epoch. More gaps than these and the oldest are taken as met: nothing that old is still on its way,
unless a sender reorders its own messages by more than 64 places, which none does."""
_EPOCHS: Final = 64
"""Epochs kept per machine: as many agent starts as may lie in one spool backlog."""
_MAX_NUMBER: Final = 2**63 - 1

SCHEMA: Final = {"machine": pl.String, "epoch": pl.Int64, "low": pl.Int64, "high": pl.Int64}


class Seen:
    """Runs [low, high) of met sequence numbers, per machine and epoch."""

    def __init__(self, runs: pl.DataFrame | None = None) -> None:
        self._runs: dict[str, dict[int, list[list[int]]]] = {}
        if runs is not None:
            for machine, epoch, low, high in runs.select(list(SCHEMA)).iter_rows():
                self._runs.setdefault(machine, {}).setdefault(epoch, []).append([low, high])

    def first_time(self, received: Received) -> bool:
        """Note a message; false if it was met before. One without number is always new."""
        numbers = _numbers(received.message.headers)
        if numbers is None:
            return True
        epoch, sequence = numbers
        epochs = self._runs.setdefault(received.message.key, {})
        runs = epochs.get(epoch)
        if runs is None:
            runs = epochs[epoch] = []
            if len(epochs) > _EPOCHS:
                del epochs[min(epochs)]
        return _add(runs, sequence)

    def machines(self) -> Iterable[str]:
        """Every machine that has sent to this partition."""
        return self._runs.keys()

    def frame(self) -> pl.DataFrame:
        """All runs, for a snapshot."""
        rows = [
            (machine, epoch, low, high)
            for machine, epochs in self._runs.items()
            for epoch, runs in epochs.items()
            for low, high in runs
        ]
        return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _numbers(headers: Mapping[str, str]) -> tuple[int, int] | None:
    found = []
    for name in ("epoch", "seq"):
        text = headers.get(name, "")
        if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) >= _MAX_NUMBER:
            return None
        found.append(int(text))
    return found[0], found[1]


def _add(runs: list[list[int]], number: int) -> bool:
    if runs and runs[-1][1] == number:  # the usual case
        runs[-1][1] = number + 1
        return True
    at = bisect_right(runs, number, key=lambda run: run[0])
    if at and number < runs[at - 1][1]:
        return False
    if at == 0 and len(runs) >= _RUNS:
        return False
    joins_left = at > 0 and runs[at - 1][1] == number
    joins_right = at < len(runs) and runs[at][0] == number + 1
    if joins_left and joins_right:
        runs[at - 1][1] = runs.pop(at)[1]
    elif joins_left:
        runs[at - 1][1] = number + 1
    elif joins_right:
        runs[at][0] = number
    else:
        runs.insert(at, [number, number + 1])
    if len(runs) > _RUNS:
        runs[0][1] = runs.pop(1)[1]
    return True
