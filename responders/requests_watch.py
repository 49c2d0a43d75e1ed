"""Holds what chat services' plugins send by ``requests`` to our rules, and sees what is answered.

apprise has a plugin a service, over a hundred, each with addresses of its own, and tells only whether it went well. So
the one place that all of them pass is watched, ``requests.Session.send``, and only for what ``watched`` runs: no
redirect is followed, plain http goes to this machine only, no more of an answer is read than is needed, and status and
``Retry-After`` are kept.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final
from urllib.parse import urlsplit

import requests

from graynode.responders.address import UnsafeUrl, check_host
from graynode.responders.answers import ANSWER_SHOWN, shown

_MOST_BYTES: Final = 1 << 20
"""Of an answer; a plugin reads a few hundred bytes of JSON."""
_lock: Final = threading.Lock()


@dataclass(slots=True)
class Seen:
    """What one notification met: the last answer that was no success, or the last at all."""

    timeout_s: float
    plain_http: bool = False
    status: int = 0
    answer: str = ""
    retry_after: str = ""
    trouble: str = ""
    requests: list[str] = field(default_factory=list)

    def took(self, status: int, answer: bytes, retry_after: str) -> None:
        """Note an answer; one that was a failure stays."""
        if self.status == 0 or 200 <= self.status < 300:
            self.status, self.retry_after = status, retry_after
            self.answer = shown(answer[:ANSWER_SHOWN]) if not 200 <= status < 300 else ""


_seen: Final[ContextVar[Seen | None]] = ContextVar("seen", default=None)


@contextlib.contextmanager
def watched(seen: Seen) -> Iterator[Seen]:
    """Everything that is sent by ``requests`` inside, in threads of apprise's own too, is held to the rules."""
    _install()
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


def _install() -> None:
    """Put the watch in place, once a process. Requests of others go through as they are."""
    with _lock:
        send = requests.Session.send
        if getattr(send, "of_graynode", False):
            return

        @wraps(send)
        def held(self: requests.Session, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # noqa: ANN401 (requests' own)
            seen = _seen.get()
            return send(self, request, **options) if seen is None else _send(send, seen, self, request, options)

        held.of_graynode = True  # type: ignore[attr-defined]  # how it is known that it is in place
        requests.Session.send = held  # type: ignore[method-assign]


def _send(
    send: Any,  # noqa: ANN401 (requests' own)
    seen: Seen,
    session: requests.Session,
    request: requests.PreparedRequest,
    options: dict[str, Any],
) -> requests.Response:
    _check(seen, request)
    end = time.monotonic() + seen.timeout_s
    given = options | {"allow_redirects": False, "stream": True, "timeout": (seen.timeout_s, seen.timeout_s)}
    try:
        response: requests.Response = send(session, request, **given)
        with contextlib.closing(response):
            response._content = _bounded(response, end)
            response._content_consumed = True  # as requests itself marks it
    except requests.RequestException as error:
        seen.trouble = (
            f"no answer within {seen.timeout_s:g} s" if isinstance(error, requests.Timeout) else "not reached"
        )
        raise
    seen.took(response.status_code, response._content, response.headers.get("retry-after", ""))
    return response


def _check(seen: Seen, request: requests.PreparedRequest) -> None:
    parts = urlsplit(request.url or "")
    seen.requests.append(parts.hostname or "")
    try:
        host = parts.hostname or ""
        check_host(host, encrypted=parts.scheme == "https", plain_http=seen.plain_http, shown=f"http://{host}")
    except UnsafeUrl as error:
        seen.trouble = str(error)
        raise requests.exceptions.InvalidURL(str(error)) from error


def _bounded(response: requests.Response, end: float) -> bytes:
    content = b""
    for chunk in response.iter_content(8192):
        content += chunk
        if len(content) >= _MOST_BYTES or time.monotonic() > end:
            break
    return content
