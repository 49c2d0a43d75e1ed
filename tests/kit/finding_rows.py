"""Rows of ``event`` and ``finding`` for tests, complete enough to be told of."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from graynode.pipeline.schema import stable_id

T0 = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
PCI = "0000:9b:00.0"
UUID = "GPU-509665ad-b600-ac93-3616-d754b23d636d"


def at(seconds: float) -> datetime:
    """So many seconds after the beginning."""
    return T0 + timedelta(seconds=seconds)


def event(seconds: float, kind: str = "xid", code: int | None = None, **other: Any) -> dict[str, Any]:
    """An event of node n1; ``attributes`` may be a mapping."""
    attributes = other.pop("attributes", None)
    row: dict[str, Any] = {
        "ts": at(seconds), "cluster": "test", "node_id": "n1", "node": "gpu-01", "boot_id": "b1",
        "source": "kernel_log",
        "kind": kind, "code": code, "pci_bus_id": PCI if kind in ("xid", "gpu_off_bus") else None, "gpu_uuid": None,
        "raw": f"NVRM: Xid (PCI:0000:9b:00): {code}, …", "attributes": json.dumps(attributes) if attributes else None,
        "ts_quality": "exact",
    } | other  # fmt: skip
    row["event_id"] = other.get("event_id") or stable_id("event", *(str(v) for v in row.values()))
    return row


def finding(seconds: float, cause: str = "slow_gpu", severity: str = "ticket", **other: Any) -> dict[str, Any]:
    """A finding about a GPU of node n1; ``evidence`` may be a mapping."""
    evidence = other.pop("evidence", {})
    row: dict[str, Any] = {
        "ts": at(seconds), "cluster": "test", "node_id": "n1", "node": "gpu-01", "boot_id": "b1",
        "detector": "slow", "version": 1, "subject": "gpu", "gpu_uuid": UUID, "link": None, "cause": cause,
        "signal": "clock", "value": 1600.0, "baseline": 1755.0, "peer_median": 1750.0, "peers": 63, "unit": "MHz",
        "effect": 0.088, "score": 9.0, "threshold": 5.0, "p_value": 1e-4, "since": at(seconds), "severity": severity,
        "message": "clock under load is 8.8 % below its peers", "action": "Measure it alone.", "live": True,
        "evidence": json.dumps(evidence),
    } | other  # fmt: skip
    row["finding_id"] = other.get("finding_id") or stable_id("finding", *(str(v) for v in row.values()))
    return row
