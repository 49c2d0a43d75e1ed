"""Captured input of real nodes from the agent's sources to what a person is told, through every part between."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import landing_kit
import polars as pl
import pytest
from node_files import FIXTURES, START, Ports, node, round_at
from roles import Roles

from graynode.collectors.base import Row
from graynode.collectors.identity import Roots
from graynode.collectors.infiniband import Infiniband
from graynode.detectors.links import Links
from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries
from graynode.service import agent
from graynode.service.config import load
from graynode.service.rounds import Rounds

HOSTILE = "<b>gpu</b>\\u001b[2J=cmd|'/C'![/red]" + "n" * 300
"""A node name as TOML writes it: markup of two kinds, an escape that would clear the screen, and very long."""


def ask(folder: Path, sql: str) -> list[dict[str, Any]]:
    queries = Queries(Lake(str(folder / "lake")))
    try:
        return queries.rows(sql)
    finally:
        queries.close()


def graynode(roles: Roles, *words: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "graynode.service.cli", *words, "--config", str(roles.config)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_captured_kernel_log_is_one_incident_that_names_the_gpu_and_nvidias_action(tmp_path: Path) -> None:
    """A node's `dmesg -T` with Xid 119, read by a real agent of a node with a hostile name: one incident in SQL, which
    `explain` and `sql` print as text, with the GPU's PCI address and what NVIDIA's catalogue asks for."""
    log = tmp_path / "dmesg"
    shutil.copy(FIXTURES / "gpud/dmesg-with-xid-119.log", log)
    collect = {"collectors": ["kernel_log"], "kmsg": str(log), "kernel_log_format": "dmesg", "node": HOSTILE}
    with Roles(tmp_path, {"agent": {**collect, "node_id": "n1"}}) as roles:
        for role in ("agent", "pipeline", "detect"):
            roles.start(role)
        found = roles.until(lambda: ask(tmp_path, "SELECT * FROM incident_now"))
        roles.until(lambda: ask(tmp_path, "SELECT 1 FROM finding WHERE signal = 'xid_119'"))
        assert roles.stop("agent") == 0
        time.sleep(3)  # nothing more comes of the same log
        assert {roles.stop(role) for role in ("detect", "pipeline")} == {0}
        incidents = ask(tmp_path, "SELECT * FROM incident_now")
        assert {i["incident_id"] for i in incidents} == {i["incident_id"] for i in found}
        [incident] = incidents
        assert incident["pci_bus_id"] == "0000:9b:00.0"
        assert incident["node_id"] == "n1"
        assert "NVIDIA's catalogue asks for a GPU reset" in incident["action"]
        assert incident["since"].isoformat() == "2025-02-23T16:24:18+00:00"
        told = graynode(roles, "explain", incident["incident_id"][:8])
        as_table = graynode(roles, "sql", "-c", "SELECT node, title FROM incident_now")
    assert "0000:9b:00.0" in " ".join(told.split())
    assert "NVIDIA's catalogue asks for a GPU reset" in " ".join(told.split())
    for shown in (told, as_table):
        assert "<b>gpu</b>" in shown
        assert not [c for c in shown if not c.isprintable() and c != "\n"]
    assert max(len(line) for line in told.splitlines()) <= 80


def test_an_h100_nodes_ports_are_all_in_sql(tmp_path: Path) -> None:
    """The captured tree of an H100 node through the agent's main, bus and pipeline: nine ports, eight of 400 Gb/s."""
    (tmp_path / "sys/class").mkdir(parents=True)
    shutil.copytree(FIXTURES / "gpud/infiniband-h100", tmp_path / "sys/class/infiniband")
    with Roles(tmp_path, {"agent": {"collectors": ["infiniband"], "node_id": "h100"}}) as roles:
        config = load(roles.config)
        assert agent.run(config, True, False, threading.Event(), roots=Roots(sys=tmp_path / "sys")) == 0
        roles.start("pipeline")
        sql = "SELECT DISTINCT link, rate_gbps, state, link_kind FROM link ORDER BY link"
        roles.until(lambda: len(ask(tmp_path, sql)) >= 9)
        assert roles.stop("pipeline") == 0
    found = ask(tmp_path, sql)
    assert [row["link"] for row in found] == sorted(
        [f"mlx5_{n}/1" for n in (0, 1, 4, 5, 6, 7, 8, 9)] + ["mlx5_bond_0/1"]
    )
    assert [row["rate_gbps"] for row in found if row["link_kind"] == "infiniband"] == [400.0] * 8
    assert {row["state"] for row in found} == {"active"}


STORIES: Mapping[str, Callable[[int], bool]] = {
    "pieces": lambda second: any(begin <= second < begin + 3 for begin in (100, 190, 280)),
    "eight": lambda second: 100 <= second < 108,
    "long": lambda second: 100 <= second < 131,
}
SECONDS = 360


def watched(folder: Path, name: str, down: Callable[[int], bool]) -> list[Row]:
    """What the collector gives, each second, of a node whose only port is down where the story says."""
    machine = node(folder / name, node=name, node_id=name)
    ports, collector, rows, downed, before = Ports(machine.sys), Infiniband(machine), [], 0, False
    who = {"cluster": landing_kit.CLUSTER, "node": name, "node_id": name, "boot_id": machine.boot_id}
    for second in range(SECONDS):
        is_down = down(second)
        downed, before = downed + (is_down and not before), is_down
        state, phys = ("1: DOWN", "2: Polling") if is_down else ("4: ACTIVE", "5: LinkUp")
        ports.rdma(state=state, phys=phys, link_downed=downed)
        round_ = round_at(second, 1.0 if second else None)
        rows += [{"ts": round_.ts, **who, **row} for row in collector.collect(round_).get("link", [])]
    collector.close()
    return rows


@pytest.mark.parametrize("spread_s", [5, 60])
def test_three_outages_are_three_findings(tmp_path: Path, spread_s: int) -> None:
    """A port down 9 s in pieces, 8 s at once and 31 s at once: from sysfs through messages, windows and lake to the
    detector they are a flap, an outage that ends older NCCL's jobs, and one that ends all; each names its node."""
    log = landing_kit.Log()
    arrived = (START - landing_kit.T0).total_seconds()
    stories = {name: watched(tmp_path, name, down) for name, down in STORIES.items()}
    for begin in range(0, SECONDS, spread_s):
        for rows in stories.values():
            some = [row for row in rows if begin <= (row["ts"] - START).total_seconds() < begin + spread_s]
            sequence = begin // spread_s
            log.add(landing_kit.message(some, table="link", sequence=sequence), arrived + begin + spread_s)
    lake = landing_kit.land(tmp_path / "lake", log, now=arrived + SECONDS + 120)
    rounds = Rounds(lake, landing_kit.CLUSTER, {"links": Links()})
    found = pl.concat(
        [rounds.score(round_).findings for round_ in rounds.rounds(START, START + timedelta(seconds=SECONDS))]
    )
    told = found.filter(pl.col("severity").is_in(["ticket", "page"])).sort("ts").group_by("node", maintain_order=True)
    said = {str(name): rows.tail(1).row(0, named=True) for (name,), rows in told}
    assert {name: (row["signal"], row["cause"], row["severity"], row["value"]) for name, row in said.items()} == {
        "pieces": ("down_in_pieces", "link_flap", "ticket", 9.0),
        "eight": ("outage_7s", "link_down", "ticket", 8.0),
        "long": ("outage_30s", "link_down", "page", 31.0),
    }
    assert {row["link"] for row in said.values()} == {"mlx5_0/1"}
    assert {row["node_id"] for row in said.values()} == set(STORIES)
