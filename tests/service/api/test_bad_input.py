"""Bad input of every kind: each answered in words, as problem+json, and no traceback leaves the process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest
from deltalake import DeltaTable
from litestar import get
from litestar.testing import TestClient
from people_site import Site
from served_site import HOST, ServedSite

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.service.api.app import create_app

HOSTILE = [
    "<script>alert(1)</script>", "'; DROP TABLE gpu; --", '" OR ""="', "=cmd|' /C calc'!A0", "\x1b[31mred", "a" * 400,
    "Ω≈ç√", "%00", "../../etc/passwd", "\ufeff", "${jndi:ldap://x}", "a\0b",
]  # fmt: skip
PATHS = [
    "fleet",
    "fleet/history",
    "fleet/racks",
    "nodes",
    "gpus",
    "links",
    "incidents",
    "findings",
    "actions",
    "events",
    "jobs",
    "lemons",
    "capacity",
    "capacity?part=waiting",
    "capacity?part=budgets",
    "cost",
    "reliability",
    "health",
    "fields",
    "series?metric=power_w&entity=fleet",
]


@pytest.fixture(scope="module")
def client(barren: ServedSite) -> Iterator[TestClient[Any]]:
    """One for all: each start of the application costs what ten questions do."""
    barren.config.serve.tokens_file.unlink(missing_ok=True)
    barren.later = timedelta(0)
    with barren.client(barren.token("ann", "act")) as made:
        yield made


def is_problem(answer: Any) -> bool:
    told = answer.json()
    named = {"type", "title", "status", "detail"} <= told.keys() and told["status"] == answer.status_code
    return named and answer.headers["content-type"] == "application/problem+json" and "Traceback" not in answer.text


@pytest.mark.parametrize("path", PATHS)
def test_an_empty_lake_answers_with_nothing(client: TestClient[Any], path: str) -> None:
    """There is no lake yet: proper empty lists, no error."""
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    if path.startswith(("nodes", "gpus", "incidents", "jobs", "events")):
        assert answer.json()["rows"] == []


@pytest.mark.parametrize(
    "path", ["nodes/n1", "gpus/GPU-1", "incidents/abcd", "incidents/abcd/band", "incidents/abcd/picture.svg", "jobs/1"]
)
def test_an_empty_lake_has_no_such_thing(client: TestClient[Any], path: str) -> None:
    """404, not 500."""
    answer = client.get(f"/api/v1/{path}")
    assert (answer.status_code, is_problem(answer)) == (404, True)


def test_metrics_of_an_empty_lake(client: TestClient[Any]) -> None:
    """States with zero nodes; what is not known is left out."""
    told = client.get("/metrics").text
    assert 'graynode_nodes{cluster="prod",state="healthy"} 0.0' in told
    assert "graynode_data_age_seconds" not in told


def test_one_node_in_an_hour(tmp_path: Path) -> None:
    """The smallest fleet there is."""
    site = Site(tmp_path)
    site.nodes(["n1"], datetime.now(UTC) - timedelta(hours=1))
    served = ServedSite(tmp_path / "served", tmp_path / "lake")
    with served.client(served.token()) as client:
        assert [row["node"] for row in client.get("/api/v1/nodes").json()["rows"]] == ["n1"]
        for path in PATHS:
            assert client.get(f"/api/v1/{path}").status_code == 200, path
    served.close()


@pytest.mark.parametrize(
    "query",
    [
        "from=now&to=now-1h",
        "from=x",
        "to=0x10",
        "step=-1",
        "limit=0",
        "limit=-5",
        "limit=x",
        "cursor=%00",
        "cursor=WyJhIl0",
    ],
)
def test_a_wrong_range_step_limit_or_cursor_is_400(client: TestClient[Any], query: str) -> None:
    """Naming what is wrong."""
    answer = client.get(f"/api/v1/events?{query}")
    assert (answer.status_code, is_problem(answer)) == (400, True), answer.text


def test_a_huge_limit_and_ten_years_are_answered(client: TestClient[Any]) -> None:
    """Bounded, and the range says so."""
    assert client.get("/api/v1/nodes?limit=1000000000000").status_code == 200
    told = client.get("/api/v1/series?metric=power_w&entity=fleet&from=1990-01-01").json()
    assert any("ten years" in note for note in told["notes"])


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("series?metric=powr_w&entity=gpu&id=x", "power_w"),
        ("series?metric=power_w&entity=galaxy&id=x", "galaxy"),
        ("series?metric=power_w&entity=gpu", "id"),
        ("series?entity=gpu", "metric"),
        ("incidents?state=odd", "resolved"),
        ("incidents?severity=odd", "ticket"),
        ("incidents?cause=odd", "thermal"),
        ("jobs?state=odd", "running"),
        ("cost?by=odd", "category"),
        ("capacity?part=odd", "waiting"),
        ("reliability?by=odd", "week"),
        ("fields?entity=odd", "gpu"),
        ("incidents/abcd/picture.svg?theme=odd", "odd"),
    ],
)  # fmt: skip
def test_an_unknown_word_is_answered_with_those_there_are(client: TestClient[Any], path: str, says: str) -> None:
    """400 with a near match or the list."""
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code in (400, 404)
    assert is_problem(answer)
    assert says in answer.json()["detail"] or answer.status_code == 404


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_names(client: TestClient[Any], name: str) -> None:
    """Nothing is run, nothing is found, and the answer is JSON with no control characters."""
    for params in ({"q": name}, {"state": name[:50]}, {"model": name}, {"rack": name}):
        answer = client.get("/api/v1/nodes", params=params)
        assert (answer.status_code, answer.json()["rows"]) == (200, [])
    for path in ("incidents", "jobs", "findings", "actions"):
        assert client.get(f"/api/v1/{path}", params={"node": name}).status_code == 200
    for path in ("links", "events", "gpus"):
        answer = client.get(f"/api/v1/{path}", params={"node": name})
        assert (answer.status_code, is_problem(answer)) == (404, True)
        assert "\x1b" not in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/api/v1/nodes/{}", "/api/v1/gpus/{}", "/api/v1/incidents/{}", "/api/v1/jobs/{}"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_in_a_path_are_not_found(client: TestClient[Any], path: str, name: str) -> None:
    """404 or 400, never 500."""
    answer = client.get(path.format(quote(name, safe="")))
    assert answer.status_code in (400, 404), answer.text
    assert is_problem(answer)


def test_hostile_texts_of_the_lake_come_as_they_are(tmp_path: Path) -> None:
    """As JSON text: whoever shows them escapes them."""
    site = Site(tmp_path)
    now = datetime.now(UTC)
    site.nodes(["n1"], now - timedelta(hours=1))
    for number, name in enumerate(HOSTILE):
        site.incident(f"{number:08x}-0000", "n1", now, title=name)
    served = ServedSite(tmp_path / "served", tmp_path / "lake")
    with served.client(served.token()) as client:
        told = client.get("/api/v1/incidents")
        assert {row["title"] for row in told.json()["rows"]} == set(HOSTILE)
        assert told.headers["x-content-type-options"] == "nosniff"
        assert told.headers["content-type"] == "application/json"
        assert client.get("/metrics").status_code == 200
        assert client.get("/api/v1/incidents/00000000/picture.svg").status_code == 200
    served.close()


def test_a_body_that_is_too_large_is_refused(client: TestClient[Any]) -> None:
    """413, before it is read whole."""
    answer = client.post(
        "/api/v1/sql", content=b'{"sql":"' + b"x" * 200_000 + b'"}', headers={"content-type": "application/json"}
    )
    assert (answer.status_code, is_problem(answer)) == (413, True)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[1]", b'{"sql": 1}', b"\xff\xfe", b'{"sql": "SELECT 1", "x": 1}']
)
def test_a_body_that_is_none_is_refused(client: TestClient[Any], body: bytes) -> None:
    """400 in words."""
    answer = client.post("/api/v1/sql", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, is_problem(answer)) == (400, True), answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("POST", "/api/v1/nodes", 405), ("PUT", "/session", 405)]
)
def test_an_unknown_route_or_method_is_a_problem_too(
    client: TestClient[Any], method: str, path: str, status: int
) -> None:
    """Also what Litestar answers by itself."""
    answer = client.request(method, path)
    assert (answer.status_code, is_problem(answer)) == (status, True)


def test_a_fault_of_ours_tells_nothing_of_itself(barren: ServedSite, capsys: pytest.CaptureFixture[str]) -> None:
    """500 in words; the traceback is in the log, without the caller's token and without any variable."""

    @get("/api/v1/broken", sync_to_thread=True)
    def broken() -> str:
        secret = "variable" + "-value"
        raise ZeroDivisionError(len(secret))

    token = barren.token("of-the-fault")
    with TestClient(create_app(barren.served, [broken]), base_url=HOST, raise_server_exceptions=False) as client:
        answer = client.get("/api/v1/broken", headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, is_problem(answer)) == (500, True)
    assert "ZeroDivision" not in answer.text
    logged = "".join(capsys.readouterr())
    assert "ZeroDivisionError" in logged
    assert token not in logged
    assert "variable-value" not in logged


