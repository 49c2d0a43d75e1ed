"""One page over HTTP/1.1: a connection that is kept, one deadline for everything, a bound for everything.

Small on purpose: GET, no redirects, no cookies. What has come when the deadline strikes or the connection breaks is
given back as a page that was cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from graynode.collectors.dcgm.targets import Address
from graynode.collectors.dcgm.threads import addresses

MAX_PAGE: Final = 16 << 20
"""Bytes of one page; eight GPUs with every field of DCGM stay below 1 MiB."""
_MAX_HEAD: Final = 64 << 10
_CHUNK: Final = 256 << 10
_HEX: Final = re.compile(rb"[0-9a-fA-F]{1,7}")
"""Up to 256 MiB; the page's own limit is met before."""
_REFUSED: Final = {401: "not permitted", 403: "not permitted", 404: "no such path", 503: "not available"}


Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives a name's addresses; ``OSError`` where there are none."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came. ``error`` says why there is no page, or with a ``body`` why it is not whole; empty: all is well."""

    body: bytes = b""
    error: str = ""
    denied: bool = False

    @property
    def whole(self) -> bool:
        """Whether the page is all there."""
        return not self.error


class _Trouble(Exception):
    """The answer cannot be used; the text is for a person."""

    def __init__(self, said: str, *, denied: bool = False) -> None:
        super().__init__(said)
        self.denied = denied


class _Body:
    """What has come of the page, unpacked and bounded."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._gzip: zlib._Decompress | None = None

    def unpack(self, encoding: str) -> None:
        """The answer says how it is packed."""
        if encoding not in ("identity", "gzip"):
            raise _Trouble(f"content encoding {encoding[:40]!r} although none was asked for")
        self._gzip = zlib.decompressobj(wbits=31) if encoding == "gzip" else None

    def add(self, piece: bytes) -> None:
        """A piece as it came."""
        if self._gzip is not None:
            piece = self._gzip.decompress(piece, MAX_PAGE + 1 - len(self.data))
        self.data += piece
        if len(self.data) > MAX_PAGE:
            raise _Trouble(f"page of more than {MAX_PAGE} bytes")


class Client:
    """One exporter. ``fetch`` never raises but for cancellation."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, authorization: str = "", resolve: Resolve = addresses
    ) -> None:
        self._address, self._tls, self._resolve = address, tls, resolve
        more = f"Authorization: {authorization}\r\n" if authorization else ""
        self._request = (
            f"GET {address.path} HTTP/1.1\r\nHost: {address.host_header}\r\nUser-Agent: graynode\r\n"
            f"Accept: text/plain;version=0.0.4\r\nAccept-Encoding: identity\r\n{more}\r\n"
        ).encode("ascii")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def fetch(self, timeout_s: float) -> Fetched:
        """The page as it is now, all within ``timeout_s``."""
        body = _Body()
        error, denied, keep = "", False, False
        try:
            async with asyncio.timeout(timeout_s):
                keep = await self._answer(body)
        except TimeoutError:
            error = f"no whole answer within {timeout_s:g} s"
        except _Trouble as trouble:
            error, denied = str(trouble), trouble.denied
        except (OSError, EOFError, ValueError, zlib.error) as failed:
            error = _words(failed)
        finally:
            if not keep:
                self.close()
        return Fetched(bytes(body.data), error, denied)

    def close(self) -> None:
        """Let go of the connection; nothing is waited for."""
        streams, self._streams = self._streams, None
        if streams is not None:
            with contextlib.suppress(Exception):  # a transport that is broken already may say so
                streams[1].transport.abort()

    async def _answer(self, body: _Body) -> bool:
        """Fill ``body``; true if the connection may be used again."""
        kept = self._streams is not None
        try:
            head = await self._head()
        except (EOFError, ConnectionError):
            if not kept:
                raise
            self.close()  # it was closed while it was idle: an exporter that restarted
            head = await self._head()
        status, headers = parse_head(head)
        if status != 200:
            raise _Trouble(_say_status(status, headers), denied=status in (401, 403))
        reader = self._streams[0] if self._streams else asyncio.StreamReader()
        body.unpack(headers.get("content-encoding", "identity").lower())
        if "chunked" in headers.get("transfer-encoding", "").lower():
            await _read_chunks(reader, body)
        elif "content-length" in headers:
            await _read_length(reader, body, _count(headers["content-length"]))
        else:
            await _read_to_end(reader, body)
            return False
        return "close" not in headers.get("connection", "").lower()

    async def _head(self) -> bytes:
        if self._streams is None:
            self._streams = await self._connected()
        reader, writer = self._streams
        writer.write(self._request)
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise _Trouble("headers without an end") from error

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._address.host, self._address.port
        name = host if self._tls is not None else None
        found = [host] if self._address.literal else await self._resolve(host, port)
        for address in found[:-1]:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(
                    address, port, ssl=self._tls, server_hostname=name, limit=_MAX_HEAD
                )
        return await asyncio.open_connection(found[-1], port, ssl=self._tls, server_hostname=name, limit=_MAX_HEAD)


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, names in lower case. ``_Trouble`` where it is no HTTP/1 answer."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise _Trouble(f"not HTTP: {first[:60]!a}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return int(words[1][:3]), headers


def _say_status(status: int, headers: dict[str, str]) -> str:
    if 300 <= status < 400:
        to = headers.get("location", "")[:120]
        return f"answers {status}, redirecting to {to!a}: redirects are not followed, configure that address"
    more = f" ({_REFUSED[status]})" if status in _REFUSED else ""
    return f"answers {status}{more}"


async def _read_length(reader: asyncio.StreamReader, body: _Body, length: int) -> None:
    if length > MAX_PAGE:
        raise _Trouble(f"page of {length} bytes, more than {MAX_PAGE}")
    left = length
    while left:
        left -= len(await _some(reader, body, left))


async def _read_chunks(reader: asyncio.StreamReader, body: _Body) -> None:
    while True:
        digits = (await _line(reader)).split(b";")[0].strip()
        if not _HEX.fullmatch(digits):
            raise _Trouble("chunks are not well formed")
        size = int(digits, 16)
        left = size
        while left:
            left -= len(await _some(reader, body, left))
        if await _line(reader) != b"\r\n" and size:
            raise _Trouble("chunks are not well formed")
        if not size:
            return


async def _read_to_end(reader: asyncio.StreamReader, body: _Body) -> None:
    with contextlib.suppress(EOFError):
        while True:
            await _some(reader, body, _CHUNK)
    if body.data and not body.data.endswith(b"\n"):
        raise _Trouble("the page ends in the middle of a line")


async def _some(reader: asyncio.StreamReader, body: _Body, most: int) -> bytes:
    """Read a piece into ``body``; the piece as it came. ``EOFError`` at the end."""
    piece = await reader.read(min(most, _CHUNK))
    if not piece:
        raise EOFError(f"the connection was closed after {len(body.data)} bytes of the page")
    body.add(piece)
    return piece


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise _Trouble("chunks are not well formed") from error


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise _Trouble(f"content length {text[:40]!a}")
    return int(text)


def _words(failed: Exception) -> str:
    if isinstance(failed, asyncio.IncompleteReadError):
        return "the connection was closed before an answer"
    if isinstance(failed, OSError) and failed.strerror:
        return failed.strerror.lower()
    return str(failed) or type(failed).__name__
