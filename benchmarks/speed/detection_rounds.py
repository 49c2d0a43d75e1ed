"""Time and memory of a detection round, by fleet size and detector.

Run as ``python benchmarks/speed/detection_rounds.py [GPUS …]``; 1,000, 10,000 and 100,000 without arguments.

A round is one window of 30 s of GPUs (40 numbers each, in the contract's types), of eight ports a node and of hosts,
as the lake holds it: Parquet, read and put in order, then every detector's turn as the service takes them (from 20,000
GPUs on two at a time), then the node-days' maxima. The *common* round is the median of those in which nothing special
is due. *Forest* is the tenth, in which the isolation forest scores (and once a day is fitted); *midnight* the first of
a day, in which five weeks of daily centres become new baselines; *state* is what packing the memory for the lake adds
to every tenth round. Detectors' own times are from rounds in which they have their turns one by one. Each size runs in
a process of its own, whose peak of memory is printed. On a busy machine CPU seconds (of all threads) say more than the
clock.
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
from graynode.detectors.base import Detector, Learner, Round, State
from graynode.detectors.node_days import NodeDays
from graynode.detectors.thresholds import shipped
from graynode.pipeline.lake import frame_schema
from graynode.service.detector_state import StateWriter
from graynode.service.turns import turns

SIZES = (1_000, 10_000, 100_000)
MIDNIGHT = datetime(2026, 3, 3, tzinfo=UTC)
_ORDER = {"gpu": ["gpu_uuid"], "link": ["node_id", "link"], "host": ["node_id"]}
_MEASURED = (
    "sm_clock_mhz_mean", "mem_clock_mhz_mean", "power_w_mean", "temp_c_mean", "mem_temp_c_mean",
    "gpu_util_percent_mean", "sm_active_ratio_mean", "dram_active_ratio_mean",
)  # fmt: skip


def main(sizes: list[int]) -> None:
    """A table for each size. The cluster's noise has a fixed seed."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("graynode", "polars", "numpy"))
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {libraries}")
    print(f"command: benchmarks/speed/detection_rounds.py {' '.join(map(str, sizes))}", flush=True)
    for gpus in sizes:
        subprocess.run([sys.executable, "-I", __file__, "--one", str(gpus)], check=True)


