"""The picture of a large fleet that pages, API and /metrics show: how long it takes to make, first and each time after.

    python benchmarks/speed/fleet_now.py --nodes 12500 --times 5

A lake of one day: hours as maintenance leaves them, the last ten minutes of 30 s windows as the pipeline lands them (a
file a window), names, jobs, incidents and the scheduler's word. Between two pictures one more window of every GPU
lands. Seconds are by the clock, CPU of this process; memory is its largest. Prints figures and asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from api_lake import stored, told
from api_site import Fleet, Site, gpu_windows, host_windows, link_windows

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.pipeline.queries import Queries
from graynode.service.fleet_now import FleetReader

_STEP: Final = timedelta(seconds=30)


def landed(lake: Lake, fleet: Fleet, start: datetime, rng: np.random.Generator) -> None:
    """One 30 s window of everything."""
    stored(lake, "gpu_30s", iter([gpu_windows(fleet, start, 30, slice(None), rng, 1)]))
    stored(lake, "host_30s", iter([host_windows(fleet, start, 30, 1, rng)]))
    stored(lake, "link_30s", iter([link_windows(fleet, start, 30, 1, rng)]))


def main() -> None:
    """Make the lake, then pictures of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    end = datetime.now(UTC).replace(second=0, microsecond=0)
    fleet, rng = Fleet(Site(given.nodes, 1, end)), np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(str(Path(folder) / "lake"))
        for back in range(20, 0, -1):
            landed(lake, fleet, end - back * _STEP, rng)
        for table, frame in told(fleet, rng).items():
            lake.write(table, conform(table, frame))
        queries = Queries(lake)
        at = [end]
        reader = FleetReader(lake, queries, clock=lambda: at[0])
        readings = []
        for _ in range(given.times + 1):
            began, cpu = time.perf_counter(), time.process_time()
            picture = reader.read()
            readings.append((time.perf_counter() - began, time.process_time() - cpu))
            landed(lake, fleet, at[0], rng)
            at[0] += _STEP
        queries.close()
    size = f"{picture.nodes.height:,} nodes, {picture.gpus.height:,} GPUs"
    (first, first_cpu), *later = readings
    (slowest, cpu), (median, _) = max(later), sorted(later)[len(later) // 2]
    print(f"{size}; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    print(f"first    {first:.2f} s, {first_cpu:.2f} s of CPU")
    print(f"later    slowest {slowest:.2f} s ({cpu:.2f} s of CPU), median {median:.2f} s")
    print(f"memory   {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB, the lake's making included")
    print(f"Python {platform.python_version()}, polars {version('polars')}, duckdb {version('duckdb')}")


if __name__ == "__main__":
    main()
