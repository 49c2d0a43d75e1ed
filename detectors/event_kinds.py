"""Events that carry no NVIDIA number: what each kind means, one line or one function a kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from graynode.detectors.policy import Verdict
from graynode.detectors.service_kinds import SERVICE_KINDS

_RELOAD_CLEARS: Final = ("xid_*", "sxid_*", "gpu_hung", "nvrm")
"""A fresh driver has reset its GPUs; a GPU that stays away is told again by ``rules``' count."""


def verdict(
    title: str, cause: str, severity: str, action: str, *, owner: str = "platform", hold: bool = False
) -> Verdict:
    """A verdict of graynode's own; ``hold`` as in ``policy.Verdict``."""
    return Verdict(title, cause, severity, owner, action, "graynode rules", "", hold=hold)


def _aer(facts: Mapping[str, Any]) -> Verdict:
    severity = str(facts.get("severity", "unknown"))
    if severity == "corrected":
        return verdict("corrected PCIe errors", "pcie_errors", "digest", "Nothing at once; the link repaired it.")
    told = "page" if severity == "fatal" else "ticket"
    return verdict(
        f"PCIe error, {severity}",
        "pcie_errors",
        told,
        "Find the device in lspci; let its work end, then restart the node and check seating and riser.",
    )


def _mce(facts: Mapping[str, Any]) -> Verdict:
    status = str(facts.get("status", ""))
    uncorrected = facts.get("severity") in ("uncorrected", "fatal", "recoverable") or (
        facts.get("source") == "memory_failure" or (status and _uncorrected(status))
    )
    if not uncorrected:
        return verdict("corrected host hardware error", "host_fault", "digest", "Nothing at once; watch the count.")
    return verdict(
        "uncorrected host hardware error",
        "host_fault",
        "ticket",
        "Take the node out at the end of its job; read the BMC's event log for the CPU or DIMM named.",
    )


def _uncorrected(status: str) -> bool:
    """Bit 61 (UC) of the machine check bank's status register."""
    try:
        return bool(int(status, 16) >> 61 & 1)
    except ValueError:
        return False


def _mlx5(facts: Mapping[str, Any]) -> Verdict | None:
    what, status = str(facts.get("event")), str(facts.get("status", "")).lower()
    if what in ("link_up", "link_down"):
        return None  # the port's own counters tell this better
    if what == "port_module" and "error" not in status and "high temp" not in status:
        return verdict("network module was plugged or pulled", "network_fault", "digest", "Nothing at once.")
    return verdict(
        f"network adapter: {what.replace('_', ' ')}{f' ({status})' if status else ''}",
        "network_fault",
        "ticket",
        "Keep multi-node jobs off the node; read the adapter's lines in the kernel log and its firmware state.",
        owner="network",
    )


def _clear(*signals: str, new_boot: bool = False) -> Callable[[Mapping[str, Any]], Verdict]:
    over = Verdict("over", "", "digest", "platform", "", "graynode rules", "", clears=signals, new_boot=new_boot)
    return lambda _facts: over


def _always(title: str, cause: str, severity: str, action: str, **kw: Any) -> Callable[[Mapping[str, Any]], Verdict]:  # noqa: ANN401
    return lambda _facts: verdict(title, cause, severity, action, **kw)


KINDS: Final[Mapping[Any, Callable[[Mapping[str, Any]], Verdict | None]]] = {
    "aer": _aer,
    "mce": _mce,
    "mlx5": _mlx5,
    "gsp": _always("trouble of the GPU's system processor", "driver_fault", "digest", "See the Xid beside it."),
    "nvrm": _always(
        "the driver cannot use a GPU",
        "driver_fault",
        "ticket",
        "Read the driver's line; reload the driver or restart the node once its work has ended.",
        hold=True,
    ),
    "gpu_hung": _always(
        "a GPU holds a driver call and does not answer",
        "driver_fault",
        "ticket",
        "Let no new work start on the node; the driver call will hang for others too. Restart the node.",
        hold=True,
    ),
    "gpu_reset_required": _always(
        "the driver wants a GPU reset before it can be read",
        "driver_fault",
        "ticket",
        "End what runs on the GPU and reset it (nvidia-smi --gpu-reset); nothing is known of its health until then.",
        hold=True,
    ),
    "nvml_blind": _always(
        "NVML does not answer: nothing is known of the GPU or GPUs concerned",
        "monitoring_blind",
        "ticket",
        "Look whether nvidia-smi answers on the node, and in the agent's container.",
        hold=True,
    ),
    "kmsg_gap": _always(
        "kernel log records were lost", "monitoring_blind", "digest", "Look for what floods the kernel log."
    ),
    "clock_skew": _always(
        "the node's clock is wrong", "clock_skew", "ticket", "Repair time synchronisation on the node."
    ),
    "identity_conflict": _always(
        "two machines or agents send under one node_id",
        "monitoring_blind",
        "ticket",
        "Give each machine its own agent.node_id (cloned images share machine-id), or stop the second agent; until "
        "then nothing said of this node is certain.",
        hold=True,
    ),
    "oom_kill": _always(
        "a process was killed for memory", "application_error", "digest", "See the job's memory.", owner="job_owner"
    ),
    "peermem": _always(
        "nvidia-peermem error", "network_fault", "digest", "Look whether GPUDirect RDMA works on the node."
    ),
    "gpu_returned": _clear("gpu_*", "xid_79", "nvrm"),
    "nvml_back": _clear("nvml_blind"),
    "driver_reload": _clear(*_RELOAD_CLEARS),
    "nvrm_load": _clear(*_RELOAD_CLEARS),
    "agent_start": _clear("*", new_boot=True),
    **SERVICE_KINDS,
}
"""Kinds without a number. Absent kinds (link_up, agent_stop, fault_start …) say nothing here."""


def told_by_a_program(said: Verdict) -> Verdict:
    """A record that user space wrote to the kernel log: shown, never told as the kernel's word."""
    return Verdict(
        f"{said.title} (written to the kernel log by a program, not by the kernel)",
        said.cause,
        "digest",
        "platform",
        "Nothing; find out which program writes such lines.",
        "graynode rules",
        "",
        known=said.known,
    )
