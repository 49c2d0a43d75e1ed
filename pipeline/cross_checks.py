"""What no field shows by itself: values that another field of the same row contradicts.

Whole columns at once; a row that lacks what would contradict it is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from graynode.pipeline.values import Verdict

_RATIOS: Final = tuple(
    f"{name}_ratio"
    for name in (
        "gr_engine_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp64_active", "fp32_active",
        "fp16_active",
    )
)  # fmt: skip
PROFILED: Final = (
    *_RATIOS, "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s",
)  # fmt: skip
"""Fields that come from the GPU's profiling counters, which one client at a time can have (DCGM #56)."""
_BUSY_PERCENT: Final = 90
_BUSY_W: Final = 100.0
"""Above what data-centre GPUs draw without work (60 to 90 W); smaller boards than 100 W are never judged."""
_ALIVE_W: Final = 1.0

SATURATES: Final[Mapping[str, int]] = {
    "link_error_recovery": 255, "link_downed": 255, "symbol_errors": 65535, "rx_errors": 65535,
    "rx_remote_physical_errors": 65535, "tx_discards": 65535, "integrity_errors": 15, "buffer_overruns": 15,
}  # fmt: skip
"""Where counters of a network port stop: the widths of PortCounters in the InfiniBand specification (volume 1, chapter
16), which do not wrap. A port with wider counters passes through these values and is judged by what comes next."""


@dataclass(frozen=True, slots=True)
class Contradicted:
    """``mask`` is true where the field's value is judged; ``kept`` values stay, and only ``quality`` speaks."""

    mask: pl.Series
    verdict: Verdict
    kept: bool = False


def cross_check(table: str, frame: pl.DataFrame) -> dict[str, Contradicted]:
    """Judged values by field; fields without any are absent."""
    return {name: one for check in _CHECKS.get(table, ()) for name, one in check(frame)}


def _paused(frame: pl.DataFrame) -> Iterator[tuple[str, Contradicted]]:
    """Engines at rest while a kernel is resident and power is drawn: the profiling counters are dead or lent out."""
    engine, sm = frame["gr_engine_active_ratio"], frame["sm_active_ratio"]
    if not ((engine == 0).any() or (sm == 0).any()):
        return
    resting = (engine == 0) | (sm == 0)
    for name in _RATIOS:
        resting &= (frame[name].fill_null(0) == 0) | frame[name].is_nan()
    busy = (frame["gpu_util_percent"] >= _BUSY_PERCENT) & (frame["power_w"] >= _BUSY_W)
    mask = (resting & busy).fill_null(value=False)
    if not mask.any():
        return
    verdict = Verdict("paused", "0 while gpu_util_percent and power_w show work: the profiling counters do not count")
    for name in PROFILED:
        zero = (mask & (frame[name] == 0)).fill_null(value=False)
        if zero.any():
            yield name, Contradicted(zero, verdict)


def _no_energy(frame: pl.DataFrame) -> Iterator[tuple[str, Contradicted]]:
    """A counter of joules at 0 on a GPU that draws power does not count (DCGM #171)."""
    none = frame["energy_mj"] == 0
    if none.any():
        mask = (none & (frame["power_w"] >= _ALIVE_W)).fill_null(value=False)
        if mask.any():
            yield "energy_mj", Contradicted(mask, Verdict("implausible", "0 mJ from a GPU that draws power"))


def _saturated(frame: pl.DataFrame) -> Iterator[tuple[str, Contradicted]]:
    """The value is right as a least one; what comes after it is not counted."""
    for name, limit in SATURATES.items():
        at_limit = frame[name] == limit
        if at_limit.any():
            mask = (at_limit & frame["gpu_uuid"].is_null()).fill_null(value=False)
            if mask.any():
                said = f"stands at {limit}, where classic port counters end: more is not counted"
                yield name, Contradicted(mask, Verdict("stale", said), kept=True)


_CHECKS: Final[Mapping[str, tuple[Callable[[pl.DataFrame], Iterator[tuple[str, Contradicted]]], ...]]] = {
    "gpu": (_paused, _no_energy),
    "link": (_saturated,),
}
