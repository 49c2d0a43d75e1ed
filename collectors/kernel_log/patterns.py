"""What kernel lines mean: one message in, what it says out. No files, no clock, no memory.

Every pattern is anchored at the start of the message, because messages of user space that quote a kernel line
are not one. Formats: NVIDIA's Xid catalogue and driver, ``drivers/pci/pcie/aer.c``, ``edac_mc.c``, ``mce``,
``mlx5/core`` (events.c, health.c, en_main.c) and ``mm/oom_kill.c`` of Linux. Unknown Xid numbers are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from graynode.collectors.driver_module import driver_module
from graynode.collectors.kernel_log.nvrm_patterns import gpu_off_bus, gsp, nvrm_trouble, sxid, xid
from graynode.collectors.pci import pci_address


@dataclass(slots=True)
class Found:
    """What one kernel message says. ``flood`` marks kinds that can come by the thousand and say one thing."""

    kind: str
    message: str
    code: int | None = None
    pci_bus_id: str | None = None
    pid: int | None = None
    process: str | None = None
    nvlink: int | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    flood: bool = False


_AER: Final = re.compile(
    r"(?P<driver>\S+) (?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:AER: )?PCIe Bus Error: "
    r"severity=(?P<severity>[^,]+), (?:type=)?(?P<type>[^,]+)(?:, (?:id=\w+)?\(?(?P<agent>[A-Za-z ]+)\)?)?"
)
_DPC: Final = re.compile(
    r"(?P<driver>\S+) (?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): DPC: containment event, (?P<what>.+)"
)
_EDAC: Final = re.compile(r"EDAC (?P<mc>MC\d+): (?P<count>\d{1,9}) (?P<type>CE|UE)\b(?P<what>.*)")
_MACHINE_CHECK: Final = re.compile(
    r"(?:mce: )?(?:\{\d+\})?\[Hardware Error\]: *(?:CPU ?:?(?P<cpu>\d+): Machine Check(?: Exception)?: (?P<mcg>\w+) "
    r"Bank (?P<bank>\d+): (?P<status>\w+)|(?P<logged>Machine check events logged)|event severity: (?P<severity>\w+))"
)
_MEMORY_FAILURE: Final = re.compile(r"Memory failure: (?P<pfn>0x[0-9a-f]+): (?P<what>.+)")
_MLX5: Final = re.compile(
    r"mlx5_core (?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?: (?P<netdev>[\w.@-]+))?: (?P<what>.+)"
)
_PORT_MODULE: Final = re.compile(r"Port module event(?:\[error\])?: module (?P<module>\d+), (?P<status>.+)")
_MLX5_SAYS: Final = (
    ("link_up", re.compile(r"Link up$")),
    ("link_down", re.compile(r"Link down$")),
    ("health", re.compile(r"(?:\w+:\d+:(?:\(pid \d+\):?)? )?(?:device's health compromised|.*health recovery flow"
                          r"|Fatal error \d+ detected|.*FW is unable to respond|synd 0x|.*reset reload flow aborted)")),
    ("power", re.compile(r"(?:.* )?Detected insufficient power on the PCIe slot")),
    ("command_timeout", re.compile(r".*\b(?:timeout\. Will cause a leak|wait_func_handle_exec_timeout)")),
    ("tx_timeout", re.compile(r"TX timeout")),
    ("temperature", re.compile(r".*High temperature", re.IGNORECASE)),
)  # fmt: skip
_OOM: Final = re.compile(
    r"(?P<scope>Out of memory|Memory cgroup out of memory)[^:]{0,80}: Kill(?:ed)? process (?P<pid>\d{1,9})"
    r"(?:, UID \d+,)? \((?P<process>[^)]*)\)"
)
_PEERMEM: Final = re.compile(r"nvidia[-_]peermem\b.*?\b(?P<call>\w+):\d+ ERROR (?P<what>.+)")

_SEVERITIES: Final[Mapping[str, str]] = {
    "Corrected": "corrected", "Correctable": "corrected", "Uncorrected (Fatal)": "fatal",
    "Uncorrectable (Fatal)": "fatal", "Uncorrected (Non-Fatal)": "nonfatal", "Uncorrectable (Non-Fatal)": "nonfatal",
}  # fmt: skip


def understand(text: str) -> Found | None:
    """What the message says, ``None`` where it says nothing of the machine's health. Never raises."""
    start = text[:6]
    for prefixes, parse in _BY_START:
        if start.startswith(prefixes):
            return parse(text)
    if "PCIe Bus Error" in text or "DPC: containment" in text:
        return _aer(text)
    return None


