"""``/session``: a browser shows its token once and gets a cookie for it. See ``access`` for what the cookie is."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import JSONBody
from msgspec import Meta

from graynode.service.api.access import COOKIE, CSRF_COOKIE, Gate
from graynode.service.api.asked import CallerHere, ServedHere
from graynode.service.api.problems import Problem
from graynode.service.api.state import Served


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """A token, as ``graynode token create`` printed it."""

    token: Annotated[str, Meta(max_length=500)]


class Session(msgspec.Struct):
    """Who is signed in. ``csrf`` goes into the header ``X-CSRF-Token`` of every change."""

    name: str
    scope: str
    csrf: str


@post("/session", opt={"public": True}, sync_to_thread=False, status_code=200)
def sign_in(served: ServedHere, request: Request[Any, Any, Any], data: JSONBody[SignIn]) -> Response[Session]:
    """Begin a session. JSON only: a form of another site cannot send that, to sign somebody in under another's name."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise Problem(415, "the token comes as application/json")
    now = served.clock()
    gate: Gate = request.app.state.gate
    cookie, caller, ends = gate.open_session(data.token.strip(), now)
    secure, age = _over_tls(served, request), int((ends - now).total_seconds())
    cookies = [
        Cookie(COOKIE, value=cookie, httponly=True, samesite="strict", secure=secure, max_age=age),
        Cookie(CSRF_COOKIE, value=caller.csrf, httponly=False, samesite="strict", secure=secure, max_age=age),
    ]
    told = Session(caller.name, caller.scope, caller.csrf)
    return Response(told, cookies=cookies, headers={"Cache-Control": "no-store"})


@get("/session", sync_to_thread=False)
def signed_in(caller: CallerHere) -> Response[Session]:
    """Who is signed in."""
    return Response(Session(caller.name, caller.scope, caller.csrf), headers={"Cache-Control": "no-store"})


@delete("/session", opt={"scope": "read"}, sync_to_thread=False, status_code=200)
def sign_out() -> Response[dict[str, bool]]:
    """End the session in this browser."""
    gone = [Cookie(name, value="", samesite="strict", max_age=0) for name in (COOKIE, CSRF_COOKIE)]
    return Response({"signed_out": True}, cookies=gone, headers={"Cache-Control": "no-store"})


def _over_tls(served: Served, request: Request[Any, Any, Any]) -> bool:
    """Whether the browser speaks TLS: with us, or with the proxy in front that ``plain_http`` permits."""
    proxied = served.config.serve.plain_http and request.headers.get("x-forwarded-proto", "") == "https"
    return request.url.scheme == "https" or proxied


ROUTES: Final[tuple[Any, ...]] = (sign_in, signed_in, sign_out)
