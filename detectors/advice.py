"""What a cause means for a person: words for the title, whose it is, what to do and what comes next.

Used where a finding brings no words of its own. Vendor rules bring theirs (``graynode.detectors.policy``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Advice:
    """``title`` completes "node: …"; ``owner`` is one of ``schema.OWNERS``."""

    title: str
    owner: str
    action: str
    next_step: str


ADVICE: Final[Mapping[str, Advice]] = {
    "slow_gpu": Advice(
        "slow GPU",
        "platform",
        "Take the node out before the next large job and measure the GPU alone.",
        "Run a GEMM probe on this GPU and on one of its neighbours; compare with the evidence.",
    ),
    "memory_errors": Advice(
        "GPU memory errors are growing",
        "platform",
        "Let the running job end, then reset the GPU so that pending row remaps take effect.",
        "Look at row remaps and bank headroom of this GPU; if they grow on, ask for a field diagnostic.",
    ),
    "memory_degraded": Advice(
        "GPU memory needs repair",
        "vendor",
        "Take the node out of scheduling; the GPU's own repair is pending or has failed.",
        "Reset the GPU if a remap is pending; if a remap failed, run the vendor's field diagnostic for a return.",
    ),
    "link_flap": Advice(
        "network link flaps",
        "network",
        "Keep collectives off this port until cable, transceiver and switch port are checked.",
        "Read error counters at both ends; reseat or swap the cable; watch the port for a day.",
    ),
    "link_down": Advice(
        "network link is down",
        "network",
        "Keep multi-node jobs off the node until the link is up.",
        "Check the switch port, then cable and transceiver.",
    ),
    "link_degraded": Advice(
        "link runs below what it should",
        "network",
        "Keep bandwidth-bound jobs off the node; the link trained at a lower rate or width.",
        "Retrain the link; if it comes up low again, swap the cable.",
    ),
    "link_errors": Advice(
        "link errors are growing",
        "network",
        "Plan a cable or transceiver check; the link still carries traffic.",
        "Compare the counters at both ends to see which side receives damaged.",
    ),
    "pcie_degraded": Advice(
        "PCIe link runs narrow or slow",
        "platform",
        "Take the node out before the next job: transfers to this GPU are slower than to its neighbours.",
        "Reboot once; if width or generation stays low, reseat the GPU or riser.",
    ),
    "pcie_errors": Advice(
        "PCIe errors are growing",
        "platform",
        "Watch the link; errors are corrected by sending again, which costs bandwidth.",
        "Look for AER lines in the kernel log and check riser and seating at the next service.",
    ),
    "thermal": Advice(
        "GPU too hot",
        "platform",
        "Check cooling of this node; the GPU lowers its clocks to protect itself.",
        "Compare with the neighbours at the same power: one GPU points at its cooler, all at airflow or coolant.",
    ),
    "power_brake": Advice(
        "power brake holds the GPU's clocks down",
        "platform",
        "Check power supplies and the rack's power limit; the brake is asserted from outside the GPU.",
        "Read the power supplies' state at the BMC; if they are well, ask who capped the rack.",
    ),
    "gpu_lost": Advice(
        "a GPU is gone",
        "platform",
        "Take the node out of scheduling and restart it.",
        "If the GPU is missing again after the restart, open a case with the vendor.",
    ),
    "driver_fault": Advice(
        "GPU driver or firmware fault",
        "platform",
        "Reset the GPU once its processes have ended.",
        "If it comes back after a reset, restart the node and keep the driver's bug report for the vendor.",
    ),
    "application_error": Advice(
        "an application's GPU error",
        "job_owner",
        "Look at the program first; this error is usually the application's own.",
        "Run it again on another node: the same error there clears this GPU.",
    ),
    "nvlink_fault": Advice(
        "NVLink fault",
        "platform",
        "Take the node out of scheduling and reset its GPUs.",
        "If the link fails again, look at both of its ends before a GPU is blamed.",
    ),
    "recovery_requested": Advice(
        "the driver asks for a recovery action",
        "platform",
        "Do what the driver asks for.",
        "Read the recovery action again afterwards; it must be none.",
    ),
    "monitoring_blind": Advice(
        "monitoring is blind here",
        "platform",
        "Find out why nothing can be read; nothing is known of the GPUs' health meanwhile.",
        "Look at the agent's log and whether nvidia-smi answers on the node.",
    ),
    "host_fault": Advice(
        "host hardware or kernel fault",
        "platform",
        "Look at the kernel log and the BMC's event log of this node.",
        "If it repeats, take the node out and run the maker's diagnostics.",
    ),
    "network_fault": Advice(
        "network adapter fault",
        "network",
        "Keep multi-node jobs off the node.",
        "Look at the adapter's firmware state and kernel messages; a restart tells whether it lasts.",
    ),
    "unusual": Advice(
        "unlike its peers",
        "platform",
        "Look at it when there is time; no rule names this.",
        "Compare the signals in the evidence with a neighbour's.",
    ),
    "clock_skew": Advice(
        "the node's clock is wrong",
        "platform",
        "Repair time synchronisation; until then this node is not compared with its peers.",
        "Check chrony or ntpd and the hardware clock.",
    ),
    "fleet_shift": Advice(
        "many nodes changed at once",
        "platform",
        "Look for what they share: a driver roll-out, a power or cooling event, a job.",
        "Do not take the nodes out one by one.",
    ),
}
"""By cause; every one of ``schema.CAUSES``."""
