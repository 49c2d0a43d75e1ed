"""What every exchange goes through, whatever the route: which host was asked, security headers, 304, compression."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Final, Literal

import zstandard
from litestar.config.compression import CompressionConfig
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.middleware.compression.facade import CompressionFacade
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from graynode.service.api.problems import respond, shown

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline script or style, nothing from elsewhere, in no frame."""
SECURITY: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every response. There is no CORS header at all: no other origin may read an answer."""

HSTS: Final = "max-age=31536000"
"""Where we speak TLS ourselves, for a year; never of loopback, whose other ports are other people's programs."""


class Wire:
    """Outermost layer of the application. ``hosts``: names that it answers to, without port, beside loopback's."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        headers = Headers.from_scope(scope)
        host = name_of(headers.get("host", ""))
        guarded = _secured(send, strict=scope["scheme"] == "https" and host not in LOOPBACK)
        if host not in self._hosts:
            # A page of another site can point its own name at this machine (DNS rebinding): its name gives it away.
            said = f"this server does not go by {shown(host)!r}; name it in serve.hosts"
            await _answer(421, said, scope, receive, guarded)
            return
        await self._app(scope, receive, _unchanged(guarded, headers.get("if-none-match", "")))


def name_of(host: str) -> str:
    """A ``Host`` header without its port."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() else host.strip().lower()


async def _answer(status: int, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    made = respond(status, detail)
    import msgspec

    raw = ASGIResponse(body=msgspec.json.encode(made.content), status_code=status, media_type=str(made.media_type))
    await raw(scope, receive, send)


def _secured(send: Send, *, strict: bool) -> Send:
    fixed = {**SECURITY, "Strict-Transport-Security": HSTS} if strict else SECURITY

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableScopeHeaders(message)
            for name, value in fixed.items():
                if name.lower() not in {key.lower() for key in headers}:
                    headers[name] = value
        await send(message)

    return wrapped


def _unchanged(send: Send, known: str) -> Send:
    """Answer 304 without a body where the caller has what the ``ETag`` names (RFC 9110: weak comparison)."""
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")} if known else set()
    dropped = False

    async def wrapped(message: Message) -> None:
        nonlocal dropped
        if message["type"] == "http.response.start" and tags and message["status"] == 200:
            headers = MutableScopeHeaders(message)
            tag = headers.get("etag", "").removeprefix("W/")
            if tag and (tag in tags or "*" in tags):
                dropped = True
                message["status"] = 304
                for name in ("content-length", "content-type", "content-encoding"):
                    if name in headers:
                        del headers[name]
        elif dropped and message["type"] == "http.response.body":
            if message.get("more_body"):
                return
            message["body"] = b""
        await send(message)

    return wrapped


class Zstd(CompressionFacade):
    """Zstandard frames; flushed after every write, so that a stream's events leave at once."""

    encoding = "zstd"

    def __init__(self, buffer: BytesIO, compression_encoding: Literal["zstd"] | str, config: CompressionConfig) -> None:
        self._writer = zstandard.ZstdCompressor(level=3).stream_writer(buffer, closefd=False)

    def write(self, body: bytes) -> None:
        """Compress a piece."""
        self._writer.write(body)
        self._writer.flush(zstandard.FLUSH_BLOCK)

    def close(self) -> None:
        """End the frame."""
        self._writer.flush(zstandard.FLUSH_FRAME)


COMPRESSION: Final = CompressionConfig(
    backend="zstd", compression_facade=Zstd, gzip_compress_level=5, minimum_size=500, exclude_opt_key="as_it_is"
)
"""zstd where it is known, else gzip. Routes with ``opt={"as_it_is": True}`` (the stream) are left alone."""
