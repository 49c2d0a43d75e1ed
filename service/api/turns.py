"""One caller has only so many questions under way at a time; its others wait for their turn, outside of any thread.

Questions that reckon over weeks hold a worker thread each for as long as they take. A dashboard or a script that asks
for sixty of them at once waits longer, and nobody else does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import blake2b
from http.cookies import CookieError, SimpleCookie
from typing import Final

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from graynode.service.api.access import COOKIE

AT_ONCE: Final = 8
"""A quarter of the worker threads (``serve``)."""
ALL: Final = 24
"""Shared out evenly among the callers that are there: some threads stay free for whoever comes next."""
_FREE: Final = ("/api/v1/stream", "/healthz", "/readyz")
"""They take no thread. The stream lasts; ``serve.streams`` bounds it."""


@dataclass(slots=True)
class _Line:
    here: int = 0
    running: int = 0


class Turns:
    """Layer of the application that lets ``AT_ONCE`` exchanges of a caller through, fewer where many callers share
    ``ALL`` of them, and of each at least one. A caller is its token or the token
    that its session's cookie names; whether that is true is seen behind it. Who shows neither is not held up: without a
    token there is nothing that takes long.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lines: dict[bytes, _Line] = {}
        self._ended = asyncio.Condition()
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange, in its turn."""
        who = _who(scope) if scope["type"] == ScopeType.HTTP and scope["path"].rstrip("/") not in _FREE else None
        if who is None:
            await self._app(scope, receive, send)
            return
        line = self._lines.setdefault(who, _Line())
        line.here += 1
        try:
            await self._turn(line)
            try:
                await self._app(scope, receive, send)
            finally:
                line.running -= 1
                self._running -= 1
        finally:
            line.here -= 1
            if not line.here:
                del self._lines[who]
            async with self._ended:
                self._ended.notify_all()

    async def _turn(self, line: _Line) -> None:
        """Wait until one more of this caller may run, and count it."""
        async with self._ended:
            await self._ended.wait_for(lambda: self._may(line))
            line.running += 1
            self._running += 1

    def _may(self, line: _Line) -> bool:
        share = min(AT_ONCE, ALL // len(self._lines))
        return not line.running or (line.running < share and self._running < ALL)


def _who(scope: Scope) -> bytes | None:
    headers = Headers.from_scope(scope)
    told = headers.get("authorization", "")
    if not told:
        told = _cookie(headers.get("cookie", "")).partition("|")[0]
    return blake2b(told.encode(errors="surrogateescape"), digest_size=16).digest() if told else None


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value
