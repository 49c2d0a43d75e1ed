"""What goes wrong is told as ``application/problem+json`` (RFC 9457): type, title, status, detail. Never a traceback.

Reading functions raise ``Problem``; so do pages, which are answered as a page. Everything that nobody foresaw is logged
with its traceback here and leaves the process as "500, see the log of graynode serve".
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, InternalServerException, ValidationException
from litestar.types import ExceptionHandlersMap

MEDIA_TYPE: Final = "application/problem+json"
_SHOWN: Final = 300


class Problem(Exception):
    """An answer other than the one asked for. ``detail`` is for the person who asked, with the way out."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})

    @property
    def title(self) -> str:
        """The status in words."""
        return HTTPStatus(self.status).phrase


def shown(text: object) -> str:
    """Something a caller sent, as it may stand in an answer: bounded, without control characters."""
    return "".join(c if c.isprintable() else "�" for c in str(text))[:_SHOWN]


def body(status: int, detail: str, **more: object) -> dict[str, object]:
    """The document."""
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}


def respond(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: object) -> Response[Any]:
    """The document as a response that nobody keeps."""
    told = {"Cache-Control": "no-store", **(headers or {})}
    return Response(body(status, detail, **more), status_code=status, media_type=MEDIA_TYPE, headers=told)


def _problem(request: Request[Any, Any, Any], problem: Problem) -> Response[Any]:
    page = request.scope.get("route_handler")
    if problem.status == HTTPStatus.UNAUTHORIZED and page is not None and page.opt.get("page"):
        return Response(b"", status_code=303, headers={"Location": "/signin", "Cache-Control": "no-store"})
    return respond(problem.status, problem.detail, problem.headers)


def _validation(_request: Request[Any, Any, Any], error: ValidationException) -> Response[Any]:
    wrong = error.extra if isinstance(error.extra, list) else []
    said = "; ".join(
        f"{shown(one.get('key', ''))}: {shown(one.get('message', ''))}" for one in wrong if isinstance(one, dict)
    )
    return respond(400, said or shown(error.detail))


def _http(_request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Litestar's own: no such route, wrong method, body too large. A 5xx of it is as unforeseen as any other."""
    if isinstance(error, InternalServerException) and "disconnected" in error.detail:
        return respond(400, "the question did not come whole")  # anybody may go in the middle: no fault, no log
    if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _unforeseen(_request, error)
    return respond(error.status_code, shown(error.detail), error.headers)


def _unforeseen(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    # As text: a renderer of tracebacks that shows variables would write the caller's token into the log.
    told = "".join(traceback.format_exception(error))
    structlog.get_logger().error("request failed", path=shown(request.url.path), traceback=told)
    return respond(500, "graynode could not answer this; its log (graynode serve) says why")


HANDLERS: Final[ExceptionHandlersMap] = {
    Problem: _problem,
    ValidationException: _validation,
    HTTPException: _http,
    Exception: _unforeseen,
}
"""For the application: every exception has an answer."""
