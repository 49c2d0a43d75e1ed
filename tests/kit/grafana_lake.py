"""A small simulated lake in which every panel of the dashboards has something to show, and the API over it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from served_site import ServedSite

from graynode.collectors.simulated import faults
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.service.simulate import write

NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
CLUSTER = "simulated"
OPEN_ID = "aaaa0000-0000-4000-8000-000000000001"
HOSTILE = "<script>alert(1)</script> ${cluster} =cmd|' /C calc'!A0"
TABLES: Mapping[str, Any] = {
    "cost": {"per_gpu_hour": {"H100": 2.5}, "currency": "EUR", "budgets": {"team0": 1000.0}},
}


def make_lake(folder: Path) -> Path:
    """Four nodes of eight GPUs over a day, with jobs; incidents, findings, actions and people's words beside."""
    lake = Lake(str(folder))
    fleet = Fleet(Spec(NOW, nodes=4, seed=1, days=1.0, cluster=CLUSTER), faults.parse("", "plan", NOW))
    write(fleet, lake, lambda _share: None)
    gpus = lake.read("gpu_30s", NOW - timedelta(hours=1), NOW, ["node_id", "node", "gpu_uuid"])
    first = gpus.unique().sort("node", "gpu_uuid").row(0, named=True)
    of_node = {"node_id": first["node_id"], "node": first["node"]}
    ago = {minutes: NOW - timedelta(minutes=minutes) for minutes in (30, 60, 90, 120)}
    rows(lake, "incident", [
        _incident(OPEN_ID, 0, ago[120], first, cause="slow_gpu", job_id="1846", due_ts=NOW),
        _incident(OPEN_ID, 1, ago[90], first, cause="slow_gpu", state="updated", job_id="1846", since=ago[120]),
        _incident("bbbb0000-0000-4000-8000-000000000002", 0, ago[90], of_node, cause="link_flap", subject="link",
                  link="mlx5_0/1", severity="ticket", state="resolved", resolved_ts=ago[60], title=HOSTILE),
        _incident("cccc0000-0000-4000-8000-000000000003", 0, ago[60], first, cause="memory_errors", severity="ticket",
                  state="resolved", resolved_ts=ago[30]),
    ])  # fmt: skip
    rows(lake, "finding", [{
        "ts": ago[120], **first, "finding_id": "f1", "detector": "slow_gpu", "version": 1, "subject": "gpu",
        "cause": "slow_gpu", "signal": "sm_clock_mhz", "value": 1600.0, "baseline": 1755.0, "peer_median": 1750.0,
        "peers": 23, "unit": "MHz", "severity": "page", "message": "<b>slow</b>", "since": ago[120],
    }])  # fmt: skip
    rows(lake, "action", [{
        "ts": ago[60], **of_node, "action_id": "a1", "incident_id": OPEN_ID, "revision": 1, "responder": "webhook",
        "kind": "notify", "outcome": "done", "reason": "page", "who": "graynode", "attempts": 1,
    }])  # fmt: skip
    rows(lake, "label", [
        {"ts": ago[30], **of_node, "incident_id": OPEN_ID, "verdict": "false", "who": "ada", "why": "x"},
    ])  # fmt: skip
    rows(lake, "event", [
        {"ts": ago[60], **first, "event_id": "e1", "source": "kernel", "kind": "xid", "code": 94, "message": "Xid 94"},
    ])  # fmt: skip
    rows(lake, "round", [{"ts": NOW, "node_id": "detect", "window_s": 30, "machines": 4, "late_machines": 0,
                          "findings": 0, "seconds": 0.5}])  # fmt: skip
    _host_and_links(lake, of_node)
    _verdict(lake)
    return folder


def _host_and_links(lake: Lake, of_node: Mapping[str, Any]) -> None:
    """What real agents measure and simulated ones do not: a window of each."""
    host = {
        "root_used_ratio_last": 0.5, "collect_max_ms_mean": 80.0, "agent_cpu_percent_mean": 0.4,
        "agent_rss_bytes_mean": 9e7, "spool_bytes_mean": 0.0, "spool_dropped_delta": 0,
    }  # fmt: skip
    window = {"ts": NOW - timedelta(minutes=10), **of_node, "samples": 30, "samples_expected": 30}
    rows(lake, "host_30s", [{**window, **host}])
    rows(lake, "link_30s", [{**window, "link": "mlx5_0/1", "tx_wait_ticks_delta": 7}])


def _verdict(lake: Lake) -> None:
    """One job that failed is judged."""
    jobs = lake.read("job", NOW - timedelta(days=1), NOW).filter(pl.col("state") == "failed").sort("ts")
    job = jobs.select("job_id", "user", "account", "partition", "work").row(-1, named=True)
    rows(lake, "attribution", [{
        "ts": NOW, "node_id": f"job:{job['job_id']}", **job, "attribution_id": "j1", "revision": 0, "version": 1,
        "attempt": 0, "job_state": "failed", "phase": "ended", "verdict": "application", "kind": "exit_code",
        "message": "it ended by itself", "owner": "job_owner", "confidence": 0.8,
    }])  # fmt: skip


def rows(lake: Lake, table: str, told: Sequence[Mapping[str, Any]]) -> None:
    """Rows into a table of the cluster."""
    frame = pl.DataFrame([{"cluster": CLUSTER, **row} for row in told], infer_schema_length=None)
    lake.write(table, conform(table, frame))


def _incident(id_: str, revision: int, ts: datetime, who: Mapping[str, Any], **other: Any) -> dict[str, Any]:
    evidence = [{"signal": "clock", "message": "slow", "value": 1600.0, "baseline": 1755.0, "unit": "MHz"}]
    return {
        "ts": ts, **who, "incident_id": id_, "revision": revision, "state": "open", "subject": "gpu",
        "severity": "page", "title": f"{other['cause']} on {who['node']}", "since": ts, "opened_ts": ts,
        "updated_ts": ts, "evidence": json.dumps(evidence), "finding_ids": '["f1"]', "count": 1, "owner": "platform",
        "action": "drain it", "next_step": "drain it", **other,
    }  # fmt: skip


def make_site(folder: Path, lake: Path) -> ServedSite:
    """The API over it, at its end of time, with prices and a budget."""
    return ServedSite(
        folder, lake, now=lambda: NOW, cluster=CLUSTER, deadline_s=60.0, report_deadline_s=120.0, tables=TABLES
    )
