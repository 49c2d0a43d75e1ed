"""Asking a Prometheus or VictoriaMetrics: paced, bounded, patient where waiting helps, plain where it does not."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx

from graynode.service.config import ConfigError
from graynode.service.prometheus import answer as prometheus_answer
from graynode.service.prometheus.answer import Answer, NotAnAnswer, ServerError, plain
from graynode.service.prometheus.refusals import Away, Busy, PrometheusError, Refused, TooMuch, judged, wait_s

MAX_BYTES: Final = 256 << 20
"""Of one unpacked answer. A million samples are 23 MB; what is larger is asked for again in two halves."""
_FIRST_PATIENCE_S: Final = 3.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the server is and how to ask it. Secrets are files, never values.

    ``rate``: queries per second at most. ``timeout_s``: the whole of one query. ``patience_s``: how long a query that
    fails is tried again.
    """

    url: str
    user: str = ""
    password_file: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    rate: float = 10.0
    timeout_s: float = 60.0
    patience_s: float = 120.0


class PrometheusClient:
    """One server. ``ConfigError`` where its address or a file of ``access`` cannot be used.

    A question raises ``Refused``, ``TooMuch`` or ``Away`` (``prometheus.refusals``).
    """

    def __init__(
        self,
        access: Access,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._access, self._base = access, checked_url(access.url)
        self._client = make_client(access)
        self._monotonic, self._sleep, self._max_bytes = monotonic, sleep, max_bytes
        self._next_at, self._met = 0.0, False
        self.queries, self.retries, self.bytes = 0, 0, 0

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def names(self, label: str, match: str, start_s: int, end_s: int) -> list[str]:
        """Values of a label among the series that ``match`` selects and that were there in that time, sorted."""
        form = {"match[]": match, "start": str(start_s), "end": str(end_s)}
        path = f"/api/v1/label/{label}/values"
        found, partial = self._answer("GET", path, form, match, prometheus_answer.names)
        if partial:
            raise Away(match, f"a partial answer: {partial}", "run again when all of its storage answers")
        return sorted(found)

    def matrix(self, query: str, start_s: int, end_s: int, step_s: int) -> Answer:
        """A range query from the first evaluation to the last, both included."""
        # VictoriaMetrics would round start and end to its own grid, were the answer cached.
        form = {"query": query, "start": str(start_s), "end": str(end_s), "step": str(step_s), "nocache": "1"}
        return self._answer("POST", "/api/v1/query_range", form, query, prometheus_answer.matrix)

    def _answer(
        self, method: str, path: str, form: dict[str, str], query: str, parse: Callable[[bytes], _Parsed]
    ) -> _Parsed:
        """Ask until there is an answer or patience ends."""
        began, attempt = self._monotonic(), 0
        while True:
            attempt += 1
            try:
                parsed = parse(self._once(method, path, form, query))
            except NotAnAnswer as error:
                failed: PrometheusError = Busy(query, str(error), "run again; if it stays, look at what is in between")
                if "web page" in str(error):
                    raise judged(query, 200, {}, b"<html") from error
            except ServerError as error:
                raise Refused(query, str(error), "the server's log says more") from error
            except Busy as error:
                failed = error
            else:
                self._met = True
                return parsed
            asked = failed.after_s if isinstance(failed, Busy) else None
            pause = wait_s(attempt, asked)
            # Who has never answered is more likely a wrong address than a server that restarts.
            patience_s = self._access.patience_s if self._met else min(self._access.patience_s, _FIRST_PATIENCE_S)
            if self._monotonic() + pause - began > patience_s:
                raise Away(query, f"{failed.said} ({attempt} tries)", failed.way_out)
            self.retries += 1
            self._sleep(pause)

    def _once(self, method: str, path: str, form: dict[str, str], query: str) -> bytes:
        """One attempt, within its deadline. Raises what ``judged`` says."""
        self._pace()
        self.queries += 1
        ends = self._monotonic() + self._access.timeout_s
        data, params = (form, None) if method == "POST" else (None, form)
        try:
            with self._client.stream(method, self._base + path, data=data, params=params) as response:
                body = self._body(response, ends, query)
        except httpx.TimeoutException as error:
            raise self._late(query) from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise Busy(query, f"not reached: {plain(str(error)) or type(error).__name__}", _UNREACHED) from error
        self.bytes += len(body)
        if response.status_code != httpx.codes.OK:
            raise judged(query, response.status_code, response.headers, body)
        return body

    def _body(self, response: httpx.Response, ends: float, query: str) -> bytes:
        """All of an answer, no more than is allowed. httpx bounds each read; a drip of bytes is bounded here."""
        parts, size = [], 0
        for part in response.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > self._max_bytes:
                raise TooMuch(query, f"more than {self._max_bytes >> 20} MiB of answer", _ASK_LESS)
            if self._monotonic() > ends:
                raise self._late(query)
        return b"".join(parts)

    def _late(self, query: str) -> TooMuch:
        late = TooMuch(query, f"no whole answer within {self._access.timeout_s:g} s", _ASK_LESS)
        late.late = True
        return late

    def _pace(self) -> None:
        now = self._monotonic()
        if now < self._next_at:
            self._sleep(self._next_at - now)
        self._next_at = max(now, self._next_at) + 1.0 / self._access.rate


_UNREACHED: Final = "is the address right, and does the server run?"
_ASK_LESS: Final = "ask for less at once: a larger --step, or fewer series by --match"


def checked_url(url: str) -> str:
    """The server's address without a slash at its end. ``ConfigError`` where it is none, or holds a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url {plain(url)}: an address is wanted, such as http://prometheus:9090")
    if parts.username or parts.password:
        raise ConfigError("--url: holds a password; give --user and --password-file instead")
    if parts.query or parts.fragment:
        raise ConfigError(f"--url {plain(url)}: give the address without what follows ? or #")
    return url.rstrip("/").removesuffix("/api/v1")


def make_client(access: Access) -> httpx.Client:
    """A client that verifies certificates, follows no redirect, and keeps loopback away from proxies."""
    headers = {"user-agent": f"graynode/{_version()}"}
    auth = None
    if access.token_file:
        headers["authorization"] = f"Bearer {_secret(access.token_file, '--token-file')}"
    if access.user or access.password_file:
        if access.token_file or not (access.user and access.password_file):
            raise ConfigError("--user and --password-file belong together, and exclude --token-file")
        auth = httpx.BasicAuth(access.user, _secret(access.password_file, "--password-file"))
    try:
        context = ssl.create_default_context(cafile=str(access.ca_file) if access.ca_file else None)
    except OSError as error:
        raise ConfigError(f"--ca-file {access.ca_file}: holds no certificates that can be read: {error}") from error
    return httpx.Client(
        timeout=httpx.Timeout(access.timeout_s, connect=min(10.0, access.timeout_s)),
        follow_redirects=False,
        verify=context,
        auth=auth,
        headers=headers,
        trust_env=urlsplit(access.url).hostname not in _LOOPBACK,
        limits=httpx.Limits(max_connections=2, max_keepalive_connections=1),
    )


def _secret(path: Path, option: str) -> str:
    try:
        text = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path}: cannot be read: {error}") from error
    if not text or not text.isprintable():
        raise ConfigError(f"{option} {path}: one line of text is wanted")
    return text


def _version() -> str:
    try:
        return version("graynode")
    except PackageNotFoundError:
        return "unknown"
