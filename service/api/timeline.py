"""A user's timeline by pages: the newest first, older ones behind a cursor; of the jobs those that a page speaks of."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from graynode.service.api.answers import Row
from graynode.service.api.paging import Paging, cursor_of, limit_of


def part(told: Row, paging: Paging) -> Row:
    """One page of ``rows`` with their ``jobs`` and ``next``; sums and notes are of the whole stretch.

    ``Problem`` 400 for a cursor that is none of this list.
    """
    rows = sorted(told["rows"], key=_key, reverse=True)
    if (after := paging.after("tsss")) is not None:
        rows = [row for row in rows if _key(row) < after]
    limit = limit_of(paging.limit)
    shown = rows[:limit]
    named = {row["job_id"] for row in shown}
    # a job that waits or runs since before the stretch has no entry: it stands on the first page
    entered = {row["job_id"] for row in told["rows"]}
    jobs = [j for j in told["jobs"] if j["job_id"] in named or (after is None and j["job_id"] not in entered)]
    return {**told, "rows": shown, "jobs": jobs, "next": cursor_of(_key(shown[-1])) if len(rows) > limit else None}


def _key(row: dict[str, Any]) -> tuple[datetime, str, str, str]:
    job = f"{row['job_id'] or ''}/{row['attempt'] if row['attempt'] is not None else ''}"
    return row["ts"], row["kind"], job, f"{row['incident_id'] or ''}{row['node'] or ''}"
