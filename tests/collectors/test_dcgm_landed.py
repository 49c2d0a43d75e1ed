"""Exporter pages on their whole way: batch, codec, landing, windows, lake, and what detectors make of them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import landing_kit
import node_files
import polars as pl
from exporter_standin import DEFAULT, page, uuid_of
from landing_kit import CLUSTER, Log, at

from graynode.collectors.batch import Batcher, Misfits
from graynode.collectors.dcgm.collector import Dcgm
from graynode.collectors.dcgm.http import Fetched
from graynode.collectors.dcgm.node import Node
from graynode.collectors.dcgm.targets import fleet_target, own_target
from graynode.detectors.base import TOLD, Round
from graynode.detectors.blind import Blind
from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries

STEP_S = 10


class Fleet:
    """Three nodes behind one agent, ten seconds apart, into a log as the bus would have it."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        machine = node_files.node(folder, cluster=CLUSTER)
        self.dcgm = Dcgm(machine, ["http://127.0.0.1:9400"], fleet=[f"n{n}:9400" for n in range(nodes)])
        self.nodes: list[Node] = [self.dcgm.scraper.make(fleet_target(f"n{n}:9400")) for n in range(nodes)]
        self.misfits, self.log = Misfits(), Log()
        self._now = at(0)
        self._batcher = Batcher(machine, 1, driver_load=lambda: 4, now=lambda: self._now, misfits=self.misfits)

    def scrape(self, node: Node, second: float, fetched: Fetched) -> None:
        """One attempt; its rows are sent at once."""
        self._now = at(second)
        self._batcher.add(node.take(fetched, at(second), second, 0.012), at(second))
        for topic, message in self._batcher.take():
            assert topic == "graynode.samples"
            self.log.add(message, second + 1)

    def land(self, folder: Path) -> Lake:
        """Everything in the lake, windows closed."""
        assert self.misfits.counts == {}
        return landing_kit.land(folder, self.log)


