"""A user's timeline comes by pages that add up to all of it, whatever is told at the same moment."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.service.api.paging import Paging
from graynode.service.api.problems import Problem
from graynode.service.api.timeline import part

T = datetime(2026, 11, 2, tzinfo=UTC)
ENTRY = st.tuples(st.integers(0, 5), st.sampled_from(("started", "ended", "incident")), st.integers(0, 6))


def _told(entries: list[tuple[int, str, int]]) -> dict[str, Any]:
    rows = [
        {"ts": T + timedelta(hours=hour), "kind": kind, "job_id": str(job), "attempt": None, "node": "n",
         "incident_id": f"i{job}" if kind == "incident" else None}
        for hour, kind, job in dict.fromkeys(entries)
    ]  # fmt: skip
    jobs = [{"job_id": job} for job in sorted({row["job_id"] for row in rows})]
    return {"rows": rows, "jobs": [*jobs, {"job_id": "runs since before"}], "totals": {"jobs": 3}}


@given(entries=st.lists(ENTRY, max_size=40), limit=st.integers(1, 9))
def test_pages_add_up(entries: list[tuple[int, str, int]], limit: int) -> None:
    """Each entry once, the newest first; every job with its entries, and those without any on the first page."""
    told, cursor, rows, jobs = _told(entries), "", [], set[str]()
    for _ in range(60):
        page = part(told, Paging(limit, cursor))
        assert page["totals"] == {"jobs": 3}
        rows += page["rows"]
        jobs |= {job["job_id"] for job in page["jobs"]}
        assert {row["job_id"] for row in page["rows"]} <= jobs
        if page["next"] is None:
            break
        cursor = page["next"]
    assert len(rows) == len(told["rows"])
    assert all(row in rows for row in told["rows"])
    assert [row["ts"] for row in rows] == sorted((row["ts"] for row in rows), reverse=True)
    assert jobs == {job["job_id"] for job in told["jobs"]}


def test_a_cursor_of_another_list_is_refused() -> None:
    """400, with the way out."""
    with pytest.raises(Problem, match="begin again without it"):
        part(_told([]), Paging(5, "abc"))
