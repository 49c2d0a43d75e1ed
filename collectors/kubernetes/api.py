"""The Kubernetes API over HTTP as a pod sees it: one GET with a deadline and a bound, and a stream of lines.

``http.client`` of the standard library and no Kubernetes library: two kinds of request are made, and what comes back is
decoded to the few fields that are wanted (``objects.py``). lightkube would bring httpx, PyYAML and models of
the whole API into every node's agent.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token and the API server's CA."""
MOST_BYTES: Final = 64 << 20
"""A page of 500 objects of the largest size that etcd takes (1.5 MiB) would be more; real pages are a tenth of it."""
MOST_LINE: Final = 4 << 20
_CHUNK: Final = 1 << 16
_GONE: Final = 410
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""Asks for an object's metadata alone: the answer holds no specification and no secret."""


class ApiError(Exception):
    """The API server refused or failed; ``status`` is 0 where there was no answer."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s

    @property
    def refused(self) -> bool:
        """Whether it is a matter of permission, so that asking again soon is of no use."""
        return self.status in (401, 403)

    @property
    def expired(self) -> bool:
        """Whether the resource version that was asked for is no longer kept."""
        return self.status == _GONE


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is and who asks. The token is read anew for each request: it is rotated."""

    url: str
    token_file: Path | None = _ACCOUNT / "token"
    ca_file: Path | None = _ACCOUNT / "ca.crt"
    timeout_s: float = 10.0
    """For the connection and each answer that is no stream."""
    silence_s: float = 180.0
    """A stream that gives nothing for so long is hung: the server sends a bookmark about once a minute."""


def in_cluster(env: Mapping[str, str]) -> str:
    """The API server's address as the kubelet tells it to each pod, empty outside of a pod."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return ""
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError as error:
        raise ValueError(f"kubernetes.api = {url!r}: must be https://host:port, the port a number") from error


class Api:
    """Requests with ``access``. All methods may be called from any thread; ``ApiError`` for whatever goes wrong."""

    def __init__(self, access: Access, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._access, self._monotonic = access, monotonic
        parts = urlsplit(access.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"kubernetes.api = {access.url!r}: must be https://host:port")
        self._secure, self._host = parts.scheme == "https", parts.hostname
        if not self._secure and not _is_loopback(self._host):
            raise ValueError(f"kubernetes.api = {access.url!r}: the token would go in clear text; use https")
        self._port, self._base = _port(access.url) or (443 if self._secure else 80), parts.path.rstrip("/")
        self._tls: tuple[int, ssl.SSLContext] | None = None

    def get(self, path: str, query: Mapping[str, str] | None = None, accept: str = "application/json") -> bytes:
        """The whole answer."""
        end = self._monotonic() + self._access.timeout_s
        with _our_errors(), closing(self._connection(self._access.timeout_s)) as connection:
            answer = self._ask(connection, path, query or {}, accept)
            body = bytearray()
            while True:
                left = end - self._monotonic()
                if left <= 0:
                    raise ApiError(0, f"{path}: the answer was not whole within {self._access.timeout_s:g} s")
                _patience(connection, left)
                some = answer.read1(_CHUNK)
                if not some:
                    break
                body += some
                if len(body) > MOST_BYTES:
                    raise ApiError(0, f"{path}: an answer of more than {MOST_BYTES} bytes")
            if answer.length:
                raise ApiError(0, f"{path}: the answer was cut")
            return bytes(body)

    def lines(self, path: str, query: Mapping[str, str]) -> AbstractContextManager[Lines]:
        """A stream of lines, for ``with``; leaving it ends the stream."""
        return self._lines(path, query)

    @contextmanager
    def _lines(self, path: str, query: Mapping[str, str]) -> Iterator[Lines]:
        with _our_errors(), closing(self._connection(self._access.timeout_s)) as connection:
            answer = self._ask(connection, path, query, "application/json")
            _patience(connection, self._access.silence_s)
            yield Lines(connection, answer)

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._context())
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _context(self) -> ssl.SSLContext:
        """Trusts the CA file as it is now; it is replaced when the cluster's CA is rotated."""
        ca = self._access.ca_file
        try:
            stamp = ca.stat().st_mtime_ns if ca else 0
            if self._tls is None or self._tls[0] != stamp:
                self._tls = (stamp, ssl.create_default_context(cafile=str(ca) if ca else None))
        except OSError as error:
            raise ApiError(0, f"{ca}: {error.strerror or error}; the API server cannot be verified") from error
        return self._tls[1]

    def _ask(
        self, connection: http.client.HTTPConnection, path: str, query: Mapping[str, str], accept: str
    ) -> http.client.HTTPResponse:
        headers = {"Accept": accept, "User-Agent": "graynode-agent"}
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.connect()
        _keep_alive(connection.sock)
        connection.request(
            "GET", f"{self._base}{path}?{urlencode(query)}" if query else self._base + path, None, headers
        )
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise _refusal(path, answer)
        return answer

    def _token(self) -> str:
        file = self._access.token_file
        if file is None:
            return ""
        try:
            return "".join(file.read_text(encoding="ascii").split())
        except (OSError, UnicodeDecodeError) as error:
            raise ApiError(401, f"{file}: no token can be read: {error}") from error


class Lines:
    """Lines as they arrive. ``interrupt`` from another thread ends a wait."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self._connection, self._answer = connection, answer
        self._rest = bytearray()

    def arrive(self) -> list[bytes] | None:
        """The next whole lines (none, if only a part has come), ``None`` at the stream's end. A last line without an
        end is cut: it is no line."""
        some = self._answer.read1(_CHUNK)
        if not some:
            return None
        self._rest += some
        *whole, rest = self._rest.split(b"\n")
        if len(rest) > MOST_LINE:
            raise ApiError(0, f"a line of more than {MOST_LINE} bytes")
        self._rest = rest
        return [bytes(line) for line in whole if line.strip()]

    def interrupt(self) -> None:
        """End the stream."""
        sock = self._connection.sock
        with suppress(OSError, AttributeError):
            sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ApiError(0, "the API server does not answer") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ApiError(0, f"the API server cannot be asked: {type(error).__name__}: {said}"[:300]) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _patience(connection: http.client.HTTPConnection, timeout_s: float) -> None:
    if connection.sock is not None:  # an answer that ends with the connection has taken the socket along
        connection.sock.settimeout(timeout_s)


def _keep_alive(sock: socket.socket) -> None:
    """Let the kernel find out that the other side is gone without a word (its machine died), within a minute."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _refusal(path: str, answer: http.client.HTTPResponse) -> ApiError:
    """What a ``Status`` object says, or the first words of what is none."""
    text = answer.read(4096).decode("utf-8", "replace")
    try:
        said = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = text
    after = answer.headers.get("Retry-After", "")
    plain = "".join(c if c.isprintable() else " " for c in str(said))[:200].strip()
    return ApiError(
        answer.status,
        f"{path}: HTTP {answer.status}: {plain or answer.reason}",
        float(after) if after.isdecimal() and len(after) < 5 else 0.0,
    )
