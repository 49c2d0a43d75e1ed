"""The rules on window rows, as data: what is looked at, from when on it counts, and what it means.

Flags count at once: the device itself has decided. Throttle bits count by persistence, because every healthy GPU
throttles for moments: power brake 3 windows in a row (NVSentinel's three polls), hardware slowdown and thermal 6
of 10 minutes (GPUd). A window of an hour counts from 6 minutes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOWS_KEPT: Final = 20
"""Windows that a persistence rule looks back on: ten minutes of 30 s windows."""
LONG_WINDOW_S: Final = 600
LONG_WINDOW_LEAST_S: Final = 360.0
PART_OF_WINDOW: Final = 0.5
"""A short window counts where the bit was set for half of it: its samples are seconds, not an average."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``column`` of the window row; ``words`` completes "GPU …:". ``hits`` of the last ``of`` windows, 0 for a flag."""

    signal: str
    column: str
    cause: str
    severity: str
    owner: str
    words: str
    action: str
    next_step: str
    source: str
    hits: int = 0
    of: int = 0
    unit: str = "flag"


_MEMORY: Final = "NVIDIA GPU memory error management guide"
_CLOCKS: Final = "NVIDIA clocks event reasons; persistence as NVSentinel and GPUd use it"

FLAGS: Final = (
    Rule("row_remap_failed", "row_remap_failed_last", "memory_degraded", "page", "vendor",
         "a memory row could not be remapped",
         "Take the node out after its job: NVIDIA's return criterion is this flag, confirmed by the field diagnostic.",
         "Run the vendor's field diagnostic on this GPU and open the return with its report.", _MEMORY),
    Rule("row_remap_pending", "row_remap_pending_last", "memory_degraded", "ticket", "platform",
         "a memory row remap waits for a GPU reset",
         "Reset the GPU when its job has ended; the damaged row stays in use until then.",
         "Read the flag again after the reset; it must be 0.", _MEMORY),
    Rule("sram_threshold", "sram_threshold_exceeded_last", "memory_degraded", "ticket", "vendor",
         "SRAM errors passed the vendor's return threshold",
         "Take the node out after its job; the driver itself says that the return threshold is passed.",
         "Run the vendor's field diagnostic on this GPU.", _MEMORY),
    Rule("retired_pages_pending", "retired_pages_pending_last", "memory_degraded", "ticket", "platform",
         "a page retirement waits for a driver reload",
         "Reload the driver or restart the node when its job has ended.",
         "Count the retired pages afterwards: 60 and more are near the limit of 63.", _MEMORY),
)  # fmt: skip

PERSISTENT: Final = (
    Rule("power_brake", "hw_power_brake_s", "power_brake", "ticket", "platform",
         "the external power brake holds the clocks down",
         "Check power supplies and the rack's power limit; the brake is asserted from outside the GPU.",
         "Read the power supplies' state at the BMC; if they are well, ask who capped the rack.", _CLOCKS,
         hits=3, of=3, unit="s"),
    Rule("hw_thermal", "hw_thermal_s", "thermal", "ticket", "platform",
         "hardware thermal slowdown holds the clocks down",
         "Check cooling of this node; the GPU protects itself by slowing down.",
         "One GPU hot among cool neighbours points at its cooler, all hot at airflow or coolant.", _CLOCKS,
         hits=12, of=20, unit="s"),
    Rule("hw_slowdown", "hw_slowdown_alone_s", "unusual", "ticket", "platform",
         "hardware slowdown without a named reason holds the clocks down",
         "Look at power delivery and temperature of this GPU; the driver names neither.",
         "Compare power and temperature with the neighbours'.", _CLOCKS,
         hits=12, of=20, unit="s"),
)  # fmt: skip

ECC: Final = Rule(
    "ecc_uncorrected", "ecc_dbe_volatile_delta", "memory_errors", "ticket", "platform",
    "uncorrected memory errors",
    "Look for the Xid beside it (48, 94, 95): it says whether one program or all of them are affected.",
    "Read row remaps; a pending remap wants a GPU reset.", _MEMORY, unit="errors",
)  # fmt: skip

RECOVERY_COLUMN: Final = "recovery_action_last"

BOOT_GRACE_S: Final = 600.0
"""GPUs and links come up within minutes of boot; 214 of 288 nodes were once reported for that (NVSentinel #1701)."""
LOST_WINDOWS: Final = 2
BLIND_WINDOWS: Final = 4
FORGET_COUNT_S: Final = 7 * 86_400.0
"""A smaller count that both witnesses agree on for a week is the node's new size."""
AGAIN_S: Final = 1800.0
"""While a condition lasts, it is stated again so often."""
