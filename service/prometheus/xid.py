"""The metric of a GPU's last Xid, which never clears, as events: what is certain is that a changed number is a new Xid.

A repeat of the same Xid leaves no trace in it (dcgm-exporter #500 and others), so these events are a lower bound, each
known to a step only. The kernel log has them all; a Prometheus has only this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from graynode.pipeline.schema import stable_id
from graynode.service.prometheus.answer import Floats, Series
from graynode.service.prometheus.grid import JUST_BEFORE_US
from graynode.service.prometheus.identity import Whose

NAMES: Final = ("DCGM_FI_DEV_XID_ERROR", "DCGM_FI_DEV_XID_ERRORS", "dcgm_xid_errors")
_MOST: Final = 100_000
"""Xids are small numbers; a blank is not."""


def events(found: Iterable[tuple[Whose, Series]]) -> list[dict[str, Any]]:
    """Rows of table ``event`` for every change to another Xid, of series of any GPUs in any order."""
    gpus: dict[tuple[str, str], tuple[dict[str, Any], dict[float, float]]] = {}
    for whose, series in found:
        who = whose.who
        _, level = gpus.setdefault((who["node_id"], who["gpu_uuid"]), (who, {}))
        for ts, value in zip(series.ts.tolist(), series.values.tolist(), strict=True):
            if 0 <= value < _MOST:
                level.setdefault(ts, value)
    return [row for who, level in gpus.values() for row in _changes(who, level)]


def _changes(who: dict[str, Any], level: dict[float, float]) -> Iterator[dict[str, Any]]:
    times: Floats = np.array(sorted(level))
    values = np.array([level[ts] for ts in times.tolist()])
    for i in np.flatnonzero((values[1:] != values[:-1]) & (values[1:] > 0)) + 1:
        code, before = int(values[i]), int(values[i - 1])
        ts = datetime.fromtimestamp(float(times[i]), UTC) - timedelta(microseconds=JUST_BEFORE_US)
        yield {
            "ts": ts, **{k: who[k] for k in ("cluster", "node_id", "node", "gpu_uuid", "pci_bus_id")},
            "event_id": stable_id("import", "prometheus-xid", who["cluster"], who["gpu_uuid"], ts.isoformat(), code),
            "source": "import", "kind": "xid", "code": code, "ts_quality": "approximate",
            "message": f"the last Xid became {code}; it was {before or 'none'}",
            "attributes": json.dumps({"last_xid_before": before}),
        }  # fmt: skip
