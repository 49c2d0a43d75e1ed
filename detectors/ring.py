"""A sliding hour in twelve slots of five minutes, one row per entity."""

from __future__ import annotations

from typing import Final

import numpy as np

from graynode.detectors.frames import Bools, Floats
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
    slot, before = np.floor(now_s / SLOT_S), memory[f"{name}.slot"]
    ring = np.stack([memory[f"{name}.{i}"] for i in range(SLOTS)])
    np.copyto(ring, 0.0, where=np.isnan(ring))
    if not np.array_equal(slot, before):  # in most windows no slot has passed
        ring = np.where(_gone(before, slot), 0.0, ring)
    here = ((slot % SLOTS).astype(np.int64), np.arange(len(slot)))
    added = np.nan_to_num(values)
    ring[here] = np.maximum(ring[here], added) if largest else ring[here] + added
    memory[f"{name}.slot"] = slot
    for i in range(SLOTS):
        memory[f"{name}.{i}"] = ring[i]
    order = (here[0] + 1 + np.arange(SLOTS)[:, None]) % SLOTS
    alike = bool(np.all(here[0] == here[0][:1]))
    return (
        np.roll(ring, -1 - here[0][0], axis=0) if alike and len(slot) else np.take_along_axis(ring, order, axis=0)
    ).T


def _gone(before: Floats, slot: Floats) -> Bools:
    """Which slots, a row each, are of an hour ago and more by now."""
    passed = np.where(np.isnan(before), float(SLOTS), np.clip(slot - before, 0.0, SLOTS))
    last = np.where(np.isnan(before), 0.0, before)
    return np.asarray((np.arange(SLOTS)[:, None] - (last + 1.0)) % SLOTS < passed, dtype=np.bool_)
