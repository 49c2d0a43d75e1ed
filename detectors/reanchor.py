"""A repair ends what was known of a machine: its sums, counts and baselines begin anew.

Everything that a detector remembers of an entity is found by its key: a GPU's own, alone or with its kind of work, its
band of power or its MIG instance behind it; a node's id, alone or with a link behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import polars as pl

from graynode.detectors.base import State

_ENDS: Final = r"(?:[|/].*)?$"
_COLUMNS: Final = ("key", "node_id")


def forget(state: State, entities: Iterable[str], since_day: float) -> State:
    """``state`` without what it holds of ``entities`` (GPU uuids, node ids); daily history stays from ``since_day`` on.

    ``since_day`` counts days since 1970: days after a repair that is logged late are already the new machine's. Frames
    without anything of them come back as the same objects, so they are not stored again.
    """
    pattern = "^(?:" + "|".join(re.escape(e) for e in sorted(entities)) + ")" + _ENDS
    return {name: _without(frame, pattern, since_day) for name, frame in state.items()}


def _without(frame: pl.DataFrame, pattern: str, since_day: float) -> pl.DataFrame:
    column = next((c for c in _COLUMNS if frame.schema.get(c) == pl.String), None)
    if column is None or frame.is_empty():
        return frame
    theirs = pl.col(column).str.contains(pattern)
    if "day" in frame.columns and frame.schema["day"].is_numeric():
        theirs &= pl.col("day") < since_day
    kept = frame.filter(~theirs)
    return frame if kept.height == frame.height else kept
