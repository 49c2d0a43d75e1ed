"""Units: from the contract's to Grafana's. One mapping; every panel takes its unit from here by the field's name.

Sizes are shown in powers of 1024 (80 GiB is what people call an 80 GB GPU), rates of links in decimal bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graynode.pipeline.schema import TABLES, Field
from graynode.pipeline.series import metrics

GRAFANA: Final[Mapping[str, str]] = {
    "MHz": "rotmhz",
    "W": "watt",
    "mW": "mwatt",
    "mJ": "suffix: mJ",
    "°C": "celsius",
    "%": "percent",
    "bytes": "bytes",
    "bytes/s": "binBps",
    "KB/s": "KBs",
    "MB/s": "MBs",
    "Gb/s": "Gbits",
    "ns": "ns",
    "µs": "µs",
    "ms": "ms",
    "s": "s",
    "V": "volt",
    "mA": "mamp",
    "bits": "decbits",
    "ticks": "suffix: ticks",
    "banks": "suffix: banks",
    # beside the contract: sums and rates that only answers have
    "h": "h",
    "kWh": "kwatth",
    "GPU-h": "suffix: GPU-h",
    "GPU-h/day": "suffix: GPU-h/day",
    "per node-day": "suffix: per node-day",
    "ratio": "percentunit",
    "": "short",
}
"""By unit of the contract. ``suffix: …`` is how Grafana writes a unit that it does not know."""

_ENDINGS: Final[tuple[tuple[str, str], ...]] = (
    ("_per_node_day", "per node-day"), ("_gpu_h_per_day", "GPU-h/day"), ("_gpu_h", "GPU-h"), ("gpu_hours", "GPU-h"),
    ("gpu_hours_lost", "GPU-h"), ("_percent", "%"), ("_ratio", "ratio"), ("share", "ratio"), ("availability", "ratio"),
    ("p_fault_7d", "ratio"), ("confidence", "ratio"), ("_kwh", "kWh"), ("_mhz", "MHz"), ("_bytes", "bytes"),
    ("_gbps", "Gb/s"), ("_mw", "mW"), ("_w", "W"), ("_c", "°C"), ("_h", "h"), ("_s", "s"),
)  # fmt: skip
"""Units end names: of what an answer says beyond the contract. The first that fits."""


def field_of(entity: str, metric: str) -> Field:
    """The contract's field behind a metric of ``/api/v1/series``; ``KeyError`` for one that there is not."""
    for _, field in metrics(entity):
        if field.name == metric:
            return field
    raise KeyError(f"metric {metric!r} of entity {entity}: there is none such in the contract")


def unit_of(name: str) -> str:
    """Unit of a field of an answer: the contract's where it has the field, else by the name's ending."""
    for raw in ("gpu", "link", "host", "job"):
        for field in TABLES[raw].fields:
            if field.name == name and field.unit:
                return field.unit
    return next((unit for ending, unit in _ENDINGS if name.endswith(ending)), "")


def grafana_unit(unit: str, name: str = "") -> str:
    """Grafana's id. A ratio of the contract has no unit, only a name that says so; bit error ratios are tiny."""
    if not unit and name.endswith("_ratio"):
        return "sci" if "_ber_" in name else "percentunit"
    return GRAFANA[unit]
