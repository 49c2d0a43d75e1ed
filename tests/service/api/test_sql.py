"""``POST /api/v1/sql``: off by default, read-only, bounded, and never outside the lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient
from served_site import ServedSite


@pytest.fixture(scope="module")
def client(small_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    site = ServedSite(
        tmp_path_factory.mktemp("sql"), small_lake, cluster="simulated", sql=True, sql_rows=100, sql_deadline_s=8.0,
        sql_memory="64MB",
    )  # fmt: skip
    with site.client(site.token()) as made:
        yield made
    site.close()


def ask(client: TestClient[Any], sql: str) -> Any:
    return client.post("/api/v1/sql", json={"sql": sql})


def test_it_is_off_by_default(empty: ServedSite) -> None:
    """403, and which key opens it."""
    with empty.client(empty.token()) as client:
        answer = ask(client, "SELECT 1")
    assert (answer.status_code, "serve.sql" in answer.json()["detail"]) == (403, True)


def test_a_question_is_answered(client: TestClient[Any]) -> None:
    """Rows by name, like every list."""
    told = ask(client, "SELECT count(DISTINCT gpu_uuid) AS n FROM gpu_30s").json()
    assert (told["rows"], told["truncated"]) == ([{"n": 24}], False)


def test_more_rows_than_the_limit_are_cut_and_said(client: TestClient[Any]) -> None:
    """``serve.sql_rows``."""
    told = ask(client, "SELECT * FROM range(100000)").json()
    assert (len(told["rows"]), told["truncated"]) == (100, True)


def test_a_value_that_nobody_can_tell_is_refused_in_words(client: TestClient[Any]) -> None:
    """DuckDB has days that Python has not: 400, not 500."""
    answer = ask(client, "SELECT DATE '5881580-07-10' AS day")
    assert (answer.status_code, "VARCHAR" in answer.json()["detail"]) == (400, True)


@pytest.mark.parametrize(
    "sql",
    [
        "DROP VIEW gpu_30s", "CREATE TABLE x AS SELECT 1", "INSERT INTO fields VALUES (1)",
        "COPY (SELECT 1) TO '/tmp/x.csv'",
        "ATTACH '/tmp/x.db'", "INSTALL httpfs", "LOAD httpfs", "SET memory_limit = '100GB'", "PRAGMA database_list",
        "SELECT 1; SELECT 2", "EXPORT DATABASE '/tmp/x'", "CALL enable_logging()", "",
        "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1", "EXPLAIN ANALYZE DROP VIEW gpu_30s",
    ],
)  # fmt: skip
def test_nothing_but_a_question_is_taken(client: TestClient[Any], sql: str) -> None:
    """400, whatever it would change."""
    answer = ask(client, sql)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "source",
    ["read_text('{0}')", "read_csv('{0}')", "'{0}'", "read_blob('{0}')", "read_parquet('{0}')", "glob('/etc/*')",
     "read_text('{1}/../outside.txt')", "sniff_csv('{0}')", "read_json('{0}')", "read_text('http://127.0.0.1:1/x')"],
)  # fmt: skip
def test_files_outside_the_lake_are_closed(client: TestClient[Any], small_lake: Path, source: str) -> None:
    """Whatever reads them."""
    outside = small_lake.parent / "outside.txt"
    outside.write_text("root:secret\n")
    answer = ask(client, f"SELECT * FROM {source.format(outside, small_lake)}")
    assert answer.status_code == 400, answer.text
    assert "root:secret" not in answer.text


def test_secrets_of_the_process_are_closed(client: TestClient[Any]) -> None:
    """No environment, and settings cannot be changed."""
    for sql in ("SELECT getenv('PATH') AS x", "SELECT * FROM duckdb_secrets()"):
        answer = ask(client, sql)
        assert answer.json().get("rows", []) == []


def test_a_question_that_takes_too_long_is_broken_off(client: TestClient[Any]) -> None:
    """504 after ``serve.sql_deadline_s``, and the next one is answered."""
    answer = ask(client, "SELECT count(*) FROM range(100000000) a, range(100000) b")
    assert answer.status_code == 504
    assert ask(client, "SELECT 1 AS x").json()["rows"] == [{"x": 1}]


def test_a_question_that_needs_too_much_memory_is_refused(client: TestClient[Any]) -> None:
    """400, nothing is spilled to disk, and the next one is answered."""
    answer = ask(client, "SELECT list(range) FROM range(100000000)")
    assert answer.status_code in (400, 504), answer.text
    assert ask(client, "SELECT 1 AS x").json()["rows"] == [{"x": 1}]
