"""A sliding hour in twelve slots of five minutes, one row per entity."""

from __future__ import annotations

from typing import Final

import numpy as np

from graynode.detectors.frames import Floats
from graynode.detectors.memory import Arrays

SLOTS: Final = 12
SLOT_S: Final = 300.0


def columns(name: str) -> tuple[str, ...]:
    """Names under which a ring is remembered."""
    return (f"{name}.slot", *(f"{name}.{i}" for i in range(SLOTS)))


def put(memory: Arrays, name: str, values: Floats, now_s: Floats, *, largest: bool = False) -> Floats:
    """Put ``values`` (NaN: nothing) into the running slot, in place; the ring's slots, oldest first.

    A slot holds the sum of its values, or their maximum where ``largest``.
    """
    slot = np.floor(now_s / SLOT_S)
    before = memory[f"{name}.slot"]
    passed = np.where(np.isnan(before), float(SLOTS), np.clip(slot - before, 0.0, SLOTS))
    last = np.where(np.isnan(before), 0.0, before)
    index = np.arange(SLOTS)
    gone = (index - (last[:, None] + 1.0)) % SLOTS < passed[:, None]
    ring = np.nan_to_num(np.column_stack([memory[f"{name}.{i}"] for i in range(SLOTS)]))
    ring = np.where(gone, 0.0, ring)
    here = index == (slot % SLOTS)[:, None]
    added = np.nan_to_num(values)[:, None]
    ring = np.where(here, np.maximum(ring, added) if largest else ring + added, ring)
    memory[f"{name}.slot"] = slot
    for i in range(SLOTS):
        memory[f"{name}.{i}"] = ring[:, i]
    order = (slot[:, None].astype(np.int64) + 1 + index) % SLOTS
    return np.take_along_axis(ring, order, axis=1)
