"""Import from a real VictoriaMetrics: samples a second and memory, over GPUs and days.

    python -I benchmarks/speed/prometheus_import.py --gpus 1000 --days 90

Twenty dcgm-exporter series a GPU at a five-minute step are made, loaded (once for a ``--folder``), and imported as
history: hour windows, and with ``--samples`` the raw rows too. The importer's memory is read at every piece; flat
means that the last third takes no more than the middle one.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from prometheus_server import VictoriaMetrics

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "kit"))

END = datetime(2026, 11, 30, tzinfo=UTC)
STEP_S = 300
GAUGES = {
    "DCGM_FI_DEV_SM_CLOCK": (1800, 60), "DCGM_FI_DEV_MEM_CLOCK": (2619, 0), "DCGM_FI_DEV_POWER_USAGE": (620, 40),
    "DCGM_FI_DEV_GPU_TEMP": (60, 4), "DCGM_FI_DEV_MEMORY_TEMP": (70, 4), "DCGM_FI_DEV_GPU_UTIL": (97, 2),
    "DCGM_FI_DEV_MEM_COPY_UTIL": (50, 9), "DCGM_FI_DEV_FB_USED": (70000, 900), "DCGM_FI_DEV_FB_FREE": (11000, 900),
    "DCGM_FI_DEV_PCIE_LINK_GEN": (5, 0), "DCGM_FI_DEV_PCIE_LINK_WIDTH": (16, 0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.4, 0.05), "DCGM_FI_PROF_SM_ACTIVE": (0.8, 0.05),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": (4, 0), "DCGM_FI_DEV_ROW_REMAP_FAILURE": (0, 0),
}  # fmt: skip
COUNTERS = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 186_000_000, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0,
}  # fmt: skip


def lines(gpu: int, days: int) -> Iterator[bytes]:
    """One GPU's twenty series as lines of VictoriaMetrics' import."""
    rng = np.random.default_rng(gpu)
    at_ms = (np.arange(days * 86400 // STEP_S) * STEP_S + int(END.timestamp()) - days * 86400 + 13 + gpu % 200) * 1000
    labels = {
        "gpu": str(gpu % 8), "UUID": f"GPU-{gpu:08d}", "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": f"node{gpu // 8:04d}", "instance": f"node{gpu // 8:04d}:9400", "job": "dcgm-exporter",
    }  # fmt: skip
    stamps = at_ms.tolist()
    for name, (mean, spread) in GAUGES.items():
        values = mean + spread * rng.standard_normal(len(stamps)) if spread else np.full(len(stamps), float(mean))
        kept = np.round(values, 3) if mean < 1 else np.rint(values)
        yield msgspec.json.encode(
            {"metric": {"__name__": name, **labels}, "values": kept.tolist(), "timestamps": stamps}
        )
    for name, each in COUNTERS.items():
        values = np.cumsum(np.full(len(stamps), each)).tolist()
        yield msgspec.json.encode({"metric": {"__name__": name, **labels}, "values": values, "timestamps": stamps})


def main() -> None:
    """Load, import, and print what it took."""
    from prometheus_server import VictoriaMetrics

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=100)
    parser.add_argument("--days", type=int, default=9)
    parser.add_argument(
        "--folder", type=Path, help="where the server's data and the lake go; default a new one in /tmp"
    )
    parser.add_argument("--samples", action="store_true", help="store raw rows too")
    wanted = parser.parse_args()
    root = wanted.folder or Path(tempfile.mkdtemp(prefix="graynode-bench-"))
    server = VictoriaMetrics(root / "server")
    server.start()
    try:
        total = len(GAUGES | COUNTERS) * wanted.gpus * wanted.days * 86400 // STEP_S
        load(server, root / "loaded", wanted.gpus, wanted.days, total)
        measure(server.url, root / f"lake-{time.time_ns()}", wanted.days, total, samples=wanted.samples)
    finally:
        server.stop()


def load(server: VictoriaMetrics, mark: Path, gpus: int, days: int, total: int) -> None:
    """Into the server, unless its folder has been loaded before."""
    if mark.exists():
        return
    began = time.perf_counter()
    for gpu in range(gpus):
        server.post("/api/v1/import", b"\n".join(lines(gpu, days)))
    server.flush()
    mark.touch()
    print(f"loaded {total:,} samples into VictoriaMetrics in {time.perf_counter() - began:.0f} s", flush=True)


def measure(url: str, lake_path: Path, days: int, total: int, *, samples: bool) -> None:
    """Import it all and print rate and memory."""
    from graynode.pipeline.lake import Lake
    from graynode.service.prometheus.client import Access, PrometheusClient
    from graynode.service.prometheus.importing import Importer, Settings
    from graynode.service.prometheus.plan import Chunk

    client = PrometheusClient(Access(url=url, rate=1e6))
    settings = Settings(cluster="bench", step_s=STEP_S, now=END + timedelta(days=30), samples=samples)
    importer = Importer(client, Lake(str(lake_path)), settings)
    start_s, end_s = int(END.timestamp()) - days * 86400, int(END.timestamp())
    memory: list[float] = []

    def told(chunk: Chunk, share: float) -> None:
        memory.append(resident_mb())

    began, cpu = time.perf_counter(), time.process_time()
    importer.run(importer.discover(start_s, end_s), start_s, end_s, told)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    done, third = importer.tally.samples, max(len(memory) // 3, 1)
    files = [f.stat().st_size for f in lake_path.rglob("*.parquet")]
    print(json.dumps({
        "samples": done, "of": total, "seconds": round(took, 1), "samples_per_s": round(done / took),
        "importer_cpu_s": round(used, 1), "queries": client.queries, "answer_mb": round(client.bytes / 1e6),
        "rss_mb_middle_third": round(max(memory[third : 2 * third] or memory)),
        "rss_mb_last_third": round(max(memory[-third:])),
        "rss_mb_peak": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "lake_mb": round(sum(files) / 1e6), "lake_files": len(files),
    }, indent=1))  # fmt: skip


def resident_mb() -> float:
    """This process's memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


if __name__ == "__main__":
    main()
