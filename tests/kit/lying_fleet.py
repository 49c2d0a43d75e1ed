"""A fleet in which telemetry lies in every way at once: nine exporters and five agents, landed in a lake."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import landing_kit
import node_files
import polars as pl
from exporter_standin import DEFAULT, line, page, uuid_of
from landing_kit import CLUSTER, Log, at, gpu_row, host_row, link_row, message

from graynode.collectors.batch import Batcher, Misfits
from graynode.collectors.dcgm.collector import Dcgm
from graynode.collectors.dcgm.http import Fetched
from graynode.collectors.dcgm.targets import fleet_target
from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries

DEV, PROF = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
STEPS, STEP_S = 36, 10
NODES = (
    "healthy", "sentinels", "vanishing", "xid_level", "profiler_dead", "mig", "energy", "lost_gpu", "silent",
)  # fmt: skip


def body(node: str, step: int) -> Fetched:
    """The exporter's page of that node then, with its lie."""
    n = NODES.index(node)
    values: dict[str, Any] = {**DEFAULT, f"{DEV}TOTAL_ENERGY_CONSUMPTION": 10**9 + step * STEP_S * 300_000}
    values |= {f"{DEV}POWER_USAGE": 310 + step % 5, f"{PROF}SM_ACTIVE": 0.8}
    late = step >= STEPS // 2
    gpus, more = 8, b""
    if node == "sentinels":
        values |= {f"{DEV}GPU_UTIL": "9223372036854776000", f"{DEV}MEMORY_TEMP": "9223372036854775794"}
        values |= {
            f"{PROF}SM_ACTIVE": "140737488355328.0",
            f"{PROF}DRAM_ACTIVE": "1.4e16",
            f"{DEV}GPU_TEMP": "<<<NULL>>>",
        }
    elif node == "vanishing" and late:
        del values[f"{DEV}CORRECTABLE_REMAPPED_ROWS"]
    elif node == "xid_level":
        values[f"{DEV}XID_ERRORS"] = 62 if late else 0
    elif node == "profiler_dead":
        values |= {name: 0 for name in values if name.startswith(PROF)} if late else {}
        values[f"{DEV}GPU_UTIL"] = 100
    elif node == "mig":
        more = line(f"{PROF}SM_ACTIVE", "1.37", 0, n, GPU_I_ID="7", GPU_I_PROFILE="1g.10gb").encode()
        more += line(f"{PROF}SM_ACTIVE", "0.51", 0, n, GPU_I_ID="8", GPU_I_PROFILE="1g.10gb").encode()
        more += line(f"{DEV}FB_USED", 3, 0, n, GPU_I_ID="FAILED TO CONVERT").encode()
    elif node == "energy":
        values[f"{DEV}TOTAL_ENERGY_CONSUMPTION"] = 0 if step < 6 else 10**9 + step if not late else 5000 + step
    elif node == "lost_gpu" and late:
        gpus = 7
    return Fetched(error="timed out") if node == "silent" and late else Fetched(page(gpus, values, node=n) + more)


def _agents(log: Log) -> None:
    """Nodes with an agent: at 1 Hz, in messages of ten seconds."""
    for step in range(30):
        seconds = [10 * step + s for s in range(10)]
        idle_gen1 = [gpu_row(s, "pcie", pcie_gen=1 + 3 * (s % 2), pcie_width=16, pcie_gen_max=4, pcie_width_max=16,
                             gpu_util_percent=0, clock_event_reasons=1) for s in seconds]  # fmt: skip
        slow_gen2 = [gpu_row(s, "pcie", gpu="GPU-slow", pcie_gen=2, pcie_width=16, pcie_gen_max=4, pcie_width_max=16,
                             gpu_util_percent=100, clock_event_reasons=0, power_w=400.0) for s in seconds]  # fmt: skip
        _send(log, "pcie", "gpu", [*idle_gen1, *slow_gen2], step)
        text = [gpu_row(s, "text", gpu_model="[N/A]" if s % 2 else "NVIDIA T4", pci_bus_id="ERR!", recovery_action=7,
                        clock_event_reasons=0x200, temp_margin_c=-3, power_w=60.0) for s in seconds]  # fmt: skip
        _send(log, "text", "gpu", text, step)
        legal = [gpu_row(s, "legal", mem_used_bytes=2147483634, energy_mj=2147483632 + s, temp_c=2147483634,
                         nvlink_tx_bytes=140737488355328, pcie_replays=(2**32 - 100 + s) % 2**32)
                 for s in seconds]  # fmt: skip
        _send(log, "legal", "gpu", legal, step)
        port = [link_row(s, "port", link_downed=255, symbol_errors=min(65535, 65500 + s)) for s in seconds]
        _send(log, "port", "link", port, step)
        due = [host_row(s, "deaf", samples_expected=4.0, samples_taken=2.4, nvml_call_max_ms=46_000.0) for s in seconds]
        _send(log, "deaf", "host", due, step)


def _send(log: Log, node: str, table: str, rows: list[dict[str, Any]], sequence: int) -> None:
    log.add(message(rows, table=table, sequence=sequence), 10 * sequence + 11)


@dataclass
class World:
    """What all of it has become."""

    lake: Lake
    queries: Queries
    misfits: Misfits
    rejected: list[str] = field(default_factory=list)

    def raw(self, node: str, gpu: int | None = None) -> pl.DataFrame:
        rows = landing_kit.rows(self.lake, "gpu").filter(pl.col("node") == node)
        if gpu is None:
            return rows
        return rows.filter(pl.col("mig_instance").is_null(), gpu_uuid=uuid_of(gpu, NODES.index(node)))

    def told(self, node: str, name: str) -> list[tuple[str, str]]:
        """Entity and state, of a field of that node."""
        sql = f"SELECT entity, state FROM quality_now WHERE node = '{node}' AND field = '{name}' ORDER BY entity"
        return [(row["entity"], row["state"]) for row in self.queries.rows(sql)]

    def states(self, node: str, name: str) -> set[str]:
        return {state for _, state in self.told(node, name)}


def build(folder: Path) -> World:
    """Six minutes of it, landed in three polls and closed."""
    machine = node_files.node(folder, cluster=CLUSTER)
    dcgm = Dcgm(machine, fleet=[f"{node}:9400" for node in NODES])
    log, misfits, now = Log(), Misfits(), [at(0)]
    batcher = Batcher(machine, 1, driver_load=lambda: 4, now=lambda: now[0], misfits=misfits)
    nodes = {node: dcgm.scraper.make(fleet_target(f"{node}:9400")) for node in NODES}
    arriving: list[tuple[float, Any]] = []
    for step in range(STEPS):
        for node, scraped in nodes.items():
            second = step * STEP_S
            now[0] = at(second)
            batcher.add(scraped.take(body(node, step), at(second), second, 0.01), at(second))
            arriving += [(second + 1, sent) for _, sent in batcher.take()]
    agents = Log()
    _agents(agents)
    arriving += [(10.0 * i / 5 + 11, one.message) for i, one in enumerate(agents.received)]
    for second, sent in sorted(arriving, key=lambda pair: pair[0]):
        log.add(sent, second)
    rejected = landing_kit.Rejected()
    lake = Lake(str(folder / "lake"))
    carrier = landing_kit.landing(lake, 10_000, rejected)
    landing_kit.carry(carrier, log, [300, 300])
    for _ in range(2):
        carrier.commit({log.partition: len(log.received)}, everything=True)
    return World(lake, Queries(lake), misfits, [why for _, why in rejected.letters])
