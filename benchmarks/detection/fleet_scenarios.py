"""What happens to many at once and is no node's fault: none of these may name a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from graynode.benchmarks.detection.fleet_site import Put, Site
from graynode.benchmarks.detection.window_faults import Measured, Place, silent

START_S: Final = 300.0
ROUNDS: Final = 80
"""Forty minutes: five before it begins, and as long again as it takes to tell a slowdown of 5 %."""
_RACK: Final = 8
_NEW_DRIVER: Final = "580.65.06"
_WAVE_S, _AWAY_S = 600.0, 120.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """``put`` changes the windows; ``works`` are the jobs it makes."""

    name: str
    put: Put
    works: pl.DataFrame | None = None


Make = Callable[[Site, np.random.Generator], Scenario]


def driver_slowdown(site: Site, _rng: np.random.Generator) -> Scenario:
    """A setting that all nodes share takes 8 % of every clock."""

    def put(m: Measured, t: float) -> None:
        if t >= START_S:
            m.scale("gpu", "sm_clock_mhz", m.every("gpu"), 0.92)

    return Scenario("fleet_wide_slowdown", put)


def rolling_upgrade(site: Site, rng: np.random.Generator) -> Scenario:
    """A driver that is 5 % slower comes in three waves; jobs on a wave's nodes begin anew, on old and new drivers."""
    wave = {node: int(w) for node, w in zip(site.node_ids, rng.integers(0, 3, len(site.node_ids)), strict=True)}
    per_node, fleet = site.fleet.spec.per_node, site.fleet
    touched = {str(j.number): {wave[fleet.node_ids[g // per_node]] for g in j.gpus} for j in fleet.jobs}
    works = pl.DataFrame(
        [{"job_id": f"{j.number}.{w}", "work": j.kind.name} for j in fleet.jobs for w in range(3)],
        schema={"job_id": pl.String, "work": pl.String},
    )

    def put(m: Measured, t: float) -> None:
        begun = int((t - START_S) // _WAVE_S) if t >= START_S else -1
        for node, w in wave.items():
            since = t - START_S - w * _WAVE_S
            if 0 <= since < _AWAY_S:
                silent(m, Place(node), since, 1.0, rng)
            elif since >= _AWAY_S:
                _upgraded(m, node)
        _renamed(m, begun, touched)

    return Scenario("rolling_driver_upgrade", put, works)


def _upgraded(m: Measured, node: str) -> None:
    rows = m.rows("gpu", node)
    m.scale("gpu", "sm_clock_mhz", rows, 0.95)
    m.scale("gpu", "driver_load", rows, 1.0, 1.0)
    m.write("host", "driver_version_last", m.rows("host", node), _NEW_DRIVER)


def _renamed(m: Measured, begun: int, touched: dict[str, set[int]]) -> None:
    jobs = m.text("gpu", "job_id_last")
    for row, job in enumerate(jobs):
        done = [w for w in touched.get(job or "", ()) if w <= begun]
        if job is not None and done:
            m.write("gpu", "job_id_last", np.array([row]), f"{job}.{max(done)}")


def hot_rack(site: Site, rng: np.random.Generator) -> Scenario:
    """The inlet of one rack is 8 degrees warmer, reached in a quarter of an hour."""
    racks = len(site.node_ids) // _RACK
    rack = int(rng.integers(racks))
    nodes = site.node_ids[rack * _RACK : (rack + 1) * _RACK]

    def put(m: Measured, t: float) -> None:
        degrees = 8.0 * float(np.clip((t - START_S) / 900.0, 0.0, 1.0))
        for node in nodes if degrees else ():
            rows = m.rows("gpu", node)
            m.scale("gpu", "temp_c", rows, 1.0, degrees)
            m.scale("gpu", "mem_temp_c", rows, 1.0, degrees)
            m.scale("gpu", "temp_margin_c", rows, 1.0, -degrees)

    return Scenario("hot_rack", put)


def job_imbalance(site: Site, _rng: np.random.Generator) -> Scenario:
    """One job runs 6 % below its clocks on all ranks; in another, half of the ranks have a quarter less to do."""
    large = sorted(site.at_work(3600.0), key=lambda j: -len(j.gpus))[:2]
    all_slow, uneven = (str(j.number) for j in large)
    less = {site.fleet.gpu_uuids[g] for g in large[1].gpus[: len(large[1].gpus) // 2]}

    def put(m: Measured, t: float) -> None:
        if t < START_S:
            return
        jobs, uuids = m.text("gpu", "job_id_last"), m.text("gpu", "gpu_uuid")
        m.scale("gpu", "sm_clock_mhz", np.flatnonzero([j == all_slow for j in jobs]), 0.94)
        rows = np.flatnonzero([j == uneven and u in less for j, u in zip(jobs, uuids, strict=True)])
        for name in ("power_w", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"):
            m.scale("gpu", name, rows, 0.75)

    return Scenario("whole_job_imbalance", put)


def noisy_tenants(site: Site, rng: np.random.Generator) -> Scenario:
    """A dozen nodes are let by the GPU: each tenant's load, power and clock jump from window to window."""
    nodes = rng.choice(site.node_ids, min(12, len(site.node_ids) // 4), replace=False).tolist()

    def put(m: Measured, _t: float) -> None:
        for node in nodes:
            rows = m.rows("gpu", node)
            load = rng.random(len(rows))
            m.scale("gpu", "gpu_util_percent", rows, 0.0, 100.0 * load)
            m.scale("gpu", "gpu_idle_s", rows, 0.0, np.where(load < 0.2, 20.0, 0.0))
            m.put("gpu", "pcie_gen_last", rows, 5.0)
            m.scale("gpu", "power_w", rows, 0.0, 120.0 + 560.0 * load)
            m.scale("gpu", "sm_clock_mhz", rows, 1.0 - 0.08 * rng.random(len(rows)))
            m.scale("gpu", "temp_c", rows, 0.0, 35.0 + 30.0 * load)
            m.scale("gpu", "mem_temp_c", rows, 0.0, 42.0 + 36.0 * load)
            for i, row in enumerate(rows.tolist()):
                m.write("gpu", "job_id_last", np.array([row]), f"tenant-{node[:8]}-{i}")
                m.write("gpu", "job_role_last", np.array([row]), None)

    return Scenario("noisy_tenants", put)


def blind_at_once(site: Site, rng: np.random.Generator) -> Scenario:
    """Two fifths of the nodes fall silent in one window: 500 of 1,250."""
    nodes = rng.choice(site.node_ids, round(0.4 * len(site.node_ids)), replace=False).tolist()

    def put(m: Measured, t: float) -> None:
        if t >= START_S:
            for node in nodes:
                silent(m, Place(node), t - START_S, 1.0, rng)

    return Scenario("blind_at_once", put)


SCENARIOS: Final[tuple[Make, ...]] = (
    driver_slowdown, rolling_upgrade, hot_rack, job_imbalance, noisy_tenants, blind_at_once,
)  # fmt: skip
