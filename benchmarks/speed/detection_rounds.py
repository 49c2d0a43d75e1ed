"""Time and memory of a detection round, by detector and fleet size.

Run as ``python benchmarks/speed/detection_rounds.py [GPUS …]``; 1,000, 10,000 and 100,000 without arguments.

A round is one window of 30 s of GPUs (40 numbers each, in the contract's types), of eight ports a node and of hosts, as
the lake holds it: Parquet, read and put in order, then every detector's turn. The *common* round is the median of those
in which nothing special is due. *Forest* is the tenth, in which the isolation forest scores; *midnight* the first of a
day, in which five weeks of daily centres become new baselines; *state* is what packing all memory for the lake adds to
every tenth round. Each size runs in a process of its own, whose peak of memory is printed. CPU seconds are those of all
threads; on a busy machine they say more than the clock.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "kit"))

from window_rounds import Cluster

from graynode.detectors import NAMES, make
from graynode.detectors.base import Round, State
from graynode.pipeline.lake import frame_schema
from graynode.service.detector_state import StateWriter

SIZES = (1_000, 10_000, 100_000)
ROUNDS = 9
MIDNIGHT = datetime(2026, 3, 3, tzinfo=UTC)
_ORDER = {"gpu": ["gpu_uuid"], "link": ["node_id", "link"], "host": ["node_id"]}
_DAYS = 35


def main(sizes: list[int]) -> None:
    """A table for each size. The cluster's noise has a fixed seed."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("graynode", "polars", "numpy"))
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {libraries}")
    print(f"command: benchmarks/speed/detection_rounds.py {' '.join(map(str, sizes))}", flush=True)
    for gpus in sizes:
        subprocess.run([sys.executable, "-I", __file__, "--one", str(gpus)], check=True)


def one(gpus: int) -> None:
    """One size, in this process."""
    nodes = -(-gpus // 8)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        before = MIDNIGHT - timedelta(seconds=30 * (ROUNDS + 2))
        rounds = _Stored(nodes, Path(folder))
        states: dict[str, State] = {name: _past(name, rounds.example) for name in NAMES}
        meter = _Meter(states)
        for w in range(ROUNDS + 2):
            start = before + timedelta(seconds=30 * w)
            meter.round(rounds, start, "first" if w == 0 else "forest" if _of_the_forest(start) else "common")
        meter.round(rounds, MIDNIGHT, "midnight")
        meter.state(MIDNIGHT)
    print(f"{nodes * 8} GPUs, {nodes} nodes, load {load:.1f} at the start")
    meter.print()
    print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB", flush=True)


def _of_the_forest(start: datetime) -> bool:
    return int(start.timestamp() // 30) % 10 == 0


class _Stored:
    """One window on disk, read anew for each round with that round's time on it."""

    def __init__(self, nodes: int, folder: Path) -> None:
        made = Cluster(nodes=nodes, ports=8, nodes_per_job=16).round(0, MIDNIGHT - timedelta(hours=1))
        self._files, self.example = {}, made
        for table, order in _ORDER.items():
            self._files[table] = folder / f"{table}.parquet"
            frame = getattr(made, table)
            types = frame_schema(f"{table}_30s")
            frame = frame.with_columns(pl.col(c).cast(types[c]) for c in frame.columns if c in types)
            frame.sort(order).write_parquet(self._files[table], compression="zstd", statistics=False)

    def read(self, start: datetime) -> Round:
        stamp = pl.lit(start).cast(pl.Datetime("us", "UTC")).alias("ts")
        frames = {
            table: pl.read_parquet(self._files[table]).with_columns(stamp).sort("ts", *order)
            for table, order in _ORDER.items()
        }
        return replace(self.example, start=start, **frames)


def _past(name: str, example: Round) -> State:
    """Five weeks of history, learned from one window that is repeated for each day."""
    detector: Any = make(name)
    if not hasattr(detector, "learn"):
        return {}
    state: State = {}
    hours = replace(example, window_s=3600)
    for day in range(_DAYS, 0, -1):
        stamps = [MIDNIGHT - timedelta(days=day, hours=-h) for h in (10, 11)]
        frames = {
            table: pl.concat([
                getattr(hours, table).with_columns(pl.lit(t).cast(pl.Datetime("us", "UTC")).alias("ts")) for t in stamps
            ])
            for table in _ORDER
        }  # fmt: skip
        state = detector.learn(replace(hours, start=stamps[0], **frames), state)
    return state


class _Meter:
    """Wall and CPU milliseconds of rounds, by kind of round and by part."""

    def __init__(self, states: dict[str, State]) -> None:
        self._states, self._detectors = states, {name: make(name) for name in NAMES}
        self._spent: dict[str, dict[str, list[tuple[float, float]]]] = {}
        self._found = 0

    def round(self, stored: _Stored, start: datetime, kind: str) -> None:
        parts = self._spent.setdefault(kind, {})
        took, round_ = _timed(lambda: stored.read(start))
        parts.setdefault("read", []).append(took)
        for name, detector in self._detectors.items():
            took, scored = _timed(lambda d=detector, n=name: d.score(round_, self._states[n]))
            self._states[name] = scored.state
            self._found += scored.findings.height
            parts.setdefault(name, []).append(took)

    def state(self, start: datetime) -> None:
        writer = StateWriter("bench")
        took, size = _timed(lambda: sum(len(r["state"]) for r in writer.rows(start, 30, self._detectors, self._states)))
        self._spent["state"] = {"everything": [took]}
        fresh = {n: {k: f.clone() if k == "gpu" else f for k, f in s.items()} for n, s in self._states.items()}
        took, _ = _timed(lambda: sum(1 for _ in writer.rows(start, 30, self._detectors, fresh)))
        self._spent["state"]["what changes"] = [took]
        print(f"  state packed: {size / 2**20:.0f} MiB of text; findings on the way: {self._found}")

    def print(self) -> None:
        for kind in ("common", "forest", "midnight", "state"):
            parts = self._spent.get(kind, {})
            if not parts:
                continue
            wall, cpu = ({p: statistics.median(t[i] for t in took) for p, took in parts.items()} for i in (0, 1))
            each = ", ".join(f"{p} {wall[p]:.0f}" for p in sorted(wall, key=lambda p: -wall[p]))
            total = "" if kind == "state" else f"{sum(wall.values()):8.0f} ms ({sum(cpu.values()):.0f} of CPU): "
            print(f"  {kind:8} {total}{each}")


def _timed(work: Any) -> tuple[tuple[float, float], Any]:  # noqa: ANN401 (any part of a round)
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    return ((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3), made


if __name__ == "__main__":
    np.seterr(all="ignore")
    if sys.argv[1:2] == ["--one"]:
        one(int(sys.argv[2]))
    else:
        main([int(a) for a in sys.argv[1:]] or list(SIZES))
