"""Units that a map may name, and how each becomes the contract's: value × scale + offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graynode.pipeline.schema import Field

_SUFFIXES: Final = {
    "_us": "us", "_s": "s", "seconds": "s", "_w": "W", "_c": "°C", "_mhz": "MHz", "bytes": "bytes", "_ms": "ms",
    "_ns": "ns", "_mj": "mJ", "_percent": "%", "_ratio": "ratio",
}  # fmt: skip
"""Of fields whose declaration leaves the unit to the name."""

_TO: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    "W": {"mW": (1e-3, 0), "kW": (1e3, 0)},
    "°C": {"K": (1, -273.15), "F": (5 / 9, -160 / 9)},
    "MHz": {"Hz": (1e-6, 0), "kHz": (1e-3, 0), "GHz": (1e3, 0)},
    "bytes": {
        "kB": (1e3, 0), "MB": (1e6, 0), "GB": (1e9, 0), "KiB": (1 << 10, 0), "MiB": (1 << 20, 0), "GiB": (1 << 30, 0),
    },
    "bytes/s": {"kB/s": (1e3, 0), "MB/s": (1e6, 0), "GB/s": (1e9, 0), "MiB/s": (1 << 20, 0), "GiB/s": (1 << 30, 0)},
    "KB/s": {"bytes/s": (1e-3, 0), "MB/s": (1e3, 0)},
    "mJ": {"J": (1e3, 0), "kJ": (1e6, 0), "Wh": (3.6e6, 0), "kWh": (3.6e9, 0)},
    "ns": {"us": (1e3, 0), "ms": (1e6, 0), "s": (1e9, 0)},
    "us": {"ns": (1e-3, 0), "ms": (1e3, 0), "s": (1e6, 0)},
    "ms": {"us": (1e-3, 0), "s": (1e3, 0)},
    "s": {"ns": (1e-9, 0), "us": (1e-6, 0), "ms": (1e-3, 0), "min": (60, 0), "h": (3600, 0)},
    "%": {"ratio": (100, 0)},
    "ratio": {"%": (0.01, 0)},
}  # fmt: skip


def unit_of(field: Field) -> str:
    """The field's own unit; empty where it has none."""
    if field.unit:
        return field.unit
    return next((unit for suffix, unit in _SUFFIXES.items() if field.name.endswith(suffix)), "")


def known(field: Field) -> tuple[str, ...]:
    """Units that a map may name for that field, its own first."""
    own = unit_of(field)
    return (own, *_TO.get(own, {})) if own else ()


def conversion(field: Field, unit: str) -> tuple[float, float]:
    """Scale and offset from ``unit`` to the field's own. ``KeyError`` where that is not known."""
    own = unit_of(field)
    return (1.0, 0.0) if unit == own else _TO[own][unit]
