"""1,250 nodes on a bad day: what people hear is what happened, counted, not a node for every symptom."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from finding_rows import event
from window_rounds import EMPTY, START

from graynode.detectors import findings
from graynode.detectors.base import Round
from graynode.detectors.event_rules import EventRules
from graynode.detectors.incidents import Incidents
from graynode.detectors.links import Links
from graynode.detectors.pages import Budget
from graynode.detectors.slow import Slow
from graynode.detectors.thermal import Thermal

NODES, PORTS = 1250, 8
NAMES = [f"id-n{i:04d}" for i in range(NODES)]
OLD, NEW = "580.65.06", "590.1"


def _who(many: int = 1) -> dict[str, Any]:
    ids = [n for n in NAMES for _ in range(many)]
    return {"cluster": "test", "node_id": ids, "node": [n[3:] for n in ids], "boot_id": "b"}


def _inventory() -> pl.DataFrame:
    """Racks of four nodes, a leaf switch for each port number of 64 nodes."""
    node = pl.DataFrame(_who()).with_columns(
        kind=pl.lit("node"), entity=pl.col("node_id"),
        attributes=pl.Series([json.dumps({"rack": f"r{i // 4:03d}"}) for i in range(NODES)]),
    )  # fmt: skip
    leaf = [json.dumps({"switch": f"leaf{i // 64:02d}-{p}"}) for i in range(NODES) for p in range(PORTS)]
    port = pl.DataFrame(_who(PORTS)).with_columns(
        kind=pl.lit("port"), entity=pl.Series([f"mlx5_{p}/1" for p in range(PORTS)] * NODES),
        attributes=pl.Series(leaf),
    )  # fmt: skip
    return pl.concat([node, port]).with_columns(ts=pl.lit(START - timedelta(days=9)), domain=pl.lit(None, pl.String))


INVENTORY = _inventory()


def a_round(w: int, *, new_driver: int = 0, ports: dict[str, np.ndarray] | None = None) -> Round:
    """A window: every node's GPU at a job of 250 nodes, its driver, and its ports."""
    ts = pl.lit(START + timedelta(seconds=30 * w)).cast(pl.Datetime("us", "UTC")).alias("ts")
    gpu = pl.DataFrame(_who()).with_columns(
        ts, gpu_uuid=pl.concat_str(pl.lit("GPU-"), "node_id"),
        job_id_last=pl.Series([f"j{i // 250}" for i in range(NODES)]),
        gpu_model_last=pl.lit("NVIDIA H100"), samples=pl.lit(30),
    )  # fmt: skip
    host = pl.DataFrame(_who()).with_columns(
        ts, driver_version_last=pl.Series([NEW if i < new_driver else OLD for i in range(NODES)]), samples=pl.lit(30)
    )
    size = NODES * PORTS
    columns = {"down_s_sum": np.zeros(size), "outage_s_max": np.zeros(size), "downs_sum": np.zeros(size)} | (
        ports or {}
    )
    link = pl.DataFrame(_who(PORTS) | columns).with_columns(
        ts, link=pl.Series([f"mlx5_{p}/1" for p in range(PORTS)] * NODES), link_kind_last=pl.lit("infiniband"),
        state_last=pl.lit("active"), rate_gbps_mean=pl.lit(400.0), samples=pl.lit(30), samples_expected=pl.lit(30),
    )  # fmt: skip
    start = START + timedelta(seconds=30 * w)
    return Round(start, 30, gpu, link, host, EMPTY, EMPTY, INVENTORY, EMPTY)


def sick(node: int, since: datetime, cause: str, signal: str) -> dict[str, Any]:
    return {
        "cluster": "test", "node_id": NAMES[node], "node": NAMES[node][3:], "gpu_uuid": f"GPU-{NAMES[node]}",
        "subject": "gpu", "signal": signal, "cause": cause, "severity": "ticket", "score": 2.0, "threshold": 1.0,
        "effect": 0.07, "message": f"{NAMES[node]} is odd", "action": "look", "since": since, "evidence": {},
    }  # fmt: skip


def play(incidents: Incidents, rounds: Iterable[tuple[Round, pl.DataFrame]]) -> list[dict[str, Any]]:
    told = []
    for round_, found in rounds:
        end = round_.start + timedelta(seconds=30)
        incidents.see(round_)
        told += incidents.add(found.to_dicts(), end) + incidents.tick(end)
    return told


def subjects(incidents: Incidents) -> Counter[str]:
    return Counter(r["subject"] for r in incidents.current())


def a_switch_flaps() -> Iterator[tuple[Round, pl.DataFrame]]:
    """Leaf 05-3 and its 64 ports drop three times within six minutes."""
    detector, state = Links(), {}
    mine = np.arange(NODES * PORTS).reshape(NODES, PORTS)[5 * 64 : 6 * 64, 3]
    for w in range(14):
        ports = {n: np.zeros(NODES * PORTS) for n in ("down_s_sum", "outage_s_max", "downs_sum")}
        if w in (2, 7, 12):
            ports["down_s_sum"][mine] = ports["outage_s_max"][mine] = 2.0
            ports["downs_sum"][mine] = 1.0
        round_ = a_round(w, ports=ports)
        scored = detector.score(round_, state)
        state = scored.state
        yield round_, scored.findings


