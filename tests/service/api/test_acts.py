"""Acting through the API: the same rows as the command line's, signed with the token's name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient
from people_site import CLUSTER, Site
from served_site import ServedSite

INCIDENT = "abcd0000-0000-4000-8000-000000000001"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("acts")
    made, now = Site(folder), datetime.now(UTC)
    made.nodes(["n1"], now - timedelta(hours=1))
    made.incident(INCIDENT, "n1", now - timedelta(minutes=30))
    made.incident("ffff0000", "n1", now - timedelta(minutes=30), state="resolved", resolved_ts=now)
    return made


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[TestClient[Any]]:
    served = ServedSite(site.folder, Path(site.config.lake.path))
    with served.client(served.token("ann.example", "act")) as made:
        yield made
    served.close()


def test_a_verdict_reaches_the_bus_with_the_tokens_name(site: Site, client: TestClient[Any]) -> None:
    """The row of ``graynode label``, and ``who`` is the token's."""
    answer = client.post("/api/v1/incidents/abcd/label", json={"verdict": "true", "why": "fan <b>dead</b>"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["who"] == "ann.example"
    assert "true" in answer.json()["said"]
    row = site.said("label")[-1]
    told = {key: row[key] for key in ("cluster", "incident_id", "node", "verdict", "why", "who")}
    assert told == {
        "cluster": CLUSTER, "incident_id": INCIDENT, "node": "n1", "verdict": "true", "why": "fan <b>dead</b>",
        "who": "ann.example",
    }  # fmt: skip


def test_an_incident_is_taken(site: Site, client: TestClient[Any]) -> None:
    """And the answer says what that means."""
    answer = client.post(f"/api/v1/incidents/{INCIDENT}/ack", json={"why": "I look"})
    assert answer.status_code == 200, answer.text
    row = site.said("ack")[-1]
    assert (row["incident_id"], row["who"], row["why"]) == (INCIDENT, "ann.example", "I look")


def test_a_node_is_muted_and_heard_again(site: Site, client: TestClient[Any]) -> None:
    """By name or id; the end is in the row."""
    answer = client.post("/api/v1/nodes/n1/mute", json={"for": "2d", "why": "moved"})
    assert answer.status_code == 200, answer.text
    row = site.said("mute")[-1]
    assert (row["node_id"], row["who"], row["why"]) == ("id-n1", "ann.example", "moved")
    assert timedelta(days=1.9) < row["until"] - row["ts"] < timedelta(days=2.1)
    assert client.post("/api/v1/nodes/id-n1/unmute", json={"why": "back"}).status_code == 200
    row = site.said("mute")[-1]
    assert row["until"] == row["ts"]


def test_what_was_said_is_shown_with_the_incident(site: Site, client: TestClient[Any]) -> None:
    """Once it has landed."""
    client.post("/api/v1/incidents/abcd/label", json={"verdict": "unsure", "why": "look again"})
    site.land()
    found = client.get("/api/v1/incidents/abcd").json()
    assert found["verdict"] == "unsure"
    assert {"ann.example"} == {row["who"] for row in found["said"]}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("incidents/abcd/label", {"verdict": "true", "why": "  "}, 400),
        ("incidents/abcd/label", {"verdict": "maybe", "why": "x"}, 400),
        ("incidents/abcd/label", {"verdict": "true"}, 400),
        ("incidents/abcd/label", {"verdict": "true", "why": "x" * 501}, 400),
        ("incidents/abcd/label", {"verdict": "true", "why": "x", "who": "somebody else"}, 400),
        ("incidents/eeee/label", {"verdict": "true", "why": "x"}, 404),
        ("incidents/eeee/ack", {"why": "x"}, 404),
        ("incidents/ffff/ack", {"why": "it is over"}, 400),
        ("nodes/n1/mute", {"for": "", "why": "x"}, 400),
        ("nodes/n1/mute", {"for": "9999d", "why": "x"}, 400),
        ("nodes/n1/mute", {"for": "2d", "why": ""}, 400),
        ("nodes/none/mute", {"for": "2d", "why": "x"}, 404),
    ],
)
def test_a_wrong_act_is_refused_in_words(client: TestClient[Any], path: str, body: Any, status: int) -> None:
    """A reason is needed, and nobody signs as somebody else."""
    answer = client.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert not answer.json()["detail"].startswith("--")


def test_without_a_bus_nobody_hears_it(tmp_path: Path) -> None:
    """503 with the way out, not a row that goes nowhere."""
    Site(tmp_path).incident(INCIDENT, "n1", datetime.now(UTC))
    served = ServedSite(tmp_path / "served", tmp_path / "lake")
    (tmp_path / "served" / "bus").rmdir()
    with served.client(served.token("ann", "act")) as client:
        answer = client.post("/api/v1/incidents/abcd/label", json={"verdict": "true", "why": "x"})
        assert (answer.status_code, "bus" in answer.json()["detail"]) == (503, True)
    served.close()
