"""``/metrics``, read by the real promtool; and the server's own health."""

from __future__ import annotations

import re
import shutil
import subprocess
from datetime import timedelta
from typing import Any

import pytest
from litestar.testing import TestClient
from served_site import ServedSite


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_wrong(asking: TestClient[Any]) -> None:
    """Names, units, help and types as Prometheus' guide wants them."""
    asking.get("/api/v1/nodes")
    page = asking.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page.content, capture_output=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stderr, checked.stdout) == (0, b"", b""), checked


def test_the_fleet_is_counted(asking: TestClient[Any]) -> None:
    """Nodes, GPUs and open incidents by what they are."""
    told = asking.get("/metrics").text
    assert 'graynode_nodes{cluster="simulated",state="suspect"} 1.0' in told
    assert 'graynode_nodes{cluster="simulated",state="healthy"} 2.0' in told
    assert 'graynode_incidents_open{cause="slow_gpu",cluster="simulated",severity="ticket"} 1.0' in told
    assert "graynode_data_age_seconds 0.0" in told


def test_requests_are_counted_by_route_never_by_path(asking: TestClient[Any]) -> None:
    """A caller cannot make series by asking for names."""
    before = _unknown_nodes(asking.get("/metrics").text)
    for number in range(3):
        asking.get(f"/api/v1/nodes/strange-{number}")
        asking.get(f"/strange-{number}")
    told = asking.get("/metrics").text
    assert _unknown_nodes(told) == before + 3
    assert "strange" not in told


def _unknown_nodes(page: str) -> float:
    """The client is shared: other tests count, too."""
    line = r'^graynode_http_requests_total\{.*route="/api/v1/nodes/\{node\}",status="404"\} (.+)$'
    found = re.search(line, page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_health_says_which_part_is_late(empty: ServedSite) -> None:
    """By part, with its age."""
    empty.later = timedelta(hours=1)
    with empty.client(empty.token(days=5)) as client:
        parts = {row["part"]: row for row in client.get("/api/v1/health").json()["rows"]}
    assert parts["fleet picture"]["state"] == "late"
    assert parts["fleet picture"]["age_s"] > 3000
    assert parts["detection rounds"]["state"] == "unknown"


def test_the_description_names_every_route_of_the_seam(asking: TestClient[Any]) -> None:
    """OpenAPI 3.1, and a page of it that loads nothing from elsewhere."""
    told = asking.get("/openapi.json").json()
    assert told["openapi"].startswith("3.1")
    assert {"/api/v1/fleet", "/api/v1/incidents/{incident_id}/band", "/api/v1/stream", "/metrics"} <= told[
        "paths"
    ].keys()
    page = asking.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "://" not in page.text
    assert "<script" not in page.text
