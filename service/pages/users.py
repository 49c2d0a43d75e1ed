"""``/users/{user}``: one user's jobs and incidents as a timeline: what happened, machine or code, what to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from litestar import Response
from litestar.params import FromPath

from graynode.dashboards.pages import words
from graynode.service.api import timeline
from graynode.service.api.asked import CallerHere, PageAsked, ServedHere
from graynode.service.api.jobs import read_user
from graynode.service.api.paging import Paging
from graynode.service.api.spans import Span
from graynode.service.pages.frame import AnyRequest, address, html, page_at

DAYS: Final = 30
_SHOWN: Final = 50
_SIDES: Final = {"machine": "infrastructure", "code": "application"}
"""The words of ``user_view`` as verdicts, which carry the colours."""


@page_at("/users/{user:path}")
def user(
    served: ServedHere, caller: CallerHere, request: AnyRequest, paging: PageAsked, user: FromPath[str]
) -> Response[bytes]:
    """What happened to one user's jobs in the last month, the newest first."""
    name, until = user.removeprefix("/"), served.at()
    told = read_user(served, name, Span(until - timedelta(days=DAYS), until, said=True))
    shown = timeline.part(told, Paging(min(paging.limit, _SHOWN), paging.cursor))
    rows = [{**row, "verdict": _SIDES.get(str(row.get("side")), row.get("side"))} for row in shown["rows"]]
    return html(
        served, caller, request, "user.html", user=name, days=DAYS, facts=facts(told["totals"]), rows=rows,
        notes=told.get("notes") or (),
        next=address(f"/users/{quote(name)}", {}, cursor=shown["next"]) if shown["next"] else None,
    )  # fmt: skip


def facts(totals: dict[str, Any]) -> list[tuple[str, str]]:
    """Sums as they are told, their names as words; what is none is left out."""
    return [
        (str(words.spaced(key)).capitalize(), str(words.short(value) if isinstance(value, int | float) else value))
        for key, value in totals.items()
        if value is not None and not isinstance(value, dict | list)
    ]


ROUTES: Final[tuple[Any, ...]] = (user,)
