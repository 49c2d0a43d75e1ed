"""A small picture of what was measured: values as they came, at most 32 of them, drawn as one line of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

MOST: Final = 32
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_FEWEST: Final = 3


def more(kept: list[float], value: float | None, seen: int) -> list[float]:
    """``kept`` with the ``seen``-th value (from 0) where its turn comes.

    Of many values every 2nd, then every 4th … is kept, so that steps stay even and the whole time is in the picture.
    """
    every = _every(seen)
    if seen and _every(seen - 1) < every:
        kept = kept[::2]
    if value is None or not math.isfinite(value) or seen % every:
        return kept
    return [*kept, float(value)][-MOST:]


def _every(seen: int) -> int:
    return 1 << (seen // MOST).bit_length()


def drawn(kept: Sequence[float]) -> str | None:
    """The line; ``None`` for fewer than three values. The lowest value is the lowest block, equal values are low."""
    if len(kept) < _FEWEST:
        return None
    low, high = min(kept), max(kept)
    span = high - low
    places = [int((v - low) / span * (len(_BLOCKS) - 1) + 0.5) if span > 0 else 0 for v in kept]
    return "".join(_BLOCKS[p] for p in places)
