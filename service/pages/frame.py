"""What all pages share: the frame's values, the answer as HTML, and problems shown as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from graynode.dashboards.pages import render
from graynode.service.api.access import Caller
from graynode.service.api.problems import Problem
from graynode.service.api.state import Served

THEMES: Final = ("auto", "light", "dark")
THEME_COOKIE: Final = "graynode_theme"
_KEEP: Final = "private, no-store"
"""A page tells of a moment: the browser's Back asks again, and nothing stays in its cache after signing out."""

AnyRequest = Request[Any, Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


def page_at(path: str | list[str]) -> Callable[[F], HTTPRouteHandler]:
    """A GET that answers HTML, in a worker thread; unknown callers go to ``/signin``, problems are shown as a page."""
    return get(
        path, media_type="text/html", sync_to_thread=True, opt={"page": True}, include_in_schema=False,
        exception_handlers={Problem: problem_page},
    )  # fmt: skip


def frame(served: Served, caller: Caller | None, request: AnyRequest) -> dict[str, Any]:
    """Values that ``base.html`` needs."""
    theme = request.cookies.get(THEME_COOKIE, "auto")
    return {
        "theme": theme if theme in THEMES else "auto",
        "me": caller,
        "cluster": _cluster(served),
        "at": served.fleet.now().at,
        "now": served.clock(),
        "path": request.url.path,
    }


def _cluster(served: Served) -> str:
    """The cluster's name; the configured one while the lake cannot be asked, for that is to be said on a page too."""
    try:
        return served.cluster()
    except Problem:
        return served.config.cluster


def html(served: Served, caller: Caller, request: AnyRequest, template: str, **values: Any) -> Response[bytes]:  # noqa: ANN401 (rows of any table)
    """The template filled with the frame's values and these."""
    body = render(template, **frame(served, caller, request), **values)
    return Response(body.encode(), media_type="text/html", headers={"Cache-Control": _KEEP})


def problem_page(request: AnyRequest, problem: Problem) -> Response[bytes]:
    """What could not be answered, as a page; unknown callers are sent to sign in and brought back."""
    if problem.status == 401:
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        to = "/signin" if asked == "/" else f"/signin?{urlencode({'next': asked})}"
        return Response(b"", status_code=303, headers={"Location": to, "Cache-Control": _KEEP})
    served: Served = request.app.state.served
    caller = request.scope.get("user")
    body = render(
        "problem.html", **frame(served, caller if isinstance(caller, Caller) else None, request),
        title=problem.title, detail=problem.detail,
    )  # fmt: skip
    headers = {**problem.headers, "Cache-Control": _KEEP}
    return Response(body.encode(), status_code=problem.status, media_type="text/html", headers=headers)


def address(path: str, wanted: Mapping[str, str | None], **changed: str | None) -> str:
    """``path`` with those of the parameters that say something."""
    told = {key: value for key, value in {**wanted, **changed}.items() if value}
    return f"{path}?{urlencode(told)}" if told else path


def choices(values: Mapping[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Names and values of filters that have something to choose from."""
    return [(name, found) for name, found in values.items() if len(found) > 1]
