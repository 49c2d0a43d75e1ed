"""One small simulated lake for all suites of the API, never changed; and an empty site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from litestar.testing import TestClient
from served_site import ServedSite

from graynode.collectors.simulated import faults
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.service.simulate import write

NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
CLUSTER = "simulated"


@pytest.fixture(scope="session")
def small_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes of eight GPUs over some hours, with one open and one resolved incident of the first node."""
    folder = tmp_path_factory.mktemp("api") / "lake"
    lake = Lake(str(folder))
    fleet = Fleet(Spec(NOW, nodes=3, seed=1, days=0.15, cluster=CLUSTER), faults.parse("", "plan", NOW))
    write(fleet, lake, lambda _share: None)
    gpus = (
        lake.read("gpu_30s", NOW - timedelta(hours=1), NOW, ["node_id", "node", "gpu_uuid"])
        .unique()
        .sort("node", "gpu_uuid")
    )
    first = gpus.row(0, named=True)
    evidence = [{"signal": "clock", "message": "<b>slow</b>", "value": 1600.0, "baseline": 1755.0, "unit": "MHz"}]
    rows = [
        {"incident_id": "aaaa0000-0000-4000-8000-000000000001", "revision": 0, "state": "open", **first},
        {"incident_id": "aaaa0000-0000-4000-8000-000000000001", "revision": 1, "state": "updated", **first},
        {"incident_id": "bbbb0000-0000-4000-8000-000000000002", "revision": 0, "state": "open", **first},
        {"incident_id": "bbbb0000-0000-4000-8000-000000000002", "revision": 1, "state": "resolved", **first},
    ]
    begin = NOW - timedelta(hours=2)
    for number, row in enumerate(rows):
        row |= {
            "ts": begin + timedelta(minutes=number), "cluster": CLUSTER, "subject": "gpu", "cause": "slow_gpu",
            "severity": "ticket" if number < 2 else "page", "title": f"Slow GPU on {first['node']}", "since": begin,
            "opened_ts": begin, "updated_ts": begin + timedelta(minutes=number), "evidence": json.dumps(evidence),
            "finding_ids": "[]", "count": 1, "owner": "platform",
            "resolved_ts": begin + timedelta(minutes=number) if row["state"] == "resolved" else None,
        }  # fmt: skip
    lake.write("incident", conform("incident", pl.DataFrame(rows, infer_schema_length=None)))
    return folder


@pytest.fixture(scope="session")
def shared(small_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    """The API over the small lake, at its end of time."""
    site = ServedSite(
        tmp_path_factory.mktemp("site"), small_lake, now=lambda: NOW, cluster=CLUSTER, sql=True, deadline_s=60.0
    )
    yield site
    site.close()


@pytest.fixture(scope="session")
def asking(shared: ServedSite) -> Iterator[TestClient[Any]]:
    """A client that may read the shared site."""
    with shared.client(shared.token("asking", now=NOW, days=90)) as client:
        yield client


@pytest.fixture(scope="session")
def barren(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    """A site whose lake is not there yet: made once, for an application takes a second to make."""
    folder = tmp_path_factory.mktemp("barren")
    site = ServedSite(folder / "site", folder / "lake")
    yield site
    site.close()


@pytest.fixture
def empty(barren: ServedSite) -> ServedSite:
    """The same without tokens, and its clock right."""
    barren.config.serve.tokens_file.unlink(missing_ok=True)
    barren.later = timedelta(0)
    return barren
