"""What the instruments of a simulated fleet would show: gauges, counters and states on a grid of windows.

A live sample is a window of one second. Load is exact (integrals of steps); noise is added per 30 s or per hour,
with the correlation that training steps show (lag one 0.6; docs/simulation.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.collectors.simulated import load as fleet_load
from graynode.collectors.simulated.faults import Fault
from graynode.collectors.simulated.fleet import RELOAD_S, Fleet
from graynode.collectors.simulated.noise import Array, ar1, normal, uniform

MISSING: Final = 0.001
"""Share of a machine's rounds that give nothing."""
_LAG_30S, _LAG_1H = 0.6, 0.8
_HOUR_OF_BINS: Final = 0.18
"""Spread of the mean of 120 bins against one, at lag-one correlation 0.6: sqrt((1 + φ) / (1 − φ) / 120)."""
THROTTLES: Final = (
    ("sw_power_cap", "sw_power_cap"), ("sw_thermal", "sw_thermal"), ("hw_thermal", "hw_thermal"),
    ("hw_power_brake", "power_brake"),
)  # fmt: skip
"""Clock event bits that hold clocks down, and the load's columns that say for which share of the time."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative (or absolute) spread: per second, per 30 s, per hour."""

    second: float
    bin: float
    hour: float


NOISE: Final = {
    "clock_mhz": Noise(0.006, 0.004, 0.0015),
    "power_w": Noise(0.03, 0.015, 0.004),
    "temp_c": Noise(0.4, 0.5, 0.5),
    "tensor": Noise(0.03, 0.012, 0.004),
    "sm": Noise(0.03, 0.012, 0.004),
}
_STREAM: Final = {name: 100 + 10 * i for i, name in enumerate(NOISE)}


@dataclass(frozen=True, slots=True)
class Gauge:
    """Mean, lowest and highest sample of each window, shape (windows, entities)."""

    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True)
class Counter:
    """Growth within each window and the reading at its last sample."""

    delta: Array
    last: Array


@dataclass(frozen=True, slots=True)
class Grid:
    """Consecutive windows: ``start`` of each in whole seconds on the fleet's axis, all of ``length`` seconds."""

    start: Array
    length: int

    @property
    def edges(self) -> Array:
        """Starts, and the end of the last."""
        return np.append(self.start, self.start[-1] + self.length).astype(np.float64)


