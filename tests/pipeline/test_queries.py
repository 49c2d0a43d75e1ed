"""Questions to the lake: complete, current, pruned, and never able to change anything."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lake_files import LakeFiles

from graynode.pipeline.queries import Queries, QueryError
from graynode.pipeline.schema import TABLES

T = datetime(2026, 11, 2, 12, tzinfo=UTC)
KEYS = {"cluster": "c", "node_id": "n1", "node": "node1"}


@pytest.fixture
def lake(tmp_path: Path) -> LakeFiles:
    return LakeFiles(tmp_path)


@pytest.fixture
def queries(lake: LakeFiles) -> Iterator[Queries]:
    made = Queries(lake)
    yield made
    made.close()


def test_every_table_is_there_though_empty(queries: Queries) -> None:
    """On an empty lake every contract table answers, with all its columns and no rows."""
    for table in TABLES.values():
        answer = queries.arrow(f'SELECT * FROM "{table.name}"')
        assert answer.num_rows == 0
        assert answer.column_names == ["date", *table.names]
        macro = f"SELECT count(*) n FROM \"{table.name}\"('2026-01-01', now())"
        assert queries.rows(macro) == [{"n": 0}]


def test_answers_follow_commits(lake: LakeFiles, queries: Queries) -> None:
    """A row committed after the first question is in the next answer."""
    lake.put("host", [{**KEYS, "ts": T, "load1": 1.0}])
    assert queries.rows("SELECT count(*) n FROM host") == [{"n": 1}]
    lake.put("host", [{**KEYS, "ts": T + timedelta(seconds=1), "load1": 2.0}])
    assert queries.rows("SELECT max(load1) m FROM host") == [{"m": 2.0}]


def test_files_of_an_older_contract(lake: LakeFiles, queries: Queries) -> None:
    """Columns that an older file lacks are null, in whichever order the files come."""
    lake.put("host", [{**KEYS, "ts": T, "load1": 1.0}], drop=["agent_version", "load1"])
    lake.put("host", [{**KEYS, "ts": T, "load1": 2.0}])
    assert queries.rows("SELECT load1 FROM host ORDER BY load1 NULLS FIRST") == [{"load1": None}, {"load1": 2.0}]


def test_macro_prunes_on_date(lake: LakeFiles, queries: Queries) -> None:
    """``host(since, until)`` gives exactly that half-open time and opens only files of those days."""
    days = [T + timedelta(days=d) for d in range(5)]
    lake.put("host", [{**KEYS, "ts": day} for day in days])
    sql = f"SELECT ts FROM host('{days[1]}', '{days[3]}') ORDER BY ts"
    assert [row["ts"] for row in queries.rows(sql)] == days[1:3]
    plan = str(queries.ask(f"EXPLAIN {sql}").fetchall())
    assert "Scanning Files: 3/5" in plan


def test_told_twice_is_shown_once(lake: LakeFiles, queries: Queries) -> None:
    """The bus may bring an event or an incident's revision twice; SQL shows it once, macros too."""
    event = {**KEYS, "ts": T, "event_id": "e1", "kind": "xid", "code": 79}
    lake.put("event", [event, event])
    lake.put("event", [event, {**event, "event_id": "e2"}])
    revisions = [
        {**KEYS, "ts": T, "incident_id": "i", "revision": r, "state": s} for r, s in ((1, "open"), (2, "resolved"))
    ]
    lake.put("incident", [*revisions, revisions[0]])
    assert queries.rows("SELECT count(*) n FROM event") == [{"n": 2}]
    assert queries.rows(f"SELECT count(*) n FROM event('{T}', '{T + timedelta(days=1)}')") == [{"n": 2}]
    assert queries.rows("SELECT count(*) n FROM incident") == [{"n": 2}]
    assert queries.rows("SELECT state FROM incident_now") == [{"state": "resolved"}]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW host",
        "COPY (SELECT 1) TO '{root}/x.csv'",
        "ATTACH '{root}/x.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "PRAGMA database_list",
        "SELECT 1; DROP VIEW host",
        "INSERT INTO host SELECT * FROM host",
        "EXPORT DATABASE '{root}/x'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{root}/x.csv'",
        "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{root}/x.csv'",
        "EXPLAIN /* so */ ANALYZE COPY (SELECT 1) TO '{root}/x.csv'",
        "/* a */ explain analyze CREATE OR REPLACE VIEW host AS SELECT 1",
        "EXPLAIN ANALYZE DROP VIEW host",
        "EXPLAIN CREATE TABLE t AS SELECT 1",
    ],
)
def test_changing_anything_is_refused(lake: LakeFiles, queries: Queries, sql: str) -> None:
    """Whatever is not a question is refused, and nothing appears in the lake."""
    before = sorted(Path(lake.path).rglob("*"))
    with pytest.raises(QueryError):
        queries.ask(sql.format(root=lake.path))
    assert sorted(Path(lake.path).rglob("*")) == before


@pytest.mark.parametrize("source", ["read_text('/etc/passwd')", "'/etc/passwd'", "glob('/etc/*')"])
def test_other_files_are_out_of_reach(queries: Queries, source: str) -> None:
    """SQL reads the lake's folder and nothing else of the machine."""
    with pytest.raises(QueryError):
        queries.arrow(f"SELECT * FROM {source}")


def test_wrong_statement_is_explained(queries: Queries) -> None:
    """A misspelt column is said in DuckDB's words, as our error."""
    with pytest.raises(QueryError, match="load1"):
        queries.ask("SELECT lod1 FROM host")


class Watched:
    """A lake that remembers which tables' files were asked for."""

    def __init__(self, lake: LakeFiles) -> None:
        self._lake, self.opened = lake, set[str]()

    @property
    def path(self) -> str:
        return self._lake.path

    def version(self, table: str) -> int:
        return self._lake.version(table)

    def files(self, table: str, since: datetime | None = None, until: datetime | None = None) -> list[str]:
        self.opened.add(table)
        return self._lake.files(table, since, until)


def test_only_what_a_question_names_is_opened(lake: LakeFiles) -> None:
    """Files of other tables stay closed; what a view is made of counts as named; a list of all names wants all."""
    watched = Watched(lake)
    queries = Queries(watched)
    queries.rows('SELECT count(*) FROM "HOST"')
    assert watched.opened == {"host"}
    queries.rows("SELECT count(*) FROM incident_now")
    assert watched.opened == {"host", "incident"}
    queries.rows("SELECT count(*) FROM quality_now")
    assert {"quality", "inventory"} <= watched.opened
    assert "gpu_1h" not in watched.opened
    found = queries.rows("SELECT view_name FROM duckdb_views() WHERE view_name IN ('gpu_1h', 'attribution_now')")
    assert len(found) == 2
    with pytest.raises(QueryError, match='Did you mean "incident'):
        queries.rows("SELECT * FROM incidentt")
    queries.close()