def one(gpus: int) -> None:
    """One size, in this process."""
    nodes, load = -(-gpus // 8), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        stored = _Stored(nodes, Path(folder))
        meter = _Meter({name: _past(name, stored) for name in NAMES})
        before = MIDNIGHT - timedelta(seconds=30 * 11)
        for w in range(10):
            kind = "first" if w == 0 else "forest" if w == 1 else "common" if w < 6 else "one by one"
            meter.round(stored, before + timedelta(seconds=30 * w), kind)
        meter.round(stored, MIDNIGHT, "midnight")
        meter.state(MIDNIGHT)
    print(f"{nodes * 8} GPUs, {nodes} nodes, load {load:.1f} at the start")
    meter.print()
    print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB", flush=True)


class _Stored:
    """One window on disk, read anew for each round with that round's time on it."""

    def __init__(self, nodes: int, folder: Path) -> None:
        made = Cluster(nodes=nodes, ports=8, nodes_per_job=16).round(0, MIDNIGHT - timedelta(hours=1))
        self._files, self._rng, self.example = {}, np.random.default_rng(1), made
        for table, order in _ORDER.items():
            self._files[table] = folder / f"{table}.parquet"
            types = frame_schema(f"{table}_30s")
            frame = getattr(made, table)
            frame = frame.with_columns(pl.col(c).cast(types[c]) for c in frame.columns if c in types)
            frame.sort(order).write_parquet(self._files[table], compression="zstd", statistics=False)

    def read(self, start: datetime, window_s: int = 30) -> Round:
        stamp = pl.lit(start).cast(pl.Datetime("us", "UTC")).alias("ts")
        frames = {
            table: pl.read_parquet(self._files[table]).with_columns(stamp).sort("ts", *order)
            for table, order in _ORDER.items()
        }
        return replace(self.example, start=start, window_s=window_s, **frames)

    def noisy(self, round_: Round) -> Round:
        """With noise of half a percent on what is measured, so that no window is like another."""
        gpu = round_.gpu
        noise = {c: 1.0 + 0.005 * self._rng.standard_normal(gpu.height) for c in _MEASURED}
        return replace(round_, gpu=gpu.with_columns((pl.col(c) * pl.Series(n)).alias(c) for c, n in noise.items()))


def _past(name: str, stored: _Stored) -> State:
    """What a detector remembers after weeks: a day of hours learned and repeated for 35 days; an hour of the forest."""
    detector = make(name)
    if name == "forest":
        return _hour_of(detector, stored)
    if not isinstance(detector, Learner):
        return {}
    hours = [stored.noisy(stored.read(MIDNIGHT - timedelta(days=1, hours=-h), 3600)) for h in range(10, 13)]
    frames = {table: pl.concat([getattr(r, table) for r in hours]) for table in _ORDER}
    state = dict(detector.learn(replace(hours[0], **frames), {}))
    history = state.get("history")
    if history is not None and "day" in history.columns:
        days = [history.with_columns(pl.col("day") - k) for k in range(34, -1, -1)]
        state["history"] = pl.concat(days)
    return state


def _hour_of(forest: Detector, stored: _Stored) -> State:
    state: State = {}
    for w in range(14, 0, -1):
        start = MIDNIGHT - timedelta(seconds=300 * (w + 1))
        state = forest.score(stored.noisy(stored.read(start)), state).state
    return state


class _Meter:
    """Wall and CPU milliseconds of rounds, by kind of round and by part."""

    def __init__(self, states: dict[str, State]) -> None:
        self._states, self._detectors = states, {name: make(name) for name in NAMES}
        self._days, self._day_state = NodeDays(), {}
        self._spent: dict[str, dict[str, list[tuple[float, float]]]] = {}
        self._found = 0

    def round(self, stored: _Stored, start: datetime, kind: str) -> None:
        parts = self._spent.setdefault(kind, {})
        took, read = _timed(lambda: stored.read(start))
        parts.setdefault("read", []).append(took)
        round_, scored = stored.noisy(read), {}
        if kind == "one by one":
            for name, d in self._detectors.items():
                took, scored[name] = _timed(lambda d=d, n=name: d.score(round_, self._states[n]))
                parts.setdefault(name, []).append(took)
        else:
            took, scored = _timed(lambda: turns(self._detectors, round_, self._states))
            parts.setdefault("detectors", []).append(took)
        self._states = {name: s.state for name, s in scored.items()}
        findings = pl.concat([s.findings for s in scored.values()])
        self._found += findings.height
        took, (self._day_state, _) = _timed(
            lambda: self._days.take(round_, self._states, findings, shipped(), self._day_state)
        )
        parts.setdefault("node_days", []).append(took)

    def state(self, start: datetime) -> None:
        writer = StateWriter("bench")
        for part, frames in (("everything", self._states), ("what changes", self._changed())):
            took, size = _timed(
                lambda f=frames: sum(len(r["state"]) for r in writer.rows(start, 30, self._detectors, f))
            )
            self._spent.setdefault("state", {})[f"{part} ({size / 2**20:.0f} MiB)"] = [took]

    def _changed(self) -> dict[str, State]:
        return {
            n: {k: f if k in ("history", "probes") else f.clone() for k, f in s.items()}
            for n, s in self._states.items()
        }

    def print(self) -> None:
        """Medians of each kind of round."""
        print(f"  findings on the way: {self._found}")
        for kind in ("common", "forest", "midnight", "one by one", "state"):
            parts = self._spent[kind]
            wall, cpu = ({p: statistics.median(t[i] for t in took) for p, took in parts.items()} for i in (0, 1))
            each = ", ".join(f"{p} {wall[p]:.0f} ({cpu[p]:.0f})" for p in sorted(wall, key=lambda p: -wall[p]))
            print(f"  {kind:10} {sum(wall.values()):7.0f} ms ({sum(cpu.values()):.0f} of CPU): {each}")


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
