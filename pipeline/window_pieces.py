"""A poll's rows by message and window, so that windows can be decided upon message by message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from graynode.pipeline.decode import SOURCE
from graynode.pipeline.window_order import Ints

WINDOW_US: Final = 30_000_000


def window_start(us: int) -> int:
    """Start of the window that a moment (µs) lies in."""
    return us - us % WINDOW_US


@dataclass(frozen=True, slots=True)
class Pieces:
    """A frame's rows by message and window: arrays per row, and per message {window start: newest time}."""

    source: Ints
    start: Ints
    by_source: dict[int, dict[int, int]]
    span: dict[int, tuple[int, int]]
    """Per message its earliest and latest time."""


def pieces_of(frame: pl.DataFrame) -> Pieces:
    """Which windows the rows of each message fall into. ``frame`` has ``_source``, the number of a row's message."""
    source = frame[SOURCE].to_numpy().astype(np.int64)
    ts = frame["ts"].dt.timestamp("us").to_numpy()
    start = ts - ts % WINDOW_US
    if not len(ts):
        return Pieces(source, start, {}, {})
    new = np.append(True, (source[1:] != source[:-1]) | (start[1:] != start[:-1]))
    runs = np.flatnonzero(new)
    oldest, newest = np.minimum.reduceat(ts, runs), np.maximum.reduceat(ts, runs)
    by_source: dict[int, dict[int, int]] = {}
    span: dict[int, tuple[int, int]] = {}
    found = zip(source[runs].tolist(), start[runs].tolist(), oldest.tolist(), newest.tolist(), strict=True)
    for index, begin, earliest, latest in found:
        held = by_source.setdefault(index, {})
        held[begin] = max(held.get(begin, latest), latest)
        low, high = span.get(index, (earliest, latest))
        span[index] = (min(low, earliest), max(high, latest))
    return Pieces(source, start, by_source, span)
