"""From kernel records to ``event`` rows: which GPU a line is about, how often it may be said, what its id is."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from graynode.collectors.base import Machine, Row
from graynode.collectors.kernel_log.nvrm_patterns import gpu_uuid, named_gpu
from graynode.collectors.kernel_log.patterns import Found, understand
from graynode.collectors.kernel_log.records import Record, cleaned, shown
from graynode.pipeline.schema import stable_id

_FLOOD_S: Final = 60.0
_OFF_BUS_XID: Final = 79
_SPLIT_S: Final = 2.0
"""Lines of one split message are written together."""
_KEPT_LINES: Final = 512
"""Hashes of the latest event lines, to number equal ones. Equal lines bear equal times, so they come close together."""


class Context:
    """What earlier lines said that later ones need. ``remembered`` is what a restart must know.

    The driver introduces a GPU by address and UUID before its Xid, and splits some messages over several lines.
    """

    def __init__(self, remembered: Mapping[str, Any] | None = None) -> None:
        kept = remembered or {}
        uuids, lines = kept.get("uuids"), kept.get("lines")
        self.uuids: dict[str, str] = dict(uuids) if isinstance(uuids, dict) else {}
        self._lines: OrderedDict[str, int] = OrderedDict(lines if isinstance(lines, dict) else {})
        self._about: tuple[str, float] | None = None
        self._xid79: dict[str, float] = {}
        self._floods: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def remembered(self) -> dict[str, Any]:
        """To be given to a new ``Context``."""
        return {"uuids": dict(self.uuids), "lines": dict(self._lines)}

    def find(self, text: str, when_s: float) -> Found | None:
        """What the message says in the light of earlier ones; ``None`` where there is nothing to tell.

        ``when_s`` is the record's own time. Of floods the 1st, 10th, 100th, … within a minute are told, with their
        number: a function of the records alone, so that it does not matter how they were read.
        """
        self._learn(text, when_s)
        found = understand(text)
        if found is None or (found.flood and not self._tells(found, when_s)):
            return None
        if found.kind == "gpu_off_bus":
            self._complete(found, when_s)
        elif found.kind == "xid" and found.code == _OFF_BUS_XID and found.pci_bus_id:
            self._xid79[found.pci_bus_id] = when_s
        return found

    def occurrence(self, digest: str) -> int:
        """How many equal lines came before this one."""
        number = self._lines.pop(digest, 0)
        self._lines[digest] = number + 1
        if len(self._lines) > _KEPT_LINES:
            self._lines.popitem(last=False)
        return number

    def _learn(self, text: str, when_s: float) -> None:
        if not text.startswith("NVRM: "):
            return
        introduced = gpu_uuid(text)
        if introduced and (introduced[0] in self.uuids or len(self.uuids) < 256):
            self.uuids[introduced[0]] = introduced[1]
        named = named_gpu(text)
        if named:
            self._about = (named, when_s)

    def _complete(self, found: Found, when_s: float) -> None:
        if found.pci_bus_id is None and self._about and 0 <= when_s - self._about[1] <= _SPLIT_S:
            found.pci_bus_id = self._about[0]
            found.message = f"{found.pci_bus_id} has fallen off the bus"
        seen = self._xid79.get(found.pci_bus_id or "")
        found.attributes["after_xid"] = seen is not None and abs(when_s - seen) <= _FLOOD_S

    def _tells(self, found: Found, when_s: float) -> bool:
        facts = {k: v for k, v in found.attributes.items() if k in ("severity", "type", "controller", "bank", "call")}
        key = json.dumps([found.kind, found.pci_bus_id, facts])
        since, number = self._floods.pop(key, (when_s, 0))
        if not 0 <= when_s - since < _FLOOD_S:
            since, number = when_s, 0
        self._floods[key] = (since, number + 1)
        if len(self._floods) > _KEPT_LINES:
            self._floods.popitem(last=False)
        if number:
            found.attributes["occurrences"] = number + 1
        return str(number + 1).strip("0") == "1"


def event_row(
    machine: Machine,
    context: Context,
    found: Found,
    record: Record,
    raw: bytes,
    at: tuple[datetime, str],
    observed: datetime,
) -> Row:
    """The ``event`` row. ``at`` is the time with its quality.

    The id of a record of the kernel's ring is its boot and sequence number, that of a line of a file its hash and how
    many equal ones came before.
    """
    line = cleaned(raw).partition("\n")[0]
    if record.sequence is not None:
        key: tuple[object, ...] = (record.boot_id or machine.boot_id, record.sequence)
    else:
        digest = hashlib.sha256(raw).hexdigest()[:16]
        key = ("line", digest, context.occurrence(digest))
    uuid = context.uuids.get(found.pci_bus_id) if found.pci_bus_id else None
    facts = {k: v for k, v in found.attributes.items() if v is not None}
    if record.facility:
        facts["facility"] = record.facility  # 0 is the kernel itself; others were written to its log by user space
    row: Row = {
        "ts": at[0],
        "event_id": stable_id("event", machine.cluster, machine.node_id, "kernel_log", *key),
        "source": "kernel_log",
        "kind": found.kind,
        "code": found.code,
        "gpu_uuid": uuid,
        "link": f"{uuid}/{found.nvlink}" if uuid and found.nvlink is not None and found.kind == "xid" else None,
        "pci_bus_id": found.pci_bus_id,
        "pid": found.pid,
        "process": found.process,
        "message": shown(found.message)[:500],
        "raw": shown(line),
        "attributes": json.dumps(facts, sort_keys=True) if facts else None,
        "observed_ts": observed,
        "ts_quality": at[1],
    }
    return row | {"boot_id": record.boot_id} if record.boot_id else row
