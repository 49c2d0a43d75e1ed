"""The vendor's and operators' return limits on memory, as data with their sources; levels, not growth.

The return criterion itself, a failed remap, is a flag of ``rule_table``. These come before it or stand beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.detectors.frames import Floats, View
from graynode.detectors.rule_table import Rule


@dataclass(frozen=True, slots=True)
class Level:
    """``rule`` holds from ``least`` of the sum of ``columns`` on; where all are unknown nothing is."""

    rule: Rule
    columns: tuple[str, ...]
    least: float

    def value(self, view: View) -> Floats:
        """The sum of what is known; NaN where nothing is."""
        parts = np.column_stack([view.x[c] for c in self.columns])
        return np.where(np.all(np.isnan(parts), axis=1), np.nan, np.nansum(parts, axis=1))


_SOURCE: Final = "NVIDIA GPU memory error management guide"
_DIAGNOSE: Final = "Run the vendor's field diagnostic on this GPU; its report decides the return."

LEVELS: Final = (
    Level(
        Rule("rows_remapped_512", "", "memory_degraded", "ticket", "vendor",
             "512 and more memory rows have been remapped: the next uncorrectable one makes the remap fail",
             "Take the node out after its job and open the return; the guide's limit is reached.", _DIAGNOSE,
             f"{_SOURCE}; DCGM warns at 512", unit="rows"),
        ("row_remaps_uncorrectable_last",), 512.0,
    ),
    Level(
        Rule("rows_remapped_10", "", "memory_degraded", "ticket", "platform",
             "more than ten memory rows have been remapped",
             "Measure this GPU alone before the next large job: of nodes with so many most are slower than before.",
             "Compare its memory bandwidth with a neighbour's; if it is lower, ask for the return.",
             "SuperBench (USENIX ATC 2024): 83 % of nodes above ten rows had regressed", unit="rows"),
        ("row_remaps_uncorrectable_last", "row_remaps_correctable_last"), 11.0,
    ),
    Level(
        Rule("bank_exhausted", "", "memory_degraded", "ticket", "vendor",
             "a memory bank has no spare row left: the next damaged row of it cannot be remapped",
             "Plan the exchange of this GPU; let no long job start on it.", _DIAGNOSE, _SOURCE, unit="banks"),
        ("bank_remap_none_last",), 1.0,
    ),
    Level(
        Rule("sram_uncorrectable", "", "memory_degraded", "ticket", "vendor",
             "uncorrected SRAM errors have come more than four times in its life",
             "Take the node out after its job; so many usually end in a return.", _DIAGNOSE,
             "operators' practice (stas00, ML engineering); the driver's own flag is SRAM threshold", unit="errors"),
        ("ecc_dbe_aggregate_sram_last",), 5.0,
    ),
    Level(
        Rule("retired_pages_60", "", "memory_degraded", "ticket", "vendor",
             "60 and more memory pages are retired: the limit is near",
             "Take the node out after its job and ask for the return.", _DIAGNOSE, "DCGM fails at 63", unit="pages"),
        ("retired_pages_sbe_last", "retired_pages_dbe_last"), 60.0,
    ),
)  # fmt: skip
