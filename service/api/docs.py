"""The description of the API: ``/openapi.json`` for programs, ``/docs`` for people. Nothing is loaded from elsewhere.

Swagger's files are not shipped (a megabyte and a half of other people's minified code, and no page here runs inline
scripts), so ``/docs`` is a plain page made of the same description.
"""

from __future__ import annotations

from html import escape
from typing import Any, Final

import msgspec
from litestar import Request, Response, get

from graynode.service.api.answers import json, tag
from graynode.service.api.schemas import fill

_KEPT_S: Final = 86_400.0


def described(app: Any) -> dict[str, Any]:  # noqa: ANN401 (a Litestar)
    """OpenAPI 3.1 of the application, with the schema of every answer."""
    return fill(app.openapi_schema.to_schema())


@get("/openapi.json", sync_to_thread=True, include_in_schema=False)
def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The API in OpenAPI 3.1."""
    body = msgspec.json.encode(described(request.app))
    return json(body, tag(body))


@get("/docs", opt={"page": True}, sync_to_thread=True, include_in_schema=False, media_type="text/html")
def docs(request: Request[Any, Any, Any]) -> Response[str]:
    """The API as a page."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>graynode API</title>",
             "<meta name=viewport content='width=device-width'><main><h1>graynode API</h1>",
             "<p>Every request carries a token: <code>Authorization: Bearer …</code>. The same for programs: ",
             "<a href=/openapi.json>openapi.json</a>.</p>"]  # fmt: skip
    for path, item in sorted(described(request.app)["paths"].items()):
        for method, told in item.items():
            parts.append(_route(path, method, told))
    return Response("".join([*parts, "</main></html>"]), media_type="text/html", headers={"Cache-Control": "private"})


def _route(path: str, method: str, told: dict[str, Any]) -> str:
    asked = "".join(
        f"<li><code>{escape(one['name'])}</code> ({escape(one['in'])}) {escape(one.get('description', ''))}</li>"
        for one in told.get("parameters", [])
    )
    said = escape(told.get("description") or told.get("summary", ""))
    return f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2><p>{said}</p><ul>{asked}</ul>"


ROUTES: Final[tuple[Any, ...]] = (openapi, docs)
