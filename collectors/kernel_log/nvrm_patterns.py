"""The NVIDIA driver's own lines: Xid with its details, SXid of NVSwitches, a GPU off the bus, GSP trouble.

Each function takes one message and gives the fields of an event, or ``None``. Xid details: NVIDIA's Xid catalogue
("Working with Xid Errors", "Analyzing Xids with the Xid Catalog"): Xids 144–150 name a unit, severity, containment,
link and status words; their sub-code is in bits 20–25 of the first word (interrupt info).
"""

from __future__ import annotations

import re
from typing import Any, Final

from graynode.collectors.pci import pci_address

_ADDRESS: Final = r"(?:PCI:)?(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID: Final = re.compile(
    rf"NVRM: Xid \({_ADDRESS}(?:[ ,]+GPU-I:(?P<instance>\d+))?\): (?P<code>\d{{1,9}})(?!\d)(?:,\s*(?P<rest>.*))?",
    re.DOTALL,
)
_WHO: Final = re.compile(
    r"pid=(?P<pid>\d{1,9}|'?<unknown>'?|[^,]{0,40})(?:, name=(?P<name>[^,]*))?(?:,\s*(?P<rest>.*))?$", re.DOTALL
)
_NVLINK: Final = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]*)\s+(?P<severity>Fatal|Non-?fatal)\s+XC\s?(?P<xc>\d+)\s+i\s?(?P<injected>\d+)\s+"
    r"Link\s+(?P<link>-?\d{1,9})(?:\s*[(\[](?P<words>0x[0-9a-fA-F]{1,16}(?:\s+0x[0-9a-fA-F]{1,16})*)[)\]])?"
)
NVLINK_XIDS: Final = range(144, 151)
_DETAILS: Final = (
    re.compile(r"\(GPC (?P<gpc>\d+), TPC (?P<tpc>\d+)(?:, SM (?P<sm>\d+))?\)"),
    re.compile(r"\b(?:Ch|[Cc]hannel)(?: ID)? (?P<channel>(?:0x)?[0-9a-fA-F]{8})\b"),
    re.compile(r"ENGINE (?P<engine>\w+).*?faulted @ (?P<address>0x[0-9a-fA-F_]+)"),
    re.compile(r"(?P<fault>FAULT_\w+) (?P<access>ACCESS_TYPE_\w+)"),
    re.compile(r"recovery action changed from (?P<action_from>0x[0-9a-fA-F]+) \([^)]*\) to "
               r"(?P<action_to>0x[0-9a-fA-F]+) \((?P<action>[^)]*)\)"),
    re.compile(r"from GPU(?P<gpu_number>\d+) GSP! Expected function (?P<gsp_function>\d+) \((?P<gsp_call>\w+)\)"),
    re.compile(r"caused by previous Xid (?P<caused_by>\d+)"),
    re.compile(r"physAddr (?P<physical_address>0x[0-9a-fA-F_]+)"),
    re.compile(r"\b(?P<contained>Contained|Uncontained)\b"),
    re.compile(r"\b(?P<memory>SRAM|DRAM)\b"),
    re.compile(r"\brow address (?P<row_address>0x[0-9a-fA-F]+)"),
    re.compile(r"NVLink: .*?\bon link (?P<link>\d{1,9})", re.IGNORECASE),
)  # fmt: skip
_NUMBERS: Final = frozenset({"gpc", "tpc", "sm", "gpu_number", "gsp_function", "caused_by", "link"})
_WORDS: Final = re.compile(r"\(?((?:0x[0-9a-fA-F]{1,16}[, ]+){6}0x[0-9a-fA-F]{1,16})\)?")
"""Xid 74 prints seven registers; NVIDIA's workflow for it reads their bits."""

_SXID: Final = re.compile(
    rf"nvidia-nvswitch(?P<switch>\d{{1,4}}): SXid \({_ADDRESS}\): (?P<code>\d{{1,9}})(?!\d)(?:,\s*(?P<rest>.*))?",
    re.DOTALL,
)
_SXID_HEAD: Final = re.compile(
    r"(?P<severity>Non-fatal|Fatal)(?:, Link (?P<link>-?\d{1,9}))?[, ]*(?P<what>.*)", re.DOTALL
)
_GPU_UUID: Final = re.compile(
    rf"NVRM: GPU at {_ADDRESS}: (?P<uuid>GPU-[0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}})"
)
_NAMED_GPU: Final = re.compile(rf"NVRM: (?:The NVIDIA )?(?:probing )?GPU (?:at )?{_ADDRESS}(?![0-9a-fA-F])")
_PCI_ID: Final = re.compile(r"\(PCI ID: (?P<pci_id>[0-9a-f]{4}:[0-9a-f]{4})\)")
_GSP: Final = re.compile(
    r"NVRM: .*?(?:GSP RPC buffer contains|Rate limiting GSP RPC|kgsp\w*|\bGSP\b.*?(?:fail|error|crash|exception|halt"
    r"|timed? ?out|heartbeat|not respond))", re.IGNORECASE
)  # fmt: skip
_TROUBLE: Final = re.compile(
    r"NVRM: .*?(?:RmInitAdapter failed|API mismatch|Failed to copy vbios|rm_init_adapter failed|GPU recovery action"
    r"|needs to be reset|GPU lost from the bus|BAR\d+ .*?(?:is 0M|invalid))", re.IGNORECASE
)  # fmt: skip