# --- the lake --------------------------------------------------------------------------------------------------


def test_a_lake_that_is_too_new_is_said(tmp_path: Path) -> None:
    """503 with the way out; readyz says no; the process lives."""
    Site(tmp_path).incident("abcd", "n1", datetime.now(UTC))
    table = DeltaTable(str(tmp_path / "lake" / "incident"))
    table.alter.set_table_properties({"graynode.contract": "99.0"}, raise_if_not_exists=False)
    served = ServedSite(tmp_path / "served", tmp_path / "lake")
    with served.client(served.token()) as client:
        answer = client.get("/api/v1/incidents")
        assert (answer.status_code, is_problem(answer)) == (503, True)
        assert "update graynode" in answer.json()["detail"]
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
    served.close()


def test_a_lake_that_is_compacted_meanwhile_is_answered(tmp_path: Path) -> None:
    """Files go between naming and reading them: every question still has its whole answer."""
    site = Site(tmp_path)
    now = datetime.now(UTC)
    for number in range(20):
        site.incident(f"{number:08x}", "n1", now - timedelta(minutes=number))
    served = ServedSite(tmp_path / "served", tmp_path / "lake")
    done = threading.Event()

    def compact() -> None:
        lake = Lake(str(tmp_path / "lake"))
        while not done.is_set():
            table = lake.table("incident")
            table.optimize.compact()
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)
            site.incident("00000000", "n1", now)

    worker = threading.Thread(target=compact)
    with served.client(served.token()) as client:
        worker.start()
        try:
            for _ in range(25):
                answer = client.get("/api/v1/incidents")
                assert answer.status_code == 200, answer.text
                assert len(answer.json()["rows"]) == 20
        finally:
            done.set()
            worker.join()
    served.close()


