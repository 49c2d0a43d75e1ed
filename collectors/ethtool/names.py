"""What drivers call their counters: the names of ``ethtool -S`` to columns of table ``link``. Pure.

Read so far: mlx5 (kernel documentation of its counters), bnxt_en, ice, i40e and ixgbe (their string tables). A driver
whose names are not known gives nothing here, and the column stays null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

_PRIORITY: Final = (
    re.compile(r"(?P<way>rx|tx)_prio(?P<prio>[0-7])_pause"),  # mlx5
    re.compile(r"(?P<way>rx|tx)_pfc_ena_frames_pri(?P<prio>[0-7])"),  # bnxt_en
    re.compile(r"(?:port\.)?(?P<way>rx|tx)_priority_(?P<prio>[0-7])_xoff(?:\.nic)?"),  # i40e, ice
    re.compile(r"(?P<way>rx|tx)_pb_(?P<prio>[0-7])_pxoff"),  # ixgbe
)
"""PFC frames that stop a priority. Of drivers that count stop (xoff) and go (xon) apart, the stops."""
_GLOBAL: Final = re.compile(
    r"(?P<way>rx|tx)_global_pause|(?:port\.)?link_xoff_(?P<intel>rx|tx)(?:\.nic)?|(?P<bnxt>rx|tx)_pause_frames"
)
_DURATION: Final = re.compile(
    r"(?P<way>rx|tx)_(?:prio[0-7]|global)_pause_duration|pfc_pri[0-7]_(?P<bnxt>rx|tx)_duration_us"
)
"""mlx5's are microseconds by its documentation, bnxt_en's by their name."""
_NAMED: Final[Mapping[str, tuple[str, ...]]] = {
    "rx_port_discards": ("rx_discards_phy", "rx_discard_pkts", "rx_dropped.nic", "port.rx_dropped"),
    "tx_port_discards": ("tx_discards_phy", "tx_discard_pkts", "tx_dropped_link_down.nic"),
    "rx_buffer_discards": ("rx_out_of_buffer", "rx_total_discard_pkts", "rx_no_dma_resources"),
    "phy_downs": ("link_down_events_phy", "link_down_events"),
    "fec_corrected_bits": ("rx_corrected_bits_phy", "rx_corrected_bits"),
    "fec_corrected_blocks": ("rx_fec_corrected_blocks", "rx_rs_fec_corrected_blocks_phy", "fec_corrected_blocks.nic"),
    "fec_uncorrected_blocks": (
        "rx_fec_uncorrectable_blocks", "rx_rs_fec_uncorrectable_blocks_phy", "fec_uncorrectable_blocks.nic",
    ),
}  # fmt: skip
"""By column the names in order of trust: the first that the driver has counts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where in a driver's list of counters each column is: ``one`` at an index, ``sums`` over some."""

    one: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def read(self, values: Sequence[int]) -> dict[str, int]:
        """The columns of one reading. A counter beyond 63 bits is none."""
        found = {name: values[at] for name, at in self.one.items()}
        found |= {name: sum(values[at] for at in some) for name, some in self.sums.items()}
        return {name: value for name, value in found.items() if value < 1 << 63}


def plan(names: Sequence[str]) -> Plan:
    """Find the columns in a driver's list, once per list: names are compared hundreds of times slower than read."""
    at = {name: i for i, name in enumerate(names)}
    one = {column: at[known] for column, some in _NAMED.items() if (known := next((n for n in some if n in at), None))}
    pauses: dict[str, list[int]] = {}
    for name, i in at.items():
        priority = next((found for shape in _PRIORITY if (found := shape.fullmatch(name))), None)
        if priority:
            one[f"{priority['way']}_pause_frames_prio{priority['prio']}"] = i
        for column, found in (
            ("pause_frames", priority or _GLOBAL.fullmatch(name)),
            ("pause_us", _DURATION.fullmatch(name)),
        ):
            if found:
                pauses.setdefault(f"{_way(found)}_{column}", []).append(i)
    return Plan(one, {column: tuple(some) for column, some in pauses.items()})


def _way(found: re.Match[str]) -> str:
    return next(value for name, value in found.groupdict().items() if name != "prio" and value)
