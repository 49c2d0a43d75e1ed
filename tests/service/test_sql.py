"""``graynode sql``: forms of answers, and the prompt's parts."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lake_files import LakeFiles
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from graynode.pipeline.queries import Queries
from graynode.service.sql import write
from graynode.service.sql_prompt import SqlCompleter

T = datetime(2026, 11, 2, 12, tzinfo=UTC)


@pytest.fixture
def queries(tmp_path: Path) -> Iterator[Queries]:
    lake = LakeFiles(tmp_path)
    lake.put(
        "host", [{"ts": T, "cluster": "c", "node": "=cmd|'x'", "load1": 0.5}, {"ts": T, "node": "[red]b[/]\x1b[31m"}]
    )
    made = Queries(lake)
    yield made
    made.close()


def answer(queries: Queries, form: str, sql: str = "SELECT ts, node, load1 FROM host ORDER BY node") -> str:
    sink = io.StringIO()
    write(queries.ask(sql), form, sink)
    return sink.getvalue()


def test_json_is_one_object_a_line(queries: Queries) -> None:
    """JSON lines keep null as null and time as ISO 8601."""
    first = json.loads(answer(queries, "json").splitlines()[0])
    assert first == {"ts": "2026-11-02T12:00:00Z", "node": "=cmd|'x'", "load1": 0.5}
    assert json.loads(answer(queries, "json").splitlines()[1])["load1"] is None


def test_csv_has_a_header_and_empty_nulls(queries: Queries) -> None:
    """CSV names its columns; null is empty, not zero."""
    lines = answer(queries, "csv").splitlines()
    assert lines[0] == "ts,node,load1"
    assert lines[2].endswith(",")


def test_table_shows_names_as_text(queries: Queries) -> None:
    """A hostile name can neither colour the terminal nor be taken for markup."""
    shown = answer(queries, "table")
    assert "[red]b[/]" in shown
    assert "\x1b" not in shown
    assert "(2 rows)" in shown


def test_table_says_when_it_is_cut(queries: Queries) -> None:
    """More rows than fit a screenful are counted as more, and the way out is named."""
    assert "more than 1000 rows" in answer(queries, "table", "SELECT * FROM range(2000)")


def test_completion_knows_the_columns_of_named_tables(queries: Queries) -> None:
    """After FROM host, ``lo`` completes to load1; tables and keywords complete too."""
    complete = SqlCompleter(dict(queries.names())).get_completions

    def words(text: str, at: int | None = None) -> set[str]:
        return {c.text for c in complete(Document(text, at), CompleteEvent())}

    assert "load1" in words("SELECT lo FROM host", 9)
    assert "gpu_30s" in words("SELECT * FROM gpu_")
    assert ".schema" in words(".sch")


def test_wide_answer_is_shown_row_by_row(queries: Queries) -> None:
    """More columns than a screen has are shown as records, nulls left out."""
    shown = answer(queries, "table", "SELECT * FROM host WHERE load1 IS NOT NULL")
    assert "row 1, 5 of" in shown
    assert "load1" in shown
    assert "swap_used_bytes" not in shown
