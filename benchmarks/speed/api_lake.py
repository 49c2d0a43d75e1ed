"""Writes the lake of a large site for measuring the faces: a month of hours, the last hours in 30 s, jobs, incidents.

Run as ``python benchmarks/speed/api_lake.py FOLDER [--nodes 1250] [--days 30] [--seed 1]``; takes minutes. Rows go
straight into the tables, as the pipeline and its maintenance leave them: a file a day, an hour's 30 s windows sorted
in one file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import write_deltalake

sys.path.insert(0, str(Path(__file__).parent))

from api_site import CLUSTER, MODELS, SLOTS, Fleet, Site, gpu_windows, host_windows, link_windows

from graynode.pipeline import fleet_hours, owned_hours
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform, lake_schema, to_lake, writer_properties

WORK: Final = {"train": "training", "batch": "batch_inference", "interactive": "notebook", "serve": "inference"}
CAUSES: Final = ("slow_gpu", "memory_errors", "gpu_lost", "link_flap", "pcie_degraded", "thermal", "driver_fault")
FINE_H: Final = 6
_HOUR: Final = timedelta(hours=1)
_SLICE: Final = 500
"""GPUs whose 30 s windows of an hour are made at a time."""


def make(folder: Path, site: Site, say: Callable[[str], None] = print) -> None:
    """The whole lake. It is made for ``site.end``, the end of its newest window."""
    fleet, lake, began = Fleet(site), Lake(str(folder)), time.perf_counter()
    rng = np.random.default_rng(site.seed)
    for day in range(site.days + 1):
        start = max(site.since, (site.since + timedelta(days=day)).replace(hour=0))
        end = min(site.end.replace(minute=0), start.replace(hour=0) + timedelta(days=1))
        hours = [start + i * _HOUR for i in range(int((end - start) / _HOUR))]
        if not hours:
            continue
        stored(lake, "gpu_1h", (gpu_windows(fleet, h, 3600, slice(None), rng) for h in hours))
        stored(lake, "host_1h", (host_windows(fleet, h, 3600, 1, rng) for h in hours))
        stored(lake, "link_1h", (link_windows(fleet, h, 3600, 1, rng) for h in hours))
        say(f"{start:%Y-%m-%d}: {time.perf_counter() - began:.0f} s")
    for back in range(FINE_H, 0, -1):
        start = site.end.replace(minute=0) - back * _HOUR + (_HOUR if site.end.minute else timedelta(0))
        steps = min(120, int((site.end - start).total_seconds() // 30))
        slices = (slice(i, i + _SLICE) for i in range(0, site.gpus, _SLICE))
        stored(lake, "gpu_30s", (gpu_windows(fleet, start, 30, s, rng, steps) for s in slices))
        stored(lake, "host_30s", iter([host_windows(fleet, start, 30, steps, rng)]))
        stored(lake, "link_30s", iter([link_windows(fleet, start, 30, steps, rng)]))
        say(f"30 s windows of {start:%H:%M}: {time.perf_counter() - began:.0f} s")
    for table, frame in told(fleet, rng).items():
        lake.write(table, conform(table, frame))
    say(f"told: {time.perf_counter() - began:.0f} s; {fleet_hours.fill(lake)} hours of the fleet")
    say(f"GPU-hours of {owned_hours.fill(lake)} days: {time.perf_counter() - began:.0f} s")
    (folder / "site.json").write_text(
        json.dumps({"nodes": site.nodes, "days": site.days, "seed": site.seed, "end": site.end.isoformat()}) + "\n"
    )
    say(f"whole after {time.perf_counter() - began:.0f} s")


def stored(lake: Lake, table: str, frames: Iterator[pl.DataFrame]) -> None:
    """One transaction and one file, as maintenance leaves an hour or a day; little memory."""

    def batches() -> Iterator[pa.RecordBatch]:
        for frame in frames:
            yield from to_lake(table, frame).combine_chunks().to_batches()

    write_deltalake(
        lake.create(table),
        pa.RecordBatchReader.from_batches(lake_schema(table), batches()),
        mode="append",
        target_file_size=64 << 30,
        writer_properties=writer_properties(table, in_order=table.endswith("_30s")),
    )


def told(fleet: Fleet, rng: np.random.Generator) -> dict[str, pl.DataFrame]:
    """Rows that are told, by table."""
    return {
        "inventory": _inventory(fleet),
        "job": _jobs(fleet),
        **_incidents(fleet, rng),
        "node_state": _states(fleet),
        "price": pl.DataFrame(
            [
                {
                    "ts": fleet.site.since,
                    "cluster": CLUSTER,
                    "gpu_model": m,
                    "commitment": "reserved",
                    "per_gpu_hour": 2.0,
                    "currency": "EUR",
                }
                for m in MODELS
            ]
        ),
    }


def _inventory(fleet: Fleet) -> pl.DataFrame:
    site, n = fleet.site, fleet.of_node
    nodes = pl.DataFrame(
        {"node_id": fleet.node_id, "node": fleet.node, "entity": fleet.node_id, "model": "DGX H100", "rack": fleet.rack}
    ).with_columns(kind=pl.lit("node"), expected=pl.lit(1, pl.Int32))
    gpus = pl.DataFrame(
        {
            "node_id": fleet.node_id[n],
            "node": fleet.node[n],
            "entity": fleet.gpu,
            "model": fleet.model[n],
            "rack": fleet.rack[n],
            "slot": SLOTS[np.arange(site.gpus) % site.per_node],
        }
    ).with_columns(kind=pl.lit("gpu"), expected=pl.lit(site.per_node, pl.Int32))
    return (
        pl.concat([nodes, gpus], how="diagonal")
        .with_columns(
            ts=pl.lit(site.since),
            cluster=pl.lit(CLUSTER),
            driver_version=pl.lit("570.124.06"),
            attributes=pl.concat_str(pl.lit('{"rack": "'), "rack", pl.lit('", "node_id_source": "smbios"}')),
        )
        .drop("rack")
    )


def _jobs(fleet: Fleet) -> pl.DataFrame:
    """Three rows a placement: queued, running, ended."""
    site, rows = fleet.site, []
    for job, first, nodes, part, parts, start_h, end_h, user in fleet.jobs.iter_rows():
        start, end = (site.since + timedelta(hours=h) for h in (start_h, end_h))
        queued = start - timedelta(minutes=7)
        partition = str(fleet.partition[first])
        gpus = nodes * site.per_node // parts
        base: dict[str, Any] = {
            "cluster": CLUSTER,
            "job_id": str(job),
            "user": f"user{user:02}",
            "account": f"team{user % 12}",
            "partition": partition,
            "work": WORK[partition],
            "queued_ts": queued,
            "requeues": 0,
            "nodes": nodes,
            "gpus": gpus,
            "ranks": gpus,
        }
        for i in range(first, first + nodes):
            width = site.per_node // parts
            mine = [str(g) for g in fleet.gpu[i * site.per_node + part * width :][:width]]
            here = {
                **base,
                "node_id": fleet.node_id[i],
                "node": fleet.node[i],
                "gpu_uuids": json.dumps(mine),
                "allocated_ts": start,
            }
            rows.append({**here, "ts": start, "state": "running"})
            if end < site.end:
                failed = job % 17 == 0
                rows.append(
                    {
                        **here,
                        "ts": end,
                        "end_ts": end,
                        "state": "failed" if failed else "completed",
                        "exit_code": int(failed),
                    }
                )
    return pl.DataFrame(rows, infer_schema_length=None).filter(pl.col("ts") >= site.since - timedelta(days=1))


def _incidents(fleet: Fleet, rng: np.random.Generator) -> dict[str, pl.DataFrame]:
    """Two incidents a hundred node-days, each with a finding, an action and, mostly, its end."""
    site = fleet.site
    count = max(20, site.nodes * site.days // 50)
    rows: dict[str, list[dict[str, Any]]] = {"incident": [], "finding": [], "action": [], "event": [], "label": []}
    ids = rng.integers(0, site.gpus, count)
    for i, gpu in enumerate(ids):
        at = site.since + timedelta(hours=float(rng.uniform(0, site.days * 24 - 1)))
        node = int(fleet.of_node[gpu])
        who = {"cluster": CLUSTER, "node_id": fleet.node_id[node], "node": fleet.node[node], "gpu_uuid": fleet.gpu[gpu]}
        cause, severity = CAUSES[i % len(CAUSES)], ("page", "ticket", "ticket", "digest")[i % 4]
        id_ = f"00000000-0000-5000-8000-{i:012}"
        proof = json.dumps(
            [
                {
                    "ts": at.isoformat(),
                    "signal": "sm_clock_mhz",
                    "value": 1300.0,
                    "baseline": 1700.0,
                    "peer_median": 1720.0,
                    "peers": 31,
                    "unit": "MHz",
                    "detector": "slow",
                }
            ]
        )
        base = {
            **who,
            "incident_id": id_,
            "subject": "gpu",
            "cause": cause,
            "severity": severity,
            "since": at,
            "title": f"{cause} on GPU {gpu % 8}",
            "opened_ts": at,
            "owner": "platform",
            "action": "drain and look",
            "count": 3,
            "finding_ids": json.dumps([f"f{i}"]),
            "evidence": proof,
        }
        rows["incident"].append({**base, "ts": at, "revision": 0, "state": "open", "updated_ts": at})
        end = at + timedelta(hours=float(rng.exponential(12.0)))
        if end < site.end and i % 10:
            rows["incident"].append(
                {**base, "ts": end, "revision": 1, "state": "resolved", "updated_ts": end, "resolved_ts": end}
            )
        rows["finding"].append(
            {
                **who,
                "ts": at,
                "finding_id": f"f{i}",
                "detector": "slow",
                "version": 1,
                "subject": "gpu",
                "cause": cause,
                "signal": "sm_clock_mhz",
                "value": 1300.0,
                "baseline": 1700.0,
                "peer_median": 1720.0,
                "peers": 31,
                "unit": "MHz",
                "effect": 0.2,
                "score": 1.2,
                "threshold": 0.6,
                "since": at,
                "severity": severity,
                "message": "slower than its peers",
                "evidence": "{}",
                "live": True,
            }
        )
        rows["action"].append(
            {
                "ts": at,
                "cluster": CLUSTER,
                "node_id": who["node_id"],
                "node": who["node"],
                "action_id": f"a{i}",
                "incident_id": id_,
                "revision": 0,
                "responder": "webhook",
                "kind": "notify",
                "outcome": "done",
                "who": "graynode",
                "attempts": 1,
            }
        )
        rows["event"].append(
            {**who, "ts": at, "event_id": f"e{i}", "kind": "xid", "source": "kmsg", "message": "Xid 63"}
        )
        if i % 5 == 0:
            rows["label"].append(
                {
                    "ts": at + _HOUR,
                    "cluster": CLUSTER,
                    "node_id": who["node_id"],
                    "incident_id": id_,
                    "verdict": "true" if i % 25 else "false",
                    "who": "person",
                }
            )
    return {table: pl.DataFrame(some, infer_schema_length=None) for table, some in rows.items()}


def _states(fleet: Fleet) -> pl.DataFrame:
    """The scheduler's word on every node."""
    state = np.where(np.arange(fleet.site.nodes) % 50 == 0, "drain", "allocated")
    return pl.DataFrame({"node_id": fleet.node_id, "node": fleet.node, "scheduler_state": state}).with_columns(
        ts=pl.lit(fleet.site.since), cluster=pl.lit(CLUSTER), who=pl.lit("slurm")
    )


def main() -> None:
    """Make the lake that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--end", default="", help="end of its newest window, ISO; now, on a whole minute, by default")
    given = parser.parse_args()
    end = datetime.fromisoformat(given.end) if given.end else datetime.now(UTC)
    make(given.folder, Site(given.nodes, given.days, end.replace(second=0, microsecond=0), given.seed))


if __name__ == "__main__":
    main()
