"""A site's terms: prices, timeout of collectives, where nodes stand, and what a restart must not forget."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from finding_rows import T0, at, event, finding
from window_rounds import Cluster

from graynode.detectors.places import places
from graynode.detectors.policy import shipped as policy
from graynode.detectors.thresholds import shipped
from graynode.pipeline.codec import to_batch
from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import TABLES
from graynode.service import detect_terms, places_file
from graynode.service.config import ConfigError, parse
from graynode.service.rounds import Rounds


def config(**tables: object):  # noqa: ANN201
    return parse({"cluster": "test", **tables}, "test")


def put(lake: Lake, table: str, rows: list[dict[str, object]]) -> None:
    made = pl.from_arrow(to_batch(TABLES[table], rows))
    assert isinstance(made, pl.DataFrame)
    lake.write(table, made)


def price(model: str, value: float, currency: str = "EUR") -> dict[str, object]:
    return {
        "ts": T0,
        "cluster": "test",
        "node_id": "-",
        "gpu_model": model,
        "per_gpu_hour": value,
        "currency": currency,
    }


def told(lake: Lake, **tables: object) -> dict[str, object]:
    incidents = detect_terms.incidents(config(**tables), lake)
    incidents.see(next(Cluster(nodes=2, gpus=4, nodes_per_job=2).rounds(1)))
    where = {"node_id": "id-node001", "node": "node001", "gpu_uuid": "GPU-001-1", "effect": 0.5}
    return incidents.add([finding(0, **where)], T0)[0]


def test_prices_of_the_file_go_before_those_of_the_lake(tmp_path: Path) -> None:
    """The file's, else the table's, else GPU-hours alone: half of eight GPUs for a day are 96 GPU-hours."""
    lake = Lake(str(tmp_path))
    assert told(lake)["wait_cost_per_day"] is None
    put(lake, "price", [price("H100", 3.0)])
    from_lake = told(lake)
    assert (from_lake["wait_gpu_h_per_day"], from_lake["wait_cost_per_day"], from_lake["currency"]) == (
        96.0,
        288.0,
        "EUR",
    )
    own = told(lake, cost={"per_gpu_hour": {"H100": 1.0}, "currency": "USD"})
    assert (own["wait_cost_per_day"], own["currency"]) == (96.0, "USD")


def test_prices_in_two_currencies_are_none(tmp_path: Path) -> None:
    """Nobody can add them up."""
    lake = Lake(str(tmp_path))
    put(lake, "price", [price("H100", 3.0), price("H200", 4.0, "USD")])
    assert told(lake)["wait_cost_per_day"] is None


def test_the_timeout_of_collectives_enters_the_thresholds() -> None:
    """None configured: NCCL's two; one configured: that one, and the set has another hash."""
    assert detect_terms.with_timeout(shipped(), config()) is shipped()
    own = detect_terms.with_timeout(shipped(), config(detect={"collective_timeout_s": 12.0}))
    assert own.value("links", "outage_30s", 30) == own.value("links", "outage_7s", 30) == 12.0
    assert own.digest != shipped().digest


def test_a_restart_knows_last_week_s_jobs_and_application_errors(tmp_path: Path) -> None:
    """Ann's jobs failed on this GPU before the restart, one of them weeks before; Ben's fails after it."""
    lake = Lake(str(tmp_path))
    job = {"cluster": "test", "node_id": "n1", "gpu_uuids": json.dumps(["GPU-a"]), "state": "running"}
    put(lake, "job", [{**job, "ts": at(0), "allocated_ts": at(0), "job_id": "a", "user": "ann"},
                      {**job, "ts": at(100), "allocated_ts": at(0), "end_ts": at(100), "job_id": "a", "user": "ann"},
                      {**job, "ts": at(200), "allocated_ts": at(200), "job_id": "b", "user": "ben"}])  # fmt: skip
    long_ago = -20 * 86_400
    put(lake, "job", [{**job, "ts": at(long_ago), "allocated_ts": at(long_ago), "job_id": "o", "user": "ann"},
                      {**job, "ts": at(long_ago + 100), "end_ts": at(long_ago + 100), "job_id": "o"}])  # fmt: skip
    put(lake, "event", [event(s, code=31, gpu_uuid="GPU-a") for s in (long_ago + 50, 50)])
    rules = detect_terms.event_rules(policy(), lake, "test", at(250))
    found = rules.findings([event(300, code=31, gpu_uuid="GPU-a")])
    assert [f["signal"] for f in found] == ["xid_31", "app_xid_one_gpu"]
    nothing = detect_terms.event_rules(policy(), Lake(str(tmp_path / "empty")), "test", at(250))
    assert [f["signal"] for f in nothing.findings([event(300, code=31, gpu_uuid="GPU-a")])] == ["xid_31"]


CSV = """node,port,rack,switch
node000,,r1,
node001,,r1,
node002,,r2,
node000,mlx5_0/1,,leaf1
elsewhere,,r9,
"""


def test_a_site_says_where_its_nodes_stand(tmp_path: Path) -> None:
    """Racks by node, leaf switches by port; the rounds' inventory has them, and unknown names are left out."""
    lake, c = Lake(str(tmp_path)), Cluster(nodes=3, gpus=1)
    (only,) = c.rounds(1)
    for table in ("gpu", "link", "host"):
        lake.write(f"{table}_30s", getattr(only, table))
    rounds = Rounds(lake, "test", {}, places=places_file.parse(CSV, "places.csv"))
    (round_,) = rounds.rounds(only.start, only.start + timedelta(seconds=30))
    known = {(p.kind, p.name): sorted(p.members) for p in places(round_).places}
    assert known["rack", "r1"] == [("id-node000", ""), ("id-node001", "")]
    ports = {(p.kind, p.name): sorted(p.members) for p in places(round_, ports=True).places}
    assert ports["switch", "leaf1"] == [("id-node000", "mlx5_0/1")]
    assert ("rack", "r9") not in known


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1"), ("rack,switch\n", "line 1"), ("node,floor\na,1\n", "line 1"), ("node,rack\n,r1\n", "line 2"),
        ("node,rack\na,r1\nb,r2,r3\n", "line 3"), ("node\na\n", "line 1"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_stops_the_start_and_says_where(text: str, said: str) -> None:
    """File, line, and what is wanted."""
    with pytest.raises(ConfigError, match=f"places.csv: {said}.*wanted are"):
        places_file.parse(text, "places.csv")


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    """By key and path; without a path nothing is known and nothing is wrong."""
    with pytest.raises(ConfigError, match=r"detect\.places_file"):
        places_file.read(tmp_path / "none.csv")
    assert places_file.read(None).inventory(pl.DataFrame(), datetime.now(UTC)).is_empty()