def xid(text: str) -> dict[str, Any] | None:
    """An Xid line: number, PCI address, process and the details that its number is known to print."""
    found = _XID.match(text)
    if found is None:
        return None
    code, rest, address = int(found["code"]), found["rest"] or "", pci_address(found["pci"])
    event: dict[str, Any] = {"code": code, "pci_bus_id": address}
    facts: dict[str, Any] = {"gpu_instance": int(found["instance"][:9])} if found["instance"] else {}
    who = _WHO.match(rest)
    if who:
        rest = who["rest"] or ""
        event |= {"pid": _number(who["pid"]), "process": _known(who["name"])}
    facts |= _details(code, rest)
    named = f" ({event['process'] or 'pid'} {event['pid']})" if event.get("pid") is not None else ""
    event["message"] = f"Xid {code} on {address}{named}: {rest.strip() or 'no text'}"
    return {**event, "nvlink": facts.get("link"), "attributes": facts}


def sxid(text: str) -> dict[str, Any] | None:
    """An SXid line of an NVSwitch. The severity and data lines after it are kind ``sxid_detail``, no second SXid."""
    found = _SXID.match(text)
    if found is None:
        return None
    code, rest, address = int(found["code"]), (found["rest"] or "").strip(), pci_address(found["pci"])
    facts: dict[str, Any] = {"switch": int(found["switch"])}
    event: dict[str, Any] = {"code": code, "pci_bus_id": address, "attributes": facts}
    event["message"] = f"SXid {code} on NVSwitch {found['switch']} ({address}): {rest or 'no text'}"
    head = _SXID_HEAD.match(rest)
    if head is None:
        return {**event, "kind": "sxid_detail"}
    facts |= {"severity": head["severity"].lower().replace("-", ""), "first": "(First)" in rest}
    if head["link"]:
        facts["link"] = int(head["link"])
    return {**event, "nvlink": facts.get("link")}


def gpu_uuid(text: str) -> tuple[str, str] | None:
    """Address and UUID, from the line with which the driver introduces the GPU of the Xid that follows."""
    found = _GPU_UUID.match(text)
    return (pci_address(found["pci"]), found["uuid"]) if found else None


def named_gpu(text: str) -> str | None:
    """The address of the GPU that a driver line speaks of: its next line may be about it without saying so."""
    found = _NAMED_GPU.match(text)
    return pci_address(found["pci"]) if found else None


def gpu_off_bus(text: str) -> dict[str, Any] | None:
    """A GPU that has fallen off the bus, told in a line (or several in one record) that is no Xid."""
    if not text.startswith("NVRM:") or "NVRM: Xid" in text:
        return None
    identity = _PCI_ID.search(text)
    facts = {"pci_id": identity["pci_id"]} if identity else {}
    address = named_gpu(text)
    where = address or "a GPU that the line does not name"
    return {"pci_bus_id": address, "message": f"{where} has fallen off the bus", "attributes": facts}


def gsp(text: str) -> dict[str, Any] | None:
    """Trouble of the GPU's system processor; its history dump of hundreds of lines is left out."""
    return _told(text) if _GSP.match(text) and "history" not in text else None


def nvrm_trouble(text: str) -> dict[str, Any] | None:
    """Other driver lines that mean a GPU that cannot be used, such as ``RmInitAdapter failed``."""
    return _told(text) if _TROUBLE.match(text) else None


def _told(text: str) -> dict[str, Any]:
    address = re.search(rf"(?:GPU (?:at )?|\bat ){_ADDRESS}", text)
    return {
        "pci_bus_id": pci_address(address["pci"]) if address else None,
        "message": text.removeprefix("NVRM: ").strip(),
    }


def _details(code: int, rest: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for pattern in _DETAILS:
        found = pattern.search(rest)
        if found:
            facts |= {
                name: int(value[:9]) if name in _NUMBERS else value
                for name, value in found.groupdict().items()
                if value is not None
            }
    if code in NVLINK_XIDS:
        facts |= _nvlink(rest)
    words = _WORDS.search(rest) if code == 74 else None
    if words:
        facts["words"] = re.split(r"[, ]+", words[1])
    return facts


def _nvlink(rest: str) -> dict[str, Any]:
    found = _NVLINK.search(rest)
    if found is None:
        return {}
    facts: dict[str, Any] = {
        "unit": found["unit"],
        "severity": found["severity"].lower().replace("-", ""),
        "cross_containment": int(found["xc"][:9]) != 0,
        "injected": int(found["injected"][:9]) != 0,
        "link": int(found["link"]),
    }
    words = found["words"].split() if found["words"] else []
    if words:
        facts |= {"intr_info": words[0], "sub_code": int(words[0], 16) >> 20 & 0x3F, "words": words}
    if len(words) > 1:
        facts["error_status"] = words[1]
    return facts


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _known(text: str | None) -> str | None:
    name = (text or "").strip().strip("'")
    return name if name and name != "<unknown>" else None