class GpuSignals:
    """Signals of all GPUs on one grid; each is computed when asked for."""

    def __init__(self, fleet: Fleet, grid: Grid) -> None:
        self.fleet, self.grid = fleet, grid
        self._gpu: Array = np.arange(fleet.gpus)[None, :]
        edges = grid.edges[:, None]
        load = fleet.load
        self._edges, self._index = edges, load.at(self._gpu, edges)
        self._before = load.at(self._gpu, edges - 1.0)
        self.first, self.last = self._index[:-1], self._before[1:]
        boots = fleet.boots
        node = fleet.node_of_gpu[None, :]
        self.boot, boot_before = boots.at(node, edges[1:] - 1.0), boots.at(node, edges[:-1] - 1.0)
        self.resets: Array = self.boot - boot_before
        self._reset_t: Array = np.maximum(boots.start[self.boot], -1.0)
        self._reset_index = load.at(self._gpu, self._reset_t)
        self._active = {f: _seconds_of(f, grid) for f in fleet.faults if f.start < edges[-1, 0] and f.end > edges[0, 0]}

    def value(self, name: str) -> Array:
        """A column of the load at the last sample."""
        return self.fleet.load.columns[name][self.last]

    def mean(self, name: str) -> Array:
        """Mean of a column over the window."""
        if self.grid.length == 1:
            return self.value(name).astype(np.float64)
        upto = self.fleet.load.integral(name, self._index, self._edges)
        out: Array = np.diff(upto, axis=0) / self.grid.length
        return out

    def gauge(self, name: str) -> Gauge:
        """A column with its noise, relative to itself, except for idle GPUs' clocks, which do not move."""
        mean, (low, high) = self.mean(name), self.fleet.load.extremes(name, self.first, self.last)
        slow, fast = self._noise(name)
        if name == "clock_mhz":
            slow, fast = slow * (self.mean("busy") > 0), fast
        return Gauge(mean * (1 + slow), low * (1 + slow - fast), high * (1 + slow + fast))

    def clock(self) -> Gauge:
        """SM clock in steps of the hardware's making, never above boost."""
        g = self.gauge("clock_mhz")
        top = fleet_load.BOOST_MHZ
        return Gauge(np.minimum(g.mean, top), np.minimum(g.low, top), np.minimum(g.high, top))

    def power(self) -> Gauge:
        """Board power, never above what the limit lets through."""
        g = self.gauge("power_w")
        top = fleet_load.LIMIT_W * 1.03
        return Gauge(np.minimum(g.mean, top), np.minimum(g.low, top), np.minimum(g.high, top))

    def temperature(self) -> Gauge:
        """Core temperature from the power of the last minute and a half, the rack's air and the chip's own offset."""
        fleet, lag = self.fleet, 90.0
        upto = fleet.load.integral("power_w", self._index[1:], self._edges[1:])
        since_t = np.maximum(self._edges[:-1] - lag, 0.0)
        since = fleet.load.integral("power_w", fleet.load.at(self._gpu, since_t), since_t)
        power = (upto - since) / (self._edges[1:] - since_t)
        offsets = fleet_load.traits(fleet.spec.seed, fleet.gpus).temp_offset_c
        mean = fleet_load.temperature_c(self._inlet(), power, offsets) + self.mean("hot_c") * power / fleet_load.LIMIT_W
        slow, fast = self._noise("temp_c")
        return Gauge(mean + slow, mean + slow - fast, mean + slow + fast)

    def _inlet(self) -> Array:
        """Inlet air of each GPU's rack: a degree warmer in the afternoon, and a little of its own."""
        fleet, middle = self.fleet, self.grid.start + self.grid.length / 2
        own = ar1(
            fleet.spec.seed,
            60,
            np.unique(fleet.racks),
            int(middle[0] // 3600),
            int(middle[-1] // 3600 - middle[0] // 3600) + 1,
            0.9,
        )
        rack = own[(middle // 3600 - middle[0] // 3600).astype(int)][:, fleet.racks[fleet.node_of_gpu]]
        daily = np.sin(2 * np.pi * (middle / 86400.0 - 0.375))[:, None]
        out: Array = fleet.inlet_c[fleet.node_of_gpu][None, :] + 0.8 * daily + 0.4 * rack
        return out

    def counter(self, name: str, scale: float = 1.0) -> Counter:
        """An integral of a column since the driver was loaded."""
        load = self.fleet.load
        upto = load.integral(name, self._before, self._edges - 1.0)
        base = load.integral(name, self._reset_index, self._reset_t)
        return Counter(np.floor(np.diff(upto, axis=0) * scale), np.floor((upto[1:] - base) * scale))

    def corrected(self) -> tuple[Counter, Counter]:
        """Corrected memory errors: since driver load, and over the device's life."""
        jumps, t = self.fleet.corrected, self._edges - 1.0
        total = jumps.total(self._gpu, t)
        delta = np.diff(total, axis=0)
        return Counter(delta, total[1:] - jumps.total(self._gpu, self._reset_t)), Counter(delta, total[1:])

    def ramp(self, kind: str, per_s: float) -> Counter:
        """A counter that grows only while a fault of that kind lasts."""
        t, total = self._edges - 1.0, np.zeros((len(self._edges), self.fleet.gpus))
        base = np.zeros((len(self.grid.start), self.fleet.gpus))
        for f in self._active:
            if f.kind == kind:
                total[:, f.gpu] += np.clip(t[:, 0] - f.start, 0.0, f.end - f.start) * per_s
                base[:, f.gpu] += np.clip(self._reset_t[:, f.gpu] - f.start, 0.0, f.end - f.start) * per_s
        total = np.floor(total)
        return Counter(np.diff(total, axis=0), total[1:] - np.floor(base))

    def override(self, kind: str, default: float) -> Array:
        """``default``, or the size of an active fault of that kind (its last value in the window counts)."""
        out = np.full(self.last.shape, default)
        for f in self._active:
            if f.kind == kind:
                ends = self.grid.start + self.grid.length - 1
                out[(ends >= f.start) & (ends < f.end), f.gpu] = f.size
        return out

    def pcie_gen(self) -> Array:
        """PCIe generation: 5 under load, 1 at rest as links save power, less where a fault holds it down."""
        gen = np.where(self.value("busy") > 0, 5.0, 1.0)
        for f, seconds in self.active("pcie_width"):
            if "gen" in f.extra:
                held = seconds > 0
                gen[held, f.gpu] = np.minimum(gen[held, f.gpu], float(f.extra["gen"]))
        return gen

    def active(self, kind: str) -> list[tuple[Fault, Array]]:
        """Faults of that kind that touch the grid, and seconds of each in each window."""
        return [(f, seconds) for f, seconds in self._active.items() if f.kind == kind]

    def seen(self) -> Array:
        """Samples of each window that arrive: those not missed, not silenced by a reboot or reload, not lost."""
        fleet = self.fleet
        hidden = hidden_seconds(fleet, self.grid, gpu=True)[:, fleet.node_of_gpu]
        for f, seconds in self.active("gpu_lost"):
            hidden[:, f.gpu] = np.minimum(hidden[:, f.gpu] + seconds, self.grid.length)
        seen: Array = np.maximum(self.grid.length - hidden, 0)
        return seen

    def call_ms(self) -> Array:
        """Slowest NVML call: steady, and growing in the half hour before a GPU is lost."""
        fleet = self.fleet
        bins = (self.grid.start // self.grid.length).astype(np.int64)[:, None]
        out = 1.6 * np.exp(0.15 * normal(fleet.spec.seed, 70, self._gpu, bins)).astype(np.float64)
        for f in fleet.faults:
            if f.kind == "gpu_lost":
                near = np.clip(1.0 - (f.start - self.grid.start) / 1800.0, 0.0, 1.0) * (self.grid.start < f.start)
                out[:, f.gpu] *= 1.0 + 12.0 * near
        return out

    def _noise(self, name: str) -> tuple[Array, Array]:
        """What a window's mean is off, and how far its samples lie around it."""
        seed, stream, kind = self.fleet.spec.seed, _STREAM[name], NOISE[name]
        gpus, start, length = np.arange(self.fleet.gpus), self.grid.start, self.grid.length
        hour = start // 3600
        hours = ar1(seed, stream, gpus, int(hour[0]), int(hour[-1] - hour[0]) + 1, _LAG_1H)
        slow = kind.hour * hours[(hour - hour[0]).astype(int)]
        if length > 30:
            slow = slow + kind.bin * _HOUR_OF_BINS * normal(seed, stream + 1, self._gpu, hour.astype(np.int64)[:, None])
            return slow, np.full(1, 3.2 * np.hypot(kind.second, kind.bin), np.float32)
        first = int(start[0] // 30)
        bins = ar1(seed, stream + 2, gpus, first, int(start[-1] // 30) - first + 1, _LAG_30S)
        slow = slow + kind.bin * bins[(start // 30 - first).astype(int)]
        if length == 1:
            slow = slow + kind.second * normal(seed, stream + 3, self._gpu, start.astype(np.int64)[:, None])
            return slow, np.zeros(1, np.float32)
        return slow, np.full(1, 2.04 * kind.second, np.float32)


def _seconds_of(f: Fault, grid: Grid) -> Array:
    """Whole samples of each window at which a fault is active."""
    first = np.maximum(grid.start, np.ceil(f.start))
    last = np.minimum(grid.start + grid.length, np.ceil(f.end) if np.isfinite(f.end) else np.inf)
    seconds: Array = np.clip(last - first, 0, grid.length).astype(np.int64)
    return seconds


def hidden_seconds(fleet: Fleet, grid: Grid, *, gpu: bool) -> Array:
    """Samples that a machine does not give, shape (windows, nodes); with ``gpu`` those while its driver reloads too."""
    seed, nodes = fleet.spec.seed, np.arange(fleet.spec.nodes)
    if grid.length <= 30:
        at = (grid.start[:, None] + np.arange(grid.length)[None, :]).astype(np.int64)
        missed = uniform(seed, 71, nodes[None, None, :], at[:, :, None]) < MISSING
        hidden: Array = missed.sum(axis=1)
    else:
        n = grid.length * MISSING
        hours = (grid.start // grid.length).astype(np.int64)[:, None]
        hidden = np.rint(n + np.sqrt(n) * normal(seed, 72, nodes[None, :], hours)).clip(0).astype(np.int64)
    boots = fleet.boots
    for i in np.nonzero(boots.columns["silent_s"] > 0)[0]:
        silent, end = float(boots.columns["silent_s"][i]), float(boots.start[i])
        start = end - silent
        if end <= grid.edges[0] or start >= grid.edges[-1] or (silent == RELOAD_S and not gpu):
            continue
        node = int(boots.entity[i])
        over = np.clip(np.minimum(grid.start + grid.length, end) - np.maximum(grid.start, start), 0, None)
        hidden[:, node] = np.minimum(hidden[:, node] + np.ceil(over).astype(np.int64), grid.length)
    return hidden


def stuck_value(fleet: Fleet, f: Fault, signal: str) -> float:
    """What a sensor showed at the first moment of its fault, and shows ever after."""
    s = GpuSignals(fleet, Grid(np.array([int(max(f.start, 0))]), 1))
    read_now = {"temp_c": s.temperature, "power_w": s.power, "sm_clock_mhz": s.clock}[signal]
    return float(np.rint(read_now().mean[0, f.gpu]))
