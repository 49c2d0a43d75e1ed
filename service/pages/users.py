"""``/users/{user}``: one user's jobs and incidents as a timeline: what happened, machine or code, what to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from litestar import Response

from graynode.dashboards.pages import words
from graynode.service.api.access import Caller
from graynode.service.api.bounded import lake_problems
from graynode.service.api.problems import Problem
from graynode.service.api.state import Served
from graynode.service.config import ConfigError
from graynode.service.pages.frame import AnyRequest, html, page_at

DAYS: Final = 30
_SHOWN: Final = 300
_SIDES: Final = {"machine": "infrastructure", "code": "application"}
"""The words of ``user_view`` as verdicts, which carry the colours."""


@page_at("/users/{user:path}")
def user(served: Served, caller: Caller, request: AnyRequest, user: str) -> Response[bytes]:
    """What happened to one user's jobs in the last month."""
    from graynode.service import user_view

    name, until = user.removeprefix("/"), served.at()
    try:
        with lake_problems():
            told = user_view.read(served.queries, served.config, name, since=until - timedelta(days=DAYS), until=until)
    except ConfigError as error:
        raise Problem(404, str(error)) from error
    rows = sorted(told["rows"], key=lambda row: row["ts"], reverse=True)[:_SHOWN]
    return html(
        served, caller, request, "user.html", user=name, days=DAYS, facts=_facts(told["totals"]),
        rows=[
            {
                "ts": row["ts"], "what": row["what"], "job_id": row.get("job_id"), "node": row.get("node"),
                "verdict": _SIDES.get(str(row.get("side")), row.get("side")), "lost": row.get("lost_gpu_hours"),
                "advice": row.get("advice"),
            }
            for row in rows
        ],
    )  # fmt: skip


def _facts(totals: dict[str, Any]) -> list[tuple[str, str]]:
    """Sums as they are told, their names as words; what is none is left out."""
    return [
        (str(words.spaced(key)).capitalize(), str(words.short(value) if isinstance(value, int | float) else value))
        for key, value in totals.items()
        if value is not None and not isinstance(value, dict | list)
    ]


ROUTES: Final[tuple[Any, ...]] = (user,)
