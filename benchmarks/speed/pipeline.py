"""Message bytes to committed tables: values per core-second, bytes per value, and where the time goes.

    .venv/bin/python -I benchmarks/speed/pipeline.py [--nodes 64] [--minutes 10] [--rows 240] [--seed 1]

Synthetic samples of 8-GPU nodes at 1 Hz: clocks, power, temperatures and utilisation that walk, counters that
grow, limits that stand still, in 48 measured columns of table ``gpu`` besides its keys; a value is one non-null
cell (keys and constants included). One core: the process pins itself and every library's threads to it.
"""

# ruff: noqa: E402 (threads are bound before the libraries that start them are imported)
from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
for _name in ("POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "TOKIO_WORKER_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import polars as pl
import pyarrow as pa

from graynode.pipeline.bus import Partition, Received
from graynode.pipeline.codec import Origin, arrow_schema, encode_batch
from graynode.pipeline.decode import SOURCE, decode
from graynode.pipeline.lake import Lake
from graynode.pipeline.land import Landing
from graynode.pipeline.maintenance import Maintainer
from graynode.pipeline.normalise import Normaliser
from graynode.pipeline.schema import SAMPLES
from graynode.pipeline.windows import Source, Windows

START = datetime(2026, 11, 2, 10, 0, tzinfo=UTC)
GPUS = 8
CONSTANT = {
    "max_sm_clock_mhz": 1980, "max_mem_clock_mhz": 2619, "power_limit_w": 700, "power_limit_enforced_w": 700,
    "pcie_gen": 5, "pcie_width": 16, "pcie_gen_max": 5, "pcie_width_max": 16, "ecc_mode": 1,
    "mem_total_bytes": 85520809984, "nvlink_links_active": 18, "nvlink_links_inactive": 0, "recovery_action": 0,
    "row_remap_failed": 0,
    "row_remap_pending": 0, "persistence_mode": 1, "processes": 1, "temp_slowdown_c": 90, "ecc_dbe_volatile": 0,
}  # fmt: skip
WALKS = {
    "sm_clock_mhz": (1750, 15, 0), "mem_clock_mhz": (2619, 0, 0), "temp_c": (62, 1, 0), "mem_temp_c": (74, 1, 0),
    "temp_margin_c": (25, 1, 0), "gpu_util_percent": (97, 2, 0), "mem_util_percent": (55, 3, 0), "pstate": (0, 0, 0),
    "power_w": (640, 12, 2), "power_instant_w": (642, 25, 2), "gr_engine_active_ratio": (0.97, 0.01, 3),
    "sm_active_ratio": (0.85, 0.02, 3), "sm_occupancy_ratio": (0.4, 0.02, 3), "tensor_active_ratio": (0.5, 0.03, 3),
    "dram_active_ratio": (0.45, 0.03, 3), "fp16_active_ratio": (0.1, 0.02, 3), "nvml_call_max_ms": (1.4, 0.3, 2),
    "pcie_tx_bytes_per_s": (2.1e9, 3e8, -3), "pcie_rx_bytes_per_s": (1.9e9, 3e8, -3),
    "nvlink_tx_bytes_per_s": (1.5e11, 1e10, -5), "nvlink_rx_bytes_per_s": (1.5e11, 1e10, -5),
}  # fmt: skip
"""Level, step of the walk, decimals that the device gives."""
COUNTS = {
    "energy_mj": 640_000, "nvlink_tx_bytes": 150_000_000_000, "nvlink_rx_bytes": 150_000_000_000,
    "throttle_sw_power_cap_ns": 40_000_000, "pcie_replays": 0, "ecc_sbe_volatile": 0, "ecc_sbe_aggregate": 0,
}  # fmt: skip
"""Growth per second."""


def node_batch(node: int, seconds: int, rng: np.random.Generator) -> pa.RecordBatch:
    """All samples of one node, in order of time and GPU."""
    rows = seconds * GPUS
    micros = int(START.timestamp()) * 1_000_000 + np.repeat(np.arange(seconds), GPUS) * 1_000_000 + node * 1000
    columns: dict[str, Any] = {
        "ts": pa.array(micros, pa.timestamp("us", tz="UTC")),
        "clock_event_reasons": pa.array(rng.choice([0, 4], rows, p=[0.7, 0.3]), pa.int64()),
        "driver_load": pa.array(np.full(rows, 3), pa.int64()),
        "gpu_index": pa.array(np.tile(np.arange(GPUS), seconds), pa.int32()),
    }
    texts = {
        "cluster": "bench", "node_id": f"4c4c4544-0042-4a10-8052-{node:012d}", "node": f"gpu-{node:04d}",
        "boot_id": f"8d1c5f0a-7d3e-4a4e-9f57-{node:012d}", "vendor": "NVIDIA", "gpu_model": "NVIDIA H100 80GB HBM3",
        "job_id": f"job-{node // 8}",
    }  # fmt: skip
    columns |= {name: pa.array([text] * rows, pa.string()) for name, text in texts.items()}
    uuids = [f"GPU-{node:08x}-{gpu:04x}-4b1d-8c2e-5d1f6a7b8c9d" for gpu in range(GPUS)]
    columns["gpu_uuid"] = pa.array(uuids * seconds, pa.string())
    columns["pci_bus_id"] = pa.array([f"0000:{0x10 + gpu:02x}:00.0" for gpu in range(GPUS)] * seconds, pa.string())
    schema = arrow_schema("gpu")
    for name, value in CONSTANT.items():
        columns[name] = pa.array(np.full(rows, value)).cast(schema.field(name).type)
    for name, (level, step, decimals) in WALKS.items():
        noise = rng.normal(0, step or 1e-12, (seconds, GPUS))
        walk = level + rng.normal(0, 2 * step + 1e-12, GPUS) + 0.5 * noise + 0.2 * np.cumsum(noise * 0.3, axis=0)
        high = 100 if name.endswith("percent") else 1.0 if name.endswith("ratio") else 1e15
        values = np.clip(np.round(walk, decimals), 0, high).ravel()
        columns[name] = pa.array(values).cast(schema.field(name).type, safe=False)
    for name, growth in COUNTS.items():
        shape = (seconds, GPUS)
        steps = rng.poisson(growth, shape) if growth < 1e9 else rng.normal(growth, growth / 20, shape)
        counted = (rng.integers(0, 1_000_000_000, GPUS) + np.cumsum(steps, axis=0)).astype(np.int64)
        columns[name] = pa.array(counted.ravel(), pa.int64())
    arrays = [columns.get(f.name, None) if f.name in columns else pa.nulls(rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def messages(nodes: int, seconds: int, rows: int, seed: int) -> list[Received]:
    """The fleet's messages in order of arrival."""
    rng = np.random.default_rng(seed)
    step = max(1, rows // GPUS)
    found: list[tuple[int, int, Any]] = []
    for node in range(nodes):
        batch = node_batch(node, seconds, rng)
        origin = Origin("bench", f"4c4c4544-0042-4a10-8052-{node:012d}", 1)
        for sequence, second in enumerate(range(0, seconds, step)):
            piece = batch.slice(second * GPUS, step * GPUS)
            piece = pa.Table.from_batches([piece]).combine_chunks().to_batches()[0]
            found.append((second + step, node, encode_batch("gpu", _own(piece), origin, sequence, START)))
    found.sort(key=lambda one: one[:2])
    begin = int(START.timestamp() * 1000)
    return [
        Received(message, Partition(SAMPLES, 0), offset, begin + arrived * 1000)
        for offset, (arrived, _, message) in enumerate(found)
    ]


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Buffers of this piece only: a slice would carry its parent's."""
    return pa.RecordBatch.from_arrays([pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema)


class Taken:
    """Dead letters of a benchmark: there must be none."""

    def skips(self, received: Received) -> bool:
        """Nobody floods."""
        return False

    def readable(self, received: Received) -> None:
        """Fine."""

    def put(self, received: Received, reason: str) -> None:
        """Not here."""
        raise AssertionError(reason)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of the whole process, and the result."""
    before = time.process_time()
    result = work()
    return time.process_time() - before, result


def main() -> None:
    """Measure and print."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--nodes", type=int, default=64)
    parse.add_argument("--minutes", type=int, default=10)
    parse.add_argument("--rows", type=int, nargs="+", default=[40, 80, 240])
    parse.add_argument("--seed", type=int, default=1)
    args = parse.parse_args()
    names = ("deltalake", "polars", "pyarrow", "numpy")
    print("command:", "benchmarks/speed/pipeline.py", *sys.argv[1:], f"(seed {args.seed})")
    libraries = ", ".join(f"{name} {version(name)}" for name in names)
    print(
        "machine:", platform.platform(), cpu_name(), f"1 of {os.cpu_count()} cores; Python", platform.python_version()
    )
    print("libraries:", libraries)
    for rows in args.rows:
        measure(messages(args.nodes, args.minutes * 60, rows, args.seed), rows, args.minutes)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


def measure(received: list[Received], rows: int, minutes: int) -> None:
    """One message size: stages alone, then the landing whole, then the sorted hour."""
    wire = sum(len(r.message.value) for r in received)
    polls = [received[i : i + max(1, 80_000 // rows)] for i in range(0, len(received), max(1, 80_000 // rows))]
    decode(polls[0])
    decode_s, decoded = timed(lambda: [decode(poll) for poll in polls])
    frames = [one.frames["gpu"] for one in decoded]
    values = sum(f.height - column.null_count() for f in frames for column in f.drop(SOURCE))
    columns = sum(frames[0][name].null_count() == 0 for name in frames[0].columns) - 1
    normaliser = Normaliser()
    pairs = list(zip(frames, polls, strict=True))
    normalise_s, _ = timed(lambda: [normaliser.normalise("gpu", f, [r.arrived_ms for r in p]) for f, p in pairs])
    with tempfile.TemporaryDirectory(dir=os.environ.get("GRAYNODE_BENCH_DIR")) as folder:
        lake = Lake(folder + "/raw")
        lake.create("gpu")
        write_s, _ = timed(lambda: [lake.write("gpu", f.drop(SOURCE), {"b/0": i + 1}) for i, f in enumerate(frames)])
        appended = size(folder + "/raw/gpu")
        windows = Windows()
        windows_s, made = timed(lambda: sum(window(windows, f, p) for f, p in pairs))
        whole_s, _ = timed(lambda: whole(Path(folder, "whole"), polls))
        later = START + timedelta(hours=2)
        sort_s, _ = timed(lambda: Maintainer(lake, clock=later.timestamp).round())
        live = sum(Path(f).stat().st_size for f in lake.files("gpu"))
    raw_s = decode_s + normalise_s + write_s
    print(f"\n{rows} rows a message, {len(received)} messages, {values / 1e6:.0f} million values in {columns} columns,"
          f" {wire / values:.2f} bytes a value on the wire")  # fmt: skip
    rate(values, "message bytes to committed raw table", raw_s)
    stages = {"  unpack, join, decode": decode_s, "  normalise": normalise_s, "  write and commit": write_s}
    for name, seconds in stages.items():
        rate(values, name, seconds, raw_s)
    rate(values, "windows of 30 s beside it", windows_s)
    print(f"{'':4}{made} window rows")
    rate(values, "whole landing: raw, windows, hours, snapshots", whole_s)
    rate(values, "sorting the hour files", sort_s)
    print(f"bytes a value: appended {appended / values:.2f}, sorted hour files of {minutes} min {live / values:.2f}")


def window(windows: Windows, frame: pl.DataFrame, poll: list[Received]) -> int:
    """Feed and close."""
    windows.take({"gpu": frame}, [Source(r.message.key, "gpu", r.offset, r.arrived_ms) for r in poll])
    return sum(rows.height for rows in windows.close().values())


def whole(folder: Path, polls: list[list[Received]]) -> None:
    """The landing as the service runs it, a commit a poll."""
    landing = Landing(Lake(str(folder)), Taken(), clock=lambda: START.timestamp())
    landing.assigned(frozenset([polls[0][0].partition]))
    for poll in polls:
        landing.take(poll)
        landing.commit()


def rate(values: int, what: str, seconds: float, of: float | None = None) -> None:
    """One line."""
    share = f" {seconds / of:4.0%}" if of else ""
    print(f"{what:50}{values / seconds / 1e6:8.1f} million values per core-second {seconds:7.2f} s{share}")


def size(folder: str) -> int:
    """Bytes of Parquet."""
    return sum(f.stat().st_size for f in Path(folder).rglob("*.parquet"))


def cpu_name() -> str:
    """The processor as the kernel calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