def _nvrm(text: str) -> Found | None:
    if text.startswith("NVRM: Xid"):
        return _made("xid", xid(text))
    if "fallen off the bus" in text:
        return _made("gpu_off_bus", gpu_off_bus(text))
    module = driver_module(text)
    if module and "loading" in text:
        facts = {"version": module.version, "module": module.kind}
        return Found("nvrm_load", f"NVIDIA driver {module.version} ({module.kind}) loaded", attributes=facts)
    return _made("gsp", gsp(text)) or _made("nvrm", nvrm_trouble(text))


def _made(kind: str, parsed: dict[str, Any] | None) -> Found | None:
    return Found(**{"kind": kind, **parsed}) if parsed is not None else None


def _nvidia(text: str) -> Found | None:
    if "SXid" in text:
        return _made("sxid", sxid(text))
    found = _PEERMEM.match(text)
    if found:
        return Found("peermem", f"nvidia-peermem: {found['what']}", attributes={"call": found["call"]}, flood=True)
    return _aer(text)


def _aer(text: str) -> Found | None:
    found = _AER.match(text)
    if found:
        severity = _SEVERITIES.get(found["severity"].strip(), found["severity"].strip().lower())
        facts = {"severity": severity, "type": found["type"].strip(), "driver": found["driver"]}
        if found["agent"]:
            facts["agent"] = found["agent"].strip()
        address = pci_address(found["pci"])
        message = f"PCIe error on {address}: {severity}, {facts['type']}"
        return Found("aer", message, pci_bus_id=address, attributes=facts, flood=severity == "corrected")
    found = _DPC.match(text)
    if found is None:
        return None
    address = pci_address(found["pci"])
    facts = {"severity": "contained", "driver": found["driver"], "type": "DPC"}
    return Found("aer", f"PCIe port {address} contained: {found['what']}", pci_bus_id=address, attributes=facts)


def _edac(text: str) -> Found | None:
    found = _EDAC.match(text)
    if found is None:
        return None
    severity = "corrected" if found["type"] == "CE" else "uncorrected"
    facts = {"source": "edac", "severity": severity, "controller": found["mc"], "errors": int(found["count"])}
    message = f"{found['count']} {severity} memory errors on {found['mc']}:{found['what']}"
    return Found("mce", message, attributes=facts, flood=severity == "corrected")


def _machine_check(text: str) -> Found | None:
    found = _MACHINE_CHECK.match(text)
    if found is None:
        return None
    facts = {k: v for k, v in found.groupdict().items() if v is not None and k != "logged"}
    what = text.partition("[Hardware Error]:")[2].strip()
    return Found("mce", f"machine check: {what}", attributes={"source": "mce", **facts}, flood=True)


def _memory_failure(text: str) -> Found | None:
    found = _MEMORY_FAILURE.match(text)
    if found is None:
        return None
    return Found(
        "mce", f"memory failure: {found['what']}", attributes={"source": "memory_failure", "pfn": found["pfn"]}
    )


def _mlx5(text: str) -> Found | None:
    found = _MLX5.match(text)
    if found is None:
        return None
    facts: dict[str, Any] = {"netdev": found["netdev"]} if found["netdev"] else {}
    what, address = found["what"], pci_address(found["pci"])
    module = _PORT_MODULE.match(what)
    if module:
        facts |= {"event": "port_module", "module": int(module["module"][:9]), "status": module["status"]}
    else:
        said = next((name for name, pattern in _MLX5_SAYS if pattern.match(what)), None)
        if said is None:
            return None
        facts["event"] = said
    return Found("mlx5", f"{found['netdev'] or address}: {what}", pci_bus_id=address, attributes=facts)


def _oom(text: str) -> Found | None:
    found = _OOM.match(text)
    if found is None:
        return None
    facts = {"scope": "cgroup" if "cgroup" in found["scope"] else "node"}
    message = f"{found['process']} ({found['pid']}) killed for memory, {facts['scope']} limit"
    return Found("oom_kill", message, pid=int(found["pid"]), process=found["process"], attributes=facts)


_BY_START: Final[tuple[tuple[tuple[str, ...], Callable[[str], Found | None]], ...]] = (
    (("NVRM: ",), _nvrm),
    (("nvidia",), _nvidia),
    (("mlx5_c",), _mlx5),
    (("EDAC M",), _edac),
    (("mce: [", "[Hardw", "{"), _machine_check),
    (("Memory",), lambda text: _memory_failure(text) or _oom(text)),
    (("Out of",), _oom),
)
"""Parsers by the first six characters: nearly every line of a log is decided by this look alone."""