def a_driver_rolls(first: int = 20) -> Iterator[tuple[Round, pl.DataFrame]]:
    """Two nodes a round get the new driver, and every one that has it is 7 % slower."""
    for w in range(first, first + 20):
        done = 2 * (w - first + 1)
        round_ = a_round(w, new_driver=done)
        slow = [sick(n, START + timedelta(seconds=30 * (first + n // 2)), "slow_gpu", "clock") for n in range(done)]
        yield round_, findings.collect(Slow(), round_, slow)


def a_rack_gets_hot(first: int = 50) -> Iterator[tuple[Round, pl.DataFrame]]:
    """Four nodes of rack 200 cross their thresholds one after the other."""
    for w in range(first, first + 8):
        round_ = a_round(w)
        hot = [sick(800 + n, round_.start, "thermal", "temp") for n in range(4) if w - first >= 2 * n]
        yield round_, findings.collect(Thermal(), round_, hot)


def test_a_switch_that_flaps_is_one_incident_about_the_switch() -> None:
    """Sixty-four ports of sixty-four nodes: one, and its owner is the network."""
    incidents = Incidents("test")
    told = play(incidents, a_switch_flaps())
    (said,) = incidents.current()
    assert (said["subject"], said["node_id"], said["owner"]) == ("switch", "switch:leaf05-3", "network")
    assert {r["incident_id"] for r in told} == {said["incident_id"]}


def test_a_driver_that_rolls_is_one_incident_and_the_first_nodes_become_a_part_of_it() -> None:
    """Until five nodes have it nobody can know: two nodes and their rack are told, and end as parts of the driver's."""
    incidents = Incidents("test")
    told = play(incidents, a_driver_rolls())
    (said,) = incidents.current()
    assert (said["subject"], said["node_id"]) == ("driver", f"driver:{NEW}")
    parts = [r for r in told if r["state"] == "resolved"]
    assert Counter(r["subject"] for r in parts) == {"node": 2, "rack": 1}
    rack = next(r["incident_id"] for r in parts if r["subject"] == "rack")
    assert [r["grouped_under"] for r in parts] == [rack, rack, said["incident_id"]]


def test_a_hot_rack_is_the_rack() -> None:
    """Two are told by name, the third makes it the rack, the fourth joins."""
    incidents = Incidents("test")
    told = play(incidents, a_rack_gets_hot())
    (said,) = incidents.current()
    assert (said["subject"], said["node_id"]) == ("rack", "rack:r200")
    assert "cooling" in said["action"]
    assert sum(r["state"] == "open" for r in told) == 3


def blindness(base: datetime) -> list[dict[str, Any]]:
    """500 nodes lose NVML within a minute, on both drivers, in all racks."""
    made = []
    for i in range(500):
        row = event(0, "nvml_blind", source="nvml", node_id=NAMES[(i * 7) % NODES], node=f"n{i}", event_id=f"blind{i}")
        made.append(row | {"ts": base + timedelta(seconds=i * 0.1)})
    return made


def test_five_hundred_blind_nodes_are_one_incident_and_no_gpu_is_sick() -> None:
    """One about the cluster stays open, whatever the first of them were told as."""
    incidents, rules, told = Incidents("test"), EventRules(), []
    incidents.see(a_round(0))
    for row in blindness(START):
        told += incidents.add(rules.findings([row]), row["ts"])
    (said,) = incidents.current()
    assert (said["subject"], said["cause"], said["severity"]) == ("cluster", "monitoring_blind", "ticket")
    assert json.loads(said["evidence"])[0]["nodes_told"] >= 250  # told at each doubling
    assert {r["cause"] for r in told} == {"monitoring_blind"}


def xid_storm(base: datetime) -> Iterator[list[dict[str, Any]]]:
    """38,905 lines of Xid 95 in a day, 99 % of them from one of four GPUs, in batches as an agent sends them."""
    rng = np.random.default_rng(95)
    gpus = rng.choice(4, size=38_905, p=[0.99, 0.004, 0.003, 0.003])
    times = np.sort(rng.uniform(0, 86_400, 38_905))
    for part in np.array_split(np.arange(38_905), 400):
        yield [
            {**ROW, "ts": base + timedelta(seconds=float(times[i])), "event_id": f"e{i}",
             "node_id": NAMES[900 + gpus[i]], "node": NAMES[900 + gpus[i]][3:], "gpu_uuid": f"GPU-{gpus[i]}"}
            for i in part
        ]  # fmt: skip


ROW = event(0, code=95)


def test_a_storm_of_xids_from_four_gpus_is_four_incidents() -> None:
    """Lines mean little: four GPUs, four incidents, one page, and told no more than once an hour each."""
    incidents, rules, told = Incidents("test", budget=Budget(1)), EventRules(), []
    for batch in xid_storm(START):
        told += incidents.add(rules.findings(batch), batch[-1]["ts"])
    assert subjects(incidents) == {"node": 4}
    assert {r["node_id"] for r in incidents.current()} == set(NAMES[900:904])
    assert len(told) < 4 * 30
    pages = {r["incident_id"] for r in told if r["severity"] == "page"}
    assert len(pages) == 2  # one in each shift of twelve hours, the others told under it


@pytest.mark.long
def test_all_of_it_in_one_day_is_eight_incidents() -> None:
    """A switch, a driver, a rack, a blind cluster and four GPUs: eight, whatever their symptoms."""
    incidents, rules = Incidents("test", resolve_after_s=7 * 86_400.0, budget=Budget(1)), EventRules()
    play(incidents, a_switch_flaps())
    play(incidents, a_driver_rolls())
    play(incidents, a_rack_gets_hot())
    for row in blindness(START + timedelta(hours=1)):
        incidents.add(rules.findings([row]), row["ts"])
    for batch in xid_storm(START + timedelta(hours=2)):
        incidents.add(rules.findings(batch), batch[-1]["ts"])
    assert subjects(incidents) == {"switch": 1, "driver": 1, "rack": 1, "cluster": 1, "node": 4}
