"""History of a simulated fleet as window tables, made directly: no sample is made on the way.

Columns that the simulation has nothing to say about are left out; the lake holds null there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import numpy as np
import polars as pl

from graynode.collectors.simulated.columns import Columns
from graynode.collectors.simulated.faults import Fault
from graynode.collectors.simulated.fleet import MODEL, Fleet
from graynode.collectors.simulated.links import ETH_GBPS, IB_GBPS, LinkState, Outages, read
from graynode.collectors.simulated.load import HBM_BYTES, LIMIT_W
from graynode.collectors.simulated.noise import Array, normal
from graynode.collectors.simulated.signals import (
    THROTTLES,
    Counter,
    Gauge,
    GpuSignals,
    Grid,
    hidden_seconds,
    stuck_value,
)
from graynode.pipeline.schema import WINDOW_S

_ROWS: Final = 60_000
"""Rows of one frame, about: large enough for whole columns to be fast, small enough to be held."""
_SUFFIX: Final = {seconds: suffix for suffix, seconds in WINDOW_S.items()}


def history(
    fleet: Fleet, start: datetime, end: datetime, window_s: int, tables: Sequence[str] = ("gpu", "link", "host")
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Frames of ``gpu_30s`` and the like in order of time, for windows that lie whole in ``start`` to ``end``.

    A frame never crosses a UTC day. ``window_s`` is one of the contract's lengths.
    """
    first = -(-round(fleet.seconds(start)) // window_s) * window_s
    last = round(fleet.seconds(end)) // window_s * window_s
    make = _Frames(fleet)
    for grid in _grids(fleet, first, last, window_s):
        for table in tables:
            yield f"{table}_{_SUFFIX[window_s]}", make.frame(table, grid)


def windows(fleet: Fleet, start: datetime, end: datetime, window_s: int) -> int:
    """How many windows ``history`` gives."""
    return max(round(fleet.seconds(end)) // window_s + (-round(fleet.seconds(start)) // window_s), 0)


def _grids(fleet: Fleet, first: int, last: int, window_s: int) -> Iterator[Grid]:
    per_chunk = max(_ROWS // fleet.gpus, 1) * window_s
    midnight = round((86400 - fleet.seconds(fleet.origin.replace(hour=0))) % 86400)
    t = first
    while t < last:
        day_end = t + (midnight - t - 1) % 86400 + 1
        until = min(t + per_chunk, day_end, last)
        yield Grid(np.arange(t, until, window_s), window_s)
        t = until


class _Frames:
    """Frames of one fleet: what does not change from window to window is looked up once."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._outages = fleet, Outages(fleet)
        self._jobs: list[str | None] = [f"{job.number}" for job in fleet.jobs] + [None]
        self._stuck: dict[Fault, float] = {}

    def frame(self, table: str, grid: Grid) -> pl.DataFrame:
        return {"gpu": self._gpu, "link": self._link, "host": self._host}[table](grid)

    def _who(self, out: Columns, node: Array, boot: Array) -> None:
        fleet, boots = self._fleet, self._fleet.boots
        out.text("cluster", [fleet.spec.cluster], np.zeros((1, 1)))
        out.text("node_id", fleet.node_ids, node[None, :])
        out.text("node", fleet.node_names, node[None, :])
        ids = [fleet.boot_id(int(n), int(b)) for n, b in zip(boots.entity, boots.columns["boot"], strict=True)]
        out.text("boot_id", ids, boot)
        out.put(driver_load=boots.columns["load"][boot])

    def _gpu(self, grid: Grid) -> pl.DataFrame:
        fleet, s = self._fleet, GpuSignals(self._fleet, grid)
        out = Columns(f"gpu_{_SUFFIX[grid.length]}", grid, fleet, s.seen())
        self._who(out, fleet.node_of_gpu, s.boot)
        every = np.arange(fleet.gpus)[None, :]
        out.text("gpu_uuid", fleet.gpu_uuids, every)
        out.text("vendor", ["NVIDIA"], np.zeros((1, 1)))
        out.text("gpu_model_last", [MODEL], np.zeros((1, 1)))
        out.text("pci_bus_id_last", fleet.pci, every)
        out.put(gpu_index=every % fleet.spec.per_node, resets=s.resets)
        self._clocks(out, s, grid)
        self._heat(out, s)
        self._use(out, s)
        self._memory_and_links(out, s)
        job = s.value("job")
        out.text("job_id_last", self._jobs, job)
        out.text("job_role_last", [f"stage{i}" for i in range(4)] + [None], s.value("role"))
        out.put(job_rank_last=s.value("rank"))
        out.blank("job_rank_last", job < 0)
        return out.frame()

    def _clocks(self, out: Columns, s: GpuSignals, grid: Grid) -> None:
        busy = s.mean("busy")
        out.gauge("sm_clock_mhz", self._frozen("sm_clock_mhz", s.clock(), grid, s))
        out.steady("mem_clock_mhz", np.full((1, 1), 2619.0))
        out.put(gpu_idle_s=(1 - busy) * grid.length, other_clock_event_s=np.zeros((1, 1)))
        for bit in ("app_clocks", "sync_boost", "display"):
            out.put(**{f"{bit}_s": np.zeros((1, 1))})
        out.put(hw_slowdown_s=np.maximum(s.mean("power_brake"), s.mean("hw_thermal")) * grid.length)
        for bit, column in THROTTLES:
            out.put(**{f"{bit}_s": s.mean(column) * grid.length})
            out.counter(f"throttle_{bit}_ns", s.counter(column, 1e9), s.resets)
        out.put(pstate_last=np.zeros((1, 1)), max_sm_clock_mhz_last=np.full((1, 1), 1980))

    def _heat(self, out: Columns, s: GpuSignals) -> None:
        grid = s.grid
        power, temp = s.power(), s.temperature()
        out.gauge("power_w", self._frozen("power_w", power, grid, s))
        out.put(power_limit_w_last=np.full((1, 1), LIMIT_W), power_limit_enforced_w_last=np.full((1, 1), LIMIT_W))
        out.counter("energy_mj", s.counter("power_w", 1000.0), s.resets)
        out.gauge("temp_c", self._frozen("temp_c", temp, grid, s))
        over = 6.0 + 0.012 * power.mean * s.mean("dram")
        out.gauge("mem_temp_c", Gauge(temp.mean + over, temp.low + over, temp.high + over))
        out.gauge("temp_margin_c", Gauge(87.0 - temp.mean, 87.0 - temp.high, 87.0 - temp.low))

    def _use(self, out: Columns, s: GpuSignals) -> None:
        out.steady("gpu_util_percent", s.mean("util"))
        out.steady("mem_util_percent", 70.0 * s.mean("dram"), 0.05)
        for name in ("sm", "tensor"):
            g = s.gauge(name)
            out.gauge(f"{name}_active_ratio", Gauge(*(np.clip(x, 0.0, 1.0) for x in (g.mean, g.low, g.high))))
        out.steady("dram_active_ratio", s.mean("dram"), 0.05)
        out.steady("gr_engine_active_ratio", s.mean("util") / 100.0)
        out.put(mem_used_bytes_mean=s.mean("mem_bytes"), mem_total_bytes_last=np.full((1, 1), HBM_BYTES))
        out.put(processes_mean=s.mean("busy"), ecc_mode_last=np.ones((1, 1)))
        ms = s.call_ms()
        out.gauge("nvml_call_max_ms", Gauge(ms, 0.8 * ms, 1.6 * ms))

    def _memory_and_links(self, out: Columns, s: GpuSignals) -> None:
        out.put(pcie_gen_last=s.pcie_gen(), pcie_width_last=s.override("pcie_width", 16.0))
        out.put(pcie_gen_max_last=np.full((1, 1), 5), pcie_width_max_last=np.full((1, 1), 16))
        out.counter("pcie_replays", s.ramp("pcie_width", 0.02), s.resets)
        out.steady("pcie_tx_bytes_per_s", s.mean("pcie_rate"), 0.2)
        out.steady("pcie_rx_bytes_per_s", s.mean("pcie_rate"), 0.2)
        sent = s.counter("nvlink_rate")
        out.counter("nvlink_tx_bytes", sent, s.resets)
        out.counter("nvlink_rx_bytes", sent, s.resets)
        out.put(nvlink_links_active_last=np.full((1, 1), 18), nvlink_links_inactive_last=np.zeros((1, 1)))
        none = Counter(np.zeros((1, 1)), np.zeros((1, 1)))
        volatile, aggregate = s.corrected()
        for name in ("ecc_sbe_volatile", "ecc_sbe_volatile_device"):
            out.counter(name, volatile, s.resets)
        out.counter("ecc_sbe_aggregate", aggregate)
        for name in ("ecc_dbe_volatile", "ecc_dbe_aggregate", "row_remaps_uncorrectable", "row_remaps_correctable",
                     "nvlink_crc_data_errors", "nvlink_replay_errors", "nvlink_recovery_errors"):  # fmt: skip
            out.counter(name, none)
        for name in ("row_remap_failed", "row_remap_pending", "recovery_action", "sram_threshold_exceeded"):
            out.put(**{f"{name}_last": np.zeros((1, 1))})

    def _frozen(self, signal: str, g: Gauge, grid: Grid, s: GpuSignals) -> Gauge:
        """A stuck sensor repeats its last value in whole windows of the fault."""
        for f, seconds in s.active("stuck_sensor"):
            if f.extra.get("signal", "temp_c") == signal:
                if f not in self._stuck:
                    self._stuck[f] = stuck_value(self._fleet, f, signal)
                stays = seconds == grid.length
                for part in (g.mean, g.low, g.high):
                    part[stays, f.gpu] = self._stuck[f]
        return g

    def _link(self, grid: Grid) -> pl.DataFrame:
        fleet, state = self._fleet, read(self._fleet, self._outages, grid)
        hidden = hidden_seconds(fleet, grid, gpu=False)[:, fleet.node_of_link]
        out = Columns(f"link_{_SUFFIX[grid.length]}", grid, fleet, np.maximum(grid.length - hidden, 0))
        node, edges = fleet.node_of_link, grid.edges[:, None] - 1.0
        boot = fleet.boots.at(node[None, :], edges)
        self._who(out, node, boot[1:])
        ports = fleet.spec.per_node + 1
        eth = (np.arange(fleet.links) % ports == ports - 1)[None, :].astype(int)
        out.text("link", fleet.link_names, np.arange(fleet.links)[None, :])
        out.text("link_kind_last", ["infiniband", "ethernet"], eth)
        out.text("link_layer_last", ["InfiniBand", "Ethernet"], eth)
        out.text("state_last", ["down", "active"], state.up)
        out.text("phys_state_last", ["Polling", "LinkUp"], state.up)
        rebooted = np.diff(fleet.boots.columns["boot"][boot], axis=0)
        out.put(resets=rebooted)
        rate = np.where(eth > 0, ETH_GBPS, IB_GBPS)
        out.gauge("rate_gbps", Gauge(rate, rate, rate))
        _outages(out, state)
        _counters(out, state, rebooted)
        return out.frame()

    def _host(self, grid: Grid) -> pl.DataFrame:
        fleet, length = self._fleet, grid.length
        seen = np.maximum(length - hidden_seconds(fleet, grid, gpu=False), 0)
        out = Columns(f"host_{_SUFFIX[length]}", grid, fleet, seen)
        nodes, s = np.arange(fleet.spec.nodes), GpuSignals(fleet, grid)
        node_edges = fleet.boots.at(nodes[None, :], grid.edges[:, None] - 1.0)
        boot = node_edges[1:]
        self._who(out, nodes, boot)
        out.put(resets=np.diff(node_edges, axis=0))
        busy = s.mean("busy").reshape(len(grid.start), -1, fleet.spec.per_node).mean(axis=2)
        noise = normal(fleet.spec.seed, 80, nodes[None, :], (grid.start // length).astype(np.int64)[:, None])
        cpu = np.clip(1.5 + 11.0 * busy + 0.4 * noise, 0.2, 100.0)
        out.steady("cpu_util_percent", cpu, 0.2)
        out.steady("load1", 1.92 * cpu, 0.1)
        out.put(cpus_last=np.full((1, 1), 192), mem_total_bytes_last=np.full((1, 1), 2164663517184))
        out.steady("mem_available_bytes", np.floor(2.1e12 * (0.97 - 0.35 * busy)))
        out.put(
            uptime_s_last=grid.edges[1:, None]
            - 1.0
            - fleet.boots.start[boot]
            + 864000.0 * (fleet.boots.start[boot] < 0)
        )
        out.text("driver_version_last", fleet.drivers, nodes[None, :])
        out.text("kernel_last", ["5.15.0-1064-nvidia"], np.zeros((1, 1)))
        out.text("node_id_source_last", ["configured"], np.zeros((1, 1)))
        out.put(clock_synced_last=np.ones((1, 1)), nvml_up_last=np.ones((1, 1)))
        offset = 2e-5 * noise.astype(np.float64)
        out.gauge("clock_offset_s", Gauge(offset, offset - 1e-5, offset + 1e-5))
        here = (s.seen() > 0).reshape(len(grid.start), -1, fleet.spec.per_node).sum(axis=2)
        out.steady("gpus_expected", np.full((1, 1), float(fleet.spec.per_node)))
        out.steady("gpus_read", here.astype(np.float64))
        out.put(samples_expected_sum=seen * 4.0, samples_taken_sum=seen * 4.0, samples_missed_sum=np.zeros((1, 1)),
                collect_errors_sum=np.zeros((1, 1)))  # fmt: skip
        ms = s.call_ms().reshape(len(grid.start), -1, fleet.spec.per_node).max(axis=2)
        out.gauge("nvml_call_max_ms", Gauge(ms, 0.8 * ms, 1.6 * ms))
        return out.frame()


def _outages(out: Columns, state: LinkState) -> None:
    zero = np.zeros((1, 1))
    out.put(down_s_sum=state.down_s, downs_sum=state.downs, unseen_s_sum=zero)
    out.gauge("outage_s", Gauge(np.minimum(state.outage_s, state.down_s / 2), zero, state.outage_s))


def _counters(out: Columns, state: LinkState, reset: Array) -> None:
    out.counter("carrier_changes", state.carrier_changes, reset)
    out.counter("link_downed", state.link_downed, reset)
    out.counter("link_error_recovery", state.recoveries, reset)
    out.counter("symbol_errors", state.symbol_errors, reset)
    for name in ("tx_bytes", "rx_bytes"):
        out.counter(name, state.tx_bytes, reset)
    for name in ("tx_packets", "rx_packets"):
        out.counter(name, state.tx_packets, reset)
    none = Counter(np.zeros((1, 1)), np.zeros((1, 1)))
    for name in ("rx_errors", "tx_discards", "integrity_errors", "buffer_overruns"):
        out.counter(name, none)