def body(n: int, second: float, **other: Any) -> Fetched:
    """Node ``n``'s page then: energy grows by 300 W per GPU."""
    energy = 10**9 + round(second * 300e3)
    return Fetched(page(8, {**DEFAULT, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": energy, **other}, node=n))


def test_five_minutes_of_a_fleet_in_the_lake(tmp_path: Path) -> None:
    """Each exporter's rows are a machine's own: none dropped as repeats, windows expect three samples and have them,
    counters grow, inventory and quality say what they are of; this node's exporter is this machine's; no misfits."""
    fleet = Fleet(tmp_path)
    own = fleet.dcgm.scraper.make(own_target("http://127.0.0.1:9400"))
    for step in range(30):
        for n, node in enumerate(fleet.nodes):
            second = step * STEP_S + n * 3.3
            fleet.scrape(node, second, body(n, second))
        fleet.scrape(own, step * STEP_S, body(9, step * STEP_S))
    lake = fleet.land(tmp_path / "lake")
    everything = landing_kit.rows(lake, "gpu")
    mine = everything.filter(node_id="machine-1")
    assert mine.height == 30 * 8
    assert set(mine["boot_id"]) == {"11111111-2222-3333-4444-555555555555"}
    assert set(mine["driver_load"]) == {4}
    raw = everything.filter(pl.col("node_id") != "machine-1")
    assert raw.height == 30 * 3 * 8
    assert set(raw["node_id"]) == {node.node_id for node in fleet.nodes}
    assert set(raw["node"]) == {"n0", "n1", "n2"}
    assert raw["boot_id"].null_count() == raw.height
    assert raw["mem_used_bytes"].unique().to_list() == [58541 << 20]
    windows = landing_kit.rows(lake, "gpu_30s").filter((pl.col("ts") >= at(30)) & (pl.col("ts") < at(270)))
    assert set(windows["samples_expected"]) == {3}
    assert set(windows["samples"]) == {3}
    assert set(windows["resets"]) == {0}
    grown = windows.group_by("gpu_uuid").agg(pl.col("energy_mj_delta").sum())["energy_mj_delta"]
    assert len(grown) == 32
    assert grown.is_between(300e3 * 230, 300e3 * 250).all()
    hosts = landing_kit.rows(lake, "host_30s").filter((pl.col("ts") >= at(30)) & (pl.col("ts") < at(270)))
    assert set(hosts["samples_expected"]) == {3}
    assert set(hosts["samples_taken_sum"]) == {3.0}
    assert set(hosts["gpus_read_max"]) == {8}
    hour = landing_kit.rows(lake, "gpu_1h")
    assert set(hour["samples_expected"]) == {360}
    known = landing_kit.rows(lake, "inventory").filter(kind="node")
    assert all(json.loads(text)["identity"] == "unconfirmed" for text in known["attributes"])
    told = landing_kit.rows(lake, "quality")
    assert set(told.filter(pl.col("field") != "*")["state"]) == {"unsupported"}
    assert told.filter(table_name="gpu", field="*")["state"].unique().to_list() == ["measured"]


def test_page_that_is_refreshed_every_half_minute_is_one_sample_in_half_a_minute(tmp_path: Path) -> None:
    """dcgm-exporter reads every 30 s by default: the same page again is no new sample, windows expect what there is,
    and a clock that is held down all the time counts 30 s in 30 s, not an impossible 30 s in 10."""
    fleet = Fleet(tmp_path, nodes=1)
    held = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"
    for step in range(36):
        read = step // 3 * 30
        fleet.scrape(fleet.nodes[0], step * STEP_S + 4, body(0, read, **{held: 10**12 + read * 10**9}))
    lake = fleet.land(tmp_path / "lake")
    assert landing_kit.rows(lake, "gpu").height == 12 * 8
    assert fleet.dcgm.values.unchanged_pages == 24
    windows = landing_kit.rows(lake, "gpu_30s").filter(pl.col("ts") >= at(90))
    assert set(windows["samples"]) == set(windows["samples_expected"]) == {1}
    assert set(windows["throttle_hw_thermal_ns_delta"]) == {30 * 10**9}
    assert set(landing_kit.rows(lake, "host_30s").filter(pl.col("ts") >= at(30))["samples"]) == {3}


def test_counter_that_falls_and_field_that_vanishes(tmp_path: Path) -> None:
    """DCGM #171 and a reboot behind an exporter: no boot id tells it, the fall does, and no energy is negative. Which
    field of which GPU vanished, when and why is a question to SQL."""
    fleet = Fleet(tmp_path, nodes=1)
    without = {name: value for name, value in DEFAULT.items() if name != "DCGM_FI_DEV_MEMORY_TEMP"}
    for step in range(18):
        second = step * STEP_S
        energy = 5000 + step if step >= 9 else 10**9 + second * 300_000
        values = {**(DEFAULT if step < 6 else without), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": energy}
        fleet.scrape(fleet.nodes[0], second, Fetched(page(2, values)))
    lake = fleet.land(tmp_path / "lake")
    windows = landing_kit.rows(lake, "gpu_30s").filter(gpu_uuid=uuid_of(0))
    assert windows["resets"].sum() == 1
    assert windows["energy_mj_delta"].drop_nulls().min() >= 0
    assert windows["energy_mj_delta"].sum() == 80 * 300_000 + 8
    queries = Queries(lake)
    try:
        rows = queries.rows(
            "SELECT entity, ts, state, reason FROM quality "
            "WHERE field = 'mem_temp_c' AND table_name = 'gpu' ORDER BY entity"
        )
    finally:
        queries.close()
    assert [(row["entity"], row["ts"], row["state"]) for row in rows] == [
        (uuid_of(0), at(60), "stale"), (uuid_of(1), at(60), "stale"),
    ]  # fmt: skip
    assert "no longer on the page" in rows[0]["reason"]


def _rounds(lake: Lake, count: int) -> list[Round]:
    gpu, host = (landing_kit.rows(lake, f"{table}_30s") for table in ("gpu", "host"))
    empty = pl.DataFrame()

    def of(frame: pl.DataFrame, ts: datetime) -> pl.DataFrame:
        return frame.filter(pl.col("ts") == ts)

    starts = [at(30) + timedelta(seconds=30 * n) for n in range(count)]
    return [
        Round(start=ts, window_s=30, gpu=of(gpu, ts), link=empty, host=of(host, ts), events=empty, probes=empty,
              inventory=empty, quality=empty)
        for ts in starts
    ]  # fmt: skip


def test_blindness_is_told_of_the_silent_exporter_alone(tmp_path: Path) -> None:
    """Three samples in 30 s are all that was promised, so nobody is blind; the node whose exporter answers 500 for
    eight minutes is."""
    fleet = Fleet(tmp_path)
    for step in range(60):
        for n, node in enumerate(fleet.nodes):
            second = step * STEP_S + n * 3.3
            down = n == 1 and step >= 12
            fleet.scrape(node, second, Fetched(error="answers 500") if down else body(n, second))
    lake = fleet.land(tmp_path / "lake")
    found, state = [], {}
    for round_ in _rounds(lake, 18):
        scored = Blind().score(round_, state)
        state = scored.state
        found.append(scored.findings)
    told = pl.concat(found).filter(TOLD)
    assert told.filter(pl.col("subject") == "node")["node"].unique().to_list() == ["n1"]
    assert "0% of the samples that were due" in told["message"][0]
