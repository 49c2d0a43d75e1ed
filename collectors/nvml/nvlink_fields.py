"""NVLinks one by one: from NVML's per-link calls to fields of table ``link``, as data.

Field ids with the link's number as scope; where a driver or GPU answers none, a counter of
nvmlDeviceGetNvLinkErrorCounter (NVLink 1 to 4). Ids follow the bindings of nvidia-ml-py 13.615.71. Nothing here
imports pynvml: both sides of the child know it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from graynode.collectors.nvml.fields import How

MAX_LINKS: Final = 36
STATE_ID: Final = 165
"""NVML_FI_DEV_NVLINK_GET_STATE, scope: link."""
REMOTE_LINK_ID: Final = 146
"""NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID, scope: link."""

ACTIVE: Final = 1
STATES: Final = {0: "inactive", ACTIVE: "active", 2: "sleep", 3: "disabled"}
"""``NVML_NVLINK_STATE_*``; 3 is active with its traffic disabled (615). Others are unknown, and not down."""
VERSIONS: Final = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""``NVML_NVLINK_VERSION_*``."""
REMOTES: Final = {0: "GPU", 1: "NPU", 2: "switch"}
"""``NVML_NVLINK_DEVICE_TYPE_*``; 255 is unknown."""

LOOK_S: Final = 10
"""Reading class of states."""
COUNT_S: Final = 60
"""Reading class of counters: one by one they are a few hundred questions a GPU, each a trip into the driver. A GPU
one of whose sums (table ``gpu``, 10 s) has grown is asked at once, so that what happens is dated to 10 s too."""


_IN_KIB: Final = (138, 139)


@dataclass(frozen=True, slots=True)
class Counter:
    """A field of table ``link``: the field ids to try in turn, then the counter of the older call, if there is one."""

    field: str
    ids: tuple[int, ...] = ()
    counter: int | None = None
    how: How = "as_is"

    def how_of(self, id_: int) -> How:
        """What the id's unit is: throughput counters of NVLink 4 and older are in KiB."""
        return "kib" if id_ in _IN_KIB else self.how


COUNTERS: Final[tuple[Counter, ...]] = (
    Counter("rate_gbps", (164,), how="mb_gbit"),
    Counter("crc_flit_errors", counter=2),
    Counter("crc_data_errors", counter=3),
    Counter("crc_errors", (163,)),
    Counter("replays", (161,), counter=0),
    Counter("link_error_recovery", (213, 162), counter=1),
    Counter("ecc_errors", counter=4),
    Counter("tx_packets", (201,)),
    Counter("rx_packets", (203,)),
    Counter("tx_bytes", (202, 138)),
    Counter("rx_bytes", (204, 139)),
    Counter("malformed_packets", (206,)),
    Counter("buffer_overruns", (207,)),
    Counter("rx_errors", (208,)),
    Counter("rx_remote_physical_errors", (209,)),
    Counter("rx_general_errors", (210,)),
    Counter("integrity_errors", (211,)),
    Counter("tx_discards", (212,)),
    Counter("recoveries_failed", (214,)),
    Counter("recovery_events", (215,)),
    Counter("effective_errors", (219,)),
    Counter("symbol_errors", (221,)),
    Counter("effective_ber_ratio", (220,), how="ber"),
    Counter("symbol_ber_ratio", (222,), how="ber"),
)
EVERY: Final[dict[str, int]] = {"state": LOOK_S, **{c.field: COUNT_S for c in COUNTERS}}
"""Reading class of what a link is asked."""

SUMS: Final = ("nvlink_links_active", "nvlink_links_inactive", "nvlink_links_sleep")
"""Fields of table ``gpu`` that are made of the states."""
GROWS: Final = ("nvlink_crc_", "nvlink_replay_", "nvlink_recovery_", "nvlink_ecc_", "nvlink5_")
"""How the sums begin whose growth asks for the links one by one."""
