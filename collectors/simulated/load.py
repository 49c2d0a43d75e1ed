"""What load does to a simulated GPU: clocks, power, activity and rates, piece by piece of its jobs.

A piece is a stretch of one job in which nothing changes. In a synchronous job the slowest rank sets the step of
every rank: the others wait in the collective, where a GPU spins at 100 % utilisation and draws less. So tensor
activity falls on all ranks together, and what differs on the culprit is its clock, its heat and its power at clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from graynode.collectors.simulated.faults import Fault
from graynode.collectors.simulated.jobs import WORKS, Job
from graynode.collectors.simulated.noise import Array, normal, uniform
from graynode.collectors.simulated.steps import Steps

BOOST_MHZ: Final = 1980.0
IDLE_MHZ: Final = 345.0
LIMIT_W: Final = 700.0
HBM_BYTES: Final = 85_520_809_984
_IDLE_W: Final = 75.0
_WAITING: Final = 0.55
"""Power of a rank that spins in a collective, as a share of its power at work: a stated guess."""
_GPU_JOB: Final = 0.003
"""Spread of a GPU in a job against itself in other jobs (clock spread of Longhorn's resnet runs: 0.33 %)."""
_SLOWDOWN_C, _HW_SLOWDOWN_C = 87.0, 95.0
_STAGE_LOAD: Final = np.array([0.97, 1.0, 1.0, 1.04])
"""Pipeline stages do not do the same work: embedding and loss sit at the ends."""


_GEMM_BOUND: Final = ("training", "fine_tuning", "batch_inference", "quantisation")
_LIGHTER: Final = 0.4
"""What distinguishes chips belongs to GPU and kind of work: on Longhorn the offsets of sgemm and resnet correlate by
-0.06. Kinds bound by matrix products share one line of the data; serving and notebooks have their own, brought out less
(a stated guess), because power seldom holds their clock down."""
_LOADED_MHZ: Final = 1890.0
"""Highest clock under load before a chip's own ratio: the fastest chips of the data just reach boost with it."""


_LEFT_OVER: Final = 0.2
"""Share of notebooks whose kernel keeps its memory after the scheduler has ended them: a stated guess."""
_NOTEBOOK: Final = [work.name for work in WORKS].index("notebook")


@dataclass(frozen=True, slots=True)
class Traits:
    """What distinguishes one GPU from the next: measured ratios of Longhorn, shape (kinds of work, GPUs)."""

    time_ratio: Array
    clock_ratio: Array
    power_ratio: Array
    temp_offset_c: Array
    """Of the GPU alone, whatever it does: shape (GPUs,)."""


def traits(seed: int, gpus: int) -> Traits:
    """Traits of each GPU, drawn by the seed from ``longhorn_offsets.csv``; the columns of one line stay together.

    Kinds of work bound by matrix products share a line, others have their own; heat is the GPU's own.
    """
    rows = np.loadtxt(Path(__file__).with_name("longhorn_offsets.csv"), delimiter=",")
    heavy = np.array([work.name in _GEMM_BOUND for work in WORKS])
    which = np.where(heavy, 0, np.arange(len(WORKS)) + 1)[:, None]
    drawn = rows[(uniform(seed, 10, np.arange(gpus)[None, :], which) * len(rows)).astype(int)]
    shown = np.where(heavy, 1.0, _LIGHTER)[:, None]
    time, clock, power = (1.0 + (drawn[:, :, i] - 1.0) * shown for i in range(3))
    return Traits(time, clock, power, np.clip(drawn[0, :, 3], -10.0, 10.0))


def quantiles() -> Mapping[str, Array]:
    """Percentiles 0 to 100 of each measured signal (``acme_quantiles.json``)."""
    told = json.loads(Path(__file__).with_name("acme_quantiles.json").read_text(encoding="utf-8"))
    return {name: np.asarray(values) for name, values in told.items() if name != "origin"}


def to_h100_w(a100_w: Array) -> Array:
    """Power of a 400 W A100 as that of a 700 W H100 at the same place between idle and limit."""
    return np.minimum(_IDLE_W + (a100_w - 62.0) * (680.0 - _IDLE_W) / (400.0 - 62.0), LIMIT_W - 2.0)


def temperature_c(inlet_c: Array, power_w: Array, offset_c: Array) -> Array:
    """Core temperature of an air-cooled board: 0.05 °C per watt over the inlet, and the GPU's own offset.

    Offsets were measured at full power, where place in the rack and contact of the heat sink cannot be told apart. Half
    is taken for place, which stays at rest, and half for contact, which goes with power: a stated guess.
    """
    out: Array = inlet_c + 8.0 + 0.05 * power_w + offset_c * (0.5 + 0.5 * power_w / LIMIT_W)
    return out


def steps(seed: int, gpus: int, per_node: int, jobs: Sequence[Job], faults: Sequence[Fault], inlet_c: Array) -> Steps:
    """Every GPU's load from the first moment on, as piecewise constant columns."""
    at, start, end, rank = _pieces(seed, jobs, faults, per_node)
    gpu = np.concatenate([np.asarray(jobs[j].gpus) for j in at]) if at else np.zeros(0, int)
    sizes = np.array([len(jobs[j].gpus) for j in at], int)
    first = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(int)
    row = np.repeat(np.arange(len(at)), sizes)
    place = np.arange(len(row)) - first[row]
    job = np.asarray(at, int)[row] if at else np.zeros(0, int)
    mine = traits(seed, gpus)
    columns = _at_work(seed, jobs, job, gpu, place, np.asarray(rank)[row], mine)
    _apply(columns, faults, gpu, np.asarray(start)[row], per_node, inlet_c, mine)
    _wait_for_slowest(columns, jobs, job, first, row)
    return _with_idle(columns, gpu, np.asarray(start)[row], np.asarray(end)[row], gpus, seed)


def _pieces(
    seed: int, jobs: Sequence[Job], faults: Sequence[Fault], per_node: int
) -> tuple[list[int], list[float], list[float], list[float]]:
    """Job, start, end and load rank of each piece: cut where a fault begins or ends on any rank, and by the hour."""
    at: list[int] = []
    start: list[float] = []
    end: list[float] = []
    rank: list[float] = []
    for j, job in enumerate(jobs):
        nodes = {g // per_node for g in job.gpus}
        cuts = {t for f in faults if f.node in nodes for t in (f.start, f.end) if job.start < t < job.end}
        if job.kind.hourly:
            cuts |= set(np.arange(np.floor(job.start / 3600.0) + 1, job.end / 3600.0) * 3600.0)
        edges = [job.start, *sorted(cuts), job.end]
        at += [j] * (len(edges) - 1)
        start += edges[:-1]
        end += edges[1:]
        rank += [job.load] * (len(edges) - 1)
    ranks = np.asarray(rank)
    hourly = np.array([jobs[j].kind.hourly for j in at], bool)
    t = np.asarray(start)
    swing = 0.25 * np.sin(2 * np.pi * (t / 86400.0 - 0.375)) + 0.1 * normal(
        seed, 11, np.asarray(at), np.floor(t / 3600.0).astype(np.int64)
    )
    return at, start, end, list(np.where(hourly, np.clip(ranks * (1.0 + swing), 0.0, 1.0), ranks))


def _at_work(
    seed: int, jobs: Sequence[Job], job: Array, gpu: Array, place: Array, rank: Array, mine: Traits
) -> dict[str, Array]:
    """Columns of GPUs at work, before faults and waiting."""
    measured, percent = quantiles(), np.arange(101)
    work = np.array([j.work for j in jobs] or [0])[job]
    number = np.array([j.number for j in jobs] or [0])[job]
    size = np.array([len(j.gpus) for j in jobs] or [1])[job]
    stages = np.array([j.stages for j in jobs] or [1])[job]
    stage = place * stages // np.maximum(size, 1)
    factor = np.where(stages > 1, _STAGE_LOAD[np.minimum(stage, 3)], 1.0)
    own = 1.0 + _GPU_JOB * normal(seed, 12, gpu, number)
    p = 38.0 + 62.0 * rank  # the quantiles' lower 38 % are idle GPUs
    power = to_h100_w(np.interp(p, percent, measured["power_w"])) * (0.5 + 0.5 * factor)
    clock = np.minimum(BOOST_MHZ - 1.4 * np.maximum(power - 450.0, 0.0), _LOADED_MHZ)
    clock = np.minimum(clock * mine.clock_ratio[work, gpu] * own, BOOST_MHZ)
    always = np.array([w.synchronous for w in WORKS])[work] | (rank > 0.3)
    at_desk = np.array([w.partition == "interactive" for w in WORKS])[work]  # a person thinks between two cells
    util = np.where(always, 99.7, np.interp(p, percent, measured["util_percent"]))
    sm = np.interp(p, percent, measured["sm_active_percent"]) / 100.0
    tensor = np.interp(p, percent, measured["tensor_active_percent"]) / 100.0 * factor
    multi = size > 8
    return {
        "job": job, "work": work, "role": np.where(stages > 1, stage, -1), "rank": place, "busy": np.ones(len(job)),
        "power_w": np.minimum(power * mine.power_ratio[work, gpu], LIMIT_W - 2.0), "clock_mhz": clock,
        "speed": own / mine.time_ratio[work, gpu],
        "util": np.where(at_desk, 200.0 * rank, util),
        "sm": np.maximum(sm, 0.02), "tensor": tensor, "dram": 0.1 + 0.4 * sm,
        "mem_bytes": np.interp(20.0 + 78.0 * rank, percent, measured["mem_percent"]) / 100.0 * 80e9 + 2e9,
        "nvlink_rate": np.where(size > 1, 55e9 * rank, 0.0), "ib_rate": np.where(multi, 11e9 * rank, 0.0),
        "pcie_rate": 0.4e9 + np.where(multi, 11e9 * rank, 0.6e9 * rank),
        "sw_power_cap": np.clip((power - 590.0) / 160.0, 0.0, 0.8),
        "sw_thermal": np.zeros(len(job)), "hw_thermal": np.zeros(len(job)), "power_brake": np.zeros(len(job)),
        "hot_c": np.zeros(len(job)),
    }  # fmt: skip


def _apply(
    columns: dict[str, Array], faults: Sequence[Fault], gpu: Array, start: Array, per_node: int, inlet_c: Array,
    mine: Traits,
) -> None:  # fmt: skip
    """Put the faults that load feels into the pieces in which they are active."""
    for f in faults:
        if f.kind not in ("slow_gpu", "power_brake", "thermal", "pcie_width"):
            continue
        struck = (gpu // per_node == f.node) if f.kind == "power_brake" else (gpu == f.gpu)
        rows = np.nonzero(struck & (start >= f.start) & (start < f.end))[0]
        if f.kind == "slow_gpu":
            _slow(columns, rows, 1.0 - f.size)
        elif f.kind == "power_brake":
            _slow(columns, rows, 1.0 - f.size)
            columns["power_brake"][rows] = 1.0
            columns["power_w"][rows] *= 1.0 - 0.6 * f.size
        elif f.kind == "pcie_width":
            columns["speed"][rows] *= 1.0 - 0.02 * (1.0 - f.size / 16.0)
            columns["pcie_rate"][rows] = np.minimum(columns["pcie_rate"][rows], 3.4e9 * f.size)
        else:
            _overheat(columns, rows, f, gpu, inlet_c[f.node], mine)


def _overheat(columns: dict[str, Array], rows: Array, f: Fault, gpu: Array, inlet_c: float, mine: Traits) -> None:
    power = columns["power_w"][rows]
    would = temperature_c(np.full(len(rows), inlet_c), power, mine.temp_offset_c[gpu[rows]]) + f.size * power / LIMIT_W
    over = np.maximum(would - _SLOWDOWN_C, 0.0)
    columns["sw_thermal"][rows] = np.clip(over / 6.0, 0.0, 1.0)
    columns["hw_thermal"][rows] = np.clip((would - _HW_SLOWDOWN_C) / 6.0, 0.0, 1.0)
    kept = 1.0 - np.minimum(0.02 * over, 0.5)
    _slow(columns, rows, kept)
    columns["power_w"][rows] *= 0.3 + 0.7 * kept
    columns["hot_c"][rows] = f.size


def _slow(columns: dict[str, Array], rows: Array, kept: float | Array) -> None:
    columns["speed"][rows] *= kept
    columns["clock_mhz"][rows] *= kept


def _wait_for_slowest(columns: dict[str, Array], jobs: Sequence[Job], job: Array, first: Array, row: Array) -> None:
    """Hold every rank of a synchronous job to the slowest one's step."""
    if not len(row):
        return
    speed = columns["speed"]
    slowest = np.minimum.reduceat(speed, first)[row]
    together = np.array([j.kind.synchronous for j in jobs])[job]
    pace = np.where(together, slowest, speed)
    waiting = 1.0 - pace / speed
    columns["power_w"] *= 1.0 - (1.0 - _WAITING) * waiting
    for name in ("tensor", "sm", "dram", "nvlink_rate", "ib_rate", "pcie_rate"):
        columns[name] *= pace
    columns["pace"] = pace
    columns["waiting"] = waiting


def _with_idle(columns: dict[str, Array], gpu: Array, start: Array, end: Array, gpus: int, seed: int) -> Steps:
    """Add what a GPU does between its jobs, from the first moment on."""
    columns.setdefault("pace", np.ones(len(gpu)))
    columns.setdefault("waiting", np.zeros(len(gpu)))
    order = np.lexsort((start, gpu))
    g, s, e = gpu[order], start[order], end[order]
    follows = np.append((g[1:] == g[:-1]) & (s[1:] <= e[:-1]), False) if len(g) else np.zeros(0, bool)
    idle_gpu = np.concatenate((np.arange(gpus), g[~follows]))
    idle_start = np.concatenate((np.full(gpus, -1.0), e[~follows]))
    n = len(idle_gpu)
    left = uniform(seed, 14, g[~follows], np.floor(e[~follows]).astype(np.int64)) < _LEFT_OVER
    left &= columns["work"][order][~follows] == _NOTEBOOK
    idle = {name: np.zeros(n) for name in columns}
    idle.update(
        job=np.full(n, -1), work=np.full(n, -1), role=np.full(n, -1), rank=np.full(n, -1),
        power_w=_IDLE_W * (1.0 + 0.04 * normal(seed, 13, idle_gpu, np.zeros(n, np.int64))),
        clock_mhz=np.full(n, IDLE_MHZ),
        mem_bytes=np.concatenate((np.full(gpus, 0.6e9), np.where(left, 9e9, 0.6e9))), speed=np.ones(n), pace=np.ones(n),
    )  # fmt: skip
    return Steps(
        np.concatenate((gpu, idle_gpu)),
        np.concatenate((start, idle_start)),
        {name: np.concatenate((columns[name], idle[name])) for name in columns},
    )
