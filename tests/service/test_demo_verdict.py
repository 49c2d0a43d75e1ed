"""Who is named in a simulated fleet: the machines with faults, each for its reason, and no other."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from graynode.collectors.simulated.faults import read
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.detectors import NAMES, make
from graynode.detectors.event_rules import EventRules
from graynode.detectors.incidents import Incidents
from graynode.pipeline.lake import Lake
from graynode.service.rounds import Rounds
from graynode.service.simulate import write

NOW = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)
SINCE = NOW - timedelta(hours=1)
FAULTS = """
[[fault]]
kind = "pcie_width"
start = "-20h"
size = 8

[[fault]]
kind = "slow_gpu"
start = "-50m"
size = 0.06

[[fault]]
kind = "gpu_lost"
start = "-20m"
"""
CAUSES = {"pcie_width": "pcie_degraded", "slow_gpu": "slow_gpu", "gpu_lost": "gpu_lost"}


def test_the_machines_with_faults_are_named_and_no_other(tmp_path: Path) -> None:
    """Twelve nodes, one seed, one fixed hour: three faults found, nine machines left in peace."""
    (tmp_path / "faults.toml").write_text(FAULTS)
    plan = read(tmp_path / "faults.toml", NOW)
    fleet, lake = Fleet(Spec(NOW, 12, 8, 5, 10.0, cluster="demo"), plan), Lake(str(tmp_path / "lake"))
    write(fleet, lake)
    rounds = Rounds(lake, "demo", {name: make(name) for name in NAMES})
    rounds.prime(SINCE)
    incidents, rules = Incidents("demo"), EventRules()
    told: dict[tuple[str, str], str] = {}
    for round_ in rounds.rounds(SINCE, NOW):
        result = rounds.score(round_)
        end = result.start + timedelta(seconds=result.window_s)
        found = [*rules.findings(round_.events.to_dicts()), *result.findings.to_dicts()]
        for revision in incidents.add(found, end):
            told[revision["node_id"], revision["cause"]] = revision["title"]
    truth = {(fleet.node_ids[fault.node], CAUSES[fault.kind]) for fault in fleet.faults}
    assert truth <= set(told), told
    assert {node for node, _ in told} == {node for node, _ in truth}, told
