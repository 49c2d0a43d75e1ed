"""Pages of lists."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graynode.service.api.paging import MOST, Paging, cursor_of, limit_of, page_frame, page_rows, page_sql
from graynode.service.api.problems import Problem

T0 = datetime(2026, 11, 30, tzinfo=UTC)
DATABASE = duckdb.connect(config={"threads": 1})
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(st.lists(st.tuples(NAMES, NAMES), unique=True, max_size=30), st.integers(1, 7))
def test_the_pages_of_a_frame_are_the_frame(keys: list[tuple[str, str]], limit: int) -> None:
    """Whatever the names and the size of a page: each row once, in order."""
    schema = {"node": pl.String, "node_id": pl.String}
    frame = pl.DataFrame({"node": [a for a, _ in keys], "node_id": [b for _, b in keys]}, schema)
    seen, cursor = [], ""
    while True:
        found = page_frame(frame, ("node", "node_id"), Paging(limit, cursor), None)
        seen += [(row["node"], row["node_id"]) for row in found.rows]
        if found.next is None:
            break
        cursor = found.next
    assert seen == sorted(keys, key=lambda key: (key[0].encode(), key[1].encode()))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), NAMES), unique=True, max_size=20), st.integers(1, 5))
def test_the_pages_of_a_question_are_its_answer(keys: list[tuple[int, str]], limit: int) -> None:
    """Names with quotes too, newest first; no row comes twice where times are equal."""
    schema = {"ts": pl.Datetime("us", "UTC"), "id": pl.String}
    table = pl.DataFrame({"ts": [T0 + timedelta(seconds=s) for s, _ in keys], "id": [i for _, i in keys]}, schema)
    with DATABASE.cursor() as connection:
        connection.register("told", table.to_arrow())
        seen, cursor = [], ""
        while True:
            paging = Paging(limit, cursor)
            sql = page_sql("SELECT * FROM told", ("ts", "id"), "ts", paging, newest_first=True)
            rows = connection.sql(sql).to_arrow_table().to_pylist()
            found = page_rows(rows, ("ts", "id"), paging, None)
            seen += [((row["ts"] - T0).seconds, row["id"]) for row in found.rows]
            if found.next is None:
                break
            cursor = found.next
    assert seen == sorted(keys, key=lambda key: (key[0], key[1].encode()), reverse=True)


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "!!!!",
        "WyJhIl0",
        "W10",
        "eyJhIjoxfQ",
        cursor_of((1, "a")),
        cursor_of(("a", "b", "c")),
        "é",
        "=" * 50,
        cursor_of(("now", "b")),
        cursor_of(("0001-01-01T00:00:00+14:00", "b")),
    ],
)
def test_a_broken_cursor_is_refused(cursor: str) -> None:
    """It is none of this list, whatever it decodes to."""
    with pytest.raises(Problem) as refused:
        Paging(5, cursor).after("ts")
    assert refused.value.status == 400


@given(st.text(max_size=60))
def test_any_text_is_a_cursor_or_a_problem(cursor: str) -> None:
    """Nothing else is raised."""
    with contextlib.suppress(Problem):
        Paging(5, cursor).after("ts")


def test_a_limit_is_kept_within_bounds() -> None:
    """A huge one is the most there is; none is refused."""
    assert limit_of(10**12) == MOST
    with pytest.raises(Problem):
        limit_of(0)