def test_a_question_that_takes_too_long_is_broken_off(tmp_path: Path) -> None:
    """504 at the deadline, and the next question is answered."""
    lake = Lake(str(tmp_path / "lake"))
    rows = [
        {"ts": datetime.now(UTC), "cluster": "prod", "node_id": f"n{i}", "event_id": str(i), "kind": "xid"}
        for i in range(3)
    ]
    lake.write("event", conform("event", pl.DataFrame(rows)))
    served = ServedSite(tmp_path / "served", tmp_path / "lake", deadline_s=0.3)
    from graynode.service.api.problems import Problem

    with pytest.raises(Problem) as late:
        served.served.rows("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b")
    assert late.value.status == 504
    assert served.served.rows("SELECT count(*) AS n FROM event") == [{"n": 3}]
    served.close()
    json.dumps(late.value.detail)


def test_a_lake_that_cannot_be_read_is_said_on_a_page(tmp_path: Path) -> None:
    """In words where somebody is signed in; strangers are asked for a token as always and told nothing of the lake."""
    log = tmp_path / "lake" / "event" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("garbage{")
    site = ServedSite(tmp_path / "site", tmp_path / "lake")
    site.app = create_app(site.served)
    with site.client() as client:
        answer = client.get("/signin")
        assert (answer.status_code, str(tmp_path) in answer.text) == (200, False)
    with site.client(site.token()) as client:
        answer = client.get("/jobs")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "text/html; charset=utf-8")
    site.close()


def test_who_goes_in_the_middle_of_a_question_fills_no_log(
    barren: ServedSite, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody can do so as often as they like, without a token: it is no fault of ours and has no traceback."""
    sent: list[Any] = []

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"50")]
    scope: Any = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/session", "raw_path": b"/session", "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 9405), "state": {},
    }  # fmt: skip
    asyncio.run(barren.app(scope, gone, send))
    assert sent[0]["status"] == 400
    told = capsys.readouterr()
    assert "Traceback" not in told.out + told.err
