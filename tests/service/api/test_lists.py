"""Lists and single things over a small simulated fleet."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
import zstandard
from litestar.testing import TestClient
from served_site import ServedSite

FLAT = (str, int, float, bool, type(None))
LISTS = [
    "fleet",
    "fleet/history",
    "fleet/racks",
    "nodes",
    "gpus",
    "links",
    "incidents?state=all",
    "findings",
    "actions",
    "events?from=now-1d",
    "jobs",
    "lemons",
    "capacity",
    "capacity?part=waiting",
    "capacity?part=reclaim",
    "capacity?part=gap",
    "capacity?part=budgets",
    "cost",
    "cost?by=user",
    "reliability",
    "reliability?by=week",
    "health",
    "fields",
    "incidents/aaaa/revisions",
    "incidents/aaaa/band",
    "series?metric=power_w&entity=fleet&from=now-3h",
]
SHOWN = [
    "fleet",
    "nodes",
    "gpus",
    "links",
    "incidents?state=all",
    "jobs",
    "capacity",
    "fleet/racks",
    "fields",
    "health",
    "series?metric=sm_clock_mhz&entity=fleet&from=now-3h",
]


@pytest.mark.parametrize("path", LISTS)
def test_a_list_has_flat_rows_and_says_where_to_go_on(asking: TestClient[Any], path: str) -> None:
    """What a table of Grafana can take as it is."""
    answer = asking.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert {"rows", "next", "at"} <= told.keys()
    for row in told["rows"]:
        assert all(isinstance(value, FLAT) for value in row.values()), row


@pytest.mark.parametrize("path", SHOWN)
def test_a_list_of_a_fleet_shows_something(asking: TestClient[Any], path: str) -> None:
    """Rows, not only a proper answer."""
    assert asking.get(f"/api/v1/{path}").json()["rows"]


def test_times_are_told_in_utc(asking: TestClient[Any]) -> None:
    """ISO 8601 with a Z."""
    assert asking.get("/api/v1/nodes").json()["at"] == "2026-11-30T10:00:00Z"


def test_pages_go_through_all_gpus(asking: TestClient[Any]) -> None:
    """Each once."""
    seen: list[str] = []
    cursor = ""
    for _ in range(10):
        told = asking.get("/api/v1/gpus", params={"limit": 7, "cursor": cursor}).json()
        seen += [row["gpu_uuid"] for row in told["rows"]]
        cursor = told["next"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 24


def test_nodes_are_chosen_by_state_place_and_name(asking: TestClient[Any]) -> None:
    """One of each filter; what does not match is not shown."""

    def names(**params: str) -> list[str]:
        return [row["node"] for row in asking.get("/api/v1/nodes", params=params).json()["rows"]]

    assert names(q="SIM-001") == ["sim-001"]
    assert names(state="suspect") == ["sim-000"]
    assert names(state="healthy") == ["sim-001", "sim-002"]
    assert names(model="none such") == []
    assert names(rack="' OR 1=1 --") == []


def test_one_node_by_name_or_id(asking: TestClient[Any]) -> None:
    """With its GPUs and what is open of it."""
    found = asking.get("/api/v1/nodes/sim-000").json()
    assert len(found["gpus_now"]) == 8
    assert [i["incident_id"][:4] for i in found["incidents"]] == ["aaaa"]
    assert asking.get(f"/api/v1/nodes/{found['node_id']}").json()["node"] == "sim-000"
    assert asking.get(f"/api/v1/gpus/{found['gpus_now'][0]['gpu_uuid']}").json()["node"] == "sim-000"


def test_an_unknown_name_is_404_with_what_sounds_alike(asking: TestClient[Any]) -> None:
    """A person mistyped."""
    answer = asking.get("/api/v1/nodes/sim-00")
    assert (answer.status_code, "sim-000" in answer.json()["detail"]) == (404, True)
    for path in ("gpus/GPU-none", "incidents/ffff", "jobs/none", "incidents/zz"):
        assert asking.get(f"/api/v1/{path}").status_code == 404, path


def test_an_incident_is_told_with_its_evidence(asking: TestClient[Any]) -> None:
    """Read, not as text; by the beginning of its id."""
    found = asking.get("/api/v1/incidents/aaaa").json()
    assert (found["revision"], found["revisions"], found["state"]) == (1, 2, "updated")
    assert found["evidence"][0]["message"] == "<b>slow</b>"


def test_incidents_are_open_ones_unless_asked_otherwise(asking: TestClient[Any]) -> None:
    """And with a range those that were open within it."""

    def ids(**params: str) -> list[str]:
        return [row["incident_id"][:4] for row in asking.get("/api/v1/incidents", params=params).json()["rows"]]

    assert ids() == ["aaaa"]
    assert ids(state="resolved") == ["bbbb"]
    assert sorted(ids(state="all")) == ["aaaa", "bbbb"]
    assert ids(state="all", to="now-1h", **{"from": "now-90m"}) == ["aaaa"]
    assert ids(state="all", severity="page") == ["bbbb"]
    assert ids(state="all", node="sim-002") == []


def test_a_band_has_the_value_beside_its_peers(asking: TestClient[Any]) -> None:
    """In the unit of the contract, low to high in order."""
    rows = asking.get("/api/v1/incidents/aaaa/band").json()["rows"]
    assert {(row["metric"], row["unit"]) for row in rows} == {("sm_clock_mhz", "MHz")}
    banded = [row for row in rows if row["low"] is not None]
    assert banded
    assert all(row["low"] <= row["median"] <= row["high"] for row in banded)


@pytest.mark.parametrize(("kind", "begins"), [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_a_picture_of_an_incident(asking: TestClient[Any], kind: str, begins: bytes) -> None:
    """As SVG and as PNG, in both themes."""
    for theme in ("light", "dark"):
        answer = asking.get(f"/api/v1/incidents/aaaa/picture.{kind}?theme={theme}")
        assert answer.status_code == 200, answer.text
        assert answer.content.startswith(begins)
    assert asking.get(f"/api/v1/incidents/aaaa/picture.{kind}?theme=pink").status_code == 400


def test_a_job_is_told_with_its_timeline(asking: TestClient[Any]) -> None:
    """What it waited and worked, and why it ended."""
    jobs = asking.get("/api/v1/jobs?state=running").json()["rows"]
    found = asking.get(f"/api/v1/jobs/{jobs[0]['job_id']}").json()
    assert found["timeline"]
    assert found["attribution"]["verdict"]
    mine = asking.get(f"/api/v1/users/{jobs[0]['user']}").json()
    assert mine["user"] == jobs[0]["user"]


def test_a_series_says_its_unit_and_step(asking: TestClient[Any]) -> None:
    """Beside the rows, as the contract has them."""
    uuid = asking.get("/api/v1/gpus?limit=1").json()["rows"][0]["gpu_uuid"]
    told = asking.get(
        "/api/v1/series", params={"metric": "sm_clock_mhz", "id": uuid, "from": "now-1h", "step": "5m"}
    ).json()
    assert (told["unit"], told["step_s"]) == ("MHz", 300)
    assert {row["id"] for row in told["rows"]} == {uuid}


# --- caching and compression ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["nodes", "gpus", "fields", "fleet/racks", "incidents", "nodes/sim-000"])
def test_what_has_not_changed_is_not_sent_again(asking: TestClient[Any], path: str) -> None:
    """304 without a body, also in a list of tags and in its weak form."""
    first = asking.get(f"/api/v1/{path}")
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        again = asking.get(f"/api/v1/{path}", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert asking.get(f"/api/v1/{path}", headers={"If-None-Match": '"other"'}).status_code == 200


def test_answers_are_compressed_as_the_caller_can(shared: ServedSite, asking: TestClient[Any]) -> None:
    """zstd before gzip, and as they are for who knows neither."""

    def raw(accepted: str) -> tuple[str, bytes]:
        with asking.stream("GET", "/api/v1/gpus", headers={"accept-encoding": accepted}) as answer:
            return answer.headers.get("content-encoding", ""), b"".join(answer.iter_raw())

    kind, plain = raw("identity")
    assert kind == ""
    kind, body = raw("gzip")
    assert (kind, gzip.decompress(body)) == ("gzip", plain)
    kind, body = raw("gzip, zstd")
    assert (kind, zstandard.ZstdDecompressor().decompressobj().decompress(body)) == ("zstd", plain)
    assert len(body) < len(plain) / 3
