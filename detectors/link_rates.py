"""Error rates of links that are too high whatever the past: limits by kind of error and of link, with their sources.

The past decides what is unusual for a link (``growth``); these decide what no link should have. A limit is in errors
per second, or for a bit error ratio in its own unit, and counts when it is passed in several windows in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors.frames import Floats, Ints, View


@dataclass(frozen=True, slots=True)
class Limit:
    """``column`` of the window row, ``limit`` in ``unit``; ``words`` completes "Link …:"."""

    column: str
    limit: float
    words: str
    source: str
    unit: str = "errors/s"

    @property
    def is_counter(self) -> bool:
        """Whether the column is a window's growth, to be divided by the window's length."""
        return self.column.endswith("_delta")


PORTS: Final = (
    Limit("symbol_errors_delta", 120.0 / 3600.0, "symbol errors", "NVSentinel: 120 an hour"),
    Limit("link_error_recovery_delta", 5.0 / 60.0, "link recoveries", "NVSentinel: 5 a minute"),
    Limit("tx_discards_delta", 100.0, "packets not sent", "NVSentinel: 100 a second"),
    Limit("fec_uncorrected_blocks_delta", 10.0 / 60.0, "blocks that error correction could not save",
          "graynode: ten a minute; each is a lost packet"),
    Limit("effective_ber_ratio_last", 1e-12, "an effective bit error ratio", "DCGM: above 1e-12 fails", "errors/bit"),
)  # fmt: skip
BOARDS: Final = (
    Limit("nvlink_crc_flit_errors_delta", 100.0, "NVLink CRC errors", "DCGM: 100 a second fails"),
    Limit("nvlink_crc_data_errors_delta", 100.0, "NVLink data CRC errors", "DCGM: 100 a second fails"),
    Limit("nvlink_replay_errors_delta", 1.0, "NVLink replays", "graynode: one a second; DCGM fails at any"),
    Limit("nvlink_recovery_errors_delta", 1.0 / 60.0, "NVLink recoveries", "graynode: one a minute; DCGM fails at any"),
    Limit("nvlink5_recoveries_failed_delta", 1.0 / 300.0, "failed NVLink recoveries", "graynode: any in five minutes"),
    Limit("nvlink5_effective_ber_ratio_last", 1e-12, "an effective NVLink bit error ratio", "DCGM: above 1e-12 fails",
          "errors/bit"),
)  # fmt: skip


def columns(limits: Sequence[Limit]) -> tuple[str, ...]:
    """The window columns that the limits read."""
    return tuple(limit.column for limit in limits)


def worst(view: View, limits: Sequence[Limit], window_s: int) -> tuple[Floats, Ints]:
    """How many times its limit the worst error of each row is (NaN: none known), and which limit that is."""
    times = np.column_stack([
        view.x[limit.column] / ((window_s if limit.is_counter else 1.0) * limit.limit) for limit in limits
    ]) if len(view) else np.zeros((0, len(limits)))  # fmt: skip
    known = ~np.all(np.isnan(times), axis=1)
    filled = np.where(np.isnan(times), -1.0, times)
    most = filled.max(axis=1, initial=-1.0)
    return np.where(known, most, np.nan), filled.argmax(axis=1).astype(np.int64)
