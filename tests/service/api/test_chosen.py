"""What dashboards choose by: a star for all, several causes, the series of all GPUs and links of a node."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from litestar.testing import TestClient


@pytest.mark.parametrize(
    "path", ["nodes?model={}&state={}&rack={}", "gpus?node={}", "links?node={}", "jobs?user={}&partition={}&node={}",
             "incidents?state=all&cause={}&severity={}&node={}", "events?node={}&kind={}", "actions?node={}"],
)  # fmt: skip
def test_a_star_is_all(asking: TestClient[Any], path: str) -> None:
    """As an empty filter."""
    star, empty = (asking.get(f"/api/v1/{path.replace('{}', value)}") for value in ("*", ""))
    assert star.status_code == empty.status_code == 200
    assert star.json()["rows"] == empty.json()["rows"]


def test_incidents_of_several_causes(asking: TestClient[Any]) -> None:
    """Each of them is checked."""

    def found(causes: str) -> Any:
        return asking.get("/api/v1/incidents", params={"state": "all", "cause": causes})

    assert len(found("link_flap,slow_gpu").json()["rows"]) == 2
    assert found("link_flap").json()["rows"] == []
    assert found("slow_gpu,slow_gpus").status_code == 400


def test_an_incident_says_when_it_is_worth_looking_at(asking: TestClient[Any]) -> None:
    """From six hours before it to an hour after it was over, or now."""
    for row in asking.get("/api/v1/incidents?state=all").json()["rows"]:
        end = row["resolved_ts"] or "2026-11-30T10:00:00Z"
        assert _at(row["shown_from_ts"]) == _at(row["since"]) - timedelta(hours=6)
        assert _at(row["shown_until_ts"]) == _at(end) + timedelta(hours=1)


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_series_of_all_that_a_node_has(asking: TestClient[Any]) -> None:
    """By the names that people use; or of one of them; an id of another node's counts as none."""

    def names(**params: str) -> set[str]:
        asked = {"from": "now-1h", "step": "5m", "node": "sim-000", **params}
        told = asking.get("/api/v1/series", params=asked)
        assert told.status_code == 200, told.text
        return {row["name"] for row in told.json()["rows"]}

    gpus = names(metric="power_w", entity="gpu")
    assert len(gpus) == 8
    assert all(name.startswith("GPU ") for name in gpus)
    first = asking.get("/api/v1/gpus?node=sim-000").json()["rows"][0]
    one = names(metric="power_w", entity="gpu", id=first["gpu_uuid"])
    assert one == {f"GPU {first['gpu_index']} ({first['gpu_uuid'][:12]})"}
    assert names(metric="power_w", entity="gpu", id="GPU-of-another") == gpus
    assert names(metric="power_w", entity="gpu", id="*") == gpus
    assert "eth0" in names(metric="rate_gbps", entity="link")
    assert names(metric="cpu_util_percent", entity="node") == {"sim-000"}
    assert names(metric="power_w", entity="gpu", node="") == set()
    assert asking.get("/api/v1/series?metric=power_w&node=none").status_code == 404
