"""Every question of ``docs/queries.md`` runs as it stands, and answers on a lake that has something to say."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from graynode.collectors.simulated.faults import demo
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.pipeline.codec import to_batch
from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import TABLES
from graynode.service.config import Config
from graynode.service.config_tables import LakeSection
from graynode.service.importing import run as import_file
from graynode.service.simulate import write

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "fixtures" / "infinitehbd" / "fault_trace.json.gz"
SGEMM = ROOT / "tests" / "fixtures" / "longhorn" / "sgemm-longhorn.csv.gz"
PAGE = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
QUESTIONS = dict(re.findall(r"## (.+?)\n.*?```sql\n(.+?);\n```", PAGE, re.DOTALL))
SLOW = ["GPU-87570fdd", "GPU-8bd5126e", "GPU-bf17fd1b", "GPU-01f6142b"]


def _put(lake: Lake, name: str, row: dict[str, Any], now: datetime) -> None:
    keys = {"ts": now - timedelta(minutes=2), "cluster": "simulated", "node_id": "n", "node": "sim-000"}
    frame = pl.from_arrow(to_batch(TABLES[name], [keys | row]))
    assert isinstance(frame, pl.DataFrame)
    lake.write(name, frame)


def _said(gpu: str, machine: str, now: datetime) -> Iterator[tuple[str, dict[str, Any]]]:
    """A row of each table that detectors, responders and the normaliser write."""
    about = {"gpu_uuid": gpu, "since": now}
    yield "incident", about | {"incident_id": "i", "revision": 0, "state": "open", "cause": "slow_gpu"}
    yield "finding", about | {"finding_id": "f", "detector": "slow", "signal": "clock", "effect": 0.05, "peers": 7}
    yield "action", {"action_id": "a", "responder": "webhook:x", "kind": "notify", "outcome": "done", "attempts": 1}
    said = {"table_name": "gpu", "entity": gpu, "field": "fp64_active_ratio", "state": "unsupported"}
    yield "quality", said | {"node_id": machine}
    yield "service", {"kind": "unit", "name": "slurmd.service", "state": "failed", "bad": True, "since": now}
    yield "round", {"window_s": 30, "machines": 8, "late_machines": 0, "seconds": 0.1}
    for w in range(40):  # a GPU that its job holds and does not use, braked, two thirds unseen
        window = {"ts": now - timedelta(seconds=1200 - 30 * w), "gpu_uuid": "g", "samples": 10, "samples_expected": 30}
        window |= {"hw_power_brake_s": 5.0, "hw_thermal_s": 0.0, "sw_thermal_s": 0.0}
        yield "gpu_30s", window | {"job_id_last": "held", "gpu_util_percent_max": 1, "gpu_util_percent_mean": 0.5}
    for rank in range(4):
        yield "step", {"job_id": "7", "rank": rank, "step": 1, "seconds": 1.0, "busy_s": 0.5 + 0.1 * (rank == 3)}
    yield "event", {"event_id": "e", "kind": "xid", "code": 79, "source": "kernel_log", "gpu_uuid": gpu}


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    """A small simulated fleet with the demonstration's faults, a fault trace, and what detectors would have said."""
    path, now = str(tmp_path_factory.mktemp("lake")), datetime.now(UTC).replace(microsecond=0)
    lake = Lake(path)
    fleet = Fleet(Spec(now, 8, 8, seed=3, days=9), demo())
    write(fleet, lake)
    import_file(Config(lake=LakeSection(path=path)), "infinitehbd", TRACE)
    import_file(Config(lake=LakeSection(path=path)), "longhorn-sgemm", SGEMM)
    gpu, machine = lake.read("gpu_1h", columns=["gpu_uuid", "node_id"]).row(0)
    for name, row in _said(gpu, machine, now):
        _put(lake, name, row, now)
    made = Queries(lake)
    yield made
    made.close()


def test_page_has_at_least_fifteen_questions() -> None:
    """The page answers what fleets really ask, not a token few; each heading has its statement."""
    assert len(QUESTIONS) >= 15
    assert len(QUESTIONS) == PAGE.count("\n## ") == PAGE.count("```sql")


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_runs_and_answers(queries: Queries, question: str) -> None:
    """The statement runs as written and gives rows where there is something to find."""
    assert queries.arrow(QUESTIONS[question]).num_rows > 0


def test_refaulted_nodes(queries: Queries) -> None:
    """Of the real trace: 97 nodes fault again within a week of a repair, 84 if the same instant is one."""
    answer = queries.rows(QUESTIONS["How many nodes fault again within a week of a repair?"])
    assert answer == [{"nodes": 97, "nodes_same_instant_is_one": 84}]


def test_slow_gpus_of_longhorn(queries: Queries) -> None:
    """Of 392 real V100s the four that are slow, the slowest first, and nothing else."""
    found = queries.rows(QUESTIONS["Which GPUs are slow at the same work as their peers?"])
    assert [row["gpu_uuid"][:12] for row in found] == SLOW
    assert [row["times_slower"] for row in found] == [1.203, 1.077, 1.076, 1.067]


def test_faults_show_in_the_answers(queries: Queries) -> None:
    """The demonstration's growing ECC errors, narrow PCIe link and flapping port are what the questions find."""
    truth = {f.kind: f for f in Fleet(Spec(datetime.now(UTC), 8, 8, seed=3, days=9), demo()).faults}
    assert {"ecc_growth", "pcie_width", "link_flap"} <= set(truth)
    narrow = queries.rows(QUESTIONS["Which GPUs run below their PCIe width or generation?"])
    assert any(row["width"] == 8 and row["width_max"] == 16 for row in narrow)
    grown = queries.rows(QUESTIONS["Which GPUs' corrected memory errors have begun to grow?"])
    assert grown[0]["last_day"] > 100
    down = queries.rows(QUESTIONS["Which ports were down, how long in sum and how long at once?"])
    assert down[0]["longest_s"] <= 10 < down[0]["down_s"]
