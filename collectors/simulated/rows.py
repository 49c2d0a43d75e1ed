"""Rows of a simulated fleet at single seconds, as its machines' agents would give them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from graynode.collectors.base import Row
from graynode.collectors.simulated.events import Told, inventory
from graynode.collectors.simulated.faults import Fault
from graynode.collectors.simulated.fleet import MODEL, Fleet
from graynode.collectors.simulated.links import ETH_GBPS, IB_GBPS, Outages, read
from graynode.collectors.simulated.load import HBM_BYTES, LIMIT_W
from graynode.collectors.simulated.noise import Array, normal, uniform
from graynode.collectors.simulated.signals import THROTTLES, Gauge, GpuSignals, Grid, hidden_seconds, stuck_value
from graynode.pipeline.schema import CLOCK_EVENT_BITS

_CATCH_UP_S: Final = 900.0
"""Events since the end of history are told at the first round, if it comes within this time."""


class LiveRows:
    """Rows of a fleet at single seconds."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._outages = Outages(fleet)
        self._told = Told(fleet, self._outages)
        self._until: float | None = None
        self._ports_at: int | None = None
        self._stuck: dict[Fault, float] = {}

    def further(self, t: float) -> LiveRows:
        """The same fleet, known for a week after ``t``."""
        view = LiveRows(self.fleet.ahead((t - self.fleet.now_s) / 86400.0 + 7.0))
        view._until, view._ports_at = self._until, self._ports_at
        return view

    def happened(self, t: float) -> Iterable[tuple[str, Row]]:
        """Events and job rows since the last asking; the inventory at the first."""
        if self._until is None:
            yield from (("inventory", row) for row in inventory(self.fleet, t))
        since = max(self.fleet.now_s, t - _CATCH_UP_S) if self._until is None else self._until
        yield from self._told.between(since, t)
        self._until = max(t, since)

    def gpus(self, second: int, due: frozenset[int]) -> list[Row]:
        """One row for each GPU that answers."""
        fleet, s = self.fleet, GpuSignals(self.fleet, Grid(np.array([second]), 1))
        columns: dict[str, Sequence[Any]] = {
            **self._who(fleet.node_of_gpu, s.boot[0]),
            "vendor": ["NVIDIA"] * fleet.gpus, "gpu_uuid": fleet.gpu_uuids,
            "gpu_index": list(range(fleet.spec.per_node)) * fleet.spec.nodes,
            "gpu_model": [MODEL] * fleet.gpus, "pci_bus_id": fleet.pci, "mem_clock_mhz": [2619] * fleet.gpus,
            "pstate": [0] * fleet.gpus,
        }  # fmt: skip
        power, temp, clock = s.power(), s.temperature(), s.clock()
        flicker = 1.0 + 0.02 * normal(fleet.spec.seed, 96, np.arange(fleet.gpus), np.full(1, second))
        for name, g in (("power_w", power), ("temp_c", temp), ("sm_clock_mhz", clock)):
            self._freeze(name, g, s)
        whole = {
            "sm_clock_mhz": clock.mean, "temp_c": temp.mean, "gpu_util_percent": s.value("util"),
            "mem_util_percent": 70.0 * s.value("dram"), "energy_mj": s.counter("power_w", 1000.0).last,
            "mem_temp_c": temp.mean + 6.0 + 0.012 * power.mean * s.value("dram"),
            "clock_event_reasons": self._reasons(s, second), "pcie_gen": s.pcie_gen(),
            "pcie_width": s.override("pcie_width", 16.0),
        }  # fmt: skip
        real = {
            "power_w": power.mean, "power_instant_w": power.mean * flicker, "dram_active_ratio": s.value("dram"),
            "sm_active_ratio": np.clip(s.gauge("sm").mean, 0, 1), "nvml_call_max_ms": s.call_ms(),
            "tensor_active_ratio": np.clip(s.gauge("tensor").mean, 0, 1),
            "gr_engine_active_ratio": s.value("util") / 100.0,
            "pcie_tx_bytes_per_s": s.value("pcie_rate"), "pcie_rx_bytes_per_s": s.value("pcie_rate"),
            "nvlink_tx_bytes_per_s": s.value("nvlink_rate"), "nvlink_rx_bytes_per_s": s.value("nvlink_rate"),
        }  # fmt: skip
        if 10 in due:
            whole |= self._every_10(s, temp)
        if 60 in due:
            whole |= self._every_60(s)
            real |= {
                f"power_limit{x}_w": np.full((1, fleet.gpus), LIMIT_W) for x in ("", "_max", "_default", "_enforced")
            }
        columns |= {name: np.rint(v[0]).astype(np.int64).tolist() for name, v in whole.items()}
        columns |= {name: np.round(v[0].astype(np.float64), 4).tolist() for name, v in real.items()}
        columns |= self._jobs(s)
        return _rows(columns, s.seen()[0] > 0)

    def _jobs(self, s: GpuSignals) -> dict[str, list[Any]]:
        jobs, job = self.fleet.jobs, s.value("job")[0].tolist()
        role, rank = s.value("role")[0].tolist(), s.value("rank")[0].tolist()
        return {
            "job_id": [str(jobs[j].number) if j >= 0 else None for j in job],
            "job_role": [f"stage{int(r)}" if r >= 0 else None for r in role],
            "job_rank": [int(r) if j >= 0 else None for j, r in zip(job, rank, strict=True)],
        }

    def _every_10(self, s: GpuSignals, temp: Gauge) -> dict[str, Array]:
        zero = np.zeros((1, self.fleet.gpus))
        used = s.value("mem_bytes")[:1]
        volatile, aggregate = s.corrected()
        names = ("ecc_dbe_volatile", "ecc_dbe_aggregate", "row_remap_failed", "row_remap_pending", "recovery_action",
                 "nvlink_links_inactive", "nvlink_links_sleep", "nvlink_crc_data_errors", "nvlink_replay_errors",
                 "nvlink_recovery_errors")  # fmt: skip
        out = dict.fromkeys(names, zero)
        for bit, column in THROTTLES:
            out[f"throttle_{bit}_ns"] = s.counter(column, 1e9).last
        sent = s.counter("nvlink_rate").last
        return out | {
            "temp_margin_c": 87.0 - temp.mean, "mem_total_bytes": np.full_like(zero, HBM_BYTES), "mem_used_bytes": used,
            "mem_free_bytes": HBM_BYTES - used, "pcie_replays": s.ramp("pcie_width", 0.02).last,
            "nvlink_tx_bytes": sent, "nvlink_rx_bytes": sent, "nvlink_links_active": zero + 18,
            "ecc_sbe_volatile": volatile.last, "ecc_sbe_aggregate": aggregate.last, "processes": s.value("busy"),
        }  # fmt: skip

    def _every_60(self, s: GpuSignals) -> dict[str, Array]:
        one = np.ones((1, self.fleet.gpus))
        return {
            "max_sm_clock_mhz": 1980 * one, "max_mem_clock_mhz": 2619 * one, "ecc_mode": one, "ecc_mode_pending": one,
            "pcie_gen_max": 5 * one, "pcie_width_max": 16 * one, "persistence_mode": one, "mig_mode": 0 * one,
            "ecc_sbe_volatile_device": s.corrected()[0].last, "sram_threshold_exceeded": 0 * one,
            "row_remaps_uncorrectable": 0 * one, "row_remaps_correctable": 0 * one,
        }  # fmt: skip

    def _reasons(self, s: GpuSignals, second: int) -> Array:
        idle = (s.value("busy") == 0) * float(CLOCK_EVENT_BITS["gpu_idle"])
        for bit, column in THROTTLES:
            draw = uniform(self.fleet.spec.seed, 97, np.arange(self.fleet.gpus), np.full(1, second))
            on = draw < s.value(column)
            idle = idle + on * float(CLOCK_EVENT_BITS[bit])
            if bit in ("hw_thermal", "hw_power_brake"):
                idle = np.where(on & (idle.astype(int) & CLOCK_EVENT_BITS["hw_slowdown"] == 0),
                                idle + CLOCK_EVENT_BITS["hw_slowdown"], idle)  # fmt: skip
        out: Array = idle
        return out

    def _freeze(self, signal: str, g: Gauge, s: GpuSignals) -> None:
        for f, seconds in s.active("stuck_sensor"):
            if f.extra.get("signal", "temp_c") == signal and seconds[0]:
                if f not in self._stuck:
                    self._stuck[f] = stuck_value(self.fleet, f, signal)
                g.mean[0, f.gpu] = self._stuck[f]

    def ports(self, second: int, due: frozenset[int]) -> list[Row]:
        """One row for each port of each machine, amounts since the round before."""
        fleet = self.fleet
        since = self._ports_at if self._ports_at is not None and second - 3600 < self._ports_at < second else second - 1
        grid, self._ports_at = Grid(np.array([since + 1]), second - since), second
        state = read(fleet, self._outages, grid)
        ports = fleet.spec.per_node + 1
        eth = np.arange(fleet.links) % ports == ports - 1
        boot = fleet.boots.at(fleet.node_of_link, np.full(1, float(second)))
        up = state.up[0]
        columns: dict[str, Sequence[Any]] = {
            **self._who(fleet.node_of_link, boot), "link": fleet.link_names,
            "link_kind": np.where(eth, "ethernet", "infiniband").tolist(),
            "state": np.where(up, "active", "down").tolist(), "rate_gbps": np.where(eth, ETH_GBPS, IB_GBPS).tolist(),
            "down_s": state.down_s[0].tolist(), "downs": state.downs[0].tolist(),
            "outage_s": state.outage_s[0].tolist(), "unseen_s": [0.0] * fleet.links,
        }  # fmt: skip
        counters = {"carrier_changes": state.carrier_changes, "link_downed": state.link_downed}
        if 10 in due:
            counters |= {"link_error_recovery": state.recoveries, "symbol_errors": state.symbol_errors,
                         "tx_bytes": state.tx_bytes, "rx_bytes": state.tx_bytes, "tx_packets": state.tx_packets,
                         "rx_packets": state.tx_packets}  # fmt: skip
            columns["phys_state"] = np.where(up, "LinkUp", "Polling").tolist()
            columns |= {
                name: [0] * fleet.links for name in ("rx_errors", "tx_discards", "integrity_errors", "buffer_overruns")
            }
        if 60 in due:
            columns["link_layer"] = np.where(eth, "Ethernet", "InfiniBand").tolist()
        columns |= {name: c.last[0].astype(np.int64).tolist() for name, c in counters.items()}
        hidden = hidden_seconds(fleet, Grid(np.array([second]), 1), gpu=False)[0]
        return _rows(columns, hidden[fleet.node_of_link] == 0)

    def hosts(self, second: int, due: frozenset[int]) -> list[Row]:
        """One row for each machine."""
        fleet, n = self.fleet, self.fleet.spec.nodes
        grid = Grid(np.array([second]), 1)
        s, nodes = GpuSignals(fleet, grid), np.arange(n)
        boot = fleet.boots.at(nodes, np.full(1, float(second)))
        busy = s.value("busy").reshape(n, -1).mean(axis=1)
        noise = normal(fleet.spec.seed, 81, nodes, np.full(1, second)).astype(np.float64)
        cpu = np.clip(1.5 + 11.0 * busy + 0.8 * noise, 0.2, 100.0)
        up_since = fleet.boots.start[boot]
        columns: dict[str, Sequence[Any]] = {
            **self._who(nodes, boot), "cpu_util_percent": cpu.tolist(), "cpu_iowait_percent": [0.0] * n,
            "load1": (1.92 * cpu).tolist(),
            "mem_available_bytes": (2.1e12 * (0.97 - 0.35 * busy)).astype(np.int64).tolist(),
            "uptime_s": (second - up_since + 864000.0 * (up_since < 0)).tolist(), "nvml_up": [1] * n,
            "samples_expected": [4.0] * n, "samples_taken": [4.0] * n, "samples_missed": [0.0] * n,
            "collect_errors": [0.0] * n, "nvml_call_max_ms": s.call_ms()[0].reshape(n, -1).max(axis=1).tolist(),
        }  # fmt: skip
        if 10 in due:
            lost = s.override("gpu_lost", 0.0)[0].reshape(n, -1).sum(axis=1)
            columns |= {"clock_synced": [1] * n, "clock_offset_s": (2e-5 * noise).tolist(), "swap_used_bytes": [0] * n,
                        "gpus_expected": [fleet.spec.per_node] * n, "spool_bytes": [0] * n,
                        "gpus_read": (fleet.spec.per_node - lost).astype(int).tolist()}  # fmt: skip
        if 60 in due:
            columns |= {"cpus": [192] * n, "mem_total_bytes": [2164663517184] * n, "driver_version": fleet.drivers,
                        "kernel": ["5.15.0-1064-nvidia"] * n, "driver_kind": ["open"] * n,
                        "product_name": ["DGX H100"] * n, "node_id_source": ["configured"] * n}  # fmt: skip
        return _rows(columns, hidden_seconds(fleet, grid, gpu=False)[0] == 0)

    def _who(self, node: Array, boot: Array) -> dict[str, Sequence[Any]]:
        fleet, boots = self.fleet, self.fleet.boots
        numbers = boots.columns["boot"][boot].tolist()
        return {
            "cluster": [fleet.spec.cluster] * len(node),
            "node": [fleet.node_names[n] for n in node], "node_id": [fleet.node_ids[n] for n in node],
            "boot_id": [fleet.boot_id(int(n), b) for n, b in zip(node, numbers, strict=True)],
            "driver_load": boots.columns["load"][boot].tolist(),
        }  # fmt: skip


def _rows(columns: dict[str, Sequence[Any]], seen: Array) -> list[Row]:
    names = tuple(columns)
    whole = zip(*columns.values(), strict=True)
    if seen.all():
        return [dict(zip(names, values, strict=True)) for values in whole]
    return [dict(zip(names, values, strict=True)) for values, here in zip(whole, seen.tolist(), strict=True) if here]
