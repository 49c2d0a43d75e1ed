"""Noise that is a function of (seed, stream, entity, tick) and of nothing else.

A simulated fleet must look the same to the process that writes its history and to the one that goes on live,
so no generator is walked: every number is a hash of where it stands. The mixer is SplitMix64's finaliser
(Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1
_ENTITY: Final = np.uint64(0xD1B54A32D192ED03)
_TICK: Final = np.uint64(0x8CB92BA72F3D8DD7)
_DEPTH: Final = 16
"""Terms kept of an autoregression: 0.8 ** 16 is 3 %, below what any consumer resolves."""


def _mixed(seed: int, stream: int, entity: Array, tick: Array) -> Array:
    start = np.uint64((seed * _GOLDEN + (stream + 1) * 0xA24BAED4963EE407) & _MASK)
    with np.errstate(over="ignore"):
        x: Array = start + entity.astype(np.uint64) * _ENTITY + tick.astype(np.int64).view(np.uint64) * _TICK
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return x


def uniform(seed: int, stream: int, entity: Array, tick: Array) -> Array:
    """Uniform in (0, 1), one for each broadcast pair of entity and tick."""
    entity, tick = np.broadcast_arrays(np.asarray(entity), np.asarray(tick))
    return ((_mixed(seed, stream, entity, np.ascontiguousarray(tick)) >> np.uint64(11)) + 0.5) / 2.0**53


def normal(seed: int, stream: int, entity: Array, tick: Array) -> Array:
    """Standard normal as float32 (Box and Muller 1958, on the two halves of one hash)."""
    entity, tick = np.broadcast_arrays(np.asarray(entity), np.asarray(tick))
    bits = _mixed(seed, stream, entity, np.ascontiguousarray(tick))
    radius = ((bits >> np.uint64(32)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float32) * np.float32(2.0 * np.pi * 2.0**-32)
    wave: Array = np.sqrt(np.float32(-2.0) * np.log(np.minimum(radius, np.float32(1.0)))) * np.cos(angle)
    return wave


def ar1(seed: int, stream: int, entities: Array, first_tick: int, ticks: int, phi: float) -> Array:
    """First-order autoregression of unit variance on consecutive ticks, shape (ticks, entities).

    Written as a moving average over hashed innovations, so that any tick is reached without the ones before.
    """
    at = np.arange(first_tick - _DEPTH, first_tick + ticks)[:, None]
    shocks = normal(seed, stream, np.asarray(entities)[None, :], at)
    out = np.zeros((ticks, len(entities)), np.float32)
    for lag in range(_DEPTH + 1):
        out += np.float32(phi**lag) * shocks[_DEPTH - lag : _DEPTH - lag + ticks]
    kept = (1 - phi ** (2 * (_DEPTH + 1))) / (1 - phi**2)
    return out / np.float32(np.sqrt(kept))


def generator(seed: int, stream: int) -> np.random.Generator:
    """A counter-based generator (Philox) for what is drawn once and in order, such as the queue of jobs."""
    return np.random.Generator(np.random.Philox(key=[seed & _MASK, stream]))
